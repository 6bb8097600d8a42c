//! The Kubernetes-compatible API: a request in, a response out. Transport, TLS and authentication are the server's.
//!
//! ```text
//! path -> request info -> get | list | watch | write | delete -> engine
//!                                               \-> admission, in the same transaction
//! ```

pub mod backup;
mod binding;
pub(crate) mod body;
mod continue_token;
mod delete;
mod list;
pub(crate) mod negotiation;
mod optimistic_update;
mod paged_list;
mod request_info;
mod strategy;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clock::Clock;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response};
use model::random::Random;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::admission::service::ServiceRanges;
use crate::authorization::{self, AccessAttributes};
use crate::engine::{Engine, StoreReadError, Txn, WriteError};
use crate::name_generator::NameGenerator;
use crate::object_txn::ObjectTxn;
use crate::query::QueryParams;
use crate::status::StatusError;
use crate::{discovery, openapi};

pub use body::ResponseBody;
pub(crate) use delete::{
    DeleteOptions, FOREGROUND, ORPHAN, Propagation, delete_in, is_ready_to_remove, remove,
};
use negotiation::Accept;
use request_info::{RequestInfo, RequestPath, Subresource};
pub(crate) use strategy::{WriteContext, create_in};
use watch::SharedBatches;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user name, as policies see it.
    pub name: String,
    /// May read everything but Secrets, and change nothing.
    pub read_only: bool,
}

impl Caller {
    /// Zoneward itself.
    pub fn own() -> Self {
        Self { name: "system:zoneward".to_owned(), read_only: false }
    }

    pub(crate) fn groups(&self) -> [&'static str; 2] {
        [if self.read_only { "zoneward:readers" } else { "system:masters" }, "system:authenticated"]
    }
}

/// Limits for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// Bytes of a request body.
    pub body: usize,
    /// Open watches.
    pub watches: usize,
    /// Interval of bookmarks in watches that allow them.
    pub bookmark_every: Duration,
    /// Open connections.
    pub connections: usize,
    /// Sustained request rate.
    pub requests_per_second: u32,
    /// Burst of requests.
    pub requests_at_once: u32,
}

impl Default for ApiLimits {
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

/// The API over an engine.
#[derive(Clone)]
pub struct Api {
    engine: Arc<Engine>,
    ranges: Arc<ServiceRanges>,
    limits: ApiLimits,
    names: NameGenerator,
    watches: Arc<Semaphore>,
    batches: SharedBatches,
    backups: Arc<Semaphore>,
}

/// Why a transaction wrote nothing.
enum Abort<T> {
    Refused(StatusError),
    DryRun(T),
}

impl Api {
    /// The API over an open engine, whose clock it uses. Names and uids are seeded by the operating system.
    pub fn new(engine: Arc<Engine>, ranges: ServiceRanges, limits: ApiLimits) -> Self {
        let watches = Arc::new(Semaphore::new(limits.watches));
        let names = NameGenerator::new(Random::seeded(clock::os_seed()));
        let (ranges, backups) = (Arc::new(ranges), backup::semaphore());
        Self { engine, ranges, limits, names, watches, batches: SharedBatches::default(), backups }
    }

    /// Replaces the source of names and uids, so that a run can be replayed.
    pub fn with_random(self, random: Random) -> Self {
        Self { names: NameGenerator::new(random), ..self }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn clock(&self) -> &Clock {
        self.engine.clock()
    }

    pub(crate) fn limits(&self) -> ApiLimits {
        self.limits
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Bytes>, caller: &Caller) -> Response<ResponseBody> {
        match self.handle(request, caller).await {
            Ok(response) => response,
            Err(error) => body::error(&error),
        }
    }

    async fn handle(
        &self,
        request: Request<Bytes>,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let (head, content) = request.into_parts();
        refuse_impersonation(&head.headers)?;
        let query = QueryParams::parse(head.uri.query().unwrap_or_default());
        let path = request_info::parse(head.uri.path())?;
        // The only document that is also served as protobuf.
        let accept = match path {
            RequestPath::OpenApiV2 => Accept::default(),
            _ => Accept::of(&head.headers)?,
        };
        if let RequestPath::Resource(info) = path {
            check_access(caller, &head.method, &info)?;
            let now = self.clock().timestamp();
            let request = ResourceRequest {
                method: head.method,
                headers: head.headers,
                info,
                query,
                accept,
                content,
                now,
            };
            if !request.info.kind.is_stored() {
                return self.review(&request, caller);
            }
            return self.resource(request, caller).await;
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(StatusError::method_not_allowed());
        }
        match path {
            RequestPath::Health => self.health(),
            RequestPath::Backup => self.backup(caller).await,
            RequestPath::Version => Ok(body::json(200, &discovery::version())),
            RequestPath::Discovery(path) => {
                let document = discovery::document(path, &accept)?;
                let aggregated = document["kind"] == "APIGroupDiscoveryList";
                let mut response = body::json(200, &document);
                if aggregated {
                    // Clients recognise aggregated discovery by its content type.
                    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
                }
                Ok(response)
            }
            RequestPath::OpenApi(path) => openapi::document(path).map(|bytes| body::bytes(200, bytes)),
            RequestPath::OpenApiV2 => {
                let (content_type, bytes) = openapi::v2::document(&head.headers)?;
                Ok(body::negotiated(content_type, bytes))
            }
            RequestPath::Resource(_) => Err(StatusError::no_such_path()),
        }
    }

    /// Fails if the store cannot be read.
    fn health(&self) -> Result<Response<ResponseBody>, StatusError> {
        self.engine.stats().map_err(StatusError::internal)?;
        Ok(body::text(200, "ok"))
    }

    /// Answers a SelfSubject review, which is not stored.
    fn review(
        &self,
        request: &ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        if request.method != Method::POST || request.info.name.is_some() {
            return Err(StatusError::method_not_allowed());
        }
        let kind = request.info.kind;
        let context = self.write_context(kind, caller, request.query.write_options("CreateOptions")?);
        let mut decoded = body::object(&request.headers, &request.content)?;
        let warnings = write::decode_strictly(&context, None, &mut decoded)?;
        let review = authorization::review(kind, decoded.value, caller, request.now);
        let mut response = body::json(201, &list::converted(request, &review));
        body::warn(&mut response, &warnings);
        Ok(response)
    }

    async fn resource(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let named = request.info.name.is_some();
        if request.info.subresource == Subresource::Binding {
            return match request.method {
                Method::POST => self.bind(request, caller).await,
                _ => Err(StatusError::method_not_allowed()),
            };
        }
        match (request.method.as_str(), named) {
            ("GET" | "HEAD", true) if !request.query.is_watch() => self.get(&request),
            ("GET" | "HEAD", _) => self.list_or_watch(&request).await,
            ("POST", false) => self.create(request, caller).await,
            ("PUT", true) => self.update(request, caller).await,
            ("PATCH", true) => self.patch(request, caller).await,
            ("DELETE", true) => self.delete(request, caller).await,
            ("DELETE", false) => self.delete_collection(request, caller).await,
            _ => Err(StatusError::method_not_allowed()),
        }
    }

    /// Runs a write in one transaction; a dry run stores nothing.
    pub async fn commit<T, F>(&self, dry_run: bool, work: F) -> Result<T, StatusError>
    where
        T: Send + 'static,
        F: FnOnce(&mut ObjectTxn<'_, '_>) -> Result<T, StatusError> + Send + 'static,
    {
        let (now, names) = (self.clock().timestamp(), self.names.clone());
        let transaction = move |txn: &mut Txn<'_>| match work(&mut ObjectTxn::new(txn, now, names)) {
            Ok(done) if dry_run => Err(Abort::DryRun(done)),
            Ok(done) => Ok(done),
            Err(error) => Err(Abort::Refused(error)),
        };
        let pending = match may_block() {
            true => self.engine.submit_or_commit(transaction),
            false => self.engine.submit(transaction),
        };
        let result = match pending {
            Ok(pending) => pending.await,
            Err(error) => Err(error),
        };
        match result {
            Ok(done) | Err(WriteError::Refused(Abort::DryRun(done))) => Ok(done),
            Err(WriteError::Refused(Abort::Refused(error))) => Err(error),
            Err(WriteError::Busy) => {
                Err(StatusError::too_many_requests("too many writes are queued: try again"))
            }
            Err(WriteError::Panicked(cause)) => Err(StatusError::internal(cause)),
            Err(WriteError::Failed(error)) => Err(StatusError::internal(error)),
        }
    }
}

/// Whether this thread may wait for the disk: other threads of the runtime serve requests meanwhile.
fn may_block() -> bool {
    tokio::runtime::Handle::try_current().is_ok_and(|runtime| runtime.metrics().num_workers() > 1)
}

/// A request for objects.
struct ResourceRequest {
    method: Method,
    headers: http::HeaderMap,
    info: RequestInfo,
    query: QueryParams,
    accept: Accept,
    content: Bytes,
    /// When it arrived.
    now: jiff::Timestamp,
}

/// Refuses impersonation instead of answering as the wrong user.
fn refuse_impersonation(headers: &http::HeaderMap) -> Result<(), StatusError> {
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let message =
            "impersonation (--as, Impersonate-User) is not served here: use the kubeconfig of that user";
        return Err(StatusError::forbidden(message));
    }
    Ok(())
}

fn check_access(caller: &Caller, method: &Method, info: &RequestInfo) -> Result<(), StatusError> {
    let verb = match method.as_str() {
        "GET" | "HEAD" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        _ => "delete",
    };
    let attributes = AccessAttributes { verb, group: info.kind.group, resource: info.kind.plural };
    if authorization::is_allowed(caller, attributes) {
        return Ok(());
    }
    Err(StatusError::forbidden(format!(
        "{} is forbidden: User {:?} has read-only access, without Secrets: use the admin's kubeconfig",
        info.kind.qualified(),
        caller.name
    )))
}

fn read_error(error: StoreReadError) -> StatusError {
    match error {
        StoreReadError::Gone { asked, oldest } => {
            StatusError::expired(format!("too old resource version: {asked} ({oldest}): list again"))
        }
        StoreReadError::Ahead { asked, current } => {
            StatusError::too_large_resource_version(asked.0, current.0)
        }
        StoreReadError::Failed(error) => StatusError::internal(error),
    }
}

fn parse(bytes: &[u8]) -> Result<Value, StatusError> {
    serde_json::from_slice(bytes).map_err(StatusError::internal)
}
