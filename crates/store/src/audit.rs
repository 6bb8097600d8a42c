//! The audit log: one JSON line (`audit.k8s.io/v1` Event) per recorded stage of a request.
//!
//! ```text
//! request -> policy decides the level -> event -> bounded queue -> writer thread -> file, rotated by size
//! ```
//!
//! A request never waits for the disk: when the queue is full, events are dropped and counted. Bodies of Secrets, token
//! requests and token reviews are never recorded, nor are errors that may quote them.

mod log_file;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use apimachinery::audit_policy::{AuditDecision, AuditLevel, AuditPolicy, AuditStage};
use apimachinery::rbac::{AccessAttributes, Impersonation};
use clock::Clock;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::{Value, json};

use crate::api::{Caller, ResponseBody, body};
use crate::status::StatusError;
use log_file::LogFile;

/// Events in the queue of the writer.
const QUEUE_EVENTS: usize = 10_000;
/// Bytes in the queue of the writer.
const QUEUE_BYTES: usize = 32 << 20;
/// How long a flush may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Larger bodies are left out.
const MAX_BODY: usize = 3 << 19;

/// Where events go, and which.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    pub policy: AuditPolicy,
    /// `-` for standard output.
    pub path: PathBuf,
    /// Size in bytes at which the file is rotated; 0 never rotates.
    pub max_size: u64,
    /// Rotated files to keep; 0 keeps all.
    pub max_backups: usize,
}

/// Counts of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditStats {
    /// Events recorded.
    pub events: u64,
    /// Events dropped because the queue was full.
    pub dropped: u64,
    /// Events that could not be written.
    pub errors: u64,
}

/// The audit log. The writer ends with its last owner.
pub struct AuditLog {
    policy: AuditPolicy,
    queue: SyncSender<QueueItem>,
    counts: Arc<AuditCounts>,
}

enum QueueItem {
    Line(Vec<u8>),
    /// Answered when everything before it is written.
    Flush(SyncSender<()>),
}

#[derive(Default)]
struct AuditCounts {
    queued_bytes: AtomicUsize,
    events: AtomicU64,
    dropped: AtomicU64,
    errors: AtomicU64,
}

impl AuditLog {
    /// Opens the file and starts the writer.
    #[allow(clippy::disallowed_methods, reason = "the writer's own thread: requests never wait for the disk")]
    pub fn open(options: AuditOptions, clock: Clock) -> io::Result<Self> {
        let AuditOptions { policy, path, max_size, max_backups } = options;
        let file = LogFile::open(path, max_size, max_backups)?;
        let (queue, lines) = sync_channel(QUEUE_EVENTS);
        let counts = Arc::new(AuditCounts::default());
        let own = counts.clone();
        thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || write_lines(file, &lines, &own, &clock))?;
        Ok(Self { policy, queue, counts })
    }

    pub fn stats(&self) -> AuditStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let AuditCounts { events, dropped, errors, .. } = &*self.counts;
        AuditStats { events: load(events), dropped: load(dropped), errors: load(errors) }
    }

    fn send(&self, line: Vec<u8>) {
        let counts = &self.counts;
        let size = line.len();
        let queued = counts.queued_bytes.fetch_add(size, Ordering::Relaxed);
        let line = QueueItem::Line(line);
        if queued.saturating_add(size) > QUEUE_BYTES || self.queue.try_send(line).is_err() {
            counts.queued_bytes.fetch_sub(size, Ordering::Relaxed);
            self.count_dropped();
        } else {
            counts.events.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_dropped(&self) {
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the events so far are written, but not long: the disk may hang. For the end of the process.
    pub(crate) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        let step = Duration::from_millis(10);
        for _ in 0..FLUSH_TIMEOUT.as_millis() / step.as_millis() {
            match self.queue.try_send(QueueItem::Flush(done.clone())) {
                Ok(()) => {
                    let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
                    return;
                }
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(_)) => {
                    let _ = is_done.recv_timeout(step);
                }
            }
        }
    }
}

fn write_lines(mut file: LogFile, items: &Receiver<QueueItem>, counts: &AuditCounts, clock: &Clock) {
    let mut written = 0u64;
    let failed = |count: u64| {
        counts.errors.fetch_add(count, Ordering::Relaxed);
    };
    while let Ok(first) = items.recv() {
        let (mut next, mut waiting) = (Some(first), Vec::new());
        // Flushed when the queue is empty, so that a busy log is written in large pieces.
        while let Some(item) = next {
            match item {
                QueueItem::Flush(done) => waiting.push(done),
                QueueItem::Line(line) => {
                    counts.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                    match file.write(&line, clock.timestamp()) {
                        Ok(()) => written += 1,
                        Err(_) => failed(1),
                    }
                }
            }
            next = items.try_recv().ok();
        }
        if file.flush().is_err() {
            failed(written);
        }
        written = 0;
        for done in waiting {
            let _ = done.try_send(());
        }
    }
}

/// The event of one request. Dropped before its end, it records that the client is gone, or the panic.
pub struct AuditEvent {
    log: Arc<AuditLog>,
    clock: Clock,
    decision: AuditDecision,
    event: Value,
    has_bodies: bool,
    is_secret: bool,
    is_done: bool,
}

impl fmt::Debug for AuditEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditEvent({})", self.event["auditID"])
    }
}

/// The version of the API group in the path of a resource.
fn version_of(path: &str) -> &str {
    let mut parts = path.trim_matches('/').split('/');
    match parts.next() {
        Some("api") => parts.next().unwrap_or_default(),
        _ => parts.nth(1).unwrap_or_default(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

impl AuditEvent {
    /// Starts the event of a request; `None` if the policy records nothing of it.
    pub(crate) fn begin(
        log: &Arc<AuditLog>,
        clock: &Clock,
        head: &Parts,
        caller: &Caller,
        attributes: &AccessAttributes<'_>,
        id: impl FnOnce() -> String,
    ) -> Option<Self> {
        let started = Self::prepare(log, clock, head, caller, attributes, id)?;
        started.record(AuditStage::RequestReceived);
        Some(started)
    }

    /// The event of a request before its first stage.
    pub(crate) fn prepare(
        log: &Arc<AuditLog>,
        clock: &Clock,
        head: &Parts,
        caller: &Caller,
        attributes: &AccessAttributes<'_>,
        id: impl FnOnce() -> String,
    ) -> Option<Self> {
        let decision = log.policy.decide(&caller.user, attributes);
        if decision.level == AuditLevel::None {
            return None;
        }
        let uri = head.uri.path_and_query().map_or(head.uri.path(), |uri| uri.as_str());
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": decision.level.to_string(), "auditID": id(),
            "stage": "", "requestURI": uri, "verb": attributes.verb(), "user": caller.user.to_json(),
        });
        if let Some(source) = caller.source {
            event["sourceIPs"] = json!([source.to_string()]);
        }
        let agent = text(&head.headers, "user-agent");
        if !agent.is_empty() {
            event["userAgent"] = agent.chars().take(1_024).collect::<String>().into();
        }
        let (mut has_bodies, mut is_secret) = (false, false);
        if let AccessAttributes::Resource(wanted) = attributes {
            let mut about = json!({"resource": wanted.resource});
            for (name, value) in [
                ("namespace", wanted.namespace),
                ("name", wanted.name),
                ("apiGroup", wanted.group),
                ("apiVersion", version_of(head.uri.path())),
                ("subresource", wanted.subresource),
            ] {
                if !value.is_empty() {
                    about[name] = value.into();
                }
            }
            event["objectRef"] = about;
            is_secret = matches!(
                (wanted.group, wanted.resource, wanted.subresource),
                ("", "secrets", _)
                    | ("", "serviceaccounts", "token")
                    | ("authentication.k8s.io", "tokenreviews", _)
            );
            has_bodies = !is_secret;
        }
        let now = format!("{:.6}", clock.timestamp());
        event["requestReceivedTimestamp"] = now.into();
        let (log, clock) = (log.clone(), clock.clone());
        Some(Self { log, clock, decision, event, has_bodies, is_secret, is_done: false })
    }

    /// Records a request without valid credentials, as Kubernetes does: with one stage, and no user.
    pub(crate) fn unauthenticated(mut self, headers: &HeaderMap, has_certificate: bool) {
        let scheme =
            text(headers, "authorization").split(' ').next().unwrap_or_default().to_ascii_lowercase();
        let message = match scheme.as_str() {
            "" if has_certificate => "Authentication failed, attempted: x509".to_owned(),
            "" => "Authentication failed, no credentials provided".to_owned(),
            scheme @ ("bearer" | "basic") => format!("Authentication failed, attempted: {scheme}"),
            // The rest may be a secret.
            _ => "Authentication failed, attempted: another scheme".to_owned(),
        };
        self.event["user"] = json!({});
        self.event["responseStatus"] = json!({
            "metadata": {}, "status": "Failure", "message": message, "reason": "Unauthorized", "code": 401,
        });
        self.finish(AuditStage::ResponseStarted);
    }

    pub(crate) fn id(&self) -> &str {
        self.event["auditID"].as_str().unwrap_or_default()
    }

    /// The request was allowed or forbidden, and why.
    pub(crate) fn decided(&mut self, decision: &str, reason: &str) {
        self.event["annotations"] =
            json!({"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason});
    }

    /// The request acts as another user.
    pub(crate) fn impersonated(&mut self, impersonation: &Impersonation) {
        self.event["impersonatedUser"] = impersonation.user.to_json();
        if let Some(constraint) = &impersonation.constraint {
            self.event["authenticationMetadata"] = json!({"impersonationConstraint": constraint});
        }
    }

    /// Records the body of the request, if the level asks for it.
    pub(crate) fn request_body(&mut self, headers: &HeaderMap, content: &[u8]) {
        if self.decision.level < AuditLevel::Request || !self.has_bodies || content.is_empty() {
            return;
        }
        let object = match body::media_type(headers) {
            _ if content.len() > MAX_BODY => None,
            kind if kind.ends_with("json") => serde_json::from_slice(content).ok(),
            _ => body::object(headers, content, "Object").ok().map(|decoded| decoded.value),
        };
        self.set_body("requestObject", object);
    }

    fn set_body(&mut self, name: &str, object: Option<Value>) {
        let Some(mut object) = object else { return };
        if self.decision.omit_managed_fields {
            remove_managed_fields(&mut object);
        }
        self.event[name] = object;
    }

    /// Records the end of a request with an error.
    pub(crate) fn failed(mut self, error: &StatusError) {
        // Validation, decoding and policies quote what they refuse.
        let is_allowed = self.event["annotations"]["authorization.k8s.io/decision"] == "allow";
        let quotes = self.is_secret && is_allowed && !matches!(error.code, 404 | 405 | 409 | 429);
        let message = if quotes { "left out: it may quote the body" } else { &error.message };
        self.event["responseStatus"] = json!({
            "metadata": {}, "status": "Failure", "message": message, "reason": error.reason, "code": error.code,
        });
        self.finish(AuditStage::ResponseComplete);
    }

    /// Records a response; of a watch its start, and its end with the end of its body.
    pub(crate) fn responded(mut self, mut response: Response<ResponseBody>) -> Response<ResponseBody> {
        if let Ok(id) = HeaderValue::from_str(self.id()) {
            response.headers_mut().insert("audit-id", id);
        }
        self.event["responseStatus"] = json!({"metadata": {}, "code": response.status().as_u16()});
        match response.body() {
            ResponseBody::Watch(_) => {
                self.record(AuditStage::ResponseStarted);
                return response.map(|body| ResponseBody::Audited(Box::new(body), Box::new(self)));
            }
            ResponseBody::Full(Some(bytes))
                if self.decision.level == AuditLevel::RequestResponse
                    && self.has_bodies
                    && bytes.len() <= MAX_BODY =>
            {
                let object = serde_json::from_slice(bytes).ok();
                self.set_body("responseObject", object);
            }
            _ => {}
        }
        self.finish(AuditStage::ResponseComplete);
        response
    }

    /// Ends the event of a watch.
    pub(crate) fn end_watch(&mut self) {
        if !self.is_done {
            self.is_done = true;
            self.record(AuditStage::ResponseComplete);
        }
    }

    fn finish(mut self, stage: AuditStage) {
        self.is_done = true;
        self.record(stage);
    }

    fn record(&self, stage: AuditStage) {
        if !self.decision.records(stage) {
            return;
        }
        let mut event = self.event.clone();
        event["stage"] = stage.as_str().into();
        event["stageTimestamp"] = format!("{:.6}", self.clock.timestamp()).into();
        let mut line = event.to_string().into_bytes();
        line.push(b'\n');
        self.log.send(line);
    }
}

impl Drop for AuditEvent {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let stage = if thread::panicking() { AuditStage::Panic } else { AuditStage::ResponseComplete };
        if self.event["responseStatus"].is_null() {
            let message =
                if thread::panicking() { "the request panicked" } else { "the client disconnected" };
            self.event["responseStatus"] = json!({"metadata": {}, "status": "Failure", "message": message});
        }
        self.record(stage);
    }
}

/// Removes `metadata.managedFields` of an object, or of the items of a list.
fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let items = object.get_mut("items").and_then(Value::as_array_mut);
    items.into_iter().flatten().for_each(remove_managed_fields);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(events: usize) -> (AuditLog, Receiver<QueueItem>) {
        let (queue, items) = sync_channel(events);
        (AuditLog { policy: AuditPolicy::metadata(), queue, counts: Arc::default() }, items)
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_what_was_queued_is_written() {
        let (log, items) = stuck(QUEUE_EVENTS);
        for count in 0..QUEUE_EVENTS + 7 {
            log.send(format!("{count}\n").into_bytes());
        }
        let stats = log.stats();
        assert_eq!((stats.events, stats.dropped), (QUEUE_EVENTS as u64, 7));
        let path = std::env::temp_dir().join(format!("zoneward-queue-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file = LogFile::open(path.clone(), 0, 0).unwrap();
        let counts = log.counts.clone();
        let writer = thread::spawn(move || write_lines(file, &items, &counts, &Clock::system()));
        log.flush();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!((text.lines().count(), text.lines().last()), (QUEUE_EVENTS, Some("9999")));
        assert_eq!(log.counts.queued_bytes.load(Ordering::Relaxed), 0);
        log.send(b"again\n".to_vec());
        assert_eq!(log.stats().dropped, 7, "there is room again");
        drop(log);
        writer.join().unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("9999\nagain\n"));
        let _ = std::fs::remove_file(&path);
    }

    #[test]
    fn the_queue_is_bounded_in_bytes() {
        let (log, items) = stuck(QUEUE_EVENTS);
        for _ in 0..40 {
            log.send(vec![b'x'; 1 << 20]);
        }
        assert_eq!((log.stats().events, log.stats().dropped), (32, 8));
        drop(items);
    }

    #[test]
    fn a_flush_ends_without_a_writer() {
        let (log, items) = stuck(1);
        drop(items);
        log.flush();
    }
}
