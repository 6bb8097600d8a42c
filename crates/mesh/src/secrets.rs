//! Secrets that listeners name, watched one by one, each only while a listener names it: other Secrets are never read.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use model::random::Random;
use model::{Notice, ObjectKey};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::secret::{self, Pair};
use cluster::{ResourceKind, WatchEvent, WatchSpec, WatchStream};

/// How many changes of Secrets may wait.
const QUEUE: usize = 64;

/// A Secret as it is now, or why it cannot be used.
pub type News = (ObjectKey, Result<Pair, Notice>);

/// The watches.
pub struct Secrets {
    client: Client,
    /// Jitters the backoff of the watches.
    random: Random,
    followed: BTreeMap<ObjectKey, Following>,
    sender: mpsc::Sender<News>,
    news: mpsc::Receiver<News>,
}

/// A watch of one Secret, which ends with this.
struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Secrets {
    /// None yet.
    pub fn new(client: Client, random: Random) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        Self { client, random, followed: BTreeMap::new(), sender, news }
    }

    /// Watches these, and no others any more. Answers with those that are not wanted now.
    pub fn want(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys {
            let start = || {
                let task = follow(self.client.clone(), self.random.split(), key.clone(), self.sender.clone());
                Following(tokio::spawn(task))
            };
            self.followed.entry(key.clone()).or_insert_with(start);
        }
        let gone: Vec<ObjectKey> = self.followed.keys().filter(|key| !keys.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| drop(self.followed.remove(key)));
        gone
    }

    /// What comes next. It may be dropped and called again.
    pub async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            // The sender is held here, so this does not happen.
            None => std::future::pending().await,
        }
    }

    /// What comes next, if it is already there.
    pub fn ready(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }
}

/// Passes on what becomes of one Secret.
async fn follow(client: Client, random: Random, key: ObjectKey, sender: mpsc::Sender<News>) {
    let by_name = format!("metadata.name={}", key.name);
    let wanted = WatchSpec::all(ResourceKind::Secret).namespace(&key.namespace).fields(&by_name);
    let mut feed = WatchStream::start(&client, random, [wanted]);
    let (mut seen, mut told) = (false, false);
    loop {
        let news = match feed.next().await {
            WatchEvent::ListStarted(_) => {
                seen = false;
                None
            }
            WatchEvent::Applied(_, object) => {
                seen = true;
                Some(secret::parse(&key, object.text()))
            }
            WatchEvent::Deleted(..) => Some(Err(secret::missing(&key))),
            WatchEvent::ListCompleted(_) => (!seen).then(|| Err(secret::missing(&key))),
            // What was seen stays while the API is away.
            WatchEvent::Failed(_, why) => (!told && !seen).then(|| Err(secret::unreadable(&key, &why))),
        };
        let Some(news) = news else { continue };
        told = true;
        if sender.send((key.clone(), news)).await.is_err() {
            return;
        }
    }
}
