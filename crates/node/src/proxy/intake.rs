//! What comes in: events become changes of the mirror, and a list of Services to look at.

use std::net::IpAddr;
use std::time::Instant;

use model::{AddressType, Family, Notice, Object, ObjectKey, ServiceKey, Slice, Timestamp, annotation};

use super::{FAMILIES, Proxy, family as of, seconds_now};
use cluster::{Change, Event, Kind};

/// Changes whose delay is measured, at most at once.
const MEASURED: usize = 10_000;

impl Proxy {
    /// Takes an event in.
    pub fn take(&mut self, event: Event) {
        for mut change in self.mirror.read(event) {
            if let Change::Put(Object::Slice(slice), _) = &mut change {
                slim(slice);
            }
            self.note(&change);
            self.mirror.apply(change);
        }
    }

    /// The machine's addresses changed.
    pub fn take_addresses(&mut self, local: Vec<IpAddr>) {
        self.node_changed |= local != self.local;
        self.local = local;
    }

    fn note(&mut self, change: &Change) {
        match change {
            Change::Put(object, notices) => {
                self.say_all(notices);
                self.note_object(object);
            }
            Change::Unreadable(kind, key, notices) => {
                self.say_all(notices);
                self.note_gone(*kind, key);
            }
            Change::Gone(kind, key) => self.note_gone(*kind, key),
            // The rules stay as they are while the API is away.
            Change::Trouble(..) | Change::Listed(..) | Change::Other(..) => {}
        }
    }

    pub(super) fn say_all(&mut self, notices: &[Notice]) {
        notices.iter().for_each(|notice| self.reporter.warn(notice.clone()));
    }

    fn note_object(&mut self, object: &Object) {
        match object {
            Object::Service(service) => {
                self.shared.metrics.service_changes.inc();
                self.shared.metrics.service_pending.inc();
                self.touch(service.key.clone(), &FAMILIES);
            }
            Object::Slice(slice) => self.note_slice(slice),
            Object::Node(_) | Object::ServiceCidr(_) => self.node_changed = true,
            _ => {}
        }
    }

    fn note_slice(&mut self, slice: &Slice) {
        self.shared.metrics.endpoint_changes.inc();
        self.shared.metrics.endpoint_pending.inc();
        let families: &[Family] = match slice.content.address_type {
            AddressType::Ip(Family::V4) => &FAMILIES[..1],
            AddressType::Ip(Family::V6) => &FAMILIES[1..],
            AddressType::Fqdn => &[],
        };
        let version = slice.resource_version.as_deref().and_then(|version| version.parse().ok());
        self.seen_revision = self.seen_revision.max(version.unwrap_or(0));
        let trigger = slice.content.annotation(annotation::TRIGGER_TIME);
        // Semantics D14: only what happened since we run is our delay.
        let trigger = trigger.and_then(|text| Timestamp::parse(text)).filter(|at| *at > self.began_at);
        if let (Some(at), Some(family)) = (trigger, families.first())
            && self.triggers.len() < MEASURED
        {
            self.triggers.push((*family, at));
        }
        // A slice may pass from one Service to another.
        let before = self.mirror.snapshot().service_of_slice(&slice.key);
        for key in before.into_iter().chain(slice.service()) {
            self.touch(key, families);
        }
    }

    fn note_gone(&mut self, kind: Kind, key: &ObjectKey) {
        match kind {
            Kind::Service => {
                self.shared.metrics.service_changes.inc();
                self.touch(ServiceKey::new(&key.namespace, &key.name), &FAMILIES);
            }
            Kind::Slice => {
                self.shared.metrics.endpoint_changes.inc();
                if let Some(service) = self.mirror.snapshot().service_of_slice(key) {
                    self.touch(service, &FAMILIES);
                }
            }
            Kind::Node | Kind::ServiceCidr => self.node_changed = true,
            _ => {}
        }
    }

    fn touch(&mut self, service: ServiceKey, families: &[Family]) {
        let now = Instant::now();
        for family in families {
            self.shared.metrics.last_queued.get_or_create(&of(*family)).set(seconds_now());
        }
        self.shared.health(|health| families.iter().for_each(|family| health.queued(*family, now)));
        self.dirty.insert(service);
        self.pace.change();
    }
}

/// Which pod is behind an endpoint, and under which name, decides nothing on a node; of all that a slice says they are
/// the most.
fn slim(slice: &mut Slice) {
    for endpoint in &mut slice.content.endpoints {
        endpoint.target = None;
        endpoint.hostname = None;
    }
}
