//! Incremental xDS: only changed resources are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource as Sent,
};

use super::{
    MAX_NAMES, NAME_OVERHEAD, Nack, PublishedResources, RESPONSE_BYTES, Reply, TooManyNames, is_retryable,
    truncate,
};
use crate::resource::{ContentVersion, ResourceSet, ResourceType};

const WILDCARD: &str = "*";

#[derive(Debug, Default)]
pub struct DeltaStream {
    target: Arc<PublishedResources>,
    subscriptions: BTreeMap<ResourceType, DeltaSubscription>,
    /// Clusters whose endpoints are not acknowledged: no route may refer to them yet.
    awaiting_endpoints: BTreeSet<Arc<str>>,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct DeltaSubscription {
    wildcard: bool,
    names: BTreeSet<Arc<str>>,
    /// Those of the client that no resource had when they came, and their memory.
    unknown: BTreeSet<Arc<str>>,
    unknown_bytes: usize,
    /// What the client has; `None` for a version that is not ours.
    acknowledged: BTreeMap<Arc<str>, Option<ContentVersion>>,
    /// To be sent again although the client has it.
    resend: BTreeSet<Arc<str>>,
    /// Names to check; all others are up to date.
    dirty: BTreeSet<Arc<str>>,
    rejected: BTreeMap<Arc<str>, ContentVersion>,
    /// Rejected versions that may be accepted later.
    retryable: BTreeSet<Arc<str>>,
    /// Parts of a rejected response, sent separately to find the resource at fault.
    bisected: Vec<Vec<Arc<str>>>,
    pending: Option<PendingResponse>,
}

#[derive(Debug)]
struct PendingResponse {
    nonce: String,
    sent: Vec<(Arc<str>, ContentVersion)>,
    removed: Vec<Arc<str>>,
}

impl DeltaStream {
    /// Sets the resources that the client should have.
    pub fn set_target(&mut self, target: Arc<PublishedResources>) {
        let changed = if target.number == self.target.number + 1 {
            target.changed.clone()
        } else {
            self.target.resources.changed_names(&target.resources)
        };
        for (kind, names) in changed {
            if let Some(subscription) = self.subscriptions.get_mut(&kind) {
                let wanted = names.into_iter().filter(|name| subscription.includes(name));
                let wanted: Vec<Arc<str>> = wanted.collect();
                subscription.dirty.extend(wanted);
            }
        }
        self.target = target;
        for (kind, subscription) in &mut self.subscriptions {
            let wanted = self.target.resources.of(*kind);
            subscription
                .rejected
                .retain(|name, version| wanted.get(name).is_some_and(|r| r.version == *version));
        }
    }

    /// Memory of names of the client that no resource has.
    pub fn unknown_name_bytes(&self) -> usize {
        self.subscriptions.values().map(|subscription| subscription.unknown_bytes).sum()
    }

    /// Current versions that the client rejected.
    pub fn rejected(&self) -> impl Iterator<Item = (ResourceType, &Arc<str>)> {
        self.subscriptions
            .iter()
            .flat_map(|(kind, subscription)| subscription.rejected.keys().map(|name| (*kind, name)))
    }

    pub fn handle_request(&mut self, request: &DeltaDiscoveryRequest) -> Result<Vec<Reply>, TooManyNames> {
        // Types that are not served have no resources.
        let Some(kind) = ResourceType::of(&request.type_url) else { return Ok(Vec::new()) };
        let target = self.target.resources.clone();
        let is_first = !self.subscriptions.contains_key(&kind);
        let subscription = self.subscriptions.entry(kind).or_default();
        if is_first {
            subscription.open(kind, request, &target);
        }
        subscription.subscribe(kind, request, is_first, &target)?;
        let pending = subscription.pending.take_if(|pending| pending.nonce == request.response_nonce);
        let Some(pending) = pending else { return Ok(Vec::new()) };
        Ok(match &request.error_detail {
            None => self.acked(kind, pending),
            Some(error) => self.nacked(kind, pending, &error.message),
        })
    }

    fn acked(&mut self, kind: ResourceType, pending: PendingResponse) -> Vec<Reply> {
        let names: Vec<Arc<str>> = pending.sent.iter().map(|(name, _)| name.clone()).collect();
        if kind == ResourceType::Endpoints {
            for name in &names {
                self.awaiting_endpoints.remove(name);
            }
        }
        if let Some(subscription) = self.subscriptions.get_mut(&kind) {
            subscription.settle(pending);
        }
        vec![Reply::Ack { kind, names }]
    }

    /// Bisects a rejected response until the rejected resource is known.
    fn nacked(&mut self, kind: ResourceType, pending: PendingResponse, message: &str) -> Vec<Reply> {
        let Some(subscription) = self.subscriptions.get_mut(&kind) else { return Vec::new() };
        let message = truncate(message);
        let PendingResponse { mut sent, removed, nonce } = pending;
        if let [(name, version)] = sent.as_slice() {
            let is_retryable = is_retryable(kind, &message);
            subscription.rejected.insert(name.clone(), *version);
            if is_retryable {
                subscription.retryable.insert(name.clone());
            }
            self.awaiting_endpoints.remove(name);
            let (resource, version) = (Some(name.clone()), Some(*version));
            let refusal = Nack { kind, resource, version, message, is_retryable };
            return vec![Reply::Nack(refusal)];
        }
        let second = sent.split_off(sent.len() / 2);
        for part in [second, sent] {
            let names: Vec<Arc<str>> = part.into_iter().map(|(name, _)| name).collect();
            if !names.is_empty() {
                subscription.bisected.push(names);
            }
        }
        // A removal cannot be rejected.
        subscription.settle(PendingResponse { nonce, sent: Vec::new(), removed });
        vec![Reply::Nack(Nack { kind, resource: None, version: None, message, is_retryable: false })]
    }

    /// Whether routes are held back until Envoy subscribes to endpoints.
    pub fn awaits_endpoints(&self) -> bool {
        !self.awaiting_endpoints.is_empty()
    }

    /// Stops waiting for endpoints that Envoy does not subscribe to.
    pub fn stop_waiting(&mut self) {
        self.awaiting_endpoints.clear();
    }

    /// Whether a rejected version may be accepted later.
    pub fn has_retryable(&self) -> bool {
        let held = |subscription: &DeltaSubscription| {
            subscription.retryable.iter().any(|name| subscription.rejected.contains_key(name))
        };
        self.subscriptions.values().any(held)
    }

    /// Sends retryable versions again. The caller backs off between retries (semantics, xDS 2).
    pub fn retry_rejected(&mut self) {
        for subscription in self.subscriptions.values_mut() {
            for name in std::mem::take(&mut subscription.retryable) {
                if subscription.rejected.remove(&name).is_some() {
                    subscription.dirty.insert(name);
                }
            }
        }
    }

    /// Whether a response is not acknowledged or routes are held back.
    pub fn is_pending(&self) -> bool {
        !self.awaiting_endpoints.is_empty()
            || self.subscriptions.values().any(|subscription| subscription.pending.is_some())
    }

    /// Endpoints follow their cluster at once: Envoy acknowledges a new cluster only with its endpoints. Listeners and
    /// routes wait for both.
    pub fn next_response(&mut self) -> Option<DeltaDiscoveryResponse> {
        for kind in ResourceType::ALL {
            let refers_to_clusters = matches!(kind, ResourceType::Listener | ResourceType::Routes);
            if refers_to_clusters && self.are_clusters_pending() {
                continue;
            }
            let Some(subscription) = self.subscriptions.get_mut(&kind) else { continue };
            if subscription.pending.is_some() {
                continue;
            }
            let names = subscription.additions(kind, &self.target.resources);
            if !names.is_empty() {
                return Some(self.send(kind, names));
            }
        }
        if self.is_pending() {
            return None;
        }
        ResourceType::ALL.into_iter().rev().find_map(|kind| self.remove(kind))
    }

    fn are_clusters_pending(&self) -> bool {
        let in_flight =
            |kind| self.subscriptions.get(&kind).is_some_and(|subscription| subscription.pending.is_some());
        !self.awaiting_endpoints.is_empty()
            || in_flight(ResourceType::Cluster)
            || in_flight(ResourceType::Endpoints)
    }

    fn send(&mut self, kind: ResourceType, names: Vec<Arc<str>>) -> DeltaDiscoveryResponse {
        let found = names.iter().filter_map(|name| self.target.resources.find(kind, name));
        let resources: Vec<_> = found.cloned().collect();
        if kind == ResourceType::Cluster {
            self.resend_endpoints(&names);
        }
        let nonce = self.nonce();
        if let Some(subscription) = self.subscriptions.get_mut(&kind) {
            for name in &names {
                subscription.resend.remove(name);
                subscription.dirty.remove(name);
            }
            let sent = resources.iter().map(|resource| (resource.name.clone(), resource.version)).collect();
            subscription.pending = Some(PendingResponse { nonce: nonce.clone(), sent, removed: Vec::new() });
        }
        let sent = |resource: &Arc<crate::resource::XdsResource>| Sent {
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

    /// Semantics, xDS 3: Envoy needs the endpoints of an updated cluster again, even unchanged ones.
    fn resend_endpoints(&mut self, clusters: &[Arc<str>]) {
        for name in clusters {
            if self.target.resources.find(ResourceType::Endpoints, name).is_none() {
                continue;
            }
            self.awaiting_endpoints.insert(name.clone());
            let endpoints = self.subscriptions.get_mut(&ResourceType::Endpoints);
            if let Some(endpoints) = endpoints.filter(|endpoints| endpoints.includes(name)) {
                endpoints.resend.insert(name.clone());
                endpoints.dirty.insert(name.clone());
            }
        }
    }

    fn remove(&mut self, kind: ResourceType) -> Option<DeltaDiscoveryResponse> {
        let subscription = self.subscriptions.get_mut(&kind)?;
        let removed = subscription.removals(kind, &self.target.resources);
        if removed.is_empty() {
            return None;
        }
        let nonce = self.nonce();
        let names = removed.iter().map(|name| name.to_string()).collect();
        for name in &removed {
            self.awaiting_endpoints.remove(name);
        }
        if let Some(subscription) = self.subscriptions.get_mut(&kind) {
            subscription.pending = Some(PendingResponse { nonce: nonce.clone(), sent: Vec::new(), removed });
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

impl DeltaSubscription {
    /// The set's own `Arc` of a name, so that streams share the text.
    fn shared(&mut self, set: &ResourceSet, kind: ResourceType, name: &str) -> Arc<str> {
        if let Some(resource) = set.find(kind, name) {
            return resource.name.clone();
        }
        if let Some(known) = self.unknown.get(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.unknown_bytes += name.len() + NAME_OVERHEAD;
        self.unknown.insert(name.clone());
        name
    }

    /// The client no longer has the name.
    fn drop_unknown(&mut self, name: &str) {
        if !self.names.contains(name) && self.unknown.remove(name) {
            self.unknown_bytes -= name.len() + NAME_OVERHEAD;
        }
    }

    fn includes(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// The first request of a type: without names it subscribes to all clusters or listeners, and a client that
    /// reconnects lists the versions that it has (semantics, xDS 4).
    fn open(&mut self, kind: ResourceType, request: &DeltaDiscoveryRequest, target: &ResourceSet) {
        self.wildcard = kind.is_root() && request.resource_names_subscribe.is_empty();
        for (name, version) in request.initial_resource_versions.iter().take(MAX_NAMES) {
            let name = self.shared(target, kind, name);
            self.acknowledged.insert(name, ContentVersion::parse(version));
        }
        if self.wildcard {
            self.mark_all_dirty(kind, target);
        }
    }

    fn mark_all_dirty(&mut self, kind: ResourceType, target: &ResourceSet) {
        self.dirty.extend(target.of(kind).keys().cloned());
        self.dirty.extend(self.acknowledged.keys().cloned());
    }

    fn subscribe(
        &mut self,
        kind: ResourceType,
        request: &DeltaDiscoveryRequest,
        is_first: bool,
        target: &ResourceSet,
    ) -> Result<(), TooManyNames> {
        for name in &request.resource_names_subscribe {
            if name == WILDCARD {
                self.wildcard = true;
                self.mark_all_dirty(kind, target);
                continue;
            }
            let name = self.shared(target, kind, name);
            // A repeated subscription requests the resource again.
            if !is_first {
                self.resend.insert(name.clone());
            }
            self.dirty.insert(name.clone());
            self.names.insert(name);
        }
        for name in &request.resource_names_unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
                continue;
            }
            self.names.remove(name.as_str());
            if !self.wildcard {
                self.forget(name);
            }
        }
        if self.names.len() > MAX_NAMES || self.acknowledged.len() > MAX_NAMES {
            return Err(TooManyNames(kind));
        }
        Ok(())
    }

    fn forget(&mut self, name: &str) {
        self.drop_unknown(name);
        self.acknowledged.remove(name);
        self.resend.remove(name);
        self.dirty.remove(name);
        self.rejected.remove(name);
    }

    fn settle(&mut self, pending: PendingResponse) {
        for (name, version) in pending.sent {
            if self.includes(&name) {
                self.rejected.remove(&name);
                self.acknowledged.insert(name, Some(version));
            }
        }
        for name in pending.removed {
            self.drop_unknown(&name);
            self.acknowledged.remove(&name);
            self.rejected.remove(&name);
        }
    }

    /// The names to send next: a part of a rejected response, else all missing ones, up to the size limit.
    fn additions(&mut self, kind: ResourceType, target: &ResourceSet) -> Vec<Arc<str>> {
        while let Some(part) = self.bisected.pop() {
            let names: Vec<Arc<str>> =
                part.into_iter().filter(|name| self.needs(kind, name, target)).collect();
            if !names.is_empty() {
                return names;
            }
        }
        let (mut names, mut current, mut bytes) = (Vec::new(), Vec::new(), 0);
        for name in &self.dirty {
            let Some(resource) = target.find(kind, name) else { continue };
            if !self.needs(kind, name, target) {
                current.push(name.clone());
                continue;
            }
            bytes += resource.body.len() + name.len();
            if bytes > RESPONSE_BYTES && !names.is_empty() {
                break;
            }
            names.push(name.clone());
        }
        for name in &current {
            self.dirty.remove(name);
        }
        names
    }

    fn needs(&self, kind: ResourceType, name: &Arc<str>, target: &ResourceSet) -> bool {
        let Some(resource) = target.find(kind, name).filter(|_| self.includes(name)) else { return false };
        let is_current =
            self.acknowledged.get(name) == Some(&Some(resource.version)) && !self.resend.contains(name);
        !is_current && self.rejected.get(name) != Some(&resource.version)
    }

    /// Names that the client has or subscribes to and that do not exist. Each is reported once, until it exists again.
    fn removals(&mut self, kind: ResourceType, target: &ResourceSet) -> Vec<Arc<str>> {
        let gone = |name: &&Arc<str>| target.find(kind, name).is_none();
        let gone: Vec<Arc<str>> = self.dirty.iter().filter(gone).cloned().collect();
        for name in &gone {
            self.dirty.remove(name);
            self.resend.remove(name);
        }
        gone.into_iter()
            .filter(|name| self.acknowledged.contains_key(name) || self.names.contains(name))
            .collect()
    }
}
