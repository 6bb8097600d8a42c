//! Watches: one task per kind, one bounded queue for all.
//!
//! Objects stay as they came, JSON text or a message of protobuf, so that the reader parses them once, into its own model. A
//! broken watch is resumed at its resourceVersion; when that has expired, all objects are listed again.

mod encoded_watch;

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource};
use model::protobuf;
use model::protobuf::wire::WireError;
use model::random::Random;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::failure::watch_cause;
use super::lean_client::lean;
use super::{ObjectKind, api_outage};

/// Most queued events; a full queue stops reading from the API.
const QUEUE: usize = 256;
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// How often an optional kind that the API does not serve is asked for.
const ABSENT_RETRY: Duration = Duration::from_secs(30);

/// A kind to watch, with selectors.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    kind: ObjectKind,
    config: watcher::Config,
    namespace: Option<String>,
    metadata_only: bool,
    /// Whether objects come with their managedFields.
    managed_fields: bool,
    /// Whether the API may lack the kind: it then has no objects, until it appears.
    optional: bool,
    protobuf: bool,
}

impl WatchSpec {
    /// The request in log lines, as `watch Lease kube-system metadata.name=zoneward-controller`.
    fn request(&self) -> String {
        let selectors = [self.namespace.as_deref(), self.config.field_selector.as_deref()];
        let selectors: String = selectors.into_iter().flatten().map(|text| format!(" {text}")).collect();
        format!("watch {}{selectors}", self.kind.as_str())
    }

    pub fn all(kind: ObjectKind) -> Self {
        Self {
            kind,
            config: watcher::Config::default().streaming_lists(),
            namespace: None,
            metadata_only: false,
            managed_fields: false,
            // Definitions of an earlier version may lack the newer of our own kinds.
            optional: matches!(
                kind,
                ObjectKind::GatewayApi(_)
                    | ObjectKind::CustomResourceDefinition
                    | ObjectKind::MeshLoadBalancing
                    | ObjectKind::MeshRouteFilter
            ),
            protobuf: false,
        }
    }

    /// Sets a label selector, as `!service.kubernetes.io/headless`.
    pub fn labels(mut self, selector: &str) -> Self {
        self.config.label_selector = Some(selector.to_owned());
        self
    }

    /// Sets a field selector, as `metadata.name=node-a`.
    pub fn fields(mut self, selector: &str) -> Self {
        self.config.field_selector = Some(selector.to_owned());
        self
    }

    /// If the API does not serve the kind to this account, it counts as empty.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Asks for `metadata.managedFields` as well.
    pub fn managed_fields(mut self) -> Self {
        self.managed_fields = true;
        self
    }

    /// Asks for protobuf, of the kinds that are parsed from it. For readers that do not write these objects back: what is
    /// not parsed is lost.
    pub fn protobuf(mut self) -> Self {
        self.protobuf = matches!(self.kind, ObjectKind::Service | ObjectKind::Slice | ObjectKind::Node);
        self
    }

    /// Watches metadata only, which is a small part of a Pod.
    pub fn metadata_only(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

#[derive(Debug)]
pub enum InformerEvent {
    /// A list of all objects starts: objects not applied before [`InformerEvent::ListCompleted`] were deleted.
    ListStarted(ObjectKind),
    /// An object was created or changed.
    Applied(ObjectKind, WatchedObject),
    /// An object was deleted; this is its last state.
    Deleted(ObjectKind, WatchedObject),
    ListCompleted(ObjectKind),
    /// The watch failed and is retried.
    Failed(ObjectKind, String),
}

/// An object as it came, with the metadata that a watch needs.
#[derive(Clone, Debug)]
pub struct WatchedObject {
    meta: ObjectMeta,
    content: ObjectContent,
}

#[derive(Clone, Debug)]
enum ObjectContent {
    Json(Box<RawValue>),
    Message(Bytes),
}

impl WatchedObject {
    /// An object that is known by its name alone.
    pub fn named(namespace: &str, name: &str) -> Self {
        let (namespace, name) = (Some(namespace.to_owned()), Some(name.to_owned()));
        Self {
            meta: ObjectMeta { namespace, name, ..ObjectMeta::default() },
            content: ObjectContent::Json(RawValue::NULL.to_owned()),
        }
    }

    /// An object from its message in protobuf, without the envelope.
    pub fn from_message(message: Bytes) -> Result<Self, WireError> {
        let head = protobuf::head(&message)?;
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let meta = ObjectMeta {
            namespace: given(head.namespace),
            name: given(head.name),
            resource_version: given(head.resource_version),
            ..ObjectMeta::default()
        };
        Ok(Self { meta, content: ObjectContent::Message(message) })
    }

    /// Its JSON; `null` for one that came as protobuf, which only [`WatchSpec::protobuf`] asks for.
    pub fn text(&self) -> &str {
        match &self.content {
            ObjectContent::Json(text) => text.get(),
            ObjectContent::Message(_) => RawValue::NULL.get(),
        }
    }

    /// Its metadata and status as JSON. The rest is skipped: [`crate::WatchCache`] parses it, once.
    pub fn metadata_and_status(&self) -> Option<Value> {
        #[derive(Deserialize)]
        struct Parts {
            metadata: Value,
            #[serde(default)]
            status: Value,
        }
        let Parts { metadata, status } = serde_json::from_str(self.text()).ok()?;
        Some(json!({"metadata": metadata, "status": status}))
    }

    /// Its message, if it came as protobuf.
    pub fn message(&self) -> Option<&Bytes> {
        match &self.content {
            ObjectContent::Json(_) => None,
            ObjectContent::Message(message) => Some(message),
        }
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub fn resource_version(&self) -> &str {
        self.meta.resource_version.as_deref().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for WatchedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            metadata: Metadata,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            name: Option<String>,
            namespace: Option<String>,
            resource_version: Option<String>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let head: Head = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        let Metadata { name, namespace, resource_version } = head.metadata;
        let meta = ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() };
        Ok(Self { meta, content: ObjectContent::Json(text) })
    }
}

impl Resource for WatchedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// An object requested as `PartialObjectMetadata`.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
struct MetadataOnly(WatchedObject);

impl Resource for MetadataOnly {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        WatchedObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        WatchedObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        WatchedObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        WatchedObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }

    fn metadata_api() -> bool {
        true
    }
}

impl From<MetadataOnly> for WatchedObject {
    fn from(head: MetadataOnly) -> Self {
        head.0
    }
}

/// The merged events of several watches. Dropping it stops them.
pub struct Informer {
    events: mpsc::Receiver<InformerEvent>,
    _tasks: JoinSet<()>,
}

impl Informer {
    /// Starts the watches. `random` jitters their backoff.
    pub fn start(client: &Client, mut random: Random, specs: impl IntoIterator<Item = WatchSpec>) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        for spec in specs {
            tasks.spawn(watch(client.clone(), spec, random.split(), sender.clone()));
        }
        Self { events, _tasks: tasks }
    }

    /// Waits for the next event. Safe to cancel.
    pub async fn next(&mut self) -> InformerEvent {
        match self.events.recv().await {
            Some(event) => event,
            // The tasks end only with the process.
            None => std::future::pending().await,
        }
    }

    /// The next event if one is queued.
    pub fn ready(&mut self) -> Option<InformerEvent> {
        self.events.try_recv().ok()
    }
}

/// Forwards the events of one watch until the stream is dropped.
async fn watch(client: Client, spec: WatchSpec, random: Random, sender: mpsc::Sender<InformerEvent>) {
    if spec.metadata_only {
        watch_as::<MetadataOnly>(client, spec, random, sender).await;
    } else {
        watch_as::<WatchedObject>(client, spec, random, sender).await;
    }
}

async fn watch_as<K>(
    client: Client,
    mut spec: WatchSpec,
    mut random: Random,
    sender: mpsc::Sender<InformerEvent>,
) where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
    WatchedObject: From<K>,
{
    let client = lean(&client, spec.managed_fields);
    let mut backoff = FIRST_BACKOFF;
    let request = spec.request();
    // Of an optional kind: whether it has been listed, and whether it counts as empty.
    let (mut has_listed, mut is_absent) = (false, false);
    loop {
        let mut stream = events::<K>(&client, &spec);
        let mut listed = false;
        while let Some(item) = stream.next().await {
            let event = match item {
                Ok(event) => {
                    backoff = FIRST_BACKOFF;
                    api_outage::request_succeeded(&request);
                    listed |= matches!(event, watcher::Event::InitDone);
                    has_listed |= listed;
                    if listed && std::mem::take(&mut is_absent) {
                        tracing::info!(kind = spec.kind.as_str(), "the API serves this kind now");
                    }
                    translate(spec.kind, event)
                }
                // One that was served before answers like this while an API server starts.
                Err(error) if spec.optional && !has_listed && is_not_served(&error) => {
                    if !std::mem::replace(&mut is_absent, true) {
                        api_outage::optional_kind_not_served(spec.kind.as_str(), &watch_cause(&error));
                        for event in [InformerEvent::ListStarted, InformerEvent::ListCompleted] {
                            if sender.send(event(spec.kind)).await.is_err() {
                                return;
                            }
                        }
                    }
                    tokio::time::sleep(jittered(ABSENT_RETRY, &mut random)).await;
                    continue;
                }
                Err(error) => {
                    let falls_back = !listed && rejects_streaming_lists(&error);
                    if !falls_back {
                        report(&request, &error);
                    }
                    if sender.send(InformerEvent::Failed(spec.kind, watch_cause(&error))).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(jittered(backoff, &mut random)).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                    if falls_back {
                        // Paged lists work with every API server.
                        spec.config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
                        break;
                    }
                    continue;
                }
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// The events of a watch.
fn events<K>(
    client: &Client,
    spec: &WatchSpec,
) -> BoxStream<'static, Result<watcher::Event<WatchedObject>, watcher::Error>>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
    WatchedObject: From<K>,
{
    if spec.protobuf {
        return encoded_watch::events(client.clone(), spec).boxed();
    }
    let events = watcher(api::<K>(client, spec), spec.config.clone());
    events.map(|item| item.map(watched)).boxed()
}

fn watched<K>(event: watcher::Event<K>) -> watcher::Event<WatchedObject>
where
    WatchedObject: From<K>,
{
    match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitApply(object) => watcher::Event::InitApply(object.into()),
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::Apply(object) => watcher::Event::Apply(object.into()),
        watcher::Event::Delete(object) => watcher::Event::Delete(object.into()),
    }
}

fn api<K>(client: &Client, spec: &WatchSpec) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let resource = spec.kind.resource();
    match &spec.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn translate(kind: ObjectKind, event: watcher::Event<WatchedObject>) -> InformerEvent {
    match event {
        watcher::Event::Init => InformerEvent::ListStarted(kind),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            InformerEvent::Applied(kind, object)
        }
        watcher::Event::Delete(object) => InformerEvent::Deleted(kind, object),
        watcher::Event::InitDone => InformerEvent::ListCompleted(kind),
    }
}

/// Whether the API does not support streaming lists: before Kubernetes 1.32 it rejects the request, and with etcd before
/// 3.4.25 it sends an error as the first event.
fn rejects_streaming_lists(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 400 | 422),
        watcher::Error::WatchError(_) => true,
        _ => false,
    }
}

/// Whether the API has no such kind, or does not let this account read it.
fn is_not_served(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

/// Logs a rejection. The client logs that the API is unreachable, once for all watches.
fn report(request: &str, error: &watcher::Error) {
    let status = match error {
        watcher::Error::WatchError(status) => status,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status,
        _ => return tracing::debug!(request, error = watch_cause(error), "watch ended"),
    };
    match status.code {
        // The resourceVersion was compacted: the watcher lists again.
        410 => tracing::debug!(request, "watch expired"),
        404 => api_outage::kind_not_served(request),
        code if api_outage::is_unreachable_status(code) => {}
        _ => api_outage::request_failed(request, &watch_cause(error)),
    }
}

/// Between half and all of the backoff, so that thousands of nodes do not reconnect at the same time.
fn jittered(backoff: Duration, random: &mut Random) -> Duration {
    backoff / 2 + backoff.mul_f64(random.fraction() / 2.0)
}
