//! Secrets that listeners name, watched one by one, each only while a listener names it: other Secrets are never read.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use model::{Notice, ObjectKey};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::secret::{self, Pair};
use cluster::{Event, Feed, Kind, Wanted};

/// How many changes of Secrets may wait.
const QUEUE: usize = 64;

/// A Secret as it is now, or why it cannot be used.
pub type News = (ObjectKey, Result<Pair, Notice>);

/// The watches.
pub struct Secrets {
    client: Client,
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
    pub fn new(client: Client) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        Self { client, followed: BTreeMap::new(), sender, news }
    }

    /// Watches these, and no others any more. Answers with those that are not wanted now.
    pub fn want(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys {
            let start = || {
                let task = follow(self.client.clone(), key.clone(), self.sender.clone());
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
async fn follow(client: Client, key: ObjectKey, sender: mpsc::Sender<News>) {
    let by_name = format!("metadata.name={}", key.name);
    let wanted = Wanted::all(Kind::Secret).within(&key.namespace).fields(&by_name);
    let mut feed = Feed::start(&client, [wanted]);
    let (mut seen, mut told) = (false, false);
    loop {
        let news = match feed.next().await {
            Event::Listing(_) => {
                seen = false;
                None
            }
            Event::Put(_, object) => {
                seen = true;
                Some(secret::parse(&key, object.text()))
            }
            Event::Gone(..) => Some(Err(secret::missing(&key))),
            Event::Listed(_) => (!seen).then(|| Err(secret::missing(&key))),
            // What was seen stays while the API is away.
            Event::Trouble(_, why) => (!told && !seen).then(|| Err(secret::unreadable(&key, &why))),
        };
        let Some(news) = news else { continue };
        told = true;
        if sender.send((key.clone(), news)).await.is_err() {
            return;
        }
    }
}
