//! Where Envoys ask and the loop that makes tables answers: who came, what is published for whom, and what others may
//! see of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Notice;
use tokio::sync::{Notify, watch};
use xds::identity::Identity;
use xds::server::{Ledger, Source};
use xds::stream::Published;

use cluster::ResourceKind;

type Sender = watch::Sender<Option<Arc<Published>>>;

/// The desk.
#[derive(Default)]
pub struct Desk {
    /// The server's books.
    pub ledger: Arc<Ledger>,
    state: Mutex<State>,
    came: Notify,
    /// How many kinds of proxies may be known at once.
    most: usize,
}

#[derive(Default)]
struct State {
    known: BTreeMap<Identity, Sender>,
    newcomers: Vec<Identity>,
    unready: Option<String>,
    notices: Vec<Notice>,
}

impl Desk {
    /// A desk for so many streams.
    pub fn new(streams: usize) -> Self {
        let desk = Self { most: streams.saturating_mul(2), ..Self::default() };
        desk.state().unready = Some("no objects yet".to_owned());
        desk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn somebody_came(&self) {
        self.came.notified().await;
    }

    pub(super) fn newcomers(&self) -> Vec<(Identity, Sender)> {
        let mut state = self.state();
        let came = std::mem::take(&mut state.newcomers);
        came.into_iter()
            .filter_map(|identity| Some((identity.clone(), state.known.get(&identity)?.clone())))
            .collect()
    }

    /// Forgets somebody, unless it came back just now.
    pub(super) fn release(&self, identity: &Identity) -> bool {
        let mut state = self.state();
        let is_alone = state.known.get(identity).is_some_and(|sender| sender.receiver_count() == 0);
        if is_alone {
            state.known.remove(identity);
        }
        is_alone
    }

    pub(super) fn set_ready(&self, listed: bool, troubles: &BTreeMap<ResourceKind, String>) {
        let why =
            |(kind, why): (&ResourceKind, &String)| format!("{} cannot be watched: {why}", kind.as_str());
        let troubles: Vec<String> = troubles.iter().map(why).collect();
        self.state().unready = (!listed).then(|| format!("no objects yet; {}", troubles.join("; ")));
    }

    pub(super) fn set_notices(&self, notices: Vec<Notice>) {
        self.state().notices = notices;
    }

    /// For `/readyz`: an Envoy that connects now gets its configuration.
    pub fn check(&self) -> Result<(), String> {
        self.state().unready.clone().map_or(Ok(()), Err)
    }

    /// What there is to put right.
    pub fn notices(&self) -> Vec<Notice> {
        self.state().notices.clone()
    }
}

impl Source for Desk {
    fn watch(&self, identity: &Identity) -> Result<watch::Receiver<Option<Arc<Published>>>, String> {
        let mut state = self.state();
        if let Some(sender) = state.known.get(identity) {
            return Ok(sender.subscribe());
        }
        if state.known.len() >= self.most {
            let most = self.most;
            return Err(format!("{most} different proxies are known already: raise --max-streams"));
        }
        let (sender, receiver) = watch::channel(None);
        state.known.insert(identity.clone(), sender);
        state.newcomers.push(identity.clone());
        self.came.notify_one();
        Ok(receiver)
    }
}
