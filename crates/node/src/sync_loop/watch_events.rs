//! Watch events into the cache, and which Services they leave pending.

use std::net::IpAddr;
use std::time::Duration;

use model::{AddressType, Family, Notice, Object, ObjectKey, ServiceKey, Slice, Timestamp, annotation};

use cluster::{InformerEvent, ObjectChange, ObjectKind};

use super::{FAMILIES, SyncLoop, family as of};

/// Most programming latencies measured per sync.
const MAX_TRIGGERS: usize = 10_000;

/// How long changes wait for the end of a relist of slices.
const RELIST_HOLD: Duration = Duration::from_secs(10);

impl SyncLoop {
    /// Applies a watch event to the cache. While slices are listed again, the cache holds old and new slices of a Service
    /// together: changes wait for the end of the list.
    pub fn observe(&mut self, event: InformerEvent) {
        if let InformerEvent::ListStarted(ObjectKind::Slice) = event
            && self.cache.has_listed(&[ObjectKind::Slice])
        {
            self.schedule.hold(self.clock.now(), RELIST_HOLD);
        }
        for mut change in self.cache.read(event) {
            self.observe_change(&change);
            if let ObjectChange::Applied(Object::Slice(slice), _) = &mut change {
                drop_unused_fields(slice);
            }
            self.cache.apply(change);
        }
    }

    /// Replaces the local addresses.
    pub fn set_local_addresses(&mut self, local: Vec<IpAddr>) {
        self.pending.node |= local != self.local_addresses;
        self.local_addresses = local;
    }

    fn observe_change(&mut self, change: &ObjectChange) {
        match change {
            ObjectChange::Applied(object, notices) => {
                self.warn_all(notices);
                self.observe_object(object);
            }
            ObjectChange::Unreadable(kind, key, notices) => {
                self.warn_all(notices);
                self.observe_deletion(*kind, key);
            }
            ObjectChange::Deleted(kind, key) => self.observe_deletion(*kind, key),
            // Rules stay while the API is unreachable.
            ObjectChange::Listed(ObjectKind::Slice, _) => {
                self.pending.revision = self.pending.revision.max(self.pending.listed_revision);
                self.schedule.release();
            }
            ObjectChange::Failed(..) | ObjectChange::Listed(..) | ObjectChange::Other(..) => {}
        }
    }

    pub(super) fn warn_all(&mut self, notices: &[Notice]) {
        notices.iter().for_each(|notice| self.events.warn(notice.clone()));
    }

    fn observe_object(&mut self, object: &Object) {
        match object {
            Object::Service(service) => {
                self.shared.metrics.service_changes.inc();
                self.shared.metrics.service_pending.inc();
                self.mark_pending(service.key.clone(), &FAMILIES);
            }
            Object::Slice(slice) => self.observe_slice(slice),
            Object::Node(_) | Object::ServiceCidr(_) => self.pending.node = true,
            _ => {}
        }
    }

    fn observe_slice(&mut self, slice: &Slice) {
        self.shared.metrics.endpoint_changes.inc();
        self.shared.metrics.endpoint_pending.inc();
        let families: &[Family] = match slice.content.address_type {
            AddressType::Ip(Family::V4) => &FAMILIES[..1],
            AddressType::Ip(Family::V6) => &FAMILIES[1..],
            AddressType::Fqdn => &[],
        };
        let version = slice.resource_version.as_deref().and_then(|version| version.parse().ok());
        let seen = match self.cache.is_listing(ObjectKind::Slice) {
            true => &mut self.pending.listed_revision,
            false => &mut self.pending.revision,
        };
        *seen = version.unwrap_or(0).max(*seen);
        let trigger = slice.content.annotation(annotation::TRIGGER_TIME);
        // Semantics D14: only changes after the start are measured.
        let trigger = trigger.and_then(|text| Timestamp::parse(text)).filter(|at| *at > self.started_at);
        if let (Some(at), Some(family)) = (trigger, families.first())
            && self.pending.triggers.len() < MAX_TRIGGERS
        {
            self.pending.triggers.push((*family, at));
        }
        self.departed.remove(&slice.key);
        if slice.has_shares() {
            self.pending.shares.insert(slice.key.clone());
        }
        let now = self.clock.now();
        if let (Some(old), Some(service)) =
            (self.cache.snapshot().slice(&slice.key), self.cache.snapshot().service_of_slice(&slice.key))
        {
            self.traffic.slice_changes(&service, old, Some(slice), now);
        }
        // A slice may move from one Service to another.
        let before = self.cache.snapshot().service_of_slice(&slice.key);
        for key in before.into_iter().chain(slice.service()) {
            self.mark_pending(key, families);
        }
    }

    fn observe_deletion(&mut self, kind: ObjectKind, key: &ObjectKey) {
        match kind {
            ObjectKind::Service => {
                self.shared.metrics.service_changes.inc();
                self.mark_pending(ServiceKey::new(&key.namespace, &key.name), &FAMILIES);
            }
            ObjectKind::Slice => {
                self.shared.metrics.endpoint_changes.inc();
                if let Some(service) = self.cache.snapshot().service_of_slice(key) {
                    let (old, now) = (self.cache.snapshot().slice(key), self.clock.now());
                    if let Some(old) = old {
                        if self.settings.watch_own_zone {
                            self.traffic.slice_leaves(&service, old, now);
                            self.departed.add(service.clone(), old, now);
                        } else {
                            self.traffic.slice_changes(&service, old, None, now);
                        }
                    }
                    self.mark_pending(service, &FAMILIES);
                }
            }
            ObjectKind::Node | ObjectKind::ServiceCidr => self.pending.node = true,
            _ => {}
        }
    }

    fn mark_pending(&mut self, service: ServiceKey, families: &[Family]) {
        let (now, wall) = (self.clock.now(), self.clock.timestamp().as_duration().as_secs_f64());
        for family in families {
            self.shared.metrics.last_queued.get_or_create(&of(*family)).set(wall);
        }
        self.shared.health(|health| families.iter().for_each(|family| health.queued(*family, now)));
        self.pending.services.insert(service);
        self.schedule.request_partial();
    }
}

/// No rule depends on an endpoint's targetRef and hostname, and they are most of a slice's memory. Its version has been
/// noted; its owner counts only without the label that names the Service.
fn drop_unused_fields(slice: &mut Slice) {
    (slice.resource_version, slice.written_by) = (None, None);
    if slice.labelled_service().is_some() {
        slice.owners = Box::default();
    }
    for endpoint in &mut slice.content.endpoints {
        endpoint.identity = None;
    }
}
