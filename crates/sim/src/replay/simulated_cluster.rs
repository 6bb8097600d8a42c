//! The cluster in virtual time: nodes, pods, and a queue of their future transitions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Addresses, Family, Name, Node, Pod, Service, ServiceKey, Timestamp, Uid};

use super::workload::{Replica, Workload, workloads};
use super::{ClusterChange, InitialCluster, Millis, PodTimings, ReplayEvent};
use insight::what_if::spare_address;
use plan::feature_gates::FeatureGates;
use plan::subsetting::SliceView;

/// A queued transition.
#[derive(Clone, Debug)]
enum Step {
    Event(ClusterChange),
    Ready(usize, Name),
    Removed(usize, Name),
    /// Evicts the pods of the node if it is still not ready since that time.
    Evict(Name, Millis),
}

/// The changes at one point in time.
#[derive(Debug)]
pub(super) struct Tick {
    pub at: Millis,
    /// Number of replayed events.
    pub events: u64,
    pub services: BTreeSet<ServiceKey>,
    pub nodes: bool,
}

pub(super) struct SimulatedCluster<'s> {
    services: BTreeMap<&'s ServiceKey, (&'s Service, Vec<usize>)>,
    services_of: Vec<Vec<&'s ServiceKey>>,
    workloads: Vec<Workload>,
    nodes: BTreeMap<Name, Node>,
    failed: BTreeMap<Name, Millis>,
    pods_by_node: BTreeMap<Name, usize>,
    queue: BTreeMap<(Millis, u64), Step>,
    sequence: u64,
    timings: PodTimings,
}

impl<'s> SimulatedCluster<'s> {
    pub(super) fn new(start: &'s InitialCluster, events: &[ReplayEvent]) -> Self {
        let workloads = workloads(&start.pods);
        let selects = |service: &Service, workload: &Workload| {
            service.key.namespace == workload.template.key.namespace
                && service.selector.as_ref().is_some_and(|s| s.selects(&workload.template.labels))
        };
        let mut services_of = vec![Vec::new(); workloads.len()];
        let mut services = BTreeMap::new();
        let mut by_namespace: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for (at, workload) in workloads.iter().enumerate() {
            by_namespace.entry(&workload.template.key.namespace).or_default().push(at);
        }
        for service in &start.services {
            let near = by_namespace.get(&service.key.namespace).map_or(&[][..], Vec::as_slice);
            let own: Vec<usize> =
                near.iter().copied().filter(|at| selects(service, &workloads[*at])).collect();
            own.iter().for_each(|at| services_of[*at].push(&service.key));
            services.insert(&service.key, (service, own));
        }
        let mut pods_by_node: BTreeMap<Name, usize> = BTreeMap::new();
        for node in start.pods.iter().filter_map(|pod| pod.node.as_ref()) {
            *pods_by_node.entry(node.clone()).or_default() += 1;
        }
        let mut state = Self {
            services,
            services_of,
            workloads,
            nodes: start.nodes.clone(),
            failed: BTreeMap::new(),
            pods_by_node,
            queue: BTreeMap::new(),
            sequence: 0,
            timings: start.timings,
        };
        events.iter().for_each(|event| state.enqueue(event.at, Step::Event(event.change.clone())));
        state
    }

    pub(super) fn nodes(&self) -> &BTreeMap<Name, Node> {
        &self.nodes
    }

    /// Number of nodes that watch slices, by what they receive.
    pub(super) fn watchers(&self, watch_own_zone: bool) -> BTreeMap<SliceView, u64> {
        let mut watchers = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.ready) {
            let view = SliceView::of(watch_own_zone, node.zone.as_deref(), FeatureGates::ALL);
            *watchers.entry(view).or_default() += 1;
        }
        watchers
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &'s ServiceKey> + '_ {
        self.services.keys().copied()
    }

    pub(super) fn service(&self, key: &ServiceKey) -> Option<&'s Service> {
        self.services.get(key).map(|(service, _)| *service)
    }

    /// Sorted by name.
    pub(super) fn pods(&self, key: &ServiceKey) -> Vec<&Pod> {
        let own = self.services.get(key).map_or(&[][..], |(_, own)| own);
        let replicas = own.iter().flat_map(|at| self.workloads[*at].pods.values());
        let mut pods: Vec<&Pod> = replicas.map(|replica| &replica.pod).collect();
        if own.len() > 1 {
            pods.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        }
        pods
    }

    fn enqueue(&mut self, at: Millis, step: Step) {
        self.queue.insert((at, self.sequence), step);
        self.sequence += 1;
    }

    /// Advances to the next queued time: applies its transitions and reconciles the affected workloads.
    pub(super) fn advance(&mut self) -> Option<Tick> {
        let at = self.queue.first_key_value()?.0.0;
        let mut tick = Tick { at, events: 0, services: BTreeSet::new(), nodes: false };
        let mut affected = BTreeSet::new();
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 == at) {
            let step = entry.remove();
            self.apply(at, step, &mut tick, &mut affected);
        }
        if tick.nodes {
            // Pending pods may be schedulable now.
            affected.extend(0..self.workloads.len());
        }
        let changed: BTreeSet<usize> =
            affected.into_iter().filter(|w| self.reconcile(at, *w, &tick)).collect();
        let services = changed.iter().flat_map(|w| &self.services_of[*w]);
        tick.services.extend(services.map(|key| (*key).clone()));
        Some(tick)
    }

    fn apply(&mut self, at: Millis, step: Step, tick: &mut Tick, affected: &mut BTreeSet<usize>) {
        match step {
            Step::Event(change) => {
                tick.events += 1;
                self.change(at, change, tick, affected);
            }
            Step::Ready(workload, name) => {
                let failed = &self.failed;
                let replica = self.workloads[workload].pods.get_mut(&name);
                let node_is_ready =
                    |r: &&mut Replica| r.pod.node.as_ref().is_none_or(|n| !failed.contains_key(n));
                if let Some(replica) = replica.filter(node_is_ready) {
                    set_ready(&mut replica.pod, true, at);
                }
                affected.insert(workload);
            }
            Step::Removed(workload, name) => {
                if let Some(replica) = self.workloads[workload].pods.remove(&name) {
                    self.count_pod(replica.pod.node.as_ref(), false);
                }
                affected.insert(workload);
            }
            Step::Evict(node, since) => {
                if self.failed.get(&node) == Some(&since) {
                    self.evict(at, &node, affected);
                }
            }
        }
    }

    fn change(&mut self, at: Millis, change: ClusterChange, tick: &mut Tick, affected: &mut BTreeSet<usize>) {
        match change {
            ClusterChange::Scale(key, replicas) => affected.extend(self.scale(&key, |_| replicas)),
            ClusterChange::ScaleBy(key, by) => affected.extend(
                self.scale(&key, |now| usize::try_from((now as i64).saturating_add(by)).unwrap_or(0)),
            ),
            ClusterChange::Roll(key) => {
                let own = self.services.get(&key).map(|(_, own)| own.clone()).unwrap_or_default();
                own.iter().for_each(|at| self.workloads[*at].generation += 1);
                affected.extend(own);
            }
            ClusterChange::NodeLoss(name) => self.fail_nodes(at, &[name], tick, affected),
            ClusterChange::NodeBack(name) => self.recover_nodes(at, &[name], tick, affected),
            ClusterChange::ZoneLoss(zone) => self.fail_nodes(at, &self.nodes_of(&zone), tick, affected),
            ClusterChange::ZoneBack(zone) => self.recover_nodes(at, &self.nodes_of(&zone), tick, affected),
        }
    }

    /// Of several workloads behind a Service, scales the largest.
    fn scale(&mut self, key: &ServiceKey, wanted: impl Fn(usize) -> usize) -> Option<usize> {
        let own = &self.services.get(key)?.1;
        let all: usize = own.iter().map(|at| self.workloads[*at].replicas).sum();
        let largest = own.iter().copied().max_by_key(|at| self.workloads[*at].replicas)?;
        let rest = all - self.workloads[largest].replicas;
        self.workloads[largest].replicas = wanted(all).saturating_sub(rest);
        Some(largest)
    }

    fn nodes_of(&self, zone: &Name) -> Vec<Name> {
        let here = self.nodes.values().filter(|node| node.zone.as_ref() == Some(zone));
        here.map(|node| node.name.clone()).collect()
    }

    fn fail_nodes(&mut self, at: Millis, names: &[Name], tick: &mut Tick, affected: &mut BTreeSet<usize>) {
        for name in names {
            let Some(node) = self.nodes.get_mut(name).filter(|node| node.ready) else { continue };
            node.ready = false;
            self.failed.insert(name.clone(), at);
            tick.nodes = true;
            let evict = Step::Evict(name.clone(), at);
            self.enqueue(at.later(self.timings.eviction), evict);
            self.set_all_ready(name, false, at, affected);
        }
    }

    fn recover_nodes(&mut self, at: Millis, names: &[Name], tick: &mut Tick, affected: &mut BTreeSet<usize>) {
        for name in names {
            if self.failed.remove(name).is_none() {
                continue;
            }
            if let Some(node) = self.nodes.get_mut(name) {
                node.ready = true;
            }
            tick.nodes = true;
            self.set_all_ready(name, true, at, affected);
        }
    }

    fn set_all_ready(&mut self, node: &Name, ready: bool, at: Millis, affected: &mut BTreeSet<usize>) {
        for (number, workload) in self.workloads.iter_mut().enumerate() {
            for replica in workload.pods.values_mut().filter(|r| r.pod.node.as_ref() == Some(node)) {
                set_ready(&mut replica.pod, ready, at);
                affected.insert(number);
            }
        }
    }

    fn evict(&mut self, at: Millis, node: &Name, affected: &mut BTreeSet<usize>) {
        let mut evicted = Vec::new();
        for (number, workload) in self.workloads.iter_mut().enumerate() {
            let here = workload.pods.iter_mut().filter(|(_, r)| r.pod.node.as_ref() == Some(node));
            for (name, replica) in here.filter(|(_, r)| !r.pod.deleting) {
                replica.pod.deleting = true;
                evicted.push((number, name.clone()));
            }
        }
        affected.extend(evicted.iter().map(|(number, _)| *number));
        let when = at.later(self.timings.stop);
        evicted.into_iter().for_each(|(number, name)| self.enqueue(when, Step::Removed(number, name)));
    }

    /// Reconciles a workload; returns whether it changed.
    fn reconcile(&mut self, at: Millis, number: usize, tick: &Tick) -> bool {
        let scaling = self.workloads[number].reconcile();
        for name in &scaling.delete {
            if let Some(replica) = self.workloads[number].pods.get_mut(name) {
                replica.pod.deleting = true;
            }
            self.enqueue(at.later(self.timings.stop), Step::Removed(number, name.clone()));
        }
        for _ in 0..scaling.create {
            let Some(node) = self.schedule(number) else { break };
            let name = self.create(number, node);
            self.enqueue(at.later(self.timings.start), Step::Ready(number, name));
        }
        // After a change of nodes every Service is synced anyway.
        !tick.nodes || scaling.create > 0 || !scaling.delete.is_empty()
    }

    /// Schedules a pod: the zone with the fewest pods of the workload, and there the node with the fewest pods.
    fn schedule(&self, number: usize) -> Option<Name> {
        let zone_of = |name: &Name| self.nodes.get(name).and_then(|node| node.zone.as_ref());
        let usable =
            |node: &&Node| node.ready && !node.control_plane && !node.deleting && !node.to_be_deleted;
        let mut by_zone: BTreeMap<Option<&Name>, usize> =
            self.nodes.values().filter(usable).map(|node| (node.zone.as_ref(), 0)).collect();
        for (node, pods) in self.workloads[number].pods_by_node() {
            if let Some(count) = by_zone.get_mut(&zone_of(node)) {
                *count += pods;
            }
        }
        let (zone, _) = by_zone.into_iter().min_by_key(|(zone, pods)| (*pods, *zone))?;
        let here = self.nodes.values().filter(usable).filter(|node| node.zone.as_ref() == zone);
        let pods = |node: &&Node| self.pods_by_node.get(&node.name).copied().unwrap_or(0);
        here.min_by_key(|node| (pods(node), &node.name)).map(|node| node.name.clone())
    }

    fn create(&mut self, number: usize, node: Name) -> Name {
        self.count_pod(Some(&node), true);
        self.sequence += 1;
        let unique = self.sequence;
        let workload = &mut self.workloads[number];
        workload.created += 1;
        let mut pod = workload.template.clone();
        let name = Name::new(&format!("{}-r{}", pod.key.name, workload.created));
        let families: Vec<Family> = pod.ips.iter().flat_map(Addresses::iter).map(Family::of).collect();
        let ips: Vec<IpAddr> = families.iter().map(|family| spare_address(*family, unique)).collect();
        pod.key.name = name.clone();
        pod.uid = Some(Uid::new(&format!("00000000-0000-4000-8000-{unique:012x}")));
        pod.node = Some(node);
        pod.ips = Addresses::from_slice(&ips);
        pod.ready = false;
        pod.ready_since = None;
        workload.pods.insert(name.clone(), Replica { generation: workload.generation, pod });
        name
    }

    fn count_pod(&mut self, node: Option<&Name>, added: bool) {
        let Some(node) = node else { return };
        let count = self.pods_by_node.entry(node.clone()).or_default();
        *count = if added { *count + 1 } else { count.saturating_sub(1) };
    }
}

fn set_ready(pod: &mut Pod, ready: bool, at: Millis) {
    if pod.ready != ready {
        pod.ready = ready;
        pod.ready_since = Some(Timestamp::from_seconds((at.0 / 1_000) as i64));
    }
}
