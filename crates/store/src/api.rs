//! The Kubernetes-compatible API: a request in, a response out. Transport, TLS and who the caller is are the
//! server's; this is what kubectl, client libraries and `kube` speak to.
//!
//! ```text
//! path -> route -> read | watch | write | delete -> engine
//!                                  \-> admission, in the same transaction
//! ```

pub mod accept;
mod ahead;
pub mod backup;
mod basis;
mod bind;
pub mod body;
mod delete;
mod pages;
mod read;
mod route;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::admission::service::Ranges;
use crate::engine::{Engine, ReadError, Txn, WriteError};
use crate::objects::Objects;
use crate::query::Query;
use crate::reviews::Act;
use crate::status::Failure;
use crate::{discovery, openapi, reviews};

use accept::Accept;
pub use body::Body;
pub use delete::{DeleteOptions, FOREGROUND, ORPHAN, Preconditions, Propagation, delete_in};
pub(crate) use delete::{is_free_to_go, remove};
use route::{Part, Route, Target};
use watch::Batches;
pub use write::{Change, Terms, create_in, update_in};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name, as policies see it.
    pub name: String,
    /// May look at everything but Secrets, and change nothing.
    pub read_only: bool,
}

impl Caller {
    /// Zoneward itself.
    pub fn own() -> Self {
        Self { name: "system:zoneward".to_owned(), read_only: false }
    }

    /// The groups, by the names that Kubernetes has for them where it has one.
    pub fn groups(&self) -> [&'static str; 2] {
        [if self.read_only { "zoneward:readers" } else { "system:masters" }, "system:authenticated"]
    }
}

/// Bounds of what clients may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many bytes a request may have.
    pub body: usize,
    /// How many watches may be open.
    pub watches: usize,
    /// How often a watch that wants bookmarks gets one.
    pub bookmark_every: Duration,
    /// How many connections may be open.
    pub connections: usize,
    /// How many requests per second are served for long.
    pub requests_per_second: u32,
    /// How many may come at once.
    pub requests_at_once: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 3 << 20,
            watches: 10_000,
            bookmark_every: Duration::from_secs(60),
            connections: 4_096,
            requests_per_second: 20_000,
            requests_at_once: 40_000,
        }
    }
}

/// The API over a store.
#[derive(Clone)]
pub struct Api {
    engine: Arc<Engine>,
    ranges: Arc<Ranges>,
    limits: Limits,
    watches: Arc<Semaphore>,
    batches: Batches,
    backups: Arc<Semaphore>,
}

/// Why a transaction wrote nothing.
enum Stop<T> {
    Refused(Failure),
    Rehearsed(T),
}

impl Api {
    /// The API over a store that is open.
    pub fn new(engine: Arc<Engine>, ranges: Ranges, limits: Limits) -> Self {
        let watches = Arc::new(Semaphore::new(limits.watches));
        let (ranges, backups) = (Arc::new(ranges), backup::turns());
        Self { engine, ranges, limits, watches, batches: Batches::default(), backups }
    }

    /// The store.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The bounds.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What Services can get.
    pub fn ranges(&self) -> Arc<Ranges> {
        self.ranges.clone()
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Bytes>, caller: &Caller) -> Response<Body> {
        match self.handle(request, caller).await {
            Ok(response) => response,
            Err(failure) => body::failure(&failure),
        }
    }

    async fn handle(&self, request: Request<Bytes>, caller: &Caller) -> Result<Response<Body>, Failure> {
        let (head, content) = request.into_parts();
        refuse_impersonation(&head.headers)?;
        let query = Query::parse(head.uri.query().unwrap_or_default());
        let route = route::parse(head.uri.path())?;
        // The only document that is served as protobuf, too.
        let accept = match route {
            Route::OpenApiV2 => Accept::default(),
            _ => Accept::of(&head.headers)?,
        };
        if let Route::Resource(target) = route {
            check_access(caller, &head.method, &target)?;
            let call = Call { method: head.method, headers: head.headers, target, query, accept, content };
            if !call.target.kind.is_stored() {
                return self.review(&call, caller);
            }
            return self.resource(call, caller).await;
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(Failure::method_not_allowed());
        }
        match route {
            Route::Health => self.health(),
            Route::Backup => self.backup(caller).await,
            Route::Version => Ok(body::json(200, &discovery::version())),
            Route::Discovery(path) => {
                let document = discovery::document(path, &accept)?;
                let aggregated = document["kind"] == "APIGroupDiscoveryList";
                let mut response = body::json(200, &document);
                if aggregated {
                    // Clients believe that the document is the aggregated one only when its type says so.
                    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
                }
                Ok(response)
            }
            Route::OpenApi(path) => openapi::document(path).map(|bytes| body::bytes(200, bytes)),
            Route::OpenApiV2 => {
                let (content_type, bytes) = openapi::v2::document(&head.headers)?;
                Ok(body::negotiated(content_type, bytes))
            }
            Route::Resource(_) => Err(Failure::no_such_path()),
        }
    }

    /// Whether the store can be read.
    fn health(&self) -> Result<Response<Body>, Failure> {
        self.engine.stats().map_err(Failure::internal)?;
        Ok(body::text(200, "ok"))
    }

    /// Answers a question that is not kept.
    fn review(&self, call: &Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        if call.method != Method::POST || call.target.name.is_some() {
            return Err(Failure::method_not_allowed());
        }
        let terms = self.terms(call.target.kind, caller, call.query.write_options("CreateOptions")?)?;
        let mut document = body::object(&call.headers, &call.content)?;
        let warnings = write::admit_shape(&terms, None, &mut document)?;
        let answer = reviews::answer(call.target.kind, document.value, caller, jiff::Timestamp::now());
        let mut response = body::json(201, &read::shown(call, &answer));
        body::warn(&mut response, &warnings);
        Ok(response)
    }

    async fn resource(&self, call: Call, caller: &Caller) -> Result<Response<Body>, Failure> {
        let named = call.target.name.is_some();
        if call.target.part == Part::Binding {
            return match call.method {
                Method::POST => self.bind(call, caller).await,
                _ => Err(Failure::method_not_allowed()),
            };
        }
        match (call.method.as_str(), named) {
            ("GET" | "HEAD", true) if !call.query.is_watch() => self.get(&call),
            ("GET" | "HEAD", _) => self.list_or_watch(&call).await,
            ("POST", false) => self.create(call, caller).await,
            ("PUT", true) => self.replace(call, caller).await,
            ("PATCH", true) => self.patch(call, caller).await,
            ("DELETE", true) => self.delete(call, caller).await,
            ("DELETE", false) => self.delete_collection(call, caller).await,
            _ => Err(Failure::method_not_allowed()),
        }
    }

    /// Runs a write in one transaction; a rehearsal leaves nothing behind.
    pub async fn commit<T, F>(&self, dry_run: bool, work: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce(&mut Objects<'_, '_>) -> Result<T, Failure> + Send + 'static,
    {
        let now = jiff::Timestamp::now();
        let transaction = move |txn: &mut Txn<'_>| match work(&mut Objects::new(txn, now)) {
            Ok(done) if dry_run => Err(Stop::Rehearsed(done)),
            Ok(done) => Ok(done),
            Err(failure) => Err(Stop::Refused(failure)),
        };
        let pending = match may_block() {
            true => self.engine.submit_or_do(transaction),
            false => self.engine.submit(transaction),
        };
        let result = match pending {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match result {
            Ok(done) | Err(WriteError::Refused(Stop::Rehearsed(done))) => Ok(done),
            Err(WriteError::Refused(Stop::Refused(failure))) => Err(failure),
            Err(WriteError::Busy) => {
                Err(Failure::too_many_requests("too many writes are waiting: try again"))
            }
            Err(WriteError::Panicked(cause)) => Err(Failure::internal(cause)),
            Err(WriteError::Failed(failure)) => Err(Failure::internal(failure)),
        }
    }
}

/// Whether this thread may wait for the disk: others serve requests meanwhile.
fn may_block() -> bool {
    tokio::runtime::Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() > 1)
}

/// A request for objects, taken apart.
struct Call {
    method: Method,
    headers: http::HeaderMap,
    target: Target,
    query: Query,
    accept: Accept,
    content: Bytes,
}

/// Whoever asks to be somebody else would get their own answer: better none.
fn refuse_impersonation(headers: &http::HeaderMap) -> Result<(), Failure> {
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let message =
            "impersonation (--as, Impersonate-User) is not served here: use the kubeconfig of that user";
        return Err(Failure::forbidden(message));
    }
    Ok(())
}

fn check_access(caller: &Caller, method: &Method, target: &Target) -> Result<(), Failure> {
    let verb = match method.as_str() {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        _ => "delete",
    };
    if reviews::may(caller, Act { verb, group: target.kind.group, resource: target.kind.plural }) {
        return Ok(());
    }
    let what = target.kind.qualified();
    Err(Failure::forbidden(format!(
        "{what} is forbidden: User {:?} may only look, and not at Secrets: use the admin's kubeconfig",
        caller.name
    )))
}

/// What a client is told when a read fails.
fn read_failure(error: ReadError) -> Failure {
    match error {
        ReadError::Gone { asked, oldest } => {
            Failure::expired(format!("too old resource version: {asked} ({oldest}): list again"))
        }
        ReadError::Ahead { asked, current } => Failure::too_large_resource_version(asked.0, current.0),
        ReadError::Failed(failure) => Failure::internal(failure),
    }
}

/// The object of one stored version.
fn parse(bytes: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(bytes).map_err(Failure::internal)
}
