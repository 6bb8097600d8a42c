//! Whether a change of a pod requires a sync of its Services, and whether a change of an endpoint requires a write.

use model::{Endpoint, Pod};

/// The effect of a pod update on Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodChange {
    /// Its endpoints change.
    pub endpoint: bool,
    /// Other Services may select it or name it in DNS.
    pub labels: bool,
}

impl PodChange {
    pub fn any(self) -> bool {
        self.endpoint || self.labels
    }
}

/// Compares two versions of a pod (semantics B6).
///
/// Pitfall 38: compares whether a pod is terminating, not since when. In addition to upstream, it compares completion,
/// node and UID.
pub fn pod_changed(old: &Pod, new: &Pod) -> PodChange {
    let seen = |pod: &Pod| (pod.ready, pod.deleting, pod.finished, pod.has_ip);
    PodChange {
        endpoint: seen(old) != seen(new)
            || old.ips != new.ips
            || old.node != new.node
            || old.uid != new.uid
            || old.ports() != new.ports()
            || old.capacity() != new.capacity(),
        labels: old.labels != new.labels
            || old.hostname() != new.hostname()
            || old.subdomain() != new.subdomain(),
    }
}

/// Whether two versions of the same endpoint are equal (semantics B4). Its identity (addresses, hostname, pod name) is not
/// compared; nor are hints, which are compared separately (pitfall 34).
pub fn endpoints_equal(a: &Endpoint, b: &Endpoint) -> bool {
    a.conditions == b.conditions && a.node == b.node && a.zone == b.zone && a.target() == b.target()
}
