//! The decision of an algorithm: groups of endpoints, and the weights by which zones use them.

use model::Name;

use crate::input::Zone;

/// EndpointSlices that the same zones consume (seed 003, "EndpointSlice Group").
#[derive(Clone, Debug, PartialEq)]
pub struct SliceGroup {
    /// Groups are sorted by label.
    pub label: Name,
    /// Endpoints by zone.
    pub composition: Vec<u64>,
    /// Weight of the endpoints for each zone; `None` if the zone does not consume the group.
    pub weights: Vec<Option<f64>>,
}

impl SliceGroup {
    /// A group without endpoints and consumers.
    pub(crate) fn empty(label: Name, zones: usize) -> Self {
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
            label: Name::new("global"),
            composition: zones.iter().map(|z| z.endpoints).collect(),
            weights: vec![Some(1.0); zones.len()],
        }
    }

    pub fn size(&self) -> u64 {
        self.composition.iter().sum()
    }
}

/// Sorts by label. Of two groups with one label the later one counts, as in the published tool.
pub(crate) fn by_label(mut groups: Vec<SliceGroup>) -> Vec<SliceGroup> {
    groups.reverse();
    groups.sort_by(|a, b| a.label.cmp(&b.label));
    groups.dedup_by(|later, earlier| later.label == earlier.label);
    groups
}
