//! Acknowledgements of the node proxies: the annotations of a node's Lease name the newest EndpointSlice version that it has
//! programmed, and the Services that it failed to program (semantics M7).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use insight::status::convergence::DurationCounts;
use insight::status::{NodeReportState, PastOutage};
use k8s_openapi::api::coordination::v1::Lease;
use model::{Name, ServiceKey, Snapshot, annotation};
use plan::hints::NodeAcks;
use plan::subsetting::SliceView;
use plan::work_queue::MonotonicTime;

use super::conditions::AckState;

/// Grace period before a node counts as behind: three renewals.
pub const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeReport {
    revision: u64,
    failed: BTreeSet<ServiceKey>,
    /// The slices that the node receives.
    view: SliceView,
    /// Times from changes to the kernel.
    delays: DurationCounts,
    repairs: Option<u64>,
    lost_events: Option<u64>,
    last_outage: Option<PastOutage>,
    /// `spec.renewTime`, and when it was first seen: clocks of nodes may differ.
    renew_time: Option<jiff::Timestamp>,
    renewed: MonotonicTime,
}

/// The Leases of all node proxies.
#[derive(Debug, Default)]
pub struct NodeLeases {
    reports: BTreeMap<Name, NodeReport>,
}

/// The effect of a changed Lease.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeLeaseChange {
    /// Services that a node started or stopped to report as failed.
    pub services: BTreeSet<ServiceKey>,
    /// The node is new or restarted, and programs everything again.
    pub restarted: bool,
}

impl NodeLeases {
    pub fn applied(&mut self, lease: &Lease, now: MonotonicTime) -> NodeLeaseChange {
        let Some(node) = node_of(lease) else { return NodeLeaseChange::default() };
        let annotations = lease.metadata.annotations.as_ref();
        let value = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
        let number = |key: &str| value(key).and_then(|v| v.trim().parse::<u64>().ok());
        let renew_time = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let known = self.reports.get(&node).filter(|known| known.renew_time == renew_time);
        let report = NodeReport {
            revision: number(annotation::PROGRAMMED_REVISION).unwrap_or(0),
            failed: value(annotation::FAILED_SERVICES).map(failed_services).unwrap_or_default(),
            view: match value(annotation::WATCHED_ZONE).filter(|zone| !zone.is_empty()) {
                Some(zone) => SliceView::Zone(Name::new(zone)),
                None => SliceView::All,
            },
            delays: value(annotation::CONVERGENCE).and_then(|text| text.parse().ok()).unwrap_or_default(),
            repairs: number(annotation::REPAIRS),
            lost_events: number(annotation::LOST_EVENTS),
            last_outage: value(annotation::LAST_OUTAGE).and_then(|text| text.parse().ok()),
            renew_time,
            renewed: known.map_or(now, |known| known.renewed),
        };
        let before = self.reports.insert(node, report.clone());
        let old = before.as_ref().map(|before| before.failed.clone()).unwrap_or_default();
        NodeLeaseChange {
            services: &old ^ &report.failed,
            restarted: before.is_none_or(|before| before.revision > report.revision),
        }
    }

    pub fn deleted(&mut self, lease: &str) -> NodeLeaseChange {
        let node = lease.strip_prefix(annotation::NODE_LEASE_PREFIX);
        let before = node.and_then(|node| self.reports.remove(node));
        NodeLeaseChange { services: before.map(|before| before.failed).unwrap_or_default(), restarted: false }
    }

    /// Called when the Leases are listed again.
    pub fn clear(&mut self) {
        self.reports.clear();
    }

    /// The nodes with a node proxy.
    pub fn nodes(&self) -> impl Iterator<Item = &Name> {
        self.reports.keys()
    }

    /// Times from changes to the kernels of all nodes.
    pub fn kernel_delays(&self) -> DurationCounts {
        let mut all = DurationCounts::default();
        self.reports.values().for_each(|report| all.merge(&report.delays));
        all
    }

    /// What the nodes receive.
    pub fn views(&self) -> BTreeSet<SliceView> {
        self.reports.values().map(|report| report.view.clone()).collect()
    }

    /// The state of each node. `revisions` of the Services' slices by view are sorted, each with the time since which it or
    /// a newer one has been there.
    pub fn states(
        &self,
        snapshot: &Snapshot,
        revisions_by_view: &BTreeMap<SliceView, Vec<(u64, MonotonicTime)>>,
        now: MonotonicTime,
    ) -> Vec<NodeReportState> {
        let since = |time: MonotonicTime| now.0.saturating_sub(time.0).as_secs();
        let state = |(name, report): (&Name, &NodeReport)| {
            let node = snapshot.node(name)?;
            let revisions = revisions_by_view.get(&report.view).map_or(&[][..], Vec::as_slice);
            let newer = revisions.partition_point(|(revision, _)| *revision <= report.revision);
            Some(NodeReportState {
                name: name.to_string(),
                zone: node.zone.as_ref().map(ToString::to_string),
                ready: node.ready,
                revision: report.revision,
                services_behind: revisions.len() - newer,
                behind_seconds: revisions.get(newer).map_or(0, |(_, time)| since(*time)),
                report_age_seconds: since(report.renewed),
                failed: report.failed.iter().map(ToString::to_string).collect(),
                repairs: report.repairs,
                lost_events: report.lost_events,
                last_outage: report.last_outage.clone(),
            })
        };
        self.reports.iter().filter_map(state).collect()
    }

    /// The acknowledgements of the ready nodes for a Service, whose slices have this version since that time.
    pub fn acks(
        &self,
        snapshot: &Snapshot,
        service: &ServiceKey,
        since: (u64, MonotonicTime),
        now: MonotonicTime,
    ) -> AckState {
        let (revision, written) = since;
        let mut acks = NodeAcks::default();
        let mut may_follow = false;
        let slices = snapshot.slices(service);
        let mut needed_by_view: BTreeMap<&SliceView, u64> = [(&SliceView::All, revision)].into();
        let ready = |node: &Name| snapshot.node(node).is_some_and(|node| node.ready);
        for (node, report) in self.reports.iter().filter(|(node, _)| ready(node)) {
            // A node that does not receive a slice never reaches its revision.
            let needed = *needed_by_view
                .entry(&report.view)
                .or_insert_with(|| report.view.highest_revision(slices).min(revision));
            if report.failed.contains(service) {
                acks.add_behind(node);
            } else if report.revision < needed {
                acks.add_behind(node);
                may_follow = true;
            } else {
                acks.reached += 1;
            }
        }
        let in_grace = written.after(GRACE) > now;
        if may_follow && in_grace { AckState::Open } else { AckState::Settled(acks) }
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

    /// Conflict 1 of subsetting: a node never reaches the revision of a slice that it does not receive.
    #[test]
    fn a_node_need_not_program_slices_of_other_zones() {
        let (mut snapshot, service) = (snapshot(), ServiceKey::new(&"shop".into(), &"web".into()));
        for (name, version, zone) in [("all", "10", None), ("a", "11", Some("za")), ("b", "12", Some("zb"))] {
            let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"namespace": "shop", "name": name, "resourceVersion": version,
                    "labels": {"kubernetes.io/service-name": "web"}}, "endpoints": [], "ports": []});
            if let Some(zone) = zone {
                slice["metadata"]["labels"][annotation::FOR_ZONE] = json!(zone);
            }
            snapshot.apply(parse::object(&slice, &mut Interner::default()).0.unwrap());
        }
        let reached = |zone: Option<&str>, revision: &str| {
            let mut lease = lease("n1", revision, "");
            if let (Some(zone), Some(annotations)) = (zone, &mut lease.metadata.annotations) {
                annotations.insert(annotation::WATCHED_ZONE.to_owned(), zone.to_owned());
            }
            let mut leases = NodeLeases::default();
            leases.applied(&lease, at(0));
            let acks = leases.acks(&snapshot, &service, (12, at(0)), at(60));
            acks == AckState::Settled(NodeAcks { reached: 1, ..NodeAcks::default() })
        };
        assert!(reached(None, "12") && !reached(None, "11"), "a node without a view needs all");
        assert!(reached(Some(""), "12") && !reached(Some(""), "11"));
        assert!(reached(Some("za"), "11") && !reached(Some("za"), "10"));
        assert!(reached(Some("zb"), "12") && !reached(Some("zb"), "11"));
        assert!(reached(Some("zc"), "10"), "the reserve alone");
    }

    #[test]
    fn every_ready_node_with_a_proxy_must_program_the_slices() {
        let (snapshot, service) = (snapshot(), ServiceKey::new(&"shop".into(), &"web".into()));
        let mut leases = NodeLeases::default();
        let acks = |leases: &NodeLeases, now| leases.acks(&snapshot, &service, (10, at(0)), at(now));
        assert_eq!(acks(&leases, 0), AckState::Settled(NodeAcks::default()));
        assert!(leases.applied(&lease("n1", "10", ""), at(0)).restarted);
        leases.applied(&lease("n2", "9", ""), at(0));
        leases.applied(&lease("gone", "1", ""), at(0));
        assert_eq!(acks(&leases, 29), AckState::Open, "n2 is in its grace period");
        let n2_behind = AckState::Settled(NodeAcks { reached: 1, waiting: 1, behind: vec!["n2".into()] });
        assert_eq!(acks(&leases, 30), n2_behind);
        assert_eq!(leases.applied(&lease("n2", "11", ""), at(0)), NodeLeaseChange::default());
        assert_eq!(acks(&leases, 0), AckState::Settled(NodeAcks { reached: 2, ..NodeAcks::default() }));
        let change = leases.applied(&lease("n2", "11", "shop/web, shop/api"), at(0));
        assert_eq!(change.services.len(), 2);
        assert_eq!(acks(&leases, 0), n2_behind);
    }
}
