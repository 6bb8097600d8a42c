//! Clients that open connections, by evaluating the kernels of nodes: invariants 9 (old or new, never half; never an
//! address that was no endpoint), 11 (Require stays in its zone), 12 (what a node reports, its kernel holds) and 13 (weights
//! come from one demand vector).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;

use dataplane::backend::TracedVerdict;
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::trace::{Evaluation, NodeAddresses, TracedPacket};
use model::forward::{FrontendAction, FrontendAddress};
use model::{Frontend, Node, Object, Protocol, Slice, Snapshot, Timestamp, annotation};
use plan::capacity::{advance, drains};
use plan::forward::{NodeConfig, forward};

use crate::parties::{Machine, node_settings, service_range};
use crate::truth::{ServiceVersions, Truth};
use crate::violation::BrokenInvariant;

pub(crate) const TCP: u8 = 6;

/// The endpoints that a client of a node reaches; empty if it is rejected or dropped.
pub(crate) type Reached = BTreeSet<SocketAddr>;

/// Opens a connection from a pod of the node to a cluster IP.
pub(crate) fn connect(kernel: &FakeKernel, machine: &Machine, to: SocketAddr) -> Option<Evaluation> {
    let client = SocketAddr::new(IpAddr::from([10, 244, 255, 250]), 40_000);
    open(kernel, machine, TCP, client, to)
}

/// Opens a connection from a client to a cluster IP.
pub(crate) fn open(
    kernel: &FakeKernel,
    machine: &Machine,
    protocol: u8,
    client: SocketAddr,
    to: SocketAddr,
) -> Option<Evaluation> {
    let packet = TracedPacket::new(protocol, client, to);
    kernel.evaluate(&packet, &NodeAddresses { addresses: vec![machine.address] }).ok()
}

pub(crate) fn reached(evaluation: &Evaluation) -> Reached {
    evaluation.endpoints.iter().map(|(address, _)| *address).collect()
}

/// What a frontend does with connections from pods.
pub(crate) fn planned(frontend: &Frontend) -> Reached {
    match frontend.inside.unwrap_or(frontend.outside) {
        FrontendAction::Send(policy) => {
            frontend.port.endpoints(policy).shares().map(|(address, _)| address).collect()
        }
        _ => Reached::new(),
    }
}

/// Each endpoint with its share of new connections.
type ReachedShares = Vec<(SocketAddr, f64)>;

/// The same, as bits that can be ordered.
type ShareBits = Vec<(SocketAddr, u64)>;

/// Unequal weights are rounded to 256 slots or more: an error of one slot, and a smaller share may have none.
const ROUNDING: f64 = 1.01 / 256.0;

/// Whether shares are those of a frontend, as far as a kernel can express them.
pub(crate) fn agrees(frontend: &Frontend, found: &[(SocketAddr, f64)]) -> bool {
    let FrontendAction::Send(policy) = frontend.inside.unwrap_or(frontend.outside) else {
        return found.is_empty();
    };
    let set = frontend.port.endpoints(policy);
    let rounding = if set.is_even() { 1e-6 } else { ROUNDING };
    let mut missing: BTreeMap<SocketAddr, f64> = found.iter().copied().collect();
    let is_near = |(address, share): (SocketAddr, f64)| {
        (missing.remove(&address).unwrap_or(0.0) - share).abs() <= rounding
    };
    set.shares().all(is_near) && missing.is_empty()
}

/// Connections at each change of a kernel. Of more cluster IPs, these are opened in turn.
const MOST_CONNECTIONS: usize = 24;

/// A Service's results that were found to be planned, by node, and the generation that was checked last.
#[derive(Default)]
pub(crate) struct KernelChecker {
    known: BTreeMap<(usize, SocketAddr), BTreeSet<ShareBits>>,
    checked: BTreeMap<usize, (u32, u64)>,
    /// The cluster IP that is the next one's turn, by node.
    turns: BTreeMap<usize, usize>,
    pub connections: u64,
    /// Services whose rules were compared with a report.
    pub reports: u64,
}

impl KernelChecker {
    /// Checks every cluster IP in the kernel of a node, if it changed.
    pub(crate) fn check(
        &mut self,
        number: usize,
        machine: &Machine,
        truth: &Truth,
    ) -> Result<(), BrokenInvariant> {
        let mut faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = dataplane::nftables::Kernel::generation(&mut faulty.kernel).unwrap_or_default();
        let state = (generation, truth.frontends.len() as u64);
        if self.checked.insert(number, state) == Some(state) {
            return Ok(());
        }
        let most = truth.frontends.len().min(MOST_CONNECTIONS);
        let turn = self.turns.entry(number).or_default();
        let from = *turn;
        *turn = (from + most) % truth.frontends.len().max(1);
        for ((ip, port), services) in truth.frontends.iter().cycle().skip(from).take(most) {
            let to = SocketAddr::new(*ip, *port);
            let Some(evaluation) = connect(&faulty.kernel, machine, to) else { continue };
            self.connections += 1;
            if evaluation.verdict == TracedVerdict::Dnat {
                self.reaches(number, machine, to, &evaluation.endpoints, services, truth)?;
            }
        }
        Ok(())
    }

    /// Invariant 12: a node reports a revision of slices once its kernel holds them. Rules that others flushed are restored
    /// later; they hold nothing meanwhile.
    pub(crate) fn check_report(
        &mut self,
        machine: &Machine,
        revision: u64,
        failed: &str,
        truth: &Truth,
    ) -> Result<(), BrokenInvariant> {
        let faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        for ((ip, port), services) in &truth.frontends {
            // Of an address that moved from one Service to another, either may have it.
            let Some(service) = services.first().filter(|_| services.len() == 1) else { continue };
            let Some(versions) = truth.versions.get(service) else { continue };
            if service == "default/kubernetes" || failed.split(',').any(|name| name == service) {
                continue;
            }
            let to = SocketAddr::new(*ip, *port);
            let Some(evaluation) = connect(&faulty.kernel, machine, to) else { continue };
            let from = versions.slice_revisions.partition_point(|at| *at <= revision).saturating_sub(1);
            if evaluation.verdict != TracedVerdict::Dnat
                || was_planned(machine, to, versions, from, truth, |f| agrees(f, &evaluation.endpoints))
            {
                self.reports += 1;
                continue;
            }
            let text = format!(
                "{} reports revision {revision} and sends {to} of {service} to {:?}, as before it",
                machine.name,
                reached(&evaluation)
            );
            return Err(BrokenInvariant::new(12, text));
        }
        Ok(())
    }

    fn reaches(
        &mut self,
        number: usize,
        machine: &Machine,
        to: SocketAddr,
        found: &ReachedShares,
        services: &BTreeSet<String>,
        truth: &Truth,
    ) -> Result<(), BrokenInvariant> {
        let known = self.known.entry((number, to)).or_default();
        let shares: ShareBits = found.iter().map(|(address, share)| (*address, share.to_bits())).collect();
        if known.contains(&shares) {
            return Ok(());
        }
        // The API's own endpoint is no pod.
        if services.contains("default/kubernetes") {
            return Ok(());
        }
        let name = &machine.name;
        for (endpoint, _) in found {
            if !services.iter().any(|service| truth.was_endpoint(service, *endpoint)) {
                let text =
                    format!("{name} sends {to} of {services:?} to {endpoint}, which never was an endpoint");
                return Err(BrokenInvariant::new(9, text));
            }
        }
        let zones: BTreeSet<String> = truth
            .nodes
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|node| node.zone.as_ref().map(ToString::to_string))
            .collect();
        let mut versions = services.iter().filter_map(|service| truth.versions.get(service));
        // Our slices say Require, and bind endpoints of other managers with it. Of a deleted Service ours may go first, so
        // that for a moment a node has slices of others alone, which say nothing (run 30004): only pods are checked.
        let is_far = |address: &SocketAddr| {
            let of_pods = truth.zones_of(address.ip());
            !of_pods.is_empty() && of_pods.is_disjoint(&zones)
        };
        if versions.clone().all(|versions| versions.always_requires_zone)
            && let Some((far, _)) = found.iter().find(|(address, _)| is_far(address))
        {
            let text =
                format!("{name} in {zones:?} sends {to} of {services:?}, which requires its zone, to {far}");
            return Err(BrokenInvariant::new(11, text));
        }
        if versions.clone().any(|versions| was_planned(machine, to, versions, 0, truth, |f| agrees(f, found)))
        {
            known.insert(shares);
            return Ok(());
        }
        let text = format!("{name} sends {to} of {services:?} to {found:?}, which no version of them says");
        let endpoints: Reached = found.iter().map(|(address, _)| *address).collect();
        let same_endpoints = |frontend: &Frontend| planned(frontend) == endpoints;
        let is_weight = versions.any(|versions| was_planned(machine, to, versions, 0, truth, same_endpoints));
        Err(BrokenInvariant::new(if is_weight { 13 } else { 9 }, text))
    }
}

/// Whether any versions of the Service, its slices from a version on, and the Node, at any step of a drain, say this.
/// Watches of different kinds are not ordered.
fn was_planned(
    machine: &Machine,
    to: SocketAddr,
    versions: &ServiceVersions,
    from: usize,
    truth: &Truth,
    is_found: impl Fn(&Frontend) -> bool,
) -> bool {
    let settings = node_settings();
    let address = FrontendAddress::new(to.ip(), Protocol::Tcp, to.port());
    let mut configs: Vec<NodeConfig> = Vec::new();
    // While its Node is deleted, a node has no zone.
    let unknown = Node::named(machine.name.as_str());
    for node in truth.nodes.get(&machine.name).into_iter().flatten().rev().chain([&unknown]) {
        let config = NodeConfig::new(&settings.proxy, node, &[service_range()], &[machine.address]).0;
        if !configs.contains(&config) {
            configs.push(config);
        }
    }
    configs.iter().any(|config| {
        versions.slices.iter().skip(from).rev().any(|slices| {
            let steps = steps_of_drains(slices);
            versions.services.iter().rev().any(|service| {
                steps.iter().any(|slices| {
                    let (frontends, _) = forward(service, slices, config);
                    let of_address = frontends.iter().find(|frontend| frontend.address == address);
                    of_address.is_some_and(&is_found)
                })
            })
        })
    })
}

/// Slices at each time at which a share of their endpoints changes; as they are if none does.
fn steps_of_drains(slices: &[Slice]) -> Vec<Cow<'_, [Slice]>> {
    let windows = slices.iter().filter_map(|slice| slice.content.annotation(annotation::DRAIN));
    let windows = windows.flat_map(|text| drains(text)).map(|(_, window)| window);
    let times = windows.flat_map(|window| {
        let last = window.start.saturating_add_unsigned(window.over_seconds).min(window.until);
        (window.start - 1..=last).chain([window.until])
    });
    let times: BTreeSet<i64> = times.collect();
    if times.is_empty() {
        return vec![slices.into()];
    }
    let mut snapshot = Snapshot::default();
    slices.iter().for_each(|slice| snapshot.apply(Object::Slice(Box::new(slice.clone()))));
    let at = |time| {
        advance(&mut snapshot, Timestamp::from_seconds(time));
        let stepped = slices.iter().filter_map(|slice| snapshot.slice(&slice.key));
        stepped.cloned().collect::<Vec<Slice>>().into()
    };
    times.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::forward::{EndpointSet, ForwardedEndpoint, ForwardedPort, FrontendKind, Masquerade};
    use model::{ServiceKey, TrafficPolicy};

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    fn frontend(weights: &[f32]) -> Frontend {
        let endpoint = |(i, weight): (usize, &f32)| ForwardedEndpoint::new(address(i as u8), *weight, false);
        let endpoints: Vec<_> = weights.iter().enumerate().map(endpoint).collect();
        let set = || EndpointSet { endpoints: endpoints.clone().into(), rounding: 0 };
        let cluster_ip = IpAddr::from([10, 96, 0, 1]);
        let port = ForwardedPort {
            service: ServiceKey::new(&"default".into(), &"s".into()),
            name: "http".into(),
            cluster_ip,
            protocol: Protocol::Tcp,
            number: 80,
            affinity_seconds: None,
            health_check_port: None,
            cluster: set(),
            local: set(),
        };
        Frontend {
            address: FrontendAddress::new(cluster_ip, Protocol::Tcp, 80),
            kind: FrontendKind::ClusterIp,
            outside: FrontendAction::Send(TrafficPolicy::Cluster),
            inside: None,
            masquerade: Masquerade::NotPods,
            source_ranges: None,
            port: Arc::new(port),
        }
    }

    #[test]
    fn shares_agree_to_one_slot_and_equal_ones_exactly() {
        let uneven = frontend(&[3.0, 1.0]);
        assert!(agrees(&uneven, &[(address(0), 0.75), (address(1), 0.25)]));
        assert!(agrees(&uneven, &[(address(0), 0.753), (address(1), 0.247)]));
        assert!(!agrees(&uneven, &[(address(0), 0.76), (address(1), 0.24)]));
        assert!(!agrees(&uneven, &[(address(0), 0.75), (address(2), 0.25)]));
        let even = frontend(&[1.0, 1.0]);
        assert!(agrees(&even, &[(address(0), 0.5), (address(1), 0.5)]));
        assert!(!agrees(&even, &[(address(0), 0.503), (address(1), 0.497)]));
        assert!(!agrees(&even, &[(address(0), 1.0)]));
    }
}
