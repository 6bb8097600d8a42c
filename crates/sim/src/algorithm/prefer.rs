//! `prefer`: `same-zone: Prefer` as the controller decides it for a Service that it sees for the first time.
//!
//! The zones become a Service, nodes and a slice, so that it is really the controller's function that is scored:
//! starting threshold, padding and all. One node stands for a zone's nodes and carries their number as its CPU.

use std::collections::BTreeMap;

use model::{Family, Name, Node, annotation};
use plan::PlanningConfig;
use plan::hints::{ClusterTopology, HintInput, Hysteresis, ZoneWeight, assign};
use plan::slices::Packing;

use super::from_table;
use crate::input::Zone;
use crate::slice_group::SliceGroup;
use crate::synthetic;

/// The groups; `None` is balanced.
pub(super) fn groups(zones: &[Zone]) -> Option<Vec<SliceGroup>> {
    let names: Vec<Name> = zones.iter().map(|z| z.name.clone()).collect();
    let nodes: BTreeMap<Name, Node> = names.iter().zip(zones).map(|(name, z)| node(name, z)).collect();
    let service = synthetic::service(&[(annotation::SAME_ZONE, "Prefer")]);
    let config = PlanningConfig { prefer_by: ZoneWeight::Cpu, ..PlanningConfig::without_flags() };
    let input = HintInput {
        service: &service,
        family: Family::V4,
        topology: &ClusterTopology::from_nodes(&nodes),
        namespace_default: None,
        config: &config,
        hysteresis: &Hysteresis::default(),
        with_notices: true,
    };
    let counts = zones.iter().map(|z| usize::try_from(z.endpoints).unwrap_or(usize::MAX));
    let slice = synthetic::slice(&names, counts);
    let mut packing = Packing { creates: vec![slice], ..Packing::default() };
    if !assign(&input, &mut packing).programmed {
        return None;
    }
    let mut table = vec![vec![0; zones.len()]; zones.len()];
    for endpoint in packing.creates.iter().flat_map(|slice| &slice.endpoints) {
        let giver = endpoint.zone.as_ref().and_then(|zone| names.binary_search(zone).ok())?;
        let receiver = endpoint.zone_hints().first().and_then(|zone| names.binary_search(zone).ok())?;
        table[receiver][giver] += 1;
    }
    Some(from_table(zones, &table))
}

fn node(name: &Name, zone: &Zone) -> (Name, Node) {
    let node = synthetic::node(name, name, zone.nodes > 0, zone.nodes);
    (name.clone(), node)
}
