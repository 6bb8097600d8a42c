//! The world as the watches tell it: events in, changes to a Snapshot out.
//!
//! ```text
//! Feed -> Event -> WatchCache::read -> Change -> (look at the snapshot before) -> WatchCache::apply -> Snapshot
//! ```
//! Reading and applying are two steps, because whoever plans wants to compare an object with what it was.

use std::collections::{BTreeMap, BTreeSet};

use model::{Interner, Name, Notice, Object, ObjectKey, ServiceKey, Snapshot, parse};

use super::{Event, Kind, Watched};

/// What one event means.
#[derive(Debug)]
pub enum Change {
    /// An object, new or changed, with what is to be said about fields of it that are ignored.
    Put(Object, Vec<Notice>),
    /// An object that cannot be used, and why. In the snapshot it counts as absent.
    Unreadable(Kind, ObjectKey, Vec<Notice>),
    /// An object is gone.
    Gone(Kind, ObjectKey),
    /// An object of a kind that the snapshot does not hold.
    Other(Kind, Box<Watched>),
    /// All objects of the kind have come; these are their keys.
    Listed(Kind, BTreeSet<ObjectKey>),
    /// The API cannot be reached or refuses; it is tried again.
    Trouble(Kind, String),
}

/// A snapshot that follows the API.
#[derive(Debug, Default)]
pub struct WatchCache {
    snapshot: Snapshot,
    interner: Interner,
    /// The kinds that are being listed, with what has come so far.
    listing: BTreeMap<Kind, BTreeSet<ObjectKey>>,
    listed: BTreeSet<Kind>,
    /// How many names were held after the last sweep.
    swept: usize,
}

impl WatchCache {
    /// The world as last seen.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Whether all objects of these kinds have come at least once: before that, absence says nothing.
    pub fn has_listed(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.listed.contains(kind))
    }

    /// Whether objects of a kind come as a list, in no order of their versions.
    pub fn is_listing(&self, kind: Kind) -> bool {
        self.listing.contains_key(&kind)
    }

    /// What an event means. Each change is to be given to [`WatchCache::apply`].
    pub fn read(&mut self, event: Event) -> Vec<Change> {
        match event {
            Event::Listing(kind) => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            Event::Put(kind, watched) => {
                let key = self.key(&watched);
                if let Some(seen) = self.listing.get_mut(&kind) {
                    seen.insert(key.clone());
                }
                vec![self.parse(kind, key, watched)]
            }
            Event::Gone(kind, watched) => vec![Change::Gone(kind, self.key(&watched))],
            Event::Listed(kind) => self.complete(kind),
            Event::Trouble(kind, text) => vec![Change::Trouble(kind, text)],
        }
    }

    /// Puts a change into the snapshot.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Put(object, _) => self.snapshot.apply(object),
            Change::Gone(kind, key) | Change::Unreadable(kind, key, _) => self.remove(kind, &key),
            Change::Listed(kind, _) => drop(self.listed.insert(kind)),
            Change::Other(..) | Change::Trouble(..) => {}
        }
        self.sweep();
    }

    fn key(&mut self, watched: &Watched) -> ObjectKey {
        ObjectKey {
            namespace: self.interner.name(watched.namespace()),
            name: self.interner.name(watched.name()),
        }
    }

    fn parse(&mut self, kind: Kind, key: ObjectKey, watched: Watched) -> Change {
        if matches!(kind, Kind::Lease | Kind::Secret) {
            return Change::Other(kind, Box::new(watched));
        }
        let resource = kind.resource();
        match parse::text(&resource.api_version, &resource.kind, watched.text(), &mut self.interner) {
            (Some(object), notices) => Change::Put(object, notices),
            (None, notices) => Change::Unreadable(kind, key, notices),
        }
    }

    /// What was there before a list and is not in it was deleted while nobody looked.
    fn complete(&mut self, kind: Kind) -> Vec<Change> {
        let seen = self.listing.remove(&kind).unwrap_or_default();
        let gone = self.keys(kind).into_iter().filter(|key| !seen.contains(key));
        let mut changes: Vec<Change> = gone.map(|key| Change::Gone(kind, key)).collect();
        changes.push(Change::Listed(kind, seen));
        changes
    }

    fn keys(&self, kind: Kind) -> Vec<ObjectKey> {
        let snapshot = &self.snapshot;
        let global = |name: &Name| ObjectKey::new(&Name::default(), name);
        match kind {
            Kind::Service => {
                snapshot.services().map(|(s, _)| ObjectKey::new(&s.key.namespace, &s.key.name)).collect()
            }
            Kind::Slice => snapshot.slice_keys().cloned().collect(),
            Kind::Pod => snapshot.pods().map(|pod| pod.key.clone()).collect(),
            Kind::Node => snapshot.nodes().keys().map(global).collect(),
            Kind::Namespace => snapshot.namespaces().keys().map(global).collect(),
            Kind::ServiceCidr => snapshot.service_cidrs().map(|cidr| global(&cidr.name)).collect(),
            Kind::IpAddress => {
                snapshot.ip_addresses().map(|ip| global(&Name::new(&ip.address.to_string()))).collect()
            }
            Kind::HttpRoute => snapshot.http_route_keys().cloned().collect(),
            Kind::GatewayHttpRoute => snapshot.gateway_http_route_keys().cloned().collect(),
            Kind::TcpRoute => snapshot.tcp_route_keys().cloned().collect(),
            Kind::Gateway => snapshot.gateways().map(|gateway| gateway.key.clone()).collect(),
            Kind::Lease | Kind::Secret => Vec::new(),
        }
    }

    fn remove(&mut self, kind: Kind, key: &ObjectKey) {
        let snapshot = &mut self.snapshot;
        match kind {
            Kind::Service => snapshot.remove_service(&ServiceKey::new(&key.namespace, &key.name)),
            Kind::Slice => snapshot.remove_slice(key),
            Kind::Pod => snapshot.remove_pod(key),
            Kind::Node => snapshot.remove_node(&key.name),
            Kind::Namespace => snapshot.remove_namespace(&key.name),
            Kind::ServiceCidr => snapshot.remove_service_cidr(&key.name),
            Kind::IpAddress => {
                if let Ok(address) = key.name.parse() {
                    snapshot.remove_ip_address(address);
                }
            }
            Kind::HttpRoute => snapshot.remove_http_route(key),
            Kind::GatewayHttpRoute => snapshot.remove_gateway_http_route(key),
            Kind::TcpRoute => snapshot.remove_tcp_route(key),
            Kind::Gateway => snapshot.remove_gateway(key),
            Kind::Lease | Kind::Secret => {}
        }
    }

    /// Names of objects long gone are forgotten each time that the held ones have doubled.
    fn sweep(&mut self) {
        const FEW: usize = 10_000;
        if self.interner.name_count() > 2 * self.swept.max(FEW) {
            self.interner.sweep();
            self.swept = self.interner.name_count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Watched {
        let text = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"1"}}}}"#);
        serde_json::from_str(&text).expect("a node")
    }

    fn take(mirror: &mut WatchCache, event: Event) {
        for change in mirror.read(event) {
            mirror.apply(change);
        }
    }

    #[test]
    fn a_list_after_a_gap_removes_what_was_deleted_meanwhile() {
        let mut mirror = WatchCache::default();
        assert!(!mirror.has_listed(&[Kind::Node]));
        for event in [
            Event::Listing(Kind::Node),
            Event::Put(Kind::Node, node("a")),
            Event::Put(Kind::Node, node("b")),
            Event::Listed(Kind::Node),
        ] {
            take(&mut mirror, event);
        }
        assert!(mirror.has_listed(&[Kind::Node]));
        for event in
            [Event::Listing(Kind::Node), Event::Put(Kind::Node, node("b")), Event::Put(Kind::Node, node("c"))]
        {
            take(&mut mirror, event);
        }
        assert_eq!(mirror.snapshot().nodes().len(), 3, "nothing goes before the list is whole");
        take(&mut mirror, Event::Listed(Kind::Node));
        assert_eq!(mirror.snapshot().nodes().keys().map(Name::as_str).collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn an_object_that_turns_unreadable_counts_as_absent() {
        let mut mirror = WatchCache::default();
        take(&mut mirror, Event::Put(Kind::Node, node("a")));
        let bad = r#"{"metadata":{"name":"a","labels":7}}"#;
        let changes = mirror.read(Event::Put(Kind::Node, serde_json::from_str(bad).expect("JSON")));
        assert!(matches!(&changes[..], [Change::Unreadable(Kind::Node, _, notices)] if notices.len() == 1));
        changes.into_iter().for_each(|change| mirror.apply(change));
        assert!(mirror.snapshot().node("a").is_none());
    }
}
