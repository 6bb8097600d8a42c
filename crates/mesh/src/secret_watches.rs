//! Watches of the Secrets of listeners, one by one, each only while a listener refers to it: other Secrets are never read.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use model::random::Random;
use model::{Notice, ObjectKey};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use xds::render::PemKeyPair;

use super::tls_secret;
use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec};

const QUEUE: usize = 64;

/// A Secret, or why it cannot be used.
pub type SecretUpdate = (ObjectKey, Result<PemKeyPair, Notice>);

pub struct SecretWatches {
    client: Client,
    random: Random,
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
    pub fn new(client: Client, random: Random) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        Self { client, random, watches: BTreeMap::new(), sender, updates }
    }

    /// Watches exactly these Secrets, and returns those that are no longer watched.
    pub fn watch(&mut self, keys: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        for key in keys {
            if !self.watches.contains_key(key) {
                let random = self.random.split();
                let task = watch_secret(self.client.clone(), random, key.clone(), self.sender.clone());
                self.watches.insert(key.clone(), SecretWatch(tokio::spawn(task)));
            }
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
async fn watch_secret(client: Client, random: Random, key: ObjectKey, sender: mpsc::Sender<SecretUpdate>) {
    let by_name = format!("metadata.name={}", key.name);
    let wanted = WatchSpec::all(ObjectKind::Secret).namespace(&key.namespace).fields(&by_name);
    let mut feed = Informer::start(&client, random, [wanted]);
    let (mut seen, mut told) = (false, false);
    loop {
        let update = match feed.next().await {
            InformerEvent::ListStarted(_) => {
                seen = false;
                None
            }
            InformerEvent::Applied(_, object) => {
                seen = true;
                Some(tls_secret::parse(&key, object.text()))
            }
            InformerEvent::Deleted(..) => Some(Err(tls_secret::missing(&key))),
            InformerEvent::ListCompleted(_) => (!seen).then(|| Err(tls_secret::missing(&key))),
            // The last version stays valid during an outage of the API.
            InformerEvent::Failed(_, why) => {
                (!told && !seen).then(|| Err(tls_secret::unreadable(&key, &why)))
            }
        };
        let Some(update) = update else { continue };
        told = true;
        if sender.send((key.clone(), update)).await.is_err() {
            return;
        }
    }
}
