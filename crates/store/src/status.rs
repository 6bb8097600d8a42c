//! What the API answers when it does not do what was asked: a Status object with code, reason, causes and
//! field paths, in the words that clients of Kubernetes compare.

use std::fmt;

use plan::validate::FieldErrorType;
use serde_json::{Value, json};

use crate::kinds::Kind;

/// A refusal, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The HTTP status code.
    pub code: u16,
    /// The word for programs, as `NotFound`.
    pub reason: &'static str,
    /// The sentence for people.
    pub message: String,
    /// What it is about, and every cause.
    pub details: Value,
}

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The word for programs, as `FieldValueInvalid`.
    pub reason: &'static str,
    /// The sentence for people.
    pub message: String,
    /// The field's path, as `spec.ports[0].port`.
    pub field: String,
}

impl Cause {
    /// A value that cannot stand there.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(FieldErrorType::Invalid, field, message)
    }

    /// A field that is wrong in some way. Clients look for the words of each way, so they head the sentence; what is
    /// merely invalid says so itself.
    pub fn new(fault: FieldErrorType, field: impl Into<String>, message: impl Into<String>) -> Self {
        let message = message.into();
        let message = match fault {
            FieldErrorType::Invalid => message,
            _ if message.is_empty() => fault.prefix().to_owned(),
            _ => format!("{}: {message}", fault.prefix()),
        };
        Self { reason: fault.reason(), message, field: field.into() }
    }
}

impl Failure {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    /// 400: the request cannot be read.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: nobody whom we know.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized: use the kubeconfig that `zoneward up` wrote")
    }

    /// 403: this caller may not do that.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 403 for something that may never be done to this object.
    pub fn forbidden_object(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", kind.qualified());
        Self::forbidden(message).about(kind, name)
    }

    /// 404 for a path that leads nowhere. Its details are empty and there, as those of an API server: kubectl reads them
    /// without looking whether there are any.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: json!({}), ..Self::new(404, "NotFound", message) }
    }

    /// 404 for an object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::new(404, "NotFound", message).about(kind, name)
    }

    /// 405: that verb is not for this path.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 406: none of the asked representations is served.
    pub fn not_acceptable(offered: &str) -> Self {
        let message =
            format!("only the following media types are accepted: {offered}; ask for application/json");
        Self::new(406, "NotAcceptable", message)
    }

    /// 409: a name that is taken.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    /// 409: somebody else was faster, or the object is not in the state that the caller thinks.
    pub fn conflict(kind: &Kind, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// 409 of a delete whose preconditions do not hold; API servers name the kind here and not the resource.
    pub fn precondition(kind: &Kind, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified_kind());
        let mut failure = Self::new(409, "Conflict", message).about(kind, name);
        failure.details["kind"] = kind.kind.into();
        failure
    }

    /// 409 of a write that was based on an old version.
    pub fn modified(kind: &Kind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// 410: older than what is kept.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413: too large.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit} bytes");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 415: a body of a type that is not read here.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422: the object was read and is refused, with every cause.
    pub fn invalid(kind: &Kind, name: &str, causes: &[Cause]) -> Self {
        let message = format!("{} {name:?} is invalid: {}", kind.qualified_kind(), told(causes));
        let mut failure = Self::new(422, "Invalid", message).about(kind, name);
        failure.details["kind"] = kind.kind.into();
        failure.details["causes"] = causes.iter().map(Cause::to_json).collect();
        failure
    }

    /// 422: the options of a request (`ListOptions` and its kin) are refused, with every cause.
    pub fn invalid_options(options: &str, causes: &[Cause]) -> Self {
        let group = "meta.k8s.io";
        let message = format!("{options}.{group} \"\" is invalid: {}", told(causes));
        let mut failure = Self::new(422, "Invalid", message);
        let causes: Value = causes.iter().map(Cause::to_json).collect();
        failure.details = json!({"group": group, "kind": options, "causes": causes});
        failure
    }

    /// 422 without causes: a patch that does not fit the object.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// 429: more than this machine wants to do at once.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut failure = Self::new(429, "TooManyRequests", message);
        failure.details = json!({"retryAfterSeconds": 1});
        failure
    }

    /// 500: our fault, or the disk's.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// 504: a version that was not reached in time.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut failure = Self::new(504, "Timeout", message);
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        failure.details = json!({"causes": [cause], "retryAfterSeconds": 1});
        failure
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.details = json!({"name": name, "kind": kind.plural});
        if let (true, Some(details)) = (name.is_empty(), self.details.as_object_mut()) {
            details.shift_remove("name");
        }
        if !kind.group.is_empty() {
            self.details["group"] = kind.group.into();
        }
        self
    }

    /// The Status object.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

impl Cause {
    fn to_json(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

/// All causes in one sentence.
fn told(causes: &[Cause]) -> String {
    let sentences: Vec<String> =
        causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match sentences.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Failure {}

/// The Status that says that an object is gone.
pub fn deleted(kind: &Kind, name: &str, uid: &Value) -> Value {
    let mut details = json!({"name": name, "kind": kind.plural, "uid": uid});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    #[test]
    fn an_invalid_object_is_told_every_cause_with_its_field() {
        let service = kinds::find("", "v1", "services").unwrap();
        let causes = [Cause::invalid("spec.ports", "needs one"), Cause::invalid("spec.type", "unknown")];
        let status = Failure::invalid(service, "web", &causes).to_json();
        assert_eq!(
            status["message"],
            "Service \"web\" is invalid: [spec.ports: needs one, spec.type: unknown]"
        );
        assert_eq!(status["details"]["causes"][1]["field"], "spec.type");
        assert_eq!(status["code"], 422);
    }

    #[test]
    fn a_missing_object_is_named_with_its_group() {
        let slices = kinds::find("discovery.k8s.io", "v1", "endpointslices").unwrap();
        let status = Failure::not_found(slices, "web-x").to_json();
        assert_eq!(status["message"], "endpointslices.discovery.k8s.io \"web-x\" not found");
        assert_eq!(status["details"]["group"], "discovery.k8s.io");
        assert_eq!(status["reason"], "NotFound");
    }
}
