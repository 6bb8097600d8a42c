//! What the slices of a Service say about themselves, as far as the Service still asks for it.

use model::{Service, Slice, annotation};

use crate::gates::FeatureGates;
use crate::hints::{Choice, Defaults, Mechanism, Scope, choose};
use crate::regions::Regions;
use crate::spill::Demand;

/// What decides beside the hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) kind: Kind,
    /// The zones of each region, where hints cannot name them.
    pub(super) regions: Option<Regions>,
    /// The mechanism of a slice that the Service does not ask for any more.
    pub(super) set_aside: Option<Mechanism>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Hints, as every consumer knows them.
    #[default]
    Hints,
    /// Hints, and where there are none for zones: the own region, else everywhere.
    PreferRegion,
    /// Only these, whatever happens.
    Require(Reach),
    /// By weights out of this demand.
    Spill(Demand),
}

/// How far traffic may go under Require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    /// At most.
    pub(super) within: Scope,
    /// Whether this node comes first, if it has an endpoint.
    pub(super) node_first: bool,
}

impl Rule {
    /// One slice that says Require makes the Service Require: leaving the zone by mistake is the worse error.
    /// Spill and a preferred region need every slice to say so, Spill with the same demand: half a transition spreads
    /// evenly.
    pub(super) fn of(service: &Service, slices: &[&Slice], gates: FeatureGates) -> Self {
        let regions = slices.iter().find_map(|slice| slice.content.annotation(annotation::REGIONS));
        let regions = regions.and_then(|text| Regions::parse(text));
        let mut set_aside = None;
        let mut spill: Option<&model::Name> = None;
        let (mut all_spill, mut all_by_region) = (true, regions.is_some());
        for slice in slices {
            let mechanism = slice.content.annotation(annotation::MECHANISM).and_then(|m| Mechanism::parse(m));
            if let (Some(mechanism), Some(reach)) = (mechanism, mechanism.and_then(reach)) {
                if is_still_asked(service, slice, gates) {
                    return Self { kind: Kind::Require(reach), regions, set_aside: None };
                }
                set_aside = Some(mechanism);
            }
            let mechanism = mechanism.filter(|mechanism| mechanism.required().is_none());
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
            // Where the demand cannot be read hints decide, and there are none while some zone spills.
            Some(demand) if all_spill => Demand::parse(demand).map_or(Kind::Hints, Kind::Spill),
            _ if all_by_region => Kind::PreferRegion,
            _ => Kind::Hints,
        };
        Self { kind, regions, set_aside }
    }
}

fn reach(mechanism: Mechanism) -> Option<Reach> {
    Some(Reach { within: mechanism.required()?, node_first: mechanism.prefers_node() })
}

/// A slice may outlive the setting that made it, with a controller that does not know the annotation: it binds only while
/// the Service itself requires something, or says nothing and the slice says that a default did.
fn is_still_asked(service: &Service, slice: &Slice, gates: FeatureGates) -> bool {
    let Choice { mechanism, source, .. } = choose(service, &Defaults::default(), &gates);
    let by_default = match slice.content.annotation(annotation::MECHANISM_SOURCE) {
        Some(source) => *source != "service",
        None => false,
    };
    mechanism.required().is_some() || by_default && source.is_none()
}
