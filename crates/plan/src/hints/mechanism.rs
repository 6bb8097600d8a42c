//! The mechanisms by name: what stands in the annotation `zoneward.dev/mechanism` of a slice.
//!
//! The controller writes the name, and whoever consumes the slice obeys it without reading the Service. A slice
//! without it, or with a name that the reader does not know, is read by its hints alone (semantics C1).

/// How far traffic may go at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The node that it starts on.
    Node,
    /// The zone that it starts in.
    Zone,
    /// The region that it starts in.
    Region,
}

/// One line per mechanism, so that the enum, its text and its reading cannot drift apart.
macro_rules! mechanisms {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Who decides where the traffic of a Service goes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mechanism {
            $($(#[$doc])* $name,)*
        }

        impl Mechanism {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The value of the annotation. `None` has a name for people; on a slice it is the absence of one.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Reads the annotation's value; an unknown one is none of ours.
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

mechanisms! {
    /// Every endpoint for everybody; no hints.
    #[default]
    None,
    /// `topology-mode: Auto`: each zone gets endpoints in proportion to its CPU. Hints for zones say all.
    Auto,
    /// `PreferSameZone` (and `PreferClose`): the own zone, else everywhere. Hints for zones say all.
    PreferSameZone,
    /// `PreferSameNode` (and `same-node: Prefer`): the own node, else the own zone, else everywhere. Hints say all.
    PreferSameNode,
    /// Each zone keeps what its endpoints can take; the rest goes elsewhere by weight. The annotation
    /// `zoneward.dev/demand` holds what [`crate::spill`] needs; hints stand only where no zone spills.
    Spill,
    /// An endpoint without a hint for this node is not used.
    RequireNode,
    /// An endpoint without a hint for this node's zone is not used.
    RequireZone,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::RequireZone`].
    PreferNodeRequireZone,
    /// The hints name all zones of a region: an endpoint without one for this node's zone is not used.
    RequireRegion,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::RequireRegion`].
    PreferNodeRequireRegion,
    /// `same-zone: Prefer` at work: the hints are the groups of seed 003. Hints for zones say all.
    PreferZone,
    /// `same-zone: Prefer` with too few endpoints to start or go on, or with no way to stay below the overload
    /// threshold: no hints.
    PreferZoneResting,
    /// [`Mechanism::PreferZone`] after the own node.
    PreferNodeZone,
    /// [`Mechanism::PreferNodeZone`] at rest: hints for nodes only, so the own node, else everywhere.
    PreferNodeZoneResting,
    /// The hints name all zones of a region: the own region, else everywhere.
    PreferRegion,
    /// The own node, else the own zone, else the own region, else everywhere. Hints say all.
    PreferNodeRegion,
    /// [`Mechanism::PreferZone`] within each region, then everywhere.
    PreferZoneRegion,
    /// [`Mechanism::PreferZoneRegion`] at rest: as [`Mechanism::PreferRegion`].
    PreferZoneRegionResting,
    /// [`Mechanism::PreferZoneRegion`] after the own node.
    PreferNodeZoneRegion,
    /// [`Mechanism::PreferNodeZoneRegion`] at rest: the own node, else the own region, else everywhere.
    PreferNodeZoneRegionResting,
    /// [`Mechanism::PreferZone`] within each region: an endpoint without a hint for this node's zone is not used.
    PreferZoneRequireRegion,
    /// [`Mechanism::PreferZoneRequireRegion`] at rest: as [`Mechanism::RequireRegion`].
    PreferZoneRequireRegionResting,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::PreferZoneRequireRegion`].
    PreferNodeZoneRequireRegion,
    /// [`Mechanism::PreferNodeZoneRequireRegion`] at rest: as [`Mechanism::PreferNodeRequireRegion`], but straight
    /// from the node to the region.
    PreferNodeZoneRequireRegionResting,
}

impl Mechanism {
    /// The bound that traffic must not leave, if there is one: then an empty set is a reject and no fallback.
    ///
    /// For a zone and for a region the test is the same, since the hints of a region name all of its zones: is
    /// there a hint for this node's zone?
    pub fn required(self) -> Option<Scope> {
        match self {
            Self::RequireNode => Some(Scope::Node),
            Self::RequireZone | Self::PreferNodeRequireZone => Some(Scope::Zone),
            Self::RequireRegion
            | Self::PreferNodeRequireRegion
            | Self::PreferZoneRequireRegion
            | Self::PreferZoneRequireRegionResting
            | Self::PreferNodeZoneRequireRegion
            | Self::PreferNodeZoneRequireRegionResting => Some(Scope::Region),
            _ => None,
        }
    }

    /// Whether endpoints with a hint for this node come first.
    pub fn prefers_node(self) -> bool {
        matches!(
            self,
            Self::PreferSameNode
                | Self::PreferNodeRequireZone
                | Self::PreferNodeRequireRegion
                | Self::PreferNodeZone
                | Self::PreferNodeZoneResting
                | Self::PreferNodeRegion
                | Self::PreferNodeZoneRegion
                | Self::PreferNodeZoneRegionResting
                | Self::PreferNodeZoneRequireRegion
                | Self::PreferNodeZoneRequireRegionResting
        )
    }

    /// Whether it lends endpoints to other zones by the rebalancing of seed 003, now or when it starts again.
    pub fn rebalances(self) -> bool {
        self != self.at_rest() || self.is_resting()
    }

    /// Whether regions count.
    pub fn is_regional(self) -> bool {
        self.as_str().contains("Region")
    }

    /// Whether it holds back for now.
    pub fn is_resting(self) -> bool {
        self.as_str().ends_with("Resting")
    }

    /// The same mechanism while it holds back; itself, if it never does.
    pub(super) fn at_rest(self) -> Self {
        match self {
            Self::PreferZone => Self::PreferZoneResting,
            Self::PreferNodeZone => Self::PreferNodeZoneResting,
            Self::PreferZoneRegion => Self::PreferZoneRegionResting,
            Self::PreferNodeZoneRegion => Self::PreferNodeZoneRegionResting,
            Self::PreferZoneRequireRegion => Self::PreferZoneRequireRegionResting,
            Self::PreferNodeZoneRequireRegion => Self::PreferNodeZoneRequireRegionResting,
            other => other,
        }
    }

    /// The same mechanism while it does not hold back.
    pub(super) fn at_work(self) -> Self {
        let works = |m: &&Self| !m.is_resting() && m.at_rest() == self;
        Self::ALL.iter().find(works).copied().filter(|_| self.is_resting()).unwrap_or(self)
    }

    /// Whether hints alone tell a consumer everything, and the controller needs no memory of it either. A slice
    /// that carries the right hints but no annotation is then as good as new, so that taking over a cluster from
    /// Kubernetes' own controller rewrites nothing.
    pub fn is_told_by_hints_alone(self) -> bool {
        matches!(self, Self::None | Self::Auto | Self::PreferSameZone | Self::PreferSameNode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::parse(mechanism.as_str()), Some(*mechanism));
            assert!(mechanism.at_rest() == *mechanism || mechanism.at_rest().is_resting());
            assert!(
                !mechanism.at_work().is_resting() && mechanism.at_work().at_rest() == mechanism.at_rest()
            );
        }
        assert_eq!(Mechanism::parse("preferzone"), None);
        assert_eq!(Mechanism::default(), Mechanism::None);
    }

    #[test]
    fn a_requirement_shows_in_the_name() {
        for mechanism in Mechanism::ALL {
            assert_eq!(
                mechanism.required().is_some(),
                mechanism.as_str().contains("Require"),
                "{mechanism:?}"
            );
            let node_first =
                mechanism.as_str().starts_with("PreferNode") || *mechanism == Mechanism::PreferSameNode;
            assert_eq!(mechanism.prefers_node(), node_first, "{mechanism:?}");
        }
    }
}
