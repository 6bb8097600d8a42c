//! Errors of the API as Status objects: code, reason, causes and field paths, in the words of kube-apiserver, which
//! clients compare.

use std::fmt;

use apimachinery::validate::FieldErrorType;
use serde_json::{Value, json};

use crate::kinds::ResourceKind;
use crate::object_size::MAX_OBJECT;

/// An error of the API.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusError {
    /// The HTTP status code.
    pub code: u16,
    /// Machine-readable, such as `NotFound`.
    pub reason: &'static str,
    /// Human-readable.
    pub message: String,
    /// The object and the causes.
    pub details: Value,
}

/// One problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// Human-readable.
    pub message: String,
    /// The path of the field, such as `spec.ports[0].port`.
    pub field: String,
}

impl Cause {
    /// An invalid value.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(FieldErrorType::Invalid, field, message)
    }

    /// A fault of a field. Clients look for the words of the fault, so the message starts with them.
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

impl StatusError {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: the caller is not authenticated.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized: use the kubeconfig that `zoneward up` wrote")
    }

    /// 401 for credentials that were valid, and why they are not any more.
    pub fn credentials_ended(why: &str) -> Self {
        Self::new(401, "Unauthorized", format!("Unauthorized: {why}"))
    }

    /// 403: the caller is not authorized.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 403 for an operation that is never allowed on this object.
    pub fn forbidden_object(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", kind.qualified());
        Self::forbidden(message).about(kind, name)
    }

    /// 404 for an unknown path. The details are empty but present, because kubectl reads them.
    pub fn no_such_path() -> Self {
        Self::not_served("the server could not find the requested resource")
    }

    /// 404 for a path that Kubernetes serves and this API does not, with the reason.
    pub fn not_served(message: &str) -> Self {
        Self { details: json!({}), ..Self::new(404, "NotFound", message) }
    }

    /// 404 for an object.
    pub fn not_found(kind: &ResourceKind, name: &str) -> Self {
        let message = format!("{} {name:?} not found", kind.qualified());
        Self::new(404, "NotFound", message).about(kind, name)
    }

    /// 405: the path does not support the verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 406: none of the accepted media types is served.
    pub fn not_acceptable(offered: &str) -> Self {
        let message =
            format!("only the following media types are accepted: {offered}; ask for application/json");
        Self::new(406, "NotAcceptable", message)
    }

    /// 409: the name is taken.
    pub fn already_exists(kind: &ResourceKind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message).about(kind, name)
    }

    /// 409: a concurrent write, or a failed precondition.
    pub fn conflict(kind: &ResourceKind, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// 409 of an apply: other managers own fields that it would change.
    pub fn apply_conflict(message: String, causes: Vec<Value>) -> Self {
        Self { details: json!({"causes": causes}), ..Self::new(409, "Conflict", message) }
    }

    /// 409 of a delete with failed preconditions; kube-apiserver names the kind here and not the resource.
    pub fn precondition(kind: &ResourceKind, name: &str, why: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified_kind());
        let mut error = Self::new(409, "Conflict", message).about(kind, name);
        error.details["kind"] = kind.kind.into();
        error
    }

    /// 409 of a write based on an old version.
    pub fn modified(kind: &ResourceKind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// 410: the resourceVersion is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413: the object is larger than one may be; `None` if its size is not known.
    pub fn object_too_large(size: Option<usize>) -> Self {
        let size = size.map_or("more".to_owned(), |size| format!("{size} bytes"));
        let message = format!(
            "Request entity too large: the object has {size} as JSON with its defaults, limit is {MAX_OBJECT} bytes"
        );
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 413: the body is too large.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit} bytes");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    /// 415: the media type of the body is not supported.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422: the object is invalid.
    pub fn invalid(kind: &ResourceKind, name: &str, causes: &[Cause]) -> Self {
        let message = format!("{} {name:?} is invalid: {}", kind.qualified_kind(), joined(causes));
        let mut error = Self::new(422, "Invalid", message).about(kind, name);
        error.details["kind"] = kind.kind.into();
        error.details["causes"] = causes.iter().take(MAX_CAUSES).map(Cause::to_json).collect();
        error
    }

    /// 422: the options of a request, such as `ListOptions`, are invalid.
    pub fn invalid_options(options: &str, causes: &[Cause]) -> Self {
        let group = "meta.k8s.io";
        let message = format!("{options}.{group} \"\" is invalid: {}", joined(causes));
        let mut error = Self::new(422, "Invalid", message);
        let causes: Value = causes.iter().map(Cause::to_json).collect();
        error.details = json!({"group": group, "kind": options, "causes": causes});
        error
    }

    /// 422 for a patch whose result cannot be read: as the error of a body, about the field `patch`.
    pub fn of_patch(self) -> Self {
        if self.code != 400 {
            return self;
        }
        let cause = Cause::invalid("patch", format!("Invalid value: {}", self.message));
        let mut error =
            Self::new(422, "Invalid", format!(" \"\" is invalid: {}: {}", cause.field, cause.message));
        error.details = json!({"causes": [cause.to_json()]});
        error
    }

    /// 422 without causes, such as a patch that does not apply.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(422, "Invalid", message)
    }

    /// 429: a limit is reached.
    pub fn too_many_requests(message: impl Into<String>) -> Self {
        let mut error = Self::new(429, "TooManyRequests", message);
        error.details = json!({"retryAfterSeconds": 1});
        error
    }

    /// 408: the body of the request did not come in time.
    pub fn body_timeout(seconds: u64) -> Self {
        Self::new(408, "Timeout", format!("the body of the request was not complete within {seconds} s"))
    }

    /// 500: a bug, or a failed disk.
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// 500 without a reason, as kube-apiserver answers an apply that does not fit the schema.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// 504: the resourceVersion is in the future.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut error = Self::new(504, "Timeout", message);
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        error.details = json!({"causes": [cause], "retryAfterSeconds": 1});
        error
    }

    fn about(mut self, kind: &ResourceKind, name: &str) -> Self {
        self.details = json!({"name": name, "kind": kind.plural});
        if let (true, Some(details)) = (name.is_empty(), self.details.as_object_mut()) {
            details.shift_remove("name");
        }
        if !kind.group.is_empty() {
            self.details["group"] = kind.group.into();
        }
        self
    }

    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let (true, Some(status)) = (self.reason.is_empty(), status.as_object_mut()) {
            status.shift_remove("reason");
        }
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

/// Causes that are listed.
const MAX_CAUSES: usize = 100;

/// All causes in one message, as far as they are listed.
fn joined(causes: &[Cause]) -> String {
    let listed = causes.iter().take(MAX_CAUSES);
    let mut messages: Vec<String> =
        listed.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    if causes.len() > MAX_CAUSES {
        messages.push(format!("and {} more", causes.len() - MAX_CAUSES));
    }
    match messages.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

impl fmt::Display for StatusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for StatusError {}

/// The Status of a completed delete.
pub(crate) fn deleted(kind: &ResourceKind, name: &str, uid: &Value) -> Value {
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
    fn an_invalid_object_reports_every_cause_with_its_field() {
        let service = kinds::find("", "v1", "services").unwrap();
        let causes = [Cause::invalid("spec.ports", "needs one"), Cause::invalid("spec.type", "unknown")];
        let status = StatusError::invalid(service, "web", &causes).to_json();
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
        let status = StatusError::not_found(slices, "web-x").to_json();
        assert_eq!(status["message"], "endpointslices.discovery.k8s.io \"web-x\" not found");
        assert_eq!(status["details"]["group"], "discovery.k8s.io");
        assert_eq!(status["reason"], "NotFound");
    }
}
