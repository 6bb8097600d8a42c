//! When each endpoint is checked. Time is a duration since an arbitrary start; the number of checks under way is bounded,
//! and the longest overdue go first.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::hash::{BASIS_64, fnv1a_64};

use super::{CheckScope, CheckedSlice, EndpointCheck, EndpointHealth};

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckTarget {
    pub namespace: String,
    pub slice: String,
    pub address: IpAddr,
}

#[derive(Debug)]
struct Scheduled {
    check: EndpointCheck,
    socket: SocketAddr,
    health: EndpointHealth,
    next: Duration,
    is_running: bool,
}

/// The checks of a machine.
#[derive(Debug)]
pub struct CheckSchedule {
    scope: CheckScope,
    max_running: usize,
    targets: BTreeMap<CheckTarget, Scheduled>,
    /// Targets that wait, by time.
    queue: BTreeSet<(Duration, CheckTarget)>,
    /// Includes those whose target was removed meanwhile.
    running: usize,
}

impl CheckSchedule {
    pub fn new(scope: CheckScope, max_running: usize) -> Self {
        Self { scope, max_running, targets: BTreeMap::new(), queue: BTreeSet::new(), running: 0 }
    }

    /// Follows a slice; `None` if it is gone or has no check. Endpoints that stay keep their counts.
    pub fn sync(&mut self, namespace: &str, name: &str, slice: Option<&CheckedSlice>, now: Duration) {
        let mut stale: BTreeSet<CheckTarget> =
            self.of_slice(namespace, name).map(|(t, _)| t.clone()).collect();
        for endpoint in slice.into_iter().flat_map(|slice| slice.endpoints.iter().map(move |e| (slice, e))) {
            let (slice, endpoint) = endpoint;
            if !self.scope.contains(endpoint.node.as_deref()) {
                continue;
            }
            let Some(port) = slice.check.probe.port().or(slice.port) else { continue };
            let target = CheckTarget {
                namespace: namespace.to_owned(),
                slice: name.to_owned(),
                address: endpoint.address,
            };
            stale.remove(&target);
            let socket = SocketAddr::new(endpoint.address, port);
            match self.targets.get_mut(&target) {
                Some(known) if known.check == slice.check && known.socket == socket => {}
                Some(known) => {
                    // Counts start again, readiness stays.
                    let health = EndpointHealth::stored(known.health.ready, known.health.reason.take());
                    (known.check, known.socket, known.health) = (slice.check.clone(), socket, health);
                    if !known.is_running {
                        self.queue.remove(&(known.next, target.clone()));
                        known.next = now;
                        self.queue.insert((now, target));
                    }
                }
                None => {
                    let next = if endpoint.ready { now + spread(&target, &slice.check) } else { now };
                    let health = EndpointHealth::stored(endpoint.ready, endpoint.reason.clone());
                    let check = slice.check.clone();
                    self.queue.insert((next, target.clone()));
                    self.targets.insert(target, Scheduled { check, socket, health, next, is_running: false });
                }
            }
        }
        for target in stale {
            if let Some(gone) = self.targets.remove(&target) {
                self.queue.remove(&(gone.next, target));
            }
        }
    }

    /// The checks to start now.
    pub fn due(&mut self, now: Duration) -> Vec<(CheckTarget, SocketAddr, EndpointCheck)> {
        let mut started = Vec::new();
        while self.running < self.max_running {
            let Some((next, target)) = self.queue.first().cloned().filter(|(next, _)| *next <= now) else {
                break;
            };
            self.queue.remove(&(next, target.clone()));
            let Some(scheduled) = self.targets.get_mut(&target) else { continue };
            scheduled.is_running = true;
            scheduled.next = now + scheduled.check.period();
            self.running += 1;
            started.push((target, scheduled.socket, scheduled.check.clone()));
        }
        started
    }

    /// When a check is due next; `None` while as many run as may.
    pub fn next_due(&self) -> Option<Duration> {
        let next = self.queue.first().map(|(next, _)| *next);
        next.filter(|_| self.running < self.max_running)
    }

    /// A check has ended. Returns whether the endpoint's readiness or reason changed.
    pub fn complete(
        &mut self,
        target: &CheckTarget,
        checked: SocketAddr,
        outcome: Result<(), String>,
        now: Duration,
    ) -> bool {
        self.running = self.running.saturating_sub(1);
        let Some(scheduled) = self.targets.get_mut(target) else { return false };
        // One that was removed and added again meanwhile waits in the queue already.
        if !std::mem::replace(&mut scheduled.is_running, false) {
            return false;
        }
        scheduled.next = scheduled.next.max(now);
        self.queue.insert((scheduled.next, target.clone()));
        if scheduled.socket != checked {
            return false;
        }
        let before = (scheduled.health.ready, scheduled.health.reason.clone());
        scheduled.health.record(&scheduled.check, outcome);
        before != (scheduled.health.ready, scheduled.health.reason.clone())
    }

    /// The readiness of the endpoints of a slice that this machine checks.
    pub fn health_of(&self, namespace: &str, name: &str) -> BTreeMap<IpAddr, EndpointHealth> {
        self.of_slice(namespace, name).map(|(target, s)| (target.address, s.health.clone())).collect()
    }

    fn of_slice(&self, namespace: &str, name: &str) -> impl Iterator<Item = (&CheckTarget, &Scheduled)> {
        let first = CheckTarget {
            namespace: namespace.to_owned(),
            slice: name.to_owned(),
            address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        };
        let same = {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            move |target: &CheckTarget| target.namespace == namespace && target.slice == name
        };
        self.targets.range(first..).take_while(move |(target, _)| same(target))
    }

    pub fn running(&self) -> usize {
        self.running
    }

    /// Checks that should have started.
    pub fn overdue(&self, now: Duration) -> usize {
        self.queue.iter().take_while(|(next, _)| *next <= now).count()
    }

    /// Endpoints that are ready, and that are not.
    pub fn counts(&self) -> (usize, usize) {
        let ready = self.targets.values().filter(|scheduled| scheduled.health.ready).count();
        (ready, self.targets.len() - ready)
    }
}

/// After a restart, the checks of known endpoints are spread over their period.
fn spread(target: &CheckTarget, check: &EndpointCheck) -> Duration {
    let text = format!("{}/{}/{}", target.namespace, target.slice, target.address);
    let millis = u64::from(check.period_seconds) * 1_000;
    Duration::from_millis(fnv1a_64(BASIS_64, text.as_bytes()) % millis.max(1))
}
