//! The source of objects: the watches of a cluster, or files that are read again when they change.
//!
//! Secrets are watched one by one, each only while a listener refers to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kube::Client;
use model::random::Random;
use model::{Name, Notice, ObjectKey};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};
use xds::render::PemKeyPair;

use super::secret_watches::SecretWatches;
use super::table_cache::{KINDS, wanted};
use super::tls_secret;
use cluster::input::{Documents, files};
use cluster::log;
use cluster::{Informer, InformerEvent, ObjectKind};

/// The poll interval of files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum MeshInput {
    /// Of a watch, or the equivalent of a file.
    Event(Box<InformerEvent>),
    /// A Secret, or why it cannot be used.
    Secret(ObjectKey, Result<PemKeyPair, Notice>),
}

pub enum ObjectSource {
    Cluster(Box<ClusterSource>),
    Files(Box<FileSource>),
}

impl ObjectSource {
    pub fn cluster(client: Client, mut random: Random) -> Self {
        let feed = Informer::start(&client, random.split(), wanted());
        Self::Cluster(Box::new(ClusterSource { feed, secrets: SecretWatches::new(client, random) }))
    }

    /// Reads the files at once, so that wrong ones are an error.
    pub fn files(input: cluster::input::InputArgs) -> Result<Self> {
        let mut files = FileSource {
            stamp: Vec::new(),
            input,
            secrets: BTreeMap::new(),
            wanted: BTreeSet::new(),
            queue: VecDeque::new(),
            next_poll: Instant::now() + POLL_INTERVAL,
        };
        files.read()?;
        Ok(Self::Files(Box::new(files)))
    }

    /// The next input. Cancel safe.
    pub async fn next(&mut self) -> MeshInput {
        match self {
            // Secrets are few, so they cannot starve events.
            Self::Cluster(cluster) => tokio::select! {
                biased;
                (key, pair) = cluster.secrets.next() => MeshInput::Secret(key, pair),
                event = cluster.feed.next() => MeshInput::Event(event.into()),
            },
            Self::Files(files) => files.next().await,
        }
    }

    /// The next input, if it is ready.
    pub fn ready(&mut self) -> Option<MeshInput> {
        match self {
            Self::Cluster(cluster) => {
                let secret = cluster.secrets.ready().map(|(key, pair)| MeshInput::Secret(key, pair));
                secret.or_else(|| cluster.feed.ready().map(|event| MeshInput::Event(event.into())))
            }
            Self::Files(files) => files.queue.pop_front(),
        }
    }

    /// Watches exactly these Secrets, and returns those that are no longer watched.
    pub fn watch_secrets(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        match self {
            Self::Cluster(cluster) => cluster.secrets.watch(keys),
            Self::Files(files) => files.watch_secrets(keys),
        }
    }
}

pub struct ClusterSource {
    feed: Informer,
    secrets: SecretWatches,
}

pub struct FileSource {
    input: cluster::input::InputArgs,
    /// Paths, sizes and modification times.
    stamp: Stamp,
    secrets: BTreeMap<ObjectKey, Result<PemKeyPair, Notice>>,
    wanted: BTreeSet<ObjectKey>,
    queue: VecDeque<MeshInput>,
    next_poll: Instant,
}

type Stamp = Vec<(std::path::PathBuf, u64, Option<SystemTime>)>;

impl FileSource {
    async fn next(&mut self) -> MeshInput {
        loop {
            if let Some(input) = self.queue.pop_front() {
                return input;
            }
            // The deadline is kept across cancellation.
            tokio::time::sleep_until(self.next_poll).await;
            self.next_poll = Instant::now() + POLL_INTERVAL;
            if self.stamp() == self.stamp {
                continue;
            }
            match self.read() {
                Ok(()) => info!("files changed; reloaded"),
                Err(error) => {
                    // A missing file may be in the middle of being replaced.
                    warn!(error = %format_args!("{error:#}"), "files changed and cannot be read; keeping what was read before");
                    self.stamp = self.stamp();
                }
            }
        }
    }

    fn stamp(&self) -> Stamp {
        let from_disk = self.input.files.iter().filter(|path| path.as_os_str() != "-");
        let paths = from_disk.flat_map(|path| files(path, self.input.recursive).unwrap_or_default());
        let stamp = |path: std::path::PathBuf| {
            let about = std::fs::metadata(&path).ok();
            let length = about.as_ref().map_or(0, std::fs::Metadata::len);
            (path, length, about.and_then(|about| about.modified().ok()))
        };
        paths.map(stamp).collect()
    }

    fn read(&mut self) -> Result<()> {
        let stamp = self.stamp();
        let documents = Documents::read(&self.input)?;
        for notice in &documents.notices {
            log::notice(notice);
        }
        self.stamp = stamp;
        let mut objects_by_kind: BTreeMap<ObjectKind, Vec<Value>> = BTreeMap::new();
        for mut object in documents.objects {
            fill_in_namespace(&mut object);
            if let Some(kind) = kind_of(&object) {
                objects_by_kind.entry(kind).or_default().push(object);
            }
        }
        self.secrets = objects_by_kind.remove(&ObjectKind::Secret).into_iter().flatten().map(pair).collect();
        for kind in KINDS {
            self.queue.push_back(MeshInput::Event(InformerEvent::ListStarted(kind).into()));
            for object in objects_by_kind.remove(&kind).unwrap_or_default() {
                match serde_json::from_value(object) {
                    Ok(watched) => {
                        self.queue.push_back(MeshInput::Event(InformerEvent::Applied(kind, watched).into()))
                    }
                    Err(error) => warn!(kind = kind.as_str(), %error, "cannot parse an object"),
                }
            }
            self.queue.push_back(MeshInput::Event(InformerEvent::ListCompleted(kind).into()));
        }
        let wanted = std::mem::take(&mut self.wanted);
        self.watch_secrets(&wanted);
        Ok(())
    }

    fn watch_secrets(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys.difference(&self.wanted) {
            let pair = self.secrets.get(key).cloned().unwrap_or_else(|| Err(tls_secret::missing(key)));
            self.queue.push_back(MeshInput::Secret(key.clone(), pair));
        }
        let gone = self.wanted.difference(keys).cloned().collect();
        self.wanted = keys.clone();
        gone
    }
}

fn kind_of(object: &Value) -> Option<ObjectKind> {
    let kind = object["kind"].as_str()?;
    KINDS.into_iter().chain([ObjectKind::Secret]).find(|known| known.as_str() == kind)
}

/// As the API server does.
fn fill_in_namespace(object: &mut Value) {
    let global = object["kind"] == "Node";
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && !global
    {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
}

fn pair(object: Value) -> (ObjectKey, Result<PemKeyPair, Notice>) {
    let part = |name: &str| Name::new(object["metadata"][name].as_str().unwrap_or_default());
    let key = ObjectKey { namespace: part("namespace"), name: part("name") };
    let pair = tls_secret::parse(&key, &object.to_string());
    (key, pair)
}
