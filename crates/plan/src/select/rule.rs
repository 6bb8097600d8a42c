//! What the slices of a Service say about themselves, as far as the Service still asks for it.

use std::cell::LazyCell;

use model::{Name, Service, Slice, annotation};

use crate::gates::FeatureGates;
use crate::hints::{Defaults, Mechanism, Origin, Scope, choose};
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
    /// evenly. Each counts only as far as it is still asked for.
    pub(super) fn of(service: &Service, slices: &[&Slice], gates: FeatureGates) -> Self {
        let regions = slices.iter().find_map(|slice| slice.content.annotation(annotation::REGIONS));
        let regions = regions.and_then(|text| Regions::parse(text));
        let asked = LazyCell::new(|| Asked::by(service, gates));
        let mut set_aside = None;
        let mut spill: Option<&Name> = None;
        let (mut all_spill, mut all_by_region) = (true, regions.is_some());
        for slice in slices {
            let mechanism = slice.content.annotation(annotation::MECHANISM).and_then(|m| Mechanism::parse(m));
            // Hints alone tell the others, and those of regions that hints can name.
            let decides = |m: &Mechanism| {
                m.required().is_some() || *m == Mechanism::Spill || m.is_regional() && regions.is_some()
            };
            let mechanism = mechanism.filter(decides);
            let outlived = mechanism.filter(|m| !asked.still(*m, slice));
            set_aside = set_aside.or(outlived);
            let mechanism = mechanism.filter(|_| outlived.is_none());
            if let Some(reach) = mechanism.and_then(reach) {
                return Self { kind: Kind::Require(reach), regions, set_aside: None };
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

/// What the Service itself asks for. A slice may outlive the setting that made it, with a controller that does not know
/// the annotation.
struct Asked {
    mechanism: Mechanism,
    /// Whether the Service decides nothing, so that a default does.
    left_to_defaults: bool,
}

impl Asked {
    fn by(service: &Service, gates: FeatureGates) -> Self {
        // A node does not know the defaults: any that no gate closes shows whether one would decide.
        let any = Defaults { namespace: Some(Name::new(Mechanism::Spill.as_str())), cluster: None };
        let choice = choose(service, &any, &gates);
        match choice.origin {
            Origin::Service => Self { mechanism: choice.mechanism, left_to_defaults: false },
            Origin::Namespace | Origin::Controller => {
                Self { mechanism: Mechanism::None, left_to_defaults: true }
            }
        }
    }

    /// Whether the mechanism of a slice is of the kind that the Service asks for, or the Service says nothing and the
    /// slice says that a default asks for it.
    fn still(&self, mechanism: Mechanism, slice: &Slice) -> bool {
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
