//! The mechanisms: the values of the annotation `zoneward.dev/mechanism` on slices.
//!
//! The controller writes it, and consumers follow it without reading the Service. For a slice without it, or with an unknown
//! value, only hints count (semantics C1).

/// The scope that traffic must not leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopologyScope {
    /// The client's node.
    Node,
    /// The client's zone.
    Zone,
    /// The client's region.
    Region,
}

/// One line per mechanism gives the enum, its text and its parser.
macro_rules! mechanisms {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The mechanism that distributes the traffic of a Service.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Mechanism {
            $($(#[$doc])* $name,)*
        }

        impl Mechanism {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The annotation's value. `None` is shown to users; on a slice it is the absence of the annotation.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Parses the annotation's value.
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
    /// All endpoints evenly; no hints.
    #[default]
    None,
    /// `topology-mode: Auto`: each zone gets endpoints in proportion to its CPU. Expressed by zone hints.
    Auto,
    /// `PreferSameZone` (and `PreferClose`): its own zone, else everywhere. Expressed by zone hints.
    PreferSameZone,
    /// `PreferSameNode` (and `same-node: Prefer`): its own node, else its own zone, else everywhere. Expressed by hints.
    PreferSameNode,
    /// Each zone keeps the traffic that its endpoints have capacity for; the rest goes elsewhere by weight. [`crate::spill`]
    /// reads the annotation `zoneward.dev/demand`; there are hints only if no zone spills.
    Spill,
    /// An endpoint without a hint for this node is not used.
    RequireNode,
    /// An endpoint without a hint for this node's zone is not used.
    RequireZone,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::RequireZone`].
    PreferNodeRequireZone,
    /// Hints list all zones of a region: an endpoint without one for this node's zone is not used.
    RequireRegion,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::RequireRegion`].
    PreferNodeRequireRegion,
    /// `same-zone: Prefer`, active: the groups of seed 003. Expressed by zone hints.
    PreferZone,
    /// `same-zone: Prefer`, inactive: too few endpoints, or no distribution below the overload threshold. No hints.
    PreferZoneResting,
    /// [`Mechanism::PreferZone`] after its own node.
    PreferNodeZone,
    /// [`Mechanism::PreferNodeZone`], inactive: node hints only, so its own node, else everywhere.
    PreferNodeZoneResting,
    /// Hints list all zones of a region: its own region, else everywhere.
    PreferRegion,
    /// Its own node, else its own zone, else its own region, else everywhere. Expressed by hints.
    PreferNodeRegion,
    /// [`Mechanism::PreferZone`] within each region, then everywhere.
    PreferZoneRegion,
    /// [`Mechanism::PreferZoneRegion`], inactive: as [`Mechanism::PreferRegion`].
    PreferZoneRegionResting,
    /// [`Mechanism::PreferZoneRegion`] after its own node.
    PreferNodeZoneRegion,
    /// [`Mechanism::PreferNodeZoneRegion`], inactive: its own node, else its own region, else everywhere.
    PreferNodeZoneRegionResting,
    /// [`Mechanism::PreferZone`] within each region: an endpoint without a hint for this node's zone is not used.
    PreferZoneRequireRegion,
    /// [`Mechanism::PreferZoneRequireRegion`], inactive: as [`Mechanism::RequireRegion`].
    PreferZoneRequireRegionResting,
    /// Endpoints with a hint for this node if there are any; else as [`Mechanism::PreferZoneRequireRegion`].
    PreferNodeZoneRequireRegion,
    /// [`Mechanism::PreferNodeZoneRequireRegion`], inactive: as [`Mechanism::PreferNodeRequireRegion`], but straight
    /// from the node to the region.
    PreferNodeZoneRequireRegionResting,
}

impl Mechanism {
    /// The scope that traffic must not leave, if any: connections are refused if it has no endpoint.
    ///
    /// Zone and region have the same test, since the hints of a region list all its zones: is there a hint for this node's
    /// zone?
    pub fn required(self) -> Option<TopologyScope> {
        match self {
            Self::RequireNode => Some(TopologyScope::Node),
            Self::RequireZone | Self::PreferNodeRequireZone => Some(TopologyScope::Zone),
            Self::RequireRegion
            | Self::PreferNodeRequireRegion
            | Self::PreferZoneRequireRegion
            | Self::PreferZoneRequireRegionResting
            | Self::PreferNodeZoneRequireRegion
            | Self::PreferNodeZoneRequireRegionResting => Some(TopologyScope::Region),
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

    /// Whether it reassigns endpoints to other zones ([`super::same_zone::rebalance`]), now or when it is active again.
    pub fn rebalances(self) -> bool {
        self != self.inactive_form() || self.is_resting()
    }

    pub fn is_regional(self) -> bool {
        self.as_str().contains("Region")
    }

    /// Whether it is inactive.
    pub fn is_resting(self) -> bool {
        self.as_str().ends_with("Resting")
    }

    /// Its inactive form; itself, if it has none.
    pub(super) fn inactive_form(self) -> Self {
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

    /// Its active form.
    pub(super) fn active_form(self) -> Self {
        let works = |m: &&Self| !m.is_resting() && m.inactive_form() == self;
        Self::ALL.iter().find(works).copied().filter(|_| self.is_resting()).unwrap_or(self)
    }

    /// Whether hints alone express it, for consumers and for the controller's hysteresis. Slices with the right hints need
    /// no annotation then, so that taking over a cluster from Kubernetes' own controller rewrites nothing.
    pub fn is_expressed_by_hints(self) -> bool {
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
            assert!(mechanism.inactive_form() == *mechanism || mechanism.inactive_form().is_resting());
            assert!(
                !mechanism.active_form().is_resting()
                    && mechanism.active_form().inactive_form() == mechanism.inactive_form()
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
