//! The source of objects: the watches of a cluster, or files that are read again when they change.
//!
//! Secrets and ConfigMaps are watched one by one, each only while an object refers to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kube::Client;
use model::gateway_api::CertificateKind;
use model::random::Random;
use model::{Name, ObjectKey};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use super::certificate_watches::{CertificateKey, CertificateUpdate, CertificateWatches};
use super::table_cache::{KINDS, wanted};
use cluster::input::{Documents, files};
use cluster::log;
use cluster::{Informer, InformerEvent, ObjectKind};

/// The poll interval of files.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum MeshInput {
    /// Of a watch, or the equivalent of a file.
    Event(Box<InformerEvent>),
    Certificate(Box<CertificateUpdate>),
}

pub enum ObjectSource {
    Cluster(Box<ClusterSource>),
    Files(Box<FileSource>),
}

impl ObjectSource {
    pub fn cluster(client: Client, mut random: Random) -> Self {
        let feed = Informer::start(&client, random.split(), wanted());
        let certificates = CertificateWatches::new(client, random);
        Self::Cluster(Box::new(ClusterSource { feed, certificates }))
    }

    /// Reads the files at once, so that wrong ones are an error.
    pub fn files(input: cluster::input::InputArgs) -> Result<Self> {
        let mut files = FileSource {
            stamp: Vec::new(),
            input,
            certificates: BTreeMap::new(),
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
            // Certificates are few, so they cannot starve events.
            Self::Cluster(cluster) => tokio::select! {
                biased;
                update = cluster.certificates.next() => MeshInput::Certificate(update.into()),
                event = cluster.feed.next() => MeshInput::Event(event.into()),
            },
            Self::Files(files) => files.next().await,
        }
    }

    /// The next input, if it is ready.
    pub fn ready(&mut self) -> Option<MeshInput> {
        match self {
            Self::Cluster(cluster) => {
                let update = cluster.certificates.ready();
                let update = update.map(|update| MeshInput::Certificate(update.into()));
                update.or_else(|| cluster.feed.ready().map(|event| MeshInput::Event(event.into())))
            }
            Self::Files(files) => files.queue.pop_front(),
        }
    }

    /// Watches exactly these Secrets and ConfigMaps, and returns those that are no longer watched.
    pub fn watch_certificates(&mut self, keys: &BTreeSet<CertificateKey>) -> Vec<CertificateKey> {
        match self {
            Self::Cluster(cluster) => cluster.certificates.watch(keys),
            Self::Files(files) => files.watch_certificates(keys),
        }
    }
}

pub struct ClusterSource {
    feed: Informer,
    certificates: CertificateWatches,
}

pub struct FileSource {
    input: cluster::input::InputArgs,
    /// Paths, sizes and modification times.
    stamp: Stamp,
    certificates: BTreeMap<CertificateKey, CertificateUpdate>,
    wanted: BTreeSet<CertificateKey>,
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
        let sources = [
            (ObjectKind::Secret, CertificateKind::Secret),
            (ObjectKind::ConfigMap, CertificateKind::ConfigMap),
        ];
        self.certificates.clear();
        for (kind, of) in sources {
            let objects = objects_by_kind.remove(&kind).into_iter().flatten();
            self.certificates.extend(objects.map(|object| certificate(of, &object)));
        }
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
        self.watch_certificates(&wanted);
        Ok(())
    }

    fn watch_certificates(&mut self, keys: &BTreeSet<CertificateKey>) -> Vec<CertificateKey> {
        for key in keys.difference(&self.wanted) {
            let known = self.certificates.get(key).cloned();
            let update = known.unwrap_or_else(|| CertificateUpdate::missing(key));
            self.queue.push_back(MeshInput::Certificate(update.into()));
        }
        let gone = self.wanted.difference(keys).cloned().collect();
        self.wanted = keys.clone();
        gone
    }
}

fn kind_of(object: &Value) -> Option<ObjectKind> {
    let (kind, version) = (object["kind"].as_str()?, object["apiVersion"].as_str().unwrap_or_default());
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let known = KINDS.into_iter().chain([ObjectKind::Secret, ObjectKind::ConfigMap]);
    known.into_iter().find(|known| {
        // Files may omit the version of other kinds, but there are several that are called Gateway.
        let is_other = matches!(known, ObjectKind::GatewayApi(_)) && group != model::gateway_api::GROUP;
        known.as_str() == kind && !is_other
    })
}

/// As the API server does.
fn fill_in_namespace(object: &mut Value) {
    let global =
        object["kind"].as_str().is_some_and(|kind| ["Node", "Namespace", "GatewayClass"].contains(&kind));
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && !global
    {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
}

fn certificate(kind: CertificateKind, object: &Value) -> (CertificateKey, CertificateUpdate) {
    let part = |name: &str| Name::new(object["metadata"][name].as_str().unwrap_or_default());
    let key = (kind, ObjectKey { namespace: part("namespace"), name: part("name") });
    let update = CertificateUpdate::parse(&key, &object.to_string());
    (key, update)
}
