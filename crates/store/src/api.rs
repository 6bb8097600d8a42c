//! The Kubernetes-compatible API: a request in, a response out. Transport, TLS and authentication are the server's.
//!
//! ```text
//! path -> request info -> impersonation, authorization -> body -> seat (fairness)
//!      -> get | list | watch | write | delete -> engine
//!                                               \-> admission, in the same transaction
//! ```

pub mod backup;
mod binding;
pub(crate) mod body;
mod continue_token;
mod delete;
mod eviction;
pub(crate) mod fairness;
pub(crate) mod fuzzing;
mod join;
mod list;
pub(crate) mod negotiation;
mod optimistic_update;
mod paged_list;
mod request_info;
mod request_queue;
mod strategy;
mod token_request;
mod watch;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::listener::ConnectionHandle;
use apimachinery::rbac::{self, AccessAttributes, Impersonation, UserInfo};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use clock::Clock;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body as HttpBody;
use model::random::Random;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::admission::service::ServiceRanges;
use crate::audit::{AuditEvent, AuditLog, AuditStats};
use crate::authenticator::Authenticator;
use crate::authorization::{self, Authorizer};
use crate::engine::{Engine, StoreReadError, Txn, WriteError};
use crate::name_generator::NameGenerator;
use crate::object_txn::ObjectTxn;
use crate::protobuf::object_encoder::is_encodable;
use crate::query::QueryParams;
use crate::reviews::{self, ReviewContext};
use crate::status::StatusError;
use crate::{discovery, openapi};

pub use body::ResponseBody;
pub(crate) use delete::{
    DeleteOptions, FOREGROUND, ORPHAN, Propagation, delete_in, is_ready_to_remove, remove,
};
use fairness::{Fairness, HeldShare, PriorityLevel, RequestFlow};
pub use fairness::{FairnessStats, QueueStats};
use negotiation::Accept;
use request_info::RequestInfo;
pub(crate) use request_info::{RequestPath, Subresource};
pub(crate) use strategy::{WriteContext, create_in};
use watch::SharedBatches;

/// Time for a client to send the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Bytes of a body above which it is large: decoding takes a millisecond or so.
const LARGE_BODY: usize = 64 << 10;

/// An authenticated user, and where its request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub user: Arc<UserInfo>,
    /// `None` for the unix socket and for this process.
    pub source: Option<IpAddr>,
    /// `None` for this process.
    pub connection: Option<ConnectionHandle>,
}

impl Caller {
    /// Zoneward itself.
    pub fn own() -> Self {
        Self::new("system:zoneward", &[rbac::MASTERS, rbac::AUTHENTICATED])
    }

    /// A user with groups.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        Self { user: Arc::new(UserInfo::new(name, groups)), source: None, connection: None }
    }

    /// The same address and connection with another user.
    pub(crate) fn with_user(&self, user: UserInfo) -> Self {
        Self { user: Arc::new(user), ..self.clone() }
    }
}

/// The metrics of this process, in the format that an Accept header asks for: content type and text.
pub type MetricsPage = Box<dyn Fn(&str) -> (&'static str, String) + Send + Sync>;

/// Limits for clients. What is above is shared fairly: see `fairness`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// Bytes of a request body.
    pub body: usize,
    /// Bytes of all request bodies.
    pub body_bytes: usize,
    /// Bytes of all responses that clients have not taken.
    pub response_bytes: usize,
    /// Open watches.
    pub watches: usize,
    /// Interval of bookmarks in watches that allow them.
    pub bookmark_every: Duration,
    /// Open connections.
    pub connections: usize,
    /// Open connections of the unix socket and of exempt users, in addition.
    pub reserved_connections: usize,
    /// Requests that are handled at once, by priority level; exempt users are not counted.
    pub reads_at_once: usize,
    pub writes_at_once: usize,
    pub full_lists_at_once: usize,
    /// Requests of one user that wait for these, per priority level.
    pub queue_per_user: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            body: 3 << 20,
            body_bytes: 64 << 20,
            response_bytes: 128 << 20,
            watches: 10_000,
            bookmark_every: Duration::from_secs(60),
            connections: 4_096,
            reserved_connections: 1_024,
            reads_at_once: 16,
            writes_at_once: 256,
            full_lists_at_once: 2,
            queue_per_user: 1_024,
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
    fairness: Arc<Fairness>,
    batches: SharedBatches,
    backups: Arc<Semaphore>,
    large_bodies: Arc<Semaphore>,
    authorizer: Arc<Authorizer>,
    authenticator: Arc<Authenticator>,
    audit: Option<Arc<AuditLog>>,
    metrics: Arc<OnceLock<MetricsPage>>,
}

/// Why a transaction wrote nothing.
enum Abort<T> {
    Refused(StatusError),
    DryRun(T),
}

impl Api {
    /// The API over an open engine, whose clock it uses. Names and uids are seeded by the operating system.
    pub fn new(engine: Arc<Engine>, ranges: ServiceRanges, limits: ApiLimits) -> Self {
        let fairness = Arc::new(Fairness::new(&limits, engine.clock()));
        let names = NameGenerator::new(Random::seeded(clock::os_seed()));
        let (ranges, backups) = (Arc::new(ranges), backup::semaphore());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let large_bodies = Arc::new(Semaphore::new((cores / 2).max(1)));
        let (authorizer, authenticator) = (Arc::new(Authorizer::new(engine.clone())), Arc::default());
        let (batches, audit) = (SharedBatches::default(), None);
        Self {
            engine,
            ranges,
            limits,
            names,
            fairness,
            batches,
            backups,
            large_bodies,
            authorizer,
            authenticator,
            audit,
            metrics: Arc::default(),
        }
    }

    /// Serves `/metrics`, which is not found before; the first call counts.
    pub fn serve_metrics(&self, page: MetricsPage) {
        self.metrics.get_or_init(|| page);
    }

    /// Records requests in an audit log.
    pub fn with_audit(self, log: AuditLog) -> Self {
        Self { audit: Some(Arc::new(log)), ..self }
    }

    /// Reads the keys that sign tokens of service accounts, and creates one if there is none. Without this, tokens are
    /// lost with the process.
    pub fn open_signing_keys(&self, data: &std::path::Path) -> std::io::Result<()> {
        self.authenticator.open_keys(data, self.clock().timestamp().as_second())
    }

    /// Sets the lifetime of credentials of machines that join, in seconds.
    pub fn set_node_credential_seconds(&self, seconds: i64) {
        self.authenticator.set_node_seconds(seconds);
    }

    /// Waits until the audit log is written, but not long; for the end of the process. Blocks.
    pub fn flush_audit(&self) {
        if let Some(log) = &self.audit {
            log.flush();
        }
    }

    pub(crate) fn has_audit(&self) -> bool {
        self.audit.is_some()
    }

    /// Records a request without valid credentials, or counts it as dropped.
    pub(crate) fn audit_unauthenticated(
        &self,
        head: &Parts,
        caller: &Caller,
        has_certificate: bool,
        is_recorded: bool,
    ) {
        let Some(log) = &self.audit else { return };
        if !is_recorded {
            return log.count_dropped();
        }
        let query = QueryParams::parse(head.uri.query().unwrap_or_default());
        let path = request_info::parse(head.uri.path()).unwrap_or(RequestPath::Unknown);
        let verb = authorization::path_verb(&head.method);
        let attributes = authorization::attributes(&head.method, &verb, head.uri.path(), &path, &query);
        let nameless = caller.with_user(UserInfo::default());
        let event = AuditEvent::prepare(log, self.clock(), head, &nameless, &attributes, || self.names.uid());
        if let Some(event) = event {
            event.unauthenticated(&head.headers, has_certificate);
        }
    }

    /// Counts of the audit log, if there is one.
    pub fn audit_stats(&self) -> Option<AuditStats> {
        self.audit.as_ref().map(|log| log.stats())
    }

    pub(crate) fn authenticator(&self) -> &Arc<Authenticator> {
        &self.authenticator
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

    pub(crate) fn fairness(&self) -> &Arc<Fairness> {
        &self.fairness
    }

    /// What clients used, waited for, lost and were refused.
    pub fn fairness_stats(&self) -> FairnessStats {
        self.fairness.stats()
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request<Bytes>, caller: &Caller) -> Response<ResponseBody> {
        self.serve(request.map(Full::new), caller).await
    }

    /// Answers a request; its body is read after it was authorized.
    pub(crate) async fn serve<B>(&self, request: Request<B>, caller: &Caller) -> Response<ResponseBody>
    where
        B: HttpBody,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, content) = request.into_parts();
        let (flow, mut audit) = (RequestFlow::of(caller), None);
        let response = match (self.handle(head, content, caller, flow.clone(), &mut audit).await, audit) {
            (Ok(response), None) => response,
            (Ok(response), Some(audit)) => audit.responded(response),
            (Err(error), None) => body::error(&error),
            (Err(error), Some(audit)) => {
                audit.failed(&error);
                body::error(&error)
            }
        };
        response.map(|body| body.metered(self.fairness.response(flow.as_ref())))
    }

    async fn handle<B>(
        &self,
        head: Parts,
        content: B,
        caller: &Caller,
        flow: Option<RequestFlow>,
        audit: &mut Option<AuditEvent>,
    ) -> Result<Response<ResponseBody>, StatusError>
    where
        B: HttpBody,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let query = QueryParams::parse(head.uri.query().unwrap_or_default());
        let (path, unknown) = match request_info::parse(head.uri.path()) {
            Ok(path) => (path, None),
            // Authorized as a path before it is reported.
            Err(error) => (RequestPath::Unknown, Some(error)),
        };
        let caller = &*self.authorize(&head, caller, &path, &query, audit)?;
        if let Some(error) = unknown {
            return Err(error);
        }
        // The only documents that are not served as JSON alone.
        let accept = match path {
            RequestPath::OpenApiV2 | RequestPath::Metrics => Accept::default(),
            RequestPath::Resource(ref info) => {
                let is_read = head.method == Method::GET || head.method == Method::HEAD;
                Accept::of(
                    &head.headers,
                    is_read && info.is_list_or_watch(&query) && is_encodable(info.kind),
                )?
            }
            _ => Accept::of(&head.headers, false)?,
        };
        if let RequestPath::Resource(info) = path {
            // Charged until the request is handled, and read before it takes a seat: a body that does not come holds none.
            let mut share = self.fairness.body(flow.as_ref());
            let read = read_body(content, self.limits.body, share.as_mut());
            let content = match caller.connection {
                Some(_) => in_time(read).await?,
                // Nothing is sent within a process.
                None => read.await?,
            };
            if let Some(audit) = audit {
                audit.request_body(&head.headers, &content);
            }
            let now = self.clock().timestamp();
            let request = ResourceRequest {
                method: head.method,
                headers: head.headers,
                info,
                query,
                accept,
                content,
                now,
                flow,
            };
            let _seat = self.fairness.seat(level(&request), request.flow.as_ref()).await?;
            return match request.content.len() {
                length if length > LARGE_BODY => self.answer_large(request, caller).await,
                _ => self.answer_resource(request, caller).await,
            };
        }
        if let RequestPath::Join(proxy) = &path
            && head.method == Method::POST
        {
            let _seat = self.fairness.seat(PriorityLevel::Writes, flow.as_ref()).await?;
            return self.join(caller, proxy.as_ref()).await;
        }
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(StatusError::method_not_allowed());
        }
        if matches!(path, RequestPath::Health) {
            return self.health();
        }
        let _seat = self.fairness.seat(PriorityLevel::Reads, flow.as_ref()).await?;
        self.answer_path(path, &head, &accept).await
    }

    /// Answers a GET of a path that is not an object's.
    async fn answer_path(
        &self,
        path: RequestPath<'_>,
        head: &Parts,
        accept: &Accept,
    ) -> Result<Response<ResponseBody>, StatusError> {
        match path {
            RequestPath::Backup => self.backup().await,
            RequestPath::Metrics => {
                let page = self.metrics.get().ok_or_else(StatusError::no_such_path)?;
                let accept = head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let (content_type, text) = page(&accept.collect::<Vec<_>>().join(","));
                Ok(body::negotiated(content_type, text.into()))
            }
            RequestPath::OpenIdConfiguration => {
                Ok(body::json(200, &self.authenticator.openid_configuration()))
            }
            RequestPath::SigningKeys => Ok(body::json(200, &self.authenticator.key_set())),
            RequestPath::Version => Ok(body::json(200, &discovery::version())),
            RequestPath::Discovery(path) => {
                let document = discovery::document(path, accept)?;
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
            RequestPath::Join(_) => Err(StatusError::method_not_allowed()),
            RequestPath::Resource(_) | RequestPath::Health | RequestPath::Unknown => {
                Err(StatusError::no_such_path())
            }
        }
    }

    /// Fails if the store cannot be read.
    fn health(&self) -> Result<Response<ResponseBody>, StatusError> {
        self.engine.stats().map_err(StatusError::internal)?;
        Ok(body::text(200, "ok"))
    }

    /// The user that the request acts as, if that user may do what is requested.
    fn authorize<'a>(
        &self,
        head: &Parts,
        caller: &'a Caller,
        path: &RequestPath<'_>,
        query: &QueryParams,
        audit: &mut Option<AuditEvent>,
    ) -> Result<Cow<'a, Caller>, StatusError> {
        let verb = authorization::path_verb(&head.method);
        let attributes = authorization::attributes(&head.method, &verb, head.uri.path(), path, query);
        if let Some(log) = &self.audit {
            let id = || self.names.uid();
            *audit = AuditEvent::begin(log, self.clock(), head, caller, &attributes, id);
        }
        let caller = match requested_user(&head.headers)? {
            None => Cow::Borrowed(caller),
            Some(wanted) => {
                let impersonation = self.impersonate(caller, &wanted, &attributes)?;
                if let Some(audit) = audit {
                    audit.impersonated(&impersonation);
                }
                Cow::Owned(caller.with_user(impersonation.user))
            }
        };
        // Members of system:masters need no policy.
        let checked = match caller.user.is_master() {
            true => Ok(String::new()),
            false => {
                let policy = self.authorizer.policy();
                authorization::check(&policy, &caller.user, &attributes, audit.is_some())
            }
        };
        if let Some(audit) = audit {
            match &checked {
                Ok(reason) => audit.decided("allow", reason),
                Err(_) => audit.decided("forbid", ""),
            }
        }
        checked.map(|_| caller)
    }

    fn impersonate(
        &self,
        caller: &Caller,
        wanted: &UserInfo,
        attributes: &AccessAttributes<'_>,
    ) -> Result<Impersonation, StatusError> {
        let policy = self.authorizer.policy();
        rbac::impersonate(&policy, &caller.user, wanted, attributes).map_err(|(resource, name, why)| {
            let (resource, group) = resource.split_once('.').unwrap_or((&resource, ""));
            authorization::forbidden_object(group, resource, &name, &why)
        })
    }

    /// Answers a review, which is not stored.
    fn review(
        &self,
        request: &ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let kind = request.info.kind;
        let without_namespace = kind.namespaced && request.info.namespace.is_none();
        if request.method != Method::POST || request.info.name.is_some() || without_namespace {
            return Err(StatusError::method_not_allowed());
        }
        let context = self.write_context(kind, caller, request.query.write_options("CreateOptions")?);
        let mut decoded = body::object(&request.headers, &request.content, kind.kind)?;
        let warnings = write::decode_strictly(&context, None, &mut decoded)?;
        let authenticate = |token: &str, audiences: &[String]| {
            let now = request.now.as_second();
            let found = self.authenticator.authenticate(&self.engine, token, audiences, now);
            found.map_err(|error| error.to_string())
        };
        let review = {
            let context = ReviewContext {
                policy: &self.authorizer.policy(),
                user: &caller.user,
                namespace: request.info.namespace.as_deref(),
                now: request.now,
                authenticate: &authenticate,
            };
            reviews::review(kind, decoded.value, &context)?
        };
        let mut response = body::json(201, &list::converted(request, &review));
        body::warn(&mut response, &warnings);
        Ok(response)
    }

    async fn answer_resource(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        if request.info.kind.is_stored() {
            self.resource(request, caller).await
        } else {
            self.review(&request, caller)
        }
    }

    /// Decoding and validating a large body takes long enough to be noticed by others: few at a time, and off the threads
    /// that serve them.
    async fn answer_large(
        &self,
        request: ResourceRequest,
        caller: &Caller,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let _permit = self.large_bodies.acquire().await.map_err(StatusError::internal)?;
        if !may_block() {
            return self.answer_resource(request, caller).await;
        }
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(self.answer_resource(request, caller)))
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
        if request.info.subresource == Subresource::Eviction {
            return match request.method {
                Method::POST => self.evict(request, caller).await,
                _ => Err(StatusError::method_not_allowed()),
            };
        }
        if request.info.subresource == Subresource::Token {
            return match request.method {
                Method::POST => self.issue_token(&request, caller),
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
    /// `None`: the caller is exempt.
    flow: Option<RequestFlow>,
}

/// The queue of a request.
fn level(request: &ResourceRequest) -> PriorityLevel {
    let is_read = request.method == Method::GET || request.method == Method::HEAD;
    let is_list = is_read && request.info.name.is_none() && !request.query.is_watch();
    let is_delete_collection = request.method == Method::DELETE && request.info.name.is_none();
    let has_limit = request.query.value("limit").is_some_and(|limit| !matches!(limit, "" | "0"));
    match is_read || !request.info.kind.is_stored() {
        true if is_list && !has_limit && !list::is_streamed(request) => PriorityLevel::FullLists,
        true => PriorityLevel::Reads,
        false if is_delete_collection => PriorityLevel::FullLists,
        false => PriorityLevel::Writes,
    }
}

/// The user of the impersonation headers, if there are any.
fn requested_user(headers: &HeaderMap) -> Result<Option<UserInfo>, StatusError> {
    const EXTRA: &str = "impersonate-extra-";
    if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return Ok(None);
    }
    let all = |name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let first = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys().map(http::HeaderName::as_str) {
        if let Some(key) = name.strip_prefix(EXTRA) {
            extra.entry(rbac::extra_key(key)).or_default().extend(all(name));
        }
    }
    let user = UserInfo {
        name: first("impersonate-user"),
        uid: first("impersonate-uid"),
        groups: all("impersonate-group"),
        extra,
    };
    match user {
        user if !user.name.is_empty() => Ok(Some(user)),
        user if user == UserInfo::default() => Ok(None),
        user => Err(StatusError::bad_request(format!(
            "requested {} without impersonating a user name: send Impersonate-User, too",
            user.to_json()
        ))),
    }
}

/// Reads a body up to a limit, charging it as it comes.
async fn read_body<B>(
    content: B,
    limit: usize,
    mut share: Option<&mut HeldShare>,
) -> Result<Bytes, StatusError>
where
    B: HttpBody,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut content = std::pin::pin!(Limited::new(content, limit));
    let mut read = BytesMut::new();
    let mut turn_end = body::BYTES_PER_TURN;
    while let Some(frame) = content.frame().await {
        let mut data = match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) => data,
            // Trailers.
            Ok(Err(_)) => continue,
            Err(error) if error.is::<LengthLimitError>() => return Err(StatusError::too_large(limit)),
            Err(error) => {
                let why = format!("the body of the request could not be read: {error}");
                return Err(StatusError::bad_request(why));
            }
        };
        if let Some(share) = &mut share {
            share.charge(read.len() + data.remaining());
        }
        if read.is_empty() && content.is_end_stream() {
            return Ok(data.copy_to_bytes(data.remaining()));
        }
        read.put(data);
        if read.len() >= turn_end {
            turn_end = read.len() + body::BYTES_PER_TURN;
            tokio::task::yield_now().await;
        }
    }
    Ok(read.freeze())
}

async fn in_time(read: impl Future<Output = Result<Bytes, StatusError>>) -> Result<Bytes, StatusError> {
    match tokio::time::timeout(BODY_TIMEOUT, read).await {
        Ok(result) => result,
        Err(_) => Err(StatusError::body_timeout(BODY_TIMEOUT.as_secs())),
    }
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
