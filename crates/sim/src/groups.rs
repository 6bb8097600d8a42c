//! What an algorithm decides: groups of endpoints, and how much each zone uses each group.

use std::collections::BTreeMap;

use crate::input::Zone;

/// EndpointSlices that the same zones consume (seed 003, "EndpointSlice Group").
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name; groups come in the order of these.
    pub label: String,
    /// How many endpoints of each zone it holds.
    pub composition: Vec<u64>,
    /// How much each zone weighs its endpoints; `None` where the zone does not consume it.
    pub weights: Vec<Option<f64>>,
}

impl Group {
    /// A group without endpoints and consumers.
    pub(crate) fn empty(label: String, zones: usize) -> Self {
        Self { label, composition: vec![0; zones], weights: vec![None; zones] }
    }

    /// The group of a zone with `endpoints` of its own, consumed by that zone alone.
    pub(crate) fn own(zones: &[Zone], zone: usize, endpoints: u64) -> Self {
        let mut group = Self::empty(zones[zone].name.clone(), zones.len());
        group.composition[zone] = endpoints;
        group.weights[zone] = Some(1.0);
        group
    }

    /// All endpoints for all zones.
    pub(crate) fn global(zones: &[Zone]) -> Self {
        Self {
            label: "global".to_owned(),
            composition: zones.iter().map(|z| z.endpoints).collect(),
            weights: vec![Some(1.0); zones.len()],
        }
    }

    /// How many endpoints it holds.
    pub fn size(&self) -> u64 {
        self.composition.iter().sum()
    }
}

/// In the order of their labels. Of two with one label the later one counts, as in the published tool.
pub(crate) fn by_label(groups: Vec<Group>) -> Vec<Group> {
    let by_label: BTreeMap<String, Group> = groups.into_iter().map(|g| (g.label.clone(), g)).collect();
    by_label.into_values().collect()
}
