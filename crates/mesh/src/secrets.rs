//! Watches of the Secrets of listeners, one by one, each only while a listener refers to it: other Secrets are never read.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use model::{Notice, ObjectKey};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use xds::render::PemKeyPair;

use super::secret;
use cluster::{Event, Feed, Kind, Wanted};

const QUEUE: usize = 64;

/// A Secret, or why it cannot be used.
pub type SecretUpdate = (ObjectKey, Result<PemKeyPair, Notice>);

pub struct SecretWatches {
    client: Client,
    watches: BTreeMap<ObjectKey, SecretWatch>,
    sender: mpsc::Sender<SecretUpdate>,
    updates: mpsc::Receiver<SecretUpdate>,
}

/// A watch of one Secret, which ends with this.
struct SecretWatch(JoinHandle<()>);

impl Drop for SecretWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SecretWatches {
    pub fn new(client: Client) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        Self { client, watches: BTreeMap::new(), sender, updates }
    }

    /// Watches exactly these Secrets, and returns those that are no longer watched.
    pub fn watch(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys {
            let start = || {
                let task = watch_secret(self.client.clone(), key.clone(), self.sender.clone());
                SecretWatch(tokio::spawn(task))
            };
            self.watches.entry(key.clone()).or_insert_with(start);
        }
        let gone: Vec<ObjectKey> = self.watches.keys().filter(|key| !keys.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| drop(self.watches.remove(key)));
        gone
    }

    /// The next update. Cancel safe.
    pub async fn next(&mut self) -> SecretUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            // `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// The next update, if it is ready.
    pub fn ready(&mut self) -> Option<SecretUpdate> {
        self.updates.try_recv().ok()
    }
}

/// Sends the updates of one Secret.
async fn watch_secret(client: Client, key: ObjectKey, sender: mpsc::Sender<SecretUpdate>) {
    let by_name = format!("metadata.name={}", key.name);
    let wanted = Wanted::all(Kind::Secret).within(&key.namespace).fields(&by_name);
    let mut feed = Feed::start(&client, [wanted]);
    let (mut seen, mut told) = (false, false);
    loop {
        let update = match feed.next().await {
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
            // The last version stays valid during an outage of the API.
            Event::Trouble(_, why) => (!told && !seen).then(|| Err(secret::unreadable(&key, &why))),
        };
        let Some(update) = update else { continue };
        told = true;
        if sender.send((key.clone(), update)).await.is_err() {
            return;
        }
    }
}
