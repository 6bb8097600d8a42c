//! What the nodes say of themselves: one Lease per node proxy, whose annotations name the newest EndpointSlice version
//! that the node has programmed and the Services that it could not (semantics M7).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use model::{Name, ServiceKey, Snapshot, annotation};
use plan::hints::NodeAcks;
use plan::work_queue::MonotonicTime;

use super::conditions::AckState;

/// How long a node may take to program what was just written before it counts as behind: three renewals.
pub const GRACE: Duration = Duration::from_secs(30);

/// What one node has programmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Report {
    revision: u64,
    failed: BTreeSet<ServiceKey>,
}

/// The nodes that run a node proxy.
#[derive(Debug, Default)]
pub struct Leases {
    reports: BTreeMap<Name, Report>,
}

/// What a changed Lease means.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LeaseChange {
    /// Services that a node names as failed, or no longer does.
    pub services: BTreeSet<ServiceKey>,
    /// A node that was not there, or that begins anew: in time, it has to have everything.
    pub from_the_start: bool,
}

impl Leases {
    /// A Lease came or changed.
    pub fn applied(&mut self, lease: &Lease) -> LeaseChange {
        let Some(node) = node_of(lease) else { return LeaseChange::default() };
        let annotations = lease.metadata.annotations.as_ref();
        let value = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
        let report = Report {
            revision: value(annotation::PROGRAMMED_REVISION).and_then(|v| v.trim().parse().ok()).unwrap_or(0),
            failed: value(annotation::FAILED_SERVICES).map(failed_services).unwrap_or_default(),
        };
        let before = self.reports.insert(node, report.clone());
        let old = before.as_ref().map(|before| before.failed.clone()).unwrap_or_default();
        LeaseChange {
            services: &old ^ &report.failed,
            from_the_start: before.is_none_or(|before| before.revision > report.revision),
        }
    }

    /// A Lease went.
    pub fn removed(&mut self, lease: &str) -> LeaseChange {
        let node = lease.strip_prefix(annotation::NODE_LEASE_PREFIX);
        let before = node.and_then(|node| self.reports.remove(node));
        LeaseChange {
            services: before.map(|before| before.failed).unwrap_or_default(),
            from_the_start: false,
        }
    }

    /// The watch began anew: what follows is all there is.
    pub fn restarted(&mut self) {
        self.reports.clear();
    }

    /// What the ready nodes say of a Service whose slices have had this version since then.
    pub fn acks(
        &self,
        snapshot: &Snapshot,
        service: &ServiceKey,
        since: (u64, MonotonicTime),
        now: MonotonicTime,
    ) -> AckState {
        let (revision, written) = since;
        let mut acks = NodeAcks::default();
        let mut may_come = false;
        let ready = |node: &Name| snapshot.node(node).is_some_and(|node| node.ready);
        for (node, report) in self.reports.iter().filter(|(node, _)| ready(node)) {
            if report.failed.contains(service) {
                acks.add_behind(node);
            } else if report.revision < revision {
                acks.add_behind(node);
                may_come = true;
            } else {
                acks.reached += 1;
            }
        }
        let in_time = written.after(GRACE) > now;
        if may_come && in_time { AckState::Open } else { AckState::Settled(acks) }
    }
}

fn node_of(lease: &Lease) -> Option<Name> {
    lease.metadata.name.as_deref()?.strip_prefix(annotation::NODE_LEASE_PREFIX).map(Name::new)
}

fn failed_services(text: &str) -> BTreeSet<ServiceKey> {
    let keys = text.split(',').filter_map(|key| key.trim().split_once('/'));
    keys.map(|(namespace, name)| ServiceKey::new(&namespace.into(), &name.into())).collect()
}

#[cfg(test)]
mod tests {
    use model::{Interner, parse};
    use serde_json::json;

    use super::*;

    fn lease(node: &str, revision: &str, failed: &str) -> Lease {
        serde_json::from_value(json!({"metadata": {"name": format!("zoneward-node-{node}"), "annotations": {
            annotation::PROGRAMMED_REVISION: revision, annotation::FAILED_SERVICES: failed}}}))
        .unwrap()
    }

    fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (name, ready) in [("n1", "True"), ("n2", "True"), ("gone", "False")] {
            let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            snapshot.apply(parse::object(&node, &mut Interner::default()).0.unwrap());
        }
        snapshot
    }

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_secs(seconds))
    }

    #[test]
    fn every_ready_node_that_runs_a_proxy_has_to_reach_the_slices() {
        let (snapshot, service) = (snapshot(), ServiceKey::new(&"shop".into(), &"web".into()));
        let mut leases = Leases::default();
        let acks = |leases: &Leases, now| leases.acks(&snapshot, &service, (10, at(0)), at(now));
        assert_eq!(acks(&leases, 0), AckState::Settled(NodeAcks::default()));
        assert!(leases.applied(&lease("n1", "10", "")).from_the_start);
        leases.applied(&lease("n2", "9", ""));
        leases.applied(&lease("gone", "1", ""));
        assert_eq!(acks(&leases, 29), AckState::Open, "n2 may still come");
        let n2_behind = AckState::Settled(NodeAcks { reached: 1, waiting: 1, behind: vec!["n2".into()] });
        assert_eq!(acks(&leases, 30), n2_behind);
        assert_eq!(leases.applied(&lease("n2", "11", "")), LeaseChange::default());
        assert_eq!(acks(&leases, 0), AckState::Settled(NodeAcks { reached: 2, ..NodeAcks::default() }));
        let change = leases.applied(&lease("n2", "11", "shop/web, shop/api"));
        assert_eq!(change.services.len(), 2);
        assert_eq!(acks(&leases, 0), n2_behind);
    }
}
