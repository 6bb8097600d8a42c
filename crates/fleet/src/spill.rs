//! Invariant 13 after healing: under Spill, the planned load of no endpoint is above its bound, by the shares that the
//! kernels give it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::PoisonError;

use model::{Name, Service, Slice, Snapshot, annotation};
use plan::hints::Mechanism;
use plan::spill::{SpillDemand, row};

use crate::kernels::connect;
use crate::parties::Machine;
use crate::violation::BrokenInvariant;

/// `plan::spill`: an excess up to 5 % of a zone's capacity counts as rounding, and stays.
const BOUND: f64 = 1.05;
/// Of the kernel's slots for unequal weights.
const SLOT: f64 = 1.01 / 256.0;

type Checked = Result<(), BrokenInvariant>;

/// Checks the Services of a snapshot that spill.
pub(crate) fn check(snapshot: &Snapshot, machines: &[Machine]) -> Checked {
    for (service, slices) in snapshot.services() {
        if let Some(demand) = demand(slices) {
            check_service(snapshot, service, slices, &demand, machines)?;
        }
    }
    Ok(())
}

/// The demand vector that all slices have; `None` if they do not spill, or if traffic is moved away from a zone.
fn demand(slices: &[Slice]) -> Option<SpillDemand> {
    let text = slices.first()?.content.annotation(annotation::DEMAND)?;
    let spills = |slice: &Slice| {
        let of = |key| slice.content.annotation(key);
        of(annotation::MECHANISM).and_then(|name| Mechanism::parse(name)) == Some(Mechanism::Spill)
            && of(annotation::DEMAND) == Some(text)
            && of(annotation::DRAIN).is_none()
    };
    slices.iter().all(spills).then(|| SpillDemand::parse(text).ok()).flatten()
}

fn check_service(
    snapshot: &Snapshot,
    service: &Service,
    slices: &[Slice],
    demand: &SpillDemand,
    machines: &[Machine],
) -> Checked {
    let (Some(ip), Some(port)) = (service.cluster_ips.addresses().first(), service.ports.first()) else {
        return Ok(());
    };
    let to = SocketAddr::new(*ip, port.port);
    let endpoints = ready(slices);
    let mut by_zone: BTreeMap<Name, usize> = BTreeMap::new();
    endpoints.values().for_each(|zone| *by_zone.entry(zone.clone()).or_default() += 1);
    let mut load: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for zone in demand.zones() {
        let share = f64::from(zone.share) / demand.parts() as f64;
        let in_zone = |machine: &&Machine| {
            snapshot.node(&machine.name).and_then(|node| node.zone.as_ref()) == Some(&zone.zone)
        };
        let here: Vec<&Machine> = machines.iter().filter(in_zone).collect();
        for machine in &here {
            let faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(evaluation) = connect(&faulty.kernel, machine, to) else { return Ok(()) };
            for (address, part) in evaluation.endpoints {
                *load.entry(address).or_default() += share * part / here.len() as f64;
            }
        }
        if here.is_empty() {
            // The demand follows the nodes with a hysteresis: this zone has no node now.
            let shares = row(demand, &by_zone, &zone.zone).unwrap_or_default();
            for (address, own) in &endpoints {
                let part = shares.iter().find(|(name, _)| name == own).map_or(0.0, |(_, part)| *part);
                *load.entry(*address).or_default() += share * part / by_zone[own] as f64;
            }
        }
    }
    let bound = BOUND / endpoints.len() as f64 + SLOT;
    match load.iter().find(|(_, load)| **load > bound) {
        None => Ok(()),
        Some((address, load)) => {
            let text = format!(
                "{address} of Service {} gets {load:.3} of the traffic, its bound is {bound:.3}: {} for {by_zone:?}",
                service.key,
                slices
                    .first()
                    .and_then(|s| s.content.annotation(annotation::DEMAND))
                    .map_or("", |d| d.as_str())
            );
            Err(BrokenInvariant::new(13, text))
        }
    }
}

/// The ready endpoints with their zones.
fn ready(slices: &[Slice]) -> BTreeMap<SocketAddr, Name> {
    let of_slice = |slice: &Slice| {
        let port = slice.content.ports.first().and_then(|port| port.port).unwrap_or_default();
        let ready = slice.content.endpoints.iter().filter(|endpoint| endpoint.conditions.is_ready());
        let one = |endpoint: &model::Endpoint| {
            let address = SocketAddr::new(endpoint.addresses.first(), port);
            (address, endpoint.zone.clone().unwrap_or_default())
        };
        ready.map(one).collect::<Vec<_>>()
    };
    slices.iter().flat_map(of_slice).collect()
}
