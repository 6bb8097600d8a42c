//! Rules made ready for requests when a table comes: header names parsed, bodies read, backends at hand.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use model::route::{
    BODY_NOT_READABLE, BackendTarget, DirectResponseBody, HttpRule, RequestMirror, Responder, RouteGroup,
    RuleAction, WeightedBackends,
};
use model::{Notice, ObjectRef};

use crate::edits::Edits;
use crate::registry::{Account, Registry};
use crate::settings::Readable;
use crate::slot::Slot;

/// The rules of a group, in its order. Groups share those that are the same.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) rules: Box<[Arc<Rule>]>,
    pub(crate) notices: Vec<Notice>,
}

/// One rule.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) request: Edits,
    pub(crate) response: Edits,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) mirrors: Box<[(RequestMirror, Arc<Slot>)]>,
    pub(crate) end: Ending,
    pub(crate) account: Arc<Account>,
    /// What in it cannot be obeyed.
    notices: Box<[Notice]>,
}

/// Who answers.
#[derive(Debug)]
pub(crate) enum Ending {
    Forward(Legs),
    Redirect,
    Respond(StatusCode, Bytes),
}

/// Backends with their shares.
#[derive(Debug, Default)]
pub(crate) struct Legs {
    targets: Box<[Target]>,
    ends: Box<[u64]>,
}

/// Where a share leads.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Backend(Arc<Slot>),
    Error(StatusCode),
}

impl Legs {
    pub(crate) fn new(split: &WeightedBackends, registry: &mut Registry) -> Self {
        let mut sum = 0;
        let (mut targets, mut ends) = (Vec::new(), Vec::new());
        for leg in split.entries() {
            sum += leg.weight;
            ends.push(sum);
            targets.push(match &leg.to {
                BackendTarget::Backend(id) => Target::Backend(registry.slot(id)),
                BackendTarget::Error(status) => Target::Error(status_of(*status)),
            });
        }
        Self { targets: targets.into(), ends: ends.into() }
    }

    /// The way for a random number, which is asked for only where there is a choice. `None`: there is none.
    pub(crate) fn pick(&self, random: impl FnOnce() -> u64) -> Option<&Target> {
        if let [only] = &*self.targets {
            return Some(only);
        }
        let point = random() % *self.ends.last()?;
        self.targets.get(self.ends.partition_point(|end| *end <= point))
    }
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl Group {
    pub(crate) fn new(source: &RouteGroup, registry: &mut Registry, readable: &Readable) -> Self {
        let rules: Box<[Arc<Rule>]> =
            source.rules().iter().map(|rule| registry.rule(rule, readable)).collect();
        let notices = rules.iter().flat_map(|rule| rule.notices.iter().cloned()).collect();
        Self { rules, notices }
    }
}

impl Rule {
    pub(crate) fn new(rule: &HttpRule, registry: &mut Registry, readable: &Readable) -> Self {
        let RuleAction { request_headers, response_headers, mirrors, rewrite, responder } = &rule.action;
        let (request, mut refused) = Edits::new(request_headers);
        let (response, more) = Edits::new(response_headers);
        refused.extend(more);
        let host = rewrite.hostname.as_deref().and_then(|host| HeaderValue::from_str(host).ok());
        let mirrors = mirrors.iter().map(|mirror| (mirror.clone(), registry.slot(&mirror.to))).collect();
        let end = match responder {
            Responder::Forward(split) => Ending::Forward(Legs::new(split, registry)),
            Responder::Redirect(_) => Ending::Redirect,
            Responder::Respond(response) => match body(response.body.as_ref(), readable) {
                Ok(bytes) => Ending::Respond(status_of(response.status), bytes),
                Err(why) => {
                    refused.push(why);
                    let bytes = Bytes::from_static(BODY_NOT_READABLE.as_bytes());
                    Ending::Respond(StatusCode::INTERNAL_SERVER_ERROR, bytes)
                }
            },
        };
        let notices = refused.into_iter().map(|why| notice(rule, why)).collect();
        Self { request, response, host, mirrors, end, account: registry.account(&label(rule)), notices }
    }
}

/// A rule's name in logs and metrics.
fn label(rule: &HttpRule) -> String {
    match &rule.origin.policy {
        Some(policy) => format!("{policy} {}", rule.origin.field),
        None => "original destination".to_owned(),
    }
}

fn notice(rule: &HttpRule, why: String) -> Notice {
    let nobody = || ObjectRef::new("MeshHTTPRoute", "", "");
    let object = rule.origin.filters.clone().or_else(|| rule.origin.policy.clone()).unwrap_or_else(nobody);
    Notice::new(object, "FilterNotApplied", format!("{}.default.filters: {why}", rule.origin.field))
}

/// Longer bodies belong behind a backend.
const LARGEST_BODY: u64 = 1 << 20;

/// Semantics 1.7: what a policy may have of this machine is the operator's to say.
fn body(body: Option<&DirectResponseBody>, readable: &Readable) -> Result<Bytes, String> {
    match body {
        None => Ok(Bytes::new()),
        Some(DirectResponseBody::Text(text)) => Ok(Bytes::copy_from_slice(text.as_bytes())),
        Some(DirectResponseBody::Bytes(bytes)) => Ok(Bytes::copy_from_slice(bytes)),
        Some(DirectResponseBody::File(path)) if readable.files.contains(Path::new(path.as_str())) => {
            read(path).map_err(|error| format!("directResponse.body: {path} cannot be read: {error}"))
        }
        Some(DirectResponseBody::File(path)) => Err(format!(
            "directResponse.body: {path} is not among the files that this proxy may read; its operator can allow it"
        )),
        Some(DirectResponseBody::Environment(name)) if readable.variables.contains(name.as_str()) => {
            let value = std::env::var_os(name.as_str());
            let value =
                value.ok_or_else(|| format!("directResponse.body: the variable {name} is not set"))?;
            Ok(value.into_encoded_bytes().into())
        }
        Some(DirectResponseBody::Environment(name)) => Err(format!(
            "directResponse.body: {name} is not among the variables that this proxy may read; its operator can allow it"
        )),
    }
}

fn read(path: &str) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LARGEST_BODY + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_BODY {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes.into())
}
