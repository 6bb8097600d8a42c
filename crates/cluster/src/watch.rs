//! Watches: one task for each kind, one bounded queue for all.
//!
//! Objects travel as the text that came, so that whoever takes them out parses them once, into its own model. A
//! watch that breaks is resumed where it was; when the API no longer knows that place, everything is listed again.

use std::borrow::Cow;
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource};
use kube::core::DynamicResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::failure::watch_cause;
use super::{Kind, outage};

/// How many events may wait: when the reader is slow, the API's stream is not read on.
const QUEUE: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A kind to watch, or a part of it.
#[derive(Clone, Debug)]
pub struct Wanted {
    kind: Kind,
    config: watcher::Config,
    namespace: Option<String>,
    head_only: bool,
}

impl Wanted {
    /// What the log calls it; watches of single objects have their own names.
    fn request(&self) -> String {
        let of = [self.namespace.as_deref(), self.config.field_selector.as_deref()];
        let of: String = of.into_iter().flatten().map(|part| format!(" {part}")).collect();
        format!("watch {}{of}", self.kind.as_str())
    }

    /// All objects of a kind.
    pub fn all(kind: Kind) -> Self {
        Self { kind, config: watcher::Config::default().streaming_lists(), namespace: None, head_only: false }
    }

    /// Only those with such labels, as `!service.kubernetes.io/headless`.
    pub fn labels(mut self, selector: &str) -> Self {
        self.config.label_selector = Some(selector.to_owned());
        self
    }

    /// Only those with such fields, as `metadata.name=node-a`.
    pub fn fields(mut self, selector: &str) -> Self {
        self.config.field_selector = Some(selector.to_owned());
        self
    }

    /// Only those of a namespace.
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Only their metadata: names and labels. Of a Pod that is a small part.
    pub fn metadata_only(mut self) -> Self {
        self.head_only = true;
        self
    }
}

/// What came in.
#[derive(Debug)]
pub enum Event {
    /// All objects of the kind follow; what does not come before [`Event::Listed`] is gone.
    Listing(Kind),
    /// An object, new or changed.
    Put(Kind, Watched),
    /// An object as it last was; it is gone.
    Gone(Kind, Watched),
    /// All objects of the kind have come.
    Listed(Kind),
    /// The API cannot be reached or refuses; it is tried again.
    Trouble(Kind, String),
}

/// An object as text, with the part of its metadata that a watch needs.
#[derive(Clone, Debug)]
pub struct Watched {
    meta: ObjectMeta,
    text: Box<RawValue>,
}

impl Watched {
    /// The object as JSON.
    pub fn text(&self) -> &str {
        self.text.get()
    }

    /// Its namespace; empty for objects that have none.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    /// Its version.
    pub fn resource_version(&self) -> &str {
        self.meta.resource_version.as_deref().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for Watched {
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
        Ok(Self { meta: ObjectMeta { name, namespace, resource_version, ..ObjectMeta::default() }, text })
    }
}

impl Resource for Watched {
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

/// An object of which the API is asked for the metadata alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
struct HeadOnly(Watched);

impl Resource for HeadOnly {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Watched::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Watched::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Watched::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Watched::plural(resource)
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

impl From<HeadOnly> for Watched {
    fn from(head: HeadOnly) -> Self {
        head.0
    }
}

/// The events of several watches. Dropping it ends them.
pub struct Feed {
    events: mpsc::Receiver<Event>,
    _tasks: JoinSet<()>,
}

impl Feed {
    /// Starts a watch for each kind.
    pub fn start(client: &Client, wanted: impl IntoIterator<Item = Wanted>) -> Self {
        let (sender, events) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        for wanted in wanted {
            tasks.spawn(follow(client.clone(), wanted, sender.clone()));
        }
        Self { events, _tasks: tasks }
    }

    /// The next event. It waits for ever when the API is away, and may be dropped and called again.
    pub async fn next(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // The tasks never end by themselves, so this only happens while the process goes down.
            None => std::future::pending().await,
        }
    }

    /// The next event if it is already there.
    pub fn ready(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

/// Passes on the events of one kind until nobody reads them.
async fn follow(client: Client, wanted: Wanted, sender: mpsc::Sender<Event>) {
    if wanted.head_only {
        follow_as::<HeadOnly>(client, wanted, sender).await;
    } else {
        follow_as::<Watched>(client, wanted, sender).await;
    }
}

async fn follow_as<K>(client: Client, mut wanted: Wanted, sender: mpsc::Sender<Event>)
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static,
    Watched: From<K>,
{
    let mut pause = FIRST_PAUSE;
    let request = wanted.request();
    loop {
        let mut stream = std::pin::pin!(watcher(api::<K>(&client, &wanted), wanted.config.clone()));
        let mut listed = false;
        while let Some(item) = stream.next().await {
            let event = match item {
                Ok(event) => {
                    pause = FIRST_PAUSE;
                    outage::request_worked(&request);
                    listed |= matches!(event, watcher::Event::InitDone);
                    translate(wanted.kind, event)
                }
                Err(error) => {
                    let falls_back = !listed && refuses_streaming(&error);
                    if !falls_back {
                        report(&request, &error);
                    }
                    if sender.send(Event::Trouble(wanted.kind, watch_cause(&error))).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    if falls_back {
                        // The list is asked for by pages then, which every API server can do.
                        wanted.config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
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

fn api<K>(client: &Client, wanted: &Wanted) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let resource = wanted.kind.resource();
    match &wanted.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn translate<K>(kind: Kind, event: watcher::Event<K>) -> Event
where
    Watched: From<K>,
{
    match event {
        watcher::Event::Init => Event::Listing(kind),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => Event::Put(kind, object.into()),
        watcher::Event::Delete(object) => Event::Gone(kind, object.into()),
        watcher::Event::InitDone => Event::Listed(kind),
    }
}

/// Whether the API does not know how to begin a watch with the list: before Kubernetes 1.32 it says so at once, and
/// over an etcd older than 3.4.25 in the place of the first event.
fn refuses_streaming(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 400 | 422),
        watcher::Error::WatchError(_) => true,
        _ => false,
    }
}

/// Logs a refusal. That the API is away is logged by the client, for all watches at once.
fn report(request: &str, error: &watcher::Error) {
    let status = match error {
        watcher::Error::WatchError(status) => status,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status,
        _ => return tracing::debug!(request, error = watch_cause(error), "watch ended"),
    };
    match status.code {
        // The place in the history is gone, so everything is listed again.
        410 => tracing::debug!(request, "watch expired"),
        404 => outage::request_missing(request),
        code if outage::means_away(code) => {}
        _ => outage::request_failed(request, &watch_cause(error)),
    }
}

/// Between half and all of it, so that thousands of nodes do not come back in the same instant.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0u8) % 1_000;
    pause / 2 + pause.mul_f64(random as f64 / 2_000.0)
}
