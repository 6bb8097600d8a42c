//! What counts as a change: of a pod (is its Service worth planning again?) and of an endpoint (is its slice
//! worth writing?).

use model::{Endpoint, Pod};

/// What a newer version of a pod means for Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodChange {
    /// Its endpoints look different.
    pub endpoint: bool,
    /// Other Services may select it, or name it in DNS.
    pub labels: bool,
}

impl PodChange {
    /// Whether any Service is concerned.
    pub fn any(self) -> bool {
        self.endpoint || self.labels
    }
}

/// Compares two versions of a pod (semantics B6).
///
/// Pitfall 38: whether a pod terminates is compared, not when it was asked to. Beyond what Kubernetes'
/// controller looks at, a pod that finishes, that gets its node late or that was replaced under its name
/// changes too.
pub fn pod_changed(old: &Pod, new: &Pod) -> PodChange {
    let seen = |pod: &Pod| (pod.ready, pod.deleting, pod.finished, pod.has_ip);
    PodChange {
        endpoint: seen(old) != seen(new)
            || old.ips != new.ips
            || old.node != new.node
            || old.uid != new.uid
            || old.ports() != new.ports(),
        labels: old.labels != new.labels
            || old.hostname() != new.hostname()
            || old.subdomain() != new.subdomain(),
    }
}

/// Whether two versions of the same endpoint say the same (semantics B4). What makes it the same one
/// (addresses, hostname, the pod's name) is not compared again; pitfall 34: nor are hints, which are compared
/// on their own.
pub fn endpoints_equal(a: &Endpoint, b: &Endpoint) -> bool {
    a.conditions == b.conditions && a.node == b.node && a.zone == b.zone && a.target == b.target
}
