//! The mechanism in the annotations of a Service's slices, as far as the Service still requests it.

use std::cell::LazyCell;

use model::{Name, Service, Slice, annotation};

use crate::feature_gates::FeatureGates;
use crate::hints::{Mechanism, SettingOrigin, TopologyScope, TrafficDistributionDefaults, choose};
use crate::regions::Regions;
use crate::spill::{SpillDemand, SpillKeep};

/// How the slices of a Service are to be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SliceMechanism {
    pub(super) kind: SliceMechanismKind,
    /// The zones of each region, if hints cannot list them.
    pub(super) regions: Option<Regions>,
    /// A slice's mechanism that the Service does not request any more.
    pub(super) set_aside: Option<Mechanism>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SliceMechanismKind {
    /// Hints only, as for any consumer.
    #[default]
    Hints,
    /// Hints; without zone hints the own region, else everywhere.
    PreferRegion,
    Require(RequiredScope),
    Spill(SpillDemand),
}

/// The scope of Require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequiredScope {
    pub(super) within: TopologyScope,
    /// Whether this node is preferred if it has an endpoint.
    pub(super) node_first: bool,
}

impl SliceMechanism {
    /// One slice with Require is enough: leaving the zone by mistake is the worse error. Spill and a preferred region need
    /// all slices to agree, Spill also on the demand, so that traffic is spread evenly during a transition. A mechanism
    /// counts only while it is requested.
    pub(super) fn of(service: &Service, slices: &[&Slice], gates: FeatureGates) -> Self {
        let regions = slices.iter().find_map(|slice| slice.content.annotation(annotation::REGIONS));
        let regions = regions.and_then(|text| Regions::parse(text));
        let requested = LazyCell::new(|| RequestedMechanism::of(service, gates));
        let mut set_aside = None;
        let mut spill: Option<&Name> = None;
        let (mut all_spill, mut all_by_region) = (true, regions.is_some());
        for slice in slices {
            let mechanism = slice.content.annotation(annotation::MECHANISM).and_then(|m| Mechanism::parse(m));
            // Hints alone express other mechanisms, and regions that they can list.
            let decides = |m: &Mechanism| {
                m.required().is_some() || *m == Mechanism::Spill || m.is_regional() && regions.is_some()
            };
            let mechanism = mechanism.filter(decides);
            let outlived = mechanism.filter(|m| !requested.still_includes(*m, slice));
            set_aside = set_aside.or(outlived);
            let mechanism = mechanism.filter(|_| outlived.is_none());
            if let Some(scope) = mechanism.and_then(required_scope) {
                return Self { kind: SliceMechanismKind::Require(scope), regions, set_aside: None };
            }
            let has_endpoints = !slice.content.endpoints.is_empty();
            all_by_region &= !has_endpoints || mechanism.is_some_and(Mechanism::is_regional);
            if mechanism == Some(Mechanism::Spill) {
                let demand = slice.content.annotation(annotation::DEMAND);
                all_spill &= demand.is_some() && (spill.is_none() || spill == demand);
                spill = demand;
            } else if has_endpoints {
                all_spill = false;
            }
        }
        let kind = match spill {
            // With an invalid demand hints decide, and there are none while a zone spills.
            Some(demand) if all_spill => SpillDemand::parse(demand)
                .map_or(SliceMechanismKind::Hints, |demand| {
                    SliceMechanismKind::Spill(demand.with_keep(keep(slices)))
                }),
            _ if all_by_region => SliceMechanismKind::PreferRegion,
            _ => SliceMechanismKind::Hints,
        };
        Self { kind, regions, set_aside }
    }
}

/// The keep factor of the slices: the lowest, and none if one slice with endpoints has none that is valid.
fn keep(slices: &[&Slice]) -> Option<SpillKeep> {
    let filled = slices.iter().filter(|slice| !slice.content.endpoints.is_empty());
    let of_slice = |slice: &&Slice| SpillKeep::parse(slice.content.annotation(annotation::KEEP)?).ok();
    let keeps: Option<Vec<SpillKeep>> = filled.map(of_slice).collect();
    keeps?.into_iter().reduce(SpillKeep::lower)
}

fn required_scope(mechanism: Mechanism) -> Option<RequiredScope> {
    Some(RequiredScope { within: mechanism.required()?, node_first: mechanism.prefers_node() })
}

/// The mechanism that the Service itself requests. A slice may outlive its setting, if a controller that ignores our
/// annotation takes over.
struct RequestedMechanism {
    mechanism: Mechanism,
    /// Whether the Service has no setting, so that a default applies.
    left_to_defaults: bool,
}

impl RequestedMechanism {
    fn of(service: &Service, gates: FeatureGates) -> Self {
        // A node does not know the defaults: any one without a gate shows whether a default would decide.
        let any = TrafficDistributionDefaults {
            namespace: Some(Name::new(Mechanism::Spill.as_str())),
            cluster: None,
        };
        let choice = choose(service, &any, &gates);
        match choice.origin {
            SettingOrigin::Service => Self { mechanism: choice.mechanism, left_to_defaults: false },
            SettingOrigin::Namespace | SettingOrigin::Controller => {
                Self { mechanism: Mechanism::None, left_to_defaults: true }
            }
        }
    }

    /// Whether the Service requests a mechanism of this kind, or leaves it to defaults and the slice's comes from one.
    fn still_includes(&self, mechanism: Mechanism, slice: &Slice) -> bool {
        let by_default =
            slice.content.annotation(annotation::MECHANISM_SOURCE).is_some_and(|source| *source != "service");
        let same_kind = match mechanism.required() {
            Some(_) => self.mechanism.required().is_some(),
            None if mechanism == Mechanism::Spill => self.mechanism == Mechanism::Spill,
            None => self.mechanism.is_regional(),
        };
        same_kind || by_default && self.left_to_defaults
    }
}
