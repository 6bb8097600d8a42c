//! Where the world comes from: the watches of a cluster, or files that are read again when they change.
//!
//! Secrets are watched one by one, each only while a listener names it: nobody else's secrets come near us.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use kube::Client;
use model::{Name, Notice, ObjectKey};
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use super::secret::{self, Pair};
use super::secrets::Secrets;
use super::state::{KINDS, wanted};
use crate::cluster::{Event, Feed, Kind};
use crate::input::{Documents, files};
use crate::{cli, log};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What comes in.
#[derive(Debug)]
pub enum Input {
    /// An event of a watch, or what a file would have been as one.
    Event(Box<Event>),
    /// A Secret that a listener names, or why it cannot be used.
    Secret(ObjectKey, Result<Pair, Notice>),
}

/// Where the world comes from.
pub enum Source {
    /// An API.
    Cluster(Box<Cluster>),
    /// Files.
    Files(Box<Files>),
}

impl Source {
    /// The watches of an API.
    pub fn cluster(client: Client) -> Self {
        let feed = Feed::start(&client, wanted());
        Self::Cluster(Box::new(Cluster { feed, secrets: Secrets::new(client) }))
    }

    /// Files, read now, so that whoever names wrong ones hears of it.
    pub fn files(input: cli::InputArgs) -> Result<Self> {
        let mut files = Files {
            stamp: Vec::new(),
            input,
            secrets: BTreeMap::new(),
            wanted: BTreeSet::new(),
            queue: VecDeque::new(),
            look_at: Instant::now() + LOOK,
        };
        files.read()?;
        Ok(Self::Files(Box::new(files)))
    }

    /// What comes next. It may be dropped and called again.
    pub async fn next(&mut self) -> Input {
        match self {
            Self::Cluster(cluster) => tokio::select! {
                event = cluster.feed.next() => Input::Event(event.into()),
                (key, pair) = cluster.secrets.next() => Input::Secret(key, pair),
            },
            Self::Files(files) => files.next().await,
        }
    }

    /// What comes next, if it is already there.
    pub fn ready(&mut self) -> Option<Input> {
        match self {
            Self::Cluster(cluster) => {
                let secret = cluster.secrets.ready().map(|(key, pair)| Input::Secret(key, pair));
                secret.or_else(|| cluster.feed.ready().map(|event| Input::Event(event.into())))
            }
            Self::Files(files) => files.queue.pop_front(),
        }
    }

    /// Brings these Secrets, and no others any more. Answers with those that nobody wants now.
    pub fn want(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        match self {
            Self::Cluster(cluster) => cluster.secrets.want(keys),
            Self::Files(files) => files.want(keys),
        }
    }
}

/// The watches of an API.
pub struct Cluster {
    feed: Feed,
    secrets: Secrets,
}

/// Objects of files.
pub struct Files {
    input: cli::InputArgs,
    /// Which files there are, how long, and how old.
    stamp: Stamp,
    secrets: BTreeMap<ObjectKey, Result<Pair, Notice>>,
    wanted: BTreeSet<ObjectKey>,
    queue: VecDeque<Input>,
    look_at: Instant,
}

type Stamp = Vec<(std::path::PathBuf, u64, Option<SystemTime>)>;

impl Files {
    async fn next(&mut self) -> Input {
        loop {
            if let Some(input) = self.queue.pop_front() {
                return input;
            }
            // Whoever waits may be called away and come back, so the time to look is kept.
            tokio::time::sleep_until(self.look_at).await;
            self.look_at = Instant::now() + LOOK;
            if self.stamp() == self.stamp {
                continue;
            }
            match self.read() {
                Ok(()) => info!("files changed; reloaded"),
                Err(error) => {
                    // A file that is away for a moment is being replaced.
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
        let mut objects_by_kind: BTreeMap<Kind, Vec<Value>> = BTreeMap::new();
        for mut object in documents.objects {
            fill_in_namespace(&mut object);
            if let Some(kind) = kind_of(&object) {
                objects_by_kind.entry(kind).or_default().push(object);
            }
        }
        self.secrets = objects_by_kind.remove(&Kind::Secret).into_iter().flatten().map(pair).collect();
        for kind in KINDS {
            self.queue.push_back(Input::Event(Event::Listing(kind).into()));
            for object in objects_by_kind.remove(&kind).unwrap_or_default() {
                match serde_json::from_value(object) {
                    Ok(watched) => self.queue.push_back(Input::Event(Event::Put(kind, watched).into())),
                    Err(error) => warn!(kind = kind.as_str(), %error, "cannot parse an object"),
                }
            }
            self.queue.push_back(Input::Event(Event::Listed(kind).into()));
        }
        let wanted = std::mem::take(&mut self.wanted);
        self.want(&wanted);
        Ok(())
    }

    fn want(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys.difference(&self.wanted) {
            let pair = self.secrets.get(key).cloned().unwrap_or_else(|| Err(secret::missing(key)));
            self.queue.push_back(Input::Secret(key.clone(), pair));
        }
        let gone = self.wanted.difference(keys).cloned().collect();
        self.wanted = keys.clone();
        gone
    }
}

fn kind_of(object: &Value) -> Option<Kind> {
    let kind = object["kind"].as_str()?;
    KINDS.into_iter().chain([Kind::Secret]).find(|known| known.as_str() == kind)
}

/// As an API server would have it.
fn fill_in_namespace(object: &mut Value) {
    let global = object["kind"] == "Node";
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && !global
    {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
}

fn pair(object: Value) -> (ObjectKey, Result<Pair, Notice>) {
    let part = |name: &str| Name::new(object["metadata"][name].as_str().unwrap_or_default());
    let key = ObjectKey { namespace: part("namespace"), name: part("name") };
    let pair = secret::parse(&key, &object.to_string());
    (key, pair)
}
