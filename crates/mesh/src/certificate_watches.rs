//! Watches of Secrets and ConfigMaps with certificates, one by one, each only while an object refers to it: others are
//! never read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::Client;
use model::gateway_api::{CertificateKind, CertificateSource};
use model::parse::gateway_api::{CertificateFields, certificate_source};
use model::random::Random;
use model::{Name, Notice, ObjectKey};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use xds::render::PemKeyPair;

use super::tls_secret;
use cluster::{Informer, InformerEvent, ObjectKind, WatchSpec};

const QUEUE: usize = 64;

/// A Secret or ConfigMap.
pub type CertificateKey = (CertificateKind, ObjectKey);

/// A Secret or ConfigMap as it is now.
#[derive(Clone, Debug)]
pub struct CertificateUpdate {
    pub key: CertificateKey,
    /// Its data, or why it cannot be used.
    pub data: Result<CertificateData, Notice>,
    /// What the Gateway API says about it; `None`: it does not exist.
    pub source: Option<CertificateSource>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateData {
    KeyPair(Arc<PemKeyPair>),
    /// PEM of certificate authorities.
    Authorities(Arc<[u8]>),
}

impl CertificateUpdate {
    /// Of the JSON of an object.
    pub fn parse(key: &CertificateKey, text: &str) -> Self {
        let (kind, object) = key;
        let fields = serde_json::from_str::<CertificateFields>(text);
        let mut source = certificate_source(*kind, &fields.unwrap_or_default());
        source.key = object.clone();
        let data = match kind {
            CertificateKind::Secret => {
                tls_secret::parse(object, text).map(|pair| CertificateData::KeyPair(pair.into()))
            }
            CertificateKind::ConfigMap => {
                tls_secret::authorities(object, text).map(CertificateData::Authorities)
            }
        };
        if let Err(notice) = &data {
            source.problem.get_or_insert_with(|| Name::new(&notice.message));
        }
        Self { key: key.clone(), data, source: Some(source) }
    }

    /// Of an object that does not exist.
    pub fn missing(key: &CertificateKey) -> Self {
        Self { key: key.clone(), data: Err(tls_secret::missing(key.0, &key.1)), source: None }
    }

    /// Of an object that the API does not show us.
    pub fn unreadable(key: &CertificateKey, why: &str) -> Self {
        let notice = tls_secret::unreadable(key.0, &key.1, why);
        let problem = Some(Name::new(&notice.message));
        let source = CertificateSource { kind: key.0, key: key.1.clone(), problem };
        Self { key: key.clone(), data: Err(notice), source: Some(source) }
    }
}

pub struct CertificateWatches {
    client: Client,
    random: Random,
    watches: BTreeMap<CertificateKey, CertificateWatch>,
    sender: mpsc::Sender<CertificateUpdate>,
    updates: mpsc::Receiver<CertificateUpdate>,
}

/// A watch of one object, which ends with this.
struct CertificateWatch(JoinHandle<()>);

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CertificateWatches {
    pub fn new(client: Client, random: Random) -> Self {
        let (sender, updates) = mpsc::channel(QUEUE);
        Self { client, random, watches: BTreeMap::new(), sender, updates }
    }

    /// Watches exactly these objects, and returns those that are no longer watched.
    pub fn watch(&mut self, keys: &BTreeSet<CertificateKey>) -> Vec<CertificateKey> {
        for key in keys {
            if !self.watches.contains_key(key) {
                let random = self.random.split();
                let task = watch_one(self.client.clone(), random, key.clone(), self.sender.clone());
                self.watches.insert(key.clone(), CertificateWatch(tokio::spawn(task)));
            }
        }
        let gone: Vec<CertificateKey> =
            self.watches.keys().filter(|key| !keys.contains(*key)).cloned().collect();
        gone.iter().for_each(|key| drop(self.watches.remove(key)));
        gone
    }

    /// The next update. Cancel safe.
    pub async fn next(&mut self) -> CertificateUpdate {
        match self.updates.recv().await {
            Some(update) => update,
            // `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// The next update, if it is ready.
    pub fn ready(&mut self) -> Option<CertificateUpdate> {
        self.updates.try_recv().ok()
    }
}

/// Sends the updates of one object.
async fn watch_one(
    client: Client,
    random: Random,
    key: CertificateKey,
    sender: mpsc::Sender<CertificateUpdate>,
) {
    let (kind, object) = &key;
    let watched = match kind {
        CertificateKind::Secret => ObjectKind::Secret,
        CertificateKind::ConfigMap => ObjectKind::ConfigMap,
    };
    let by_name = format!("metadata.name={}", object.name);
    let wanted = WatchSpec::all(watched).namespace(&object.namespace).fields(&by_name);
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
                Some(CertificateUpdate::parse(&key, object.text()))
            }
            InformerEvent::Deleted(..) => Some(CertificateUpdate::missing(&key)),
            InformerEvent::ListCompleted(_) => (!seen).then(|| CertificateUpdate::missing(&key)),
            // The last version stays valid during an outage of the API.
            InformerEvent::Failed(_, why) => {
                (!told && !seen).then(|| CertificateUpdate::unreadable(&key, &why))
            }
        };
        let Some(update) = update else { continue };
        told = true;
        if sender.send(update).await.is_err() {
            return;
        }
    }
}
