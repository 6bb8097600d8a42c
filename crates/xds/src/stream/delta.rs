//! The incremental protocol: only what changed is sent, resource by resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource as Sent,
};

use super::{Heard, NAMES, Published, RESPONSE_BYTES, Refusal, TooMuch, may_pass, words};
use crate::resource::{Kind, ResourceSet, Version};

/// The word for everything.
const EVERYTHING: &str = "*";

/// A stream of the incremental protocol.
#[derive(Debug, Default)]
pub struct Delta {
    target: Arc<Published>,
    kinds: BTreeMap<Kind, Subscription>,
    /// Clusters that were sent and whose endpoints have not been acknowledged: no route may lead there yet.
    awaited: BTreeSet<Arc<str>>,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct Subscription {
    wildcard: bool,
    names: BTreeSet<Arc<str>>,
    /// What the client has; without a version if it is none of ours.
    held: BTreeMap<Arc<str>, Option<Version>>,
    /// What has to be sent though the client has it.
    owed: BTreeSet<Arc<str>>,
    /// Names that may need something: what is not here is as it should be.
    dirty: BTreeSet<Arc<str>>,
    refused: BTreeMap<Arc<str>, Version>,
    /// What of it may be taken later though it stays as it is.
    passing: BTreeSet<Arc<str>>,
    /// Parts of responses that were refused as a whole.
    apart: Vec<Vec<Arc<str>>>,
    flight: Option<Flight>,
}

#[derive(Debug)]
struct Flight {
    nonce: String,
    sent: Vec<(Arc<str>, Version)>,
    removed: Vec<Arc<str>>,
}

impl Delta {
    /// Sets what the client is to have.
    pub fn aim(&mut self, target: Arc<Published>) {
        let changed = if target.number == self.target.number + 1 {
            target.changed.clone()
        } else {
            self.target.resources.differences(&target.resources)
        };
        for (kind, names) in changed {
            if let Some(subscription) = self.kinds.get_mut(&kind) {
                let wanted = names.into_iter().filter(|name| subscription.concerns(name));
                let wanted: Vec<Arc<str>> = wanted.collect();
                subscription.dirty.extend(wanted);
            }
        }
        self.target = target;
        for (kind, subscription) in &mut self.kinds {
            let wanted = self.target.resources.of(*kind);
            subscription
                .refused
                .retain(|name, version| wanted.get(name).is_some_and(|r| r.version == *version));
        }
    }

    /// What the client is to have and refuses.
    pub fn refused(&self) -> impl Iterator<Item = (Kind, &Arc<str>)> {
        self.kinds
            .iter()
            .flat_map(|(kind, subscription)| subscription.refused.keys().map(|name| (*kind, name)))
    }

    /// Takes a request in.
    pub fn hear(&mut self, request: &DeltaDiscoveryRequest) -> Result<Vec<Heard>, TooMuch> {
        // A kind that we do not serve is one of which there is nothing.
        let Some(kind) = Kind::of(&request.type_url) else { return Ok(Vec::new()) };
        let target = self.target.resources.clone();
        let is_first = !self.kinds.contains_key(&kind);
        let subscription = self.kinds.entry(kind).or_default();
        if is_first {
            subscription.open(kind, request, &target);
        }
        subscription.subscribe(kind, request, is_first, &target)?;
        let flight = subscription.flight.take_if(|flight| flight.nonce == request.response_nonce);
        let Some(flight) = flight else { return Ok(Vec::new()) };
        Ok(match &request.error_detail {
            None => self.accepted(kind, flight),
            Some(error) => self.take_apart(kind, flight, &error.message),
        })
    }

    fn accepted(&mut self, kind: Kind, flight: Flight) -> Vec<Heard> {
        let names: Vec<Arc<str>> = flight.sent.iter().map(|(name, _)| name.clone()).collect();
        if kind == Kind::Endpoints {
            for name in &names {
                self.awaited.remove(name);
            }
        }
        if let Some(subscription) = self.kinds.get_mut(&kind) {
            subscription.settle(flight);
        }
        vec![Heard::Accepted { kind, names }]
    }

    /// A response of several is taken apart until it is known which of them Envoy refuses.
    fn take_apart(&mut self, kind: Kind, flight: Flight, message: &str) -> Vec<Heard> {
        let Some(subscription) = self.kinds.get_mut(&kind) else { return Vec::new() };
        let message = words(message);
        let Flight { mut sent, removed, nonce } = flight;
        if let [(name, version)] = sent.as_slice() {
            let may_pass = may_pass(kind, &message);
            subscription.refused.insert(name.clone(), *version);
            if may_pass {
                subscription.passing.insert(name.clone());
            }
            self.awaited.remove(name);
            let (resource, version) = (Some(name.clone()), Some(*version));
            let refusal = Refusal { kind, resource, version, message, may_pass };
            return vec![Heard::Refused(refusal)];
        }
        let second = sent.split_off(sent.len() / 2);
        for part in [second, sent] {
            let names: Vec<Arc<str>> = part.into_iter().map(|(name, _)| name).collect();
            if !names.is_empty() {
                subscription.apart.push(names);
            }
        }
        // Nobody can refuse to lose something; what was to go is gone for us.
        subscription.settle(Flight { nonce, sent: Vec::new(), removed });
        vec![Heard::Refused(Refusal { kind, resource: None, version: None, message, may_pass: false })]
    }

    /// Stops waiting for endpoints that Envoy does not ask for.
    pub fn wait_no_longer(&mut self) {
        self.awaited.clear();
    }

    /// Whether something was refused that may be taken now.
    pub fn may_try_again(&self) -> bool {
        let held = |subscription: &Subscription| {
            subscription.passing.iter().any(|name| subscription.refused.contains_key(name))
        };
        self.kinds.values().any(held)
    }

    /// Sends such things again. Whoever calls this waits between two tries (semantics, xDS 2).
    pub fn try_again(&mut self) {
        for subscription in self.kinds.values_mut() {
            for name in std::mem::take(&mut subscription.passing) {
                if subscription.refused.remove(&name).is_some() {
                    subscription.dirty.insert(name);
                }
            }
        }
    }

    /// Whether something is under way or held back.
    pub fn is_waiting(&self) -> bool {
        !self.awaited.is_empty() || self.kinds.values().any(|subscription| subscription.flight.is_some())
    }

    /// The next response. Endpoints follow their cluster at once: Envoy acknowledges a new cluster only when it has its
    /// endpoints. What leads to clusters waits for both.
    pub fn speak(&mut self) -> Option<DeltaDiscoveryResponse> {
        for kind in Kind::ALL {
            let leads_there = matches!(kind, Kind::Listener | Kind::Routes);
            if leads_there && self.are_clusters_pending() {
                continue;
            }
            let Some(subscription) = self.kinds.get_mut(&kind) else { continue };
            if subscription.flight.is_some() {
                continue;
            }
            let names = subscription.additions(kind, &self.target.resources);
            if !names.is_empty() {
                return Some(self.send(kind, names));
            }
        }
        if self.is_waiting() {
            return None;
        }
        Kind::ALL.into_iter().rev().find_map(|kind| self.remove(kind))
    }

    fn are_clusters_pending(&self) -> bool {
        let in_flight =
            |kind| self.kinds.get(&kind).is_some_and(|subscription| subscription.flight.is_some());
        !self.awaited.is_empty() || in_flight(Kind::Cluster) || in_flight(Kind::Endpoints)
    }

    fn send(&mut self, kind: Kind, names: Vec<Arc<str>>) -> DeltaDiscoveryResponse {
        let found = names.iter().filter_map(|name| self.target.resources.find(kind, name));
        let resources: Vec<_> = found.cloned().collect();
        if kind == Kind::Cluster {
            self.renew_endpoints(&names);
        }
        let nonce = self.nonce();
        if let Some(subscription) = self.kinds.get_mut(&kind) {
            for name in &names {
                subscription.owed.remove(name);
                subscription.dirty.remove(name);
            }
            let sent = resources.iter().map(|resource| (resource.name.clone(), resource.version)).collect();
            subscription.flight = Some(Flight { nonce: nonce.clone(), sent, removed: Vec::new() });
        }
        let sent = |resource: &Arc<crate::resource::Resource>| Sent {
            name: resource.name.to_string(),
            version: resource.version.to_string(),
            resource: Some(resource.any(kind)),
            ..Sent::default()
        };
        DeltaDiscoveryResponse {
            type_url: kind.type_url().to_owned(),
            nonce,
            resources: resources.iter().map(sent).collect(),
            ..DeltaDiscoveryResponse::default()
        }
    }

    /// Semantics, xDS 3: a cluster that comes again waits for its endpoints, though they did not change.
    fn renew_endpoints(&mut self, clusters: &[Arc<str>]) {
        for name in clusters {
            if self.target.resources.find(Kind::Endpoints, name).is_none() {
                continue;
            }
            self.awaited.insert(name.clone());
            let endpoints = self.kinds.get_mut(&Kind::Endpoints);
            if let Some(endpoints) = endpoints.filter(|endpoints| endpoints.concerns(name)) {
                endpoints.owed.insert(name.clone());
                endpoints.dirty.insert(name.clone());
            }
        }
    }

    fn remove(&mut self, kind: Kind) -> Option<DeltaDiscoveryResponse> {
        let subscription = self.kinds.get_mut(&kind)?;
        let removed = subscription.removals(kind, &self.target.resources);
        if removed.is_empty() {
            return None;
        }
        let nonce = self.nonce();
        let names = removed.iter().map(|name| name.to_string()).collect();
        for name in &removed {
            self.awaited.remove(name);
        }
        if let Some(subscription) = self.kinds.get_mut(&kind) {
            subscription.flight = Some(Flight { nonce: nonce.clone(), sent: Vec::new(), removed });
        }
        Some(DeltaDiscoveryResponse {
            type_url: kind.type_url().to_owned(),
            nonce,
            removed_resources: names,
            ..DeltaDiscoveryResponse::default()
        })
    }

    fn nonce(&mut self) -> String {
        self.last_nonce += 1;
        self.last_nonce.to_string()
    }
}

/// The name as the set has it, so that streams share its text.
fn shared(set: &ResourceSet, kind: Kind, name: &str) -> Arc<str> {
    set.find(kind, name).map_or_else(|| name.into(), |resource| resource.name.clone())
}

impl Subscription {
    fn concerns(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// The first request of a kind: who names nothing at the roots wants everything, and who was connected before
    /// says what it has (semantics, xDS 4).
    fn open(&mut self, kind: Kind, request: &DeltaDiscoveryRequest, target: &ResourceSet) {
        self.wildcard = kind.is_root() && request.resource_names_subscribe.is_empty();
        for (name, version) in request.initial_resource_versions.iter().take(NAMES) {
            self.held.insert(shared(target, kind, name), Version::parse(version));
        }
        if self.wildcard {
            self.look_at_everything(kind, target);
        }
    }

    fn look_at_everything(&mut self, kind: Kind, target: &ResourceSet) {
        self.dirty.extend(target.of(kind).keys().cloned());
        self.dirty.extend(self.held.keys().cloned());
    }

    fn subscribe(
        &mut self,
        kind: Kind,
        request: &DeltaDiscoveryRequest,
        is_first: bool,
        target: &ResourceSet,
    ) -> Result<(), TooMuch> {
        for name in &request.resource_names_subscribe {
            if name == EVERYTHING {
                self.wildcard = true;
                self.look_at_everything(kind, target);
                continue;
            }
            let name = shared(target, kind, name);
            // Who asks again wants it again, and may have forgotten it.
            if !is_first {
                self.owed.insert(name.clone());
            }
            self.dirty.insert(name.clone());
            self.names.insert(name);
        }
        for name in &request.resource_names_unsubscribe {
            if name == EVERYTHING {
                self.wildcard = false;
                continue;
            }
            self.names.remove(name.as_str());
            if !self.wildcard {
                self.forget(name);
            }
        }
        if self.names.len() > NAMES || self.held.len() > NAMES {
            return Err(TooMuch(format!("more than {NAMES} names of kind {kind} are not served")));
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        self.held.remove(name);
        self.owed.remove(name);
        self.dirty.remove(name);
        self.refused.remove(name);
    }

    /// What the client now has.
    fn settle(&mut self, flight: Flight) {
        for (name, version) in flight.sent {
            if self.concerns(&name) {
                self.refused.remove(&name);
                self.held.insert(name, Some(version));
            }
        }
        for name in flight.removed {
            self.held.remove(&name);
            self.refused.remove(&name);
        }
    }

    /// The names to send next: a part of something refused, else whatever the client lacks, up to a bound.
    fn additions(&mut self, kind: Kind, target: &ResourceSet) -> Vec<Arc<str>> {
        while let Some(part) = self.apart.pop() {
            let names: Vec<Arc<str>> =
                part.into_iter().filter(|name| self.lacks(kind, name, target)).collect();
            if !names.is_empty() {
                return names;
            }
        }
        let (mut names, mut fine, mut bytes) = (Vec::new(), Vec::new(), 0);
        for name in &self.dirty {
            let Some(resource) = target.find(kind, name) else { continue };
            if !self.lacks(kind, name, target) {
                fine.push(name.clone());
                continue;
            }
            bytes += resource.body.len() + name.len();
            if bytes > RESPONSE_BYTES && !names.is_empty() {
                break;
            }
            names.push(name.clone());
        }
        for name in &fine {
            self.dirty.remove(name);
        }
        names
    }

    fn lacks(&self, kind: Kind, name: &Arc<str>, target: &ResourceSet) -> bool {
        let Some(resource) = target.find(kind, name).filter(|_| self.concerns(name)) else { return false };
        let has = self.held.get(name) == Some(&Some(resource.version)) && !self.owed.contains(name);
        !has && self.refused.get(name) != Some(&resource.version)
    }

    /// What the client has or asked for, and is not there. Looked at once: a name that is still asked for then stays
    /// quiet until something of that name comes.
    fn removals(&mut self, kind: Kind, target: &ResourceSet) -> Vec<Arc<str>> {
        let gone = |name: &&Arc<str>| target.find(kind, name).is_none();
        let gone: Vec<Arc<str>> = self.dirty.iter().filter(gone).cloned().collect();
        for name in &gone {
            self.dirty.remove(name);
            self.owed.remove(name);
        }
        gone.into_iter().filter(|name| self.held.contains_key(name) || self.names.contains(name)).collect()
    }
}
