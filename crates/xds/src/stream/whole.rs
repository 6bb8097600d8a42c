//! The older protocol: every response of a kind carries all of it. For clients that speak nothing else, and for
//! looking at; a change costs everything, and one bad resource costs the whole response.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};

use super::{Heard, NAMES, Published, Refusal, TooMuch, may_pass, words};
use crate::resource::{Kind, Resource, ResourceSet, Version};

/// A stream of the protocol that sends everything.
#[derive(Debug, Default)]
pub struct Whole {
    target: Arc<Published>,
    kinds: BTreeMap<Kind, Wish>,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct Wish {
    /// Empty: everything.
    names: BTreeSet<String>,
    /// What was sent last, accepted or not.
    sent: Option<Version>,
    /// Whether the names changed since: then an answer is due, though nothing else changed.
    asked: bool,
    /// Whether what was sent last was refused, and may be taken later though it stays as it is.
    passing: bool,
    flight: Option<(String, Vec<Arc<str>>)>,
}

impl Whole {
    /// Sets what the client is to have.
    pub fn aim(&mut self, target: Arc<Published>) {
        self.target = target;
    }

    /// Takes a request in.
    pub fn hear(&mut self, request: &DiscoveryRequest) -> Result<Vec<Heard>, TooMuch> {
        let Some(kind) = Kind::of(&request.type_url) else { return Ok(Vec::new()) };
        if request.resource_names.len() > NAMES {
            return Err(TooMuch(format!("more than {NAMES} names of kind {kind} are not served")));
        }
        let target = self.target.resources.clone();
        let is_first = !self.kinds.contains_key(&kind);
        let wish = self.kinds.entry(kind).or_default();
        let flight = wish.flight.take_if(|(nonce, _)| *nonce == request.response_nonce);
        // An answer to something older says nothing about what the client wants by now.
        if flight.is_none() && !is_first && !request.response_nonce.is_empty() {
            return Ok(Vec::new());
        }
        let names: BTreeSet<String> = request.resource_names.iter().filter(|n| *n != "*").cloned().collect();
        wish.asked |= is_first || names != wish.names;
        wish.names = names;
        if is_first && !request.version_info.is_empty() {
            // Connected before: what it has need not be sent again.
            let version = wish.version(kind, &target);
            if request.version_info == version.to_string() {
                (wish.sent, wish.asked) = (Some(version), false);
            }
        }
        let Some((_, names)) = flight else { return Ok(Vec::new()) };
        let Some(error) = &request.error_detail else { return Ok(vec![Heard::Accepted { kind, names }]) };
        wish.passing = may_pass(kind, &error.message);
        Ok(vec![Heard::Refused(Refusal {
            kind,
            resource: None,
            version: wish.sent,
            message: words(&error.message),
            may_pass: wish.passing,
        })])
    }

    /// Whether something was refused that may be taken now.
    pub fn may_try_again(&self) -> bool {
        self.kinds.values().any(|wish| wish.passing)
    }

    /// Sends such things again.
    pub fn try_again(&mut self) {
        for wish in self.kinds.values_mut().filter(|wish| wish.passing) {
            (wish.passing, wish.asked) = (false, true);
        }
    }

    /// Whether something is under way.
    pub fn is_waiting(&self) -> bool {
        self.kinds.values().any(|wish| wish.flight.is_some())
    }

    /// The next response. Additions and removals are one here, so the order of additions has to do.
    pub fn speak(&mut self) -> Option<DiscoveryResponse> {
        let target = self.target.resources.clone();
        for kind in Kind::ALL {
            let Some(wish) = self.kinds.get_mut(&kind) else { continue };
            if wish.flight.is_some() {
                return None;
            }
            let version = wish.version(kind, &target);
            if wish.sent == Some(version) && !wish.asked {
                continue;
            }
            let resources: Vec<_> = wish.resources(kind, &target).map(|r| r.any(kind)).collect();
            let names = wish.resources(kind, &target).map(|r| r.name.clone()).collect();
            self.last_nonce += 1;
            let nonce = self.last_nonce.to_string();
            (wish.sent, wish.asked) = (Some(version), false);
            wish.flight = Some((nonce.clone(), names));
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

impl Wish {
    fn resources<'s>(&'s self, kind: Kind, set: &'s ResourceSet) -> impl Iterator<Item = &'s Arc<Resource>> {
        let everything = self.names.is_empty() && kind.is_root();
        let all = set.of(kind).values();
        all.filter(move |resource| everything || self.names.contains(&*resource.name))
    }

    fn version(&self, kind: Kind, set: &ResourceSet) -> Version {
        Version::of_all(self.resources(kind, set).map(|resource| resource.version))
    }
}
