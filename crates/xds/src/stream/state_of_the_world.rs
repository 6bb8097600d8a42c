//! State-of-the-world xDS: every response has all resources of a type, so a change sends everything, and one bad resource
//! rejects the whole response. For clients that do not speak incremental xDS.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use super::{
    MAX_NAMES, NAME_OVERHEAD, Nack, PublishedResources, Reply, TooManyNames, is_retryable, truncate,
};
use crate::resource::{ContentVersion, ResourceSet, ResourceType, XdsResource};

#[derive(Debug, Default)]
pub struct SotwStream {
    target: Arc<PublishedResources>,
    subscriptions: BTreeMap<ResourceType, SotwSubscription>,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct SotwSubscription {
    /// Empty: all.
    names: BTreeSet<String>,
    /// Memory of those that no resource had when they came.
    unknown_bytes: usize,
    /// The last version sent, accepted or not.
    sent: Option<ContentVersion>,
    /// The names changed since, so a response is due.
    is_due: bool,
    /// The last version was rejected and may be accepted later.
    is_retryable: bool,
    pending: Option<(String, Vec<Arc<str>>)>,
}

impl SotwStream {
    /// Sets the resources that the client should have.
    pub fn set_target(&mut self, target: Arc<PublishedResources>) {
        self.target = target;
    }

    pub fn handle_request(&mut self, request: &DiscoveryRequest) -> Result<Vec<Reply>, TooManyNames> {
        let Some(kind) = ResourceType::of(&request.type_url) else { return Ok(Vec::new()) };
        if request.resource_names.len() > MAX_NAMES {
            return Err(TooManyNames(kind));
        }
        let target = self.target.resources.clone();
        let is_first = !self.subscriptions.contains_key(&kind);
        let subscription = self.subscriptions.entry(kind).or_default();
        let pending = subscription.pending.take_if(|(nonce, _)| *nonce == request.response_nonce);
        // A reply to an older response is stale.
        if pending.is_none() && !is_first && !request.response_nonce.is_empty() {
            return Ok(Vec::new());
        }
        let names: BTreeSet<String> = request.resource_names.iter().filter(|n| *n != "*").cloned().collect();
        subscription.is_due |= is_first || names != subscription.names;
        let unknown = names.iter().filter(|name| target.find(kind, name).is_none());
        subscription.unknown_bytes = unknown.map(|name| name.len() + NAME_OVERHEAD).sum();
        subscription.names = names;
        if is_first && !request.version_info.is_empty() {
            // A client that reconnects may have the current version.
            let version = subscription.version(kind, &target);
            if request.version_info == version.to_string() {
                (subscription.sent, subscription.is_due) = (Some(version), false);
            }
        }
        let Some((_, names)) = pending else { return Ok(Vec::new()) };
        let Some(error) = &request.error_detail else { return Ok(vec![Reply::Ack { kind, names }]) };
        subscription.is_retryable = is_retryable(kind, &error.message);
        Ok(vec![Reply::Nack(Nack {
            kind,
            resource: None,
            version: subscription.sent,
            message: truncate(&error.message),
            is_retryable: subscription.is_retryable,
        })])
    }

    /// Memory of subscribed names that no resource has.
    pub fn unknown_name_bytes(&self) -> usize {
        self.subscriptions.values().map(|subscription| subscription.unknown_bytes).sum()
    }

    pub fn has_retryable(&self) -> bool {
        self.subscriptions.values().any(|subscription| subscription.is_retryable)
    }

    pub fn retry_rejected(&mut self) {
        for subscription in self.subscriptions.values_mut().filter(|subscription| subscription.is_retryable) {
            (subscription.is_retryable, subscription.is_due) = (false, true);
        }
    }

    /// Additions and removals are one response here, so only the order of additions is kept.
    pub fn next_response(&mut self) -> Option<DiscoveryResponse> {
        let target = self.target.resources.clone();
        for kind in ResourceType::ALL {
            let Some(subscription) = self.subscriptions.get_mut(&kind) else { continue };
            if subscription.pending.is_some() {
                return None;
            }
            let version = subscription.version(kind, &target);
            if subscription.sent == Some(version) && !subscription.is_due {
                continue;
            }
            let resources: Vec<_> = subscription.resources(kind, &target).map(|r| r.any(kind)).collect();
            let names = subscription.resources(kind, &target).map(|r| r.name.clone()).collect();
            self.last_nonce += 1;
            let nonce = self.last_nonce.to_string();
            (subscription.sent, subscription.is_due) = (Some(version), false);
            subscription.pending = Some((nonce.clone(), names));
            return Some(DiscoveryResponse {
                version_info: version.to_string(),
                type_url: kind.type_url().to_owned(),
                nonce,
                resources,
                ..DiscoveryResponse::default()
            });
        }
        None
    }
}

impl SotwSubscription {
    fn resources<'s>(
        &'s self,
        kind: ResourceType,
        set: &'s ResourceSet,
    ) -> impl Iterator<Item = &'s Arc<XdsResource>> {
        let everything = self.names.is_empty() && kind.is_root();
        let all = set.of(kind).values();
        all.filter(move |resource| everything || self.names.contains(&*resource.name))
    }

    fn version(&self, kind: ResourceType, set: &ResourceSet) -> ContentVersion {
        ContentVersion::of_all(self.resources(kind, set).map(|resource| resource.version))
    }
}
