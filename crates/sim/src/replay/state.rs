//! The cluster while time goes by: nodes, pods, and what is going to happen to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Addresses, Family, Name, Node, Pod, Service, ServiceKey, Timestamp, Uid};

use super::workload::{Replica, Workload, workloads};
use super::{Change, Event, Millis, Pace, Start};
use crate::whatif::spare_address;

/// What happens at some moment.
#[derive(Clone, Debug)]
enum Step {
    Event(Change),
    Ready(usize, Name),
    Gone(usize, Name),
    /// The node's pods are replaced if it is still away since then.
    Evict(Name, Millis),
}

/// One moment that has passed.
#[derive(Debug)]
pub(super) struct Passed {
    pub at: Millis,
    /// How many events of the sequence happened.
    pub events: u64,
    /// The Services whose pods changed.
    pub services: BTreeSet<ServiceKey>,
    /// Whether nodes changed.
    pub nodes: bool,
}

/// The cluster at one moment.
pub(super) struct State<'s> {
    services: BTreeMap<&'s ServiceKey, (&'s Service, Vec<usize>)>,
    services_of: Vec<Vec<&'s ServiceKey>>,
    workloads: Vec<Workload>,
    nodes: BTreeMap<Name, Node>,
    lost: BTreeMap<Name, Millis>,
    pods_by_node: BTreeMap<Name, usize>,
    agenda: BTreeMap<(Millis, u64), Step>,
    number: u64,
    pace: Pace,
}

impl<'s> State<'s> {
    pub fn new(start: &'s Start, events: &[Event]) -> Self {
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
            lost: BTreeMap::new(),
            pods_by_node,
            agenda: BTreeMap::new(),
            number: 0,
            pace: start.pace,
        };
        events.iter().for_each(|event| state.plan_step(event.at, Step::Event(event.change.clone())));
        state
    }

    pub fn nodes(&self) -> &BTreeMap<Name, Node> {
        &self.nodes
    }

    /// Nodes that watch slices now.
    pub fn watchers(&self) -> u64 {
        self.nodes.values().filter(|node| node.ready).count() as u64
    }

    pub fn services(&self) -> impl Iterator<Item = &'s ServiceKey> + '_ {
        self.services.keys().copied()
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&'s Service> {
        self.services.get(key).map(|(service, _)| *service)
    }

    /// The pods of a Service in the order of their names.
    pub fn pods(&self, key: &ServiceKey) -> Vec<&Pod> {
        let own = self.services.get(key).map_or(&[][..], |(_, own)| own);
        let replicas = own.iter().flat_map(|at| self.workloads[*at].pods.values());
        let mut pods: Vec<&Pod> = replicas.map(|replica| &replica.pod).collect();
        if own.len() > 1 {
            pods.sort_by(|a, b| a.key.name.cmp(&b.key.name));
        }
        pods
    }

    fn plan_step(&mut self, at: Millis, step: Step) {
        self.agenda.insert((at, self.number), step);
        self.number += 1;
    }

    /// Lives through the next moment: all that happens then, and what the workloads make of it.
    pub fn advance(&mut self) -> Option<Passed> {
        let at = self.agenda.first_key_value()?.0.0;
        let mut passed = Passed { at, events: 0, services: BTreeSet::new(), nodes: false };
        let mut touched = BTreeSet::new();
        while let Some(entry) = self.agenda.first_entry().filter(|entry| entry.key().0 == at) {
            let step = entry.remove();
            self.happen(at, step, &mut passed, &mut touched);
        }
        if passed.nodes {
            // A pod that found no node may find one now.
            touched.extend(0..self.workloads.len());
        }
        let concerned: BTreeSet<usize> =
            touched.into_iter().filter(|w| self.reconcile(at, *w, &passed)).collect();
        let services = concerned.iter().flat_map(|w| &self.services_of[*w]);
        passed.services.extend(services.map(|key| (*key).clone()));
        Some(passed)
    }

    fn happen(&mut self, at: Millis, step: Step, passed: &mut Passed, touched: &mut BTreeSet<usize>) {
        match step {
            Step::Event(change) => {
                passed.events += 1;
                self.change(at, change, passed, touched);
            }
            Step::Ready(workload, name) => {
                let lost = &self.lost;
                let replica = self.workloads[workload].pods.get_mut(&name);
                let on_its_feet =
                    |r: &&mut Replica| r.pod.node.as_ref().is_none_or(|n| !lost.contains_key(n));
                if let Some(replica) = replica.filter(on_its_feet) {
                    set_ready(&mut replica.pod, true, at);
                }
                touched.insert(workload);
            }
            Step::Gone(workload, name) => {
                if let Some(replica) = self.workloads[workload].pods.remove(&name) {
                    self.count_pod(replica.pod.node.as_ref(), false);
                }
                touched.insert(workload);
            }
            Step::Evict(node, since) => {
                if self.lost.get(&node) == Some(&since) {
                    self.evict(at, &node, touched);
                }
            }
        }
    }

    fn change(&mut self, at: Millis, change: Change, passed: &mut Passed, touched: &mut BTreeSet<usize>) {
        match change {
            Change::Scale(key, replicas) => touched.extend(self.scale(&key, |_| replicas)),
            Change::ScaleBy(key, by) => touched.extend(
                self.scale(&key, |now| usize::try_from((now as i64).saturating_add(by)).unwrap_or(0)),
            ),
            Change::Roll(key) => {
                let own = self.services.get(&key).map(|(_, own)| own.clone()).unwrap_or_default();
                own.iter().for_each(|at| self.workloads[*at].generation += 1);
                touched.extend(own);
            }
            Change::NodeLoss(name) => self.lose(at, &[name], passed, touched),
            Change::NodeBack(name) => self.bring_back(at, &[name], passed, touched),
            Change::ZoneLoss(zone) => self.lose(at, &self.nodes_of(&zone), passed, touched),
            Change::ZoneBack(zone) => self.bring_back(at, &self.nodes_of(&zone), passed, touched),
        }
    }

    /// Where several workloads stand behind a Service, its largest one takes the change.
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

    fn lose(&mut self, at: Millis, names: &[Name], passed: &mut Passed, touched: &mut BTreeSet<usize>) {
        for name in names {
            let Some(node) = self.nodes.get_mut(name).filter(|node| node.ready) else { continue };
            node.ready = false;
            self.lost.insert(name.clone(), at);
            passed.nodes = true;
            let evict = Step::Evict(name.clone(), at);
            self.plan_step(at.later(self.pace.eviction), evict);
            self.set_all_ready(name, false, at, touched);
        }
    }

    fn bring_back(&mut self, at: Millis, names: &[Name], passed: &mut Passed, touched: &mut BTreeSet<usize>) {
        for name in names {
            if self.lost.remove(name).is_none() {
                continue;
            }
            if let Some(node) = self.nodes.get_mut(name) {
                node.ready = true;
            }
            passed.nodes = true;
            self.set_all_ready(name, true, at, touched);
        }
    }

    fn set_all_ready(&mut self, node: &Name, ready: bool, at: Millis, touched: &mut BTreeSet<usize>) {
        for (number, workload) in self.workloads.iter_mut().enumerate() {
            for replica in workload.pods.values_mut().filter(|r| r.pod.node.as_ref() == Some(node)) {
                set_ready(&mut replica.pod, ready, at);
                touched.insert(number);
            }
        }
    }

    fn evict(&mut self, at: Millis, node: &Name, touched: &mut BTreeSet<usize>) {
        let mut gone = Vec::new();
        for (number, workload) in self.workloads.iter_mut().enumerate() {
            let here = workload.pods.iter_mut().filter(|(_, r)| r.pod.node.as_ref() == Some(node));
            for (name, replica) in here.filter(|(_, r)| !r.pod.deleting) {
                replica.pod.deleting = true;
                gone.push((number, name.clone()));
            }
        }
        touched.extend(gone.iter().map(|(number, _)| *number));
        let when = at.later(self.pace.stop);
        gone.into_iter().for_each(|(number, name)| self.plan_step(when, Step::Gone(number, name)));
    }

    /// Lets a workload take one step. Whether it has changed, now or by what happened to it.
    fn reconcile(&mut self, at: Millis, number: usize, passed: &Passed) -> bool {
        let need = self.workloads[number].need();
        for name in &need.delete {
            if let Some(replica) = self.workloads[number].pods.get_mut(name) {
                replica.pod.deleting = true;
            }
            self.plan_step(at.later(self.pace.stop), Step::Gone(number, name.clone()));
        }
        for _ in 0..need.create {
            let Some(node) = self.place(number) else { break };
            let name = self.create(number, node);
            self.plan_step(at.later(self.pace.start), Step::Ready(number, name));
        }
        // After a change of nodes every Service is looked at anyway.
        !passed.nodes || need.create > 0 || !need.delete.is_empty()
    }

    /// Where a scheduler puts the next pod: the zone with fewest of its kind, and there the emptiest node.
    fn place(&self, number: usize) -> Option<Name> {
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
        self.number += 1;
        let unique = self.number;
        let workload = &mut self.workloads[number];
        workload.made += 1;
        let mut pod = workload.template.clone();
        let name = Name::new(&format!("{}-r{}", pod.key.name, workload.made));
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

    fn count_pod(&mut self, node: Option<&Name>, comes: bool) {
        let Some(node) = node else { return };
        let count = self.pods_by_node.entry(node.clone()).or_default();
        *count = if comes { *count + 1 } else { count.saturating_sub(1) };
    }
}

fn set_ready(pod: &mut Pod, ready: bool, at: Millis) {
    if pod.ready != ready {
        pod.ready = ready;
        pod.ready_since = Some(Timestamp::from_seconds((at.0 / 1_000) as i64));
    }
}
