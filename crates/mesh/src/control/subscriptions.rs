//! Subscriptions of Envoys: the identities in use, what is published for each, and the status that the admin server shows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::Notice;
use plan::gateway_api::UnboundPort;
use tokio::sync::{Notify, watch};
use xds::identity::EnvoyIdentity;
use xds::server::{ResourceSource, StreamRegistry};
use xds::stream::PublishedResources;

use cluster::ObjectKind;

type Sender = watch::Sender<Option<Arc<PublishedResources>>>;

#[derive(Debug, Default)]
pub struct Subscriptions {
    /// The streams of the server.
    pub streams: Arc<StreamRegistry>,
    state: Mutex<SubscriptionState>,
    added: Notify,
    unbound: watch::Sender<Vec<UnboundPort>>,
    /// The limit on identities.
    max: usize,
}

#[derive(Debug, Default)]
struct SubscriptionState {
    known: BTreeMap<EnvoyIdentity, Sender>,
    new: Vec<EnvoyIdentity>,
    unready: Option<String>,
    notices: Vec<Notice>,
}

impl Subscriptions {
    /// For a server with this limit on streams.
    pub fn new(streams: usize) -> Self {
        let subscriptions = Self { max: streams.saturating_mul(2), ..Self::default() };
        subscriptions.state().unready = Some("no objects yet".to_owned());
        subscriptions
    }

    fn state(&self) -> MutexGuard<'_, SubscriptionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn changed(&self) {
        self.added.notified().await;
    }

    pub(super) fn take_new(&self) -> Vec<(EnvoyIdentity, Sender)> {
        let mut state = self.state();
        let came = std::mem::take(&mut state.new);
        came.into_iter()
            .filter_map(|identity| Some((identity.clone(), state.known.get(&identity)?.clone())))
            .collect()
    }

    /// Removes an identity, unless an Envoy has just reconnected.
    pub(super) fn release(&self, identity: &EnvoyIdentity) -> bool {
        let mut state = self.state();
        let is_unused = state.known.get(identity).is_none_or(|sender| sender.receiver_count() == 0);
        if is_unused {
            state.known.remove(identity);
        }
        is_unused
    }

    pub(super) fn set_ready(&self, listed: bool, watch_errors: &BTreeMap<ObjectKind, String>) {
        let why = |(kind, why): (&ObjectKind, &String)| format!("failed to watch {}: {why}", kind.as_str());
        let watch_errors: Vec<String> = watch_errors.iter().map(why).collect();
        self.state().unready = (!listed).then(|| format!("no objects yet; {}", watch_errors.join("; ")));
    }

    pub(super) fn set_notices(&self, notices: Vec<Notice>) {
        self.state().notices = notices;
    }

    pub(super) fn set_unbound_ports(&self, ports: Vec<UnboundPort>) {
        self.unbound.send_if_modified(|known| {
            let is_changed = *known != ports;
            *known = ports;
            is_changed
        });
    }

    /// The ports of gateways that connected Envoys could not bind.
    pub fn unbound_ports(&self) -> watch::Receiver<Vec<UnboundPort>> {
        self.unbound.subscribe()
    }

    /// For `/readyz`: whether an Envoy that connects gets its configuration.
    pub fn check(&self) -> Result<(), String> {
        self.state().unready.clone().map_or(Ok(()), Err)
    }

    pub fn notices(&self) -> Vec<Notice> {
        self.state().notices.clone()
    }
}

impl ResourceSource for Subscriptions {
    fn watch(
        &self,
        identity: &EnvoyIdentity,
    ) -> Result<watch::Receiver<Option<Arc<PublishedResources>>>, String> {
        let mut state = self.state();
        if let Some(sender) = state.known.get(identity) {
            return Ok(sender.subscribe());
        }
        if state.known.len() >= self.max {
            // Identities of Envoys that left are kept for a while, but not at the cost of one that comes.
            let SubscriptionState { known, new, .. } = &mut *state;
            known.retain(|_, sender| sender.receiver_count() > 0);
            new.retain(|identity| known.contains_key(identity));
        }
        if state.known.len() >= self.max {
            let max = self.max;
            return Err(format!("{max} different identities are in use; raise --max-streams"));
        }
        let (sender, receiver) = watch::channel(None);
        state.known.insert(identity.clone(), sender);
        state.new.push(identity.clone());
        self.added.notify_one();
        Ok(receiver)
    }
}

#[cfg(test)]
mod tests {
    use xds::identity::EnvoyRole;

    use super::*;

    fn identity(namespace: usize) -> EnvoyIdentity {
        let role = EnvoyRole::Gateway {
            name: "edge".to_owned(),
            bind: std::net::Ipv4Addr::LOCALHOST.into(),
            port_overrides: BTreeMap::new(),
        };
        EnvoyIdentity { namespace: format!("ns-{namespace}"), role, node: String::new(), zone: None }
    }

    #[test]
    fn storm_of_identities_keeps_no_envoy_out_and_is_forgotten() {
        let subscriptions = Subscriptions::new(2);
        let honest = subscriptions.watch(&identity(0)).unwrap();
        for number in 1..1000 {
            drop(subscriptions.watch(&identity(number)).unwrap());
            let state = subscriptions.state();
            assert!(state.known.len() <= 4 && state.new.len() <= 4);
        }
        assert!(honest.has_changed().is_ok(), "it is still served");
        let taken: Vec<EnvoyIdentity> = subscriptions.take_new().into_iter().map(|(new, _)| new).collect();
        assert!(taken.len() <= 4 && taken.contains(&identity(0)), "{taken:?}");
        // What was forgotten is released by the server, too.
        assert!(subscriptions.release(&identity(1)) && !subscriptions.release(&identity(0)));
        let in_use: Vec<_> = (1..4).map(|number| subscriptions.watch(&identity(number)).unwrap()).collect();
        subscriptions.watch(&identity(4)).unwrap_err();
        drop(in_use);
        subscriptions.watch(&identity(4)).unwrap();
    }
}
