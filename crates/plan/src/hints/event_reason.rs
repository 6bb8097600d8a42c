//! The reasons of Notices about hints, which become Event reasons.

/// Auto's hints are set. Upstream's reason.
pub const AUTO_ENABLED: &str = "TopologyAwareHintsEnabled";
/// Auto's hints are not set, or no longer. Upstream's reason.
pub const AUTO_DISABLED: &str = "TopologyAwareHintsDisabled";
/// A mechanism is active.
pub const PROGRAMMED: &str = "TrafficDistributionProgrammed";
/// A mechanism ended: no setting requests it any more.
pub const ENDED: &str = "TrafficDistributionEnded";
/// The slices have hints, but no service proxy uses them.
pub const NOT_PROXIED: &str = "TrafficDistributionNotProxied";
/// Endpoints have no zone hints, because a region has more zones than hints can list.
pub const TOO_MANY_ZONES: &str = "TooManyZonesForHints";
/// A requested mechanism is inactive.
pub const WITHHELD: &str = "TrafficDistributionWithheld";
pub const INVALID_VALUE: &str = "InvalidTrafficDistribution";
/// A value that works but has a newer name.
pub const DEPRECATED_VALUE: &str = "DeprecatedTrafficDistribution";
/// A setting without effect, because another one decides.
pub const SETTING_IGNORED: &str = "TrafficDistributionIgnored";
/// A setting without effect, because its feature gate is off.
pub const GATE_OFF: &str = "FeatureGateOff";
/// Some endpoints will get much more traffic than others.
pub const OVERLOAD: &str = "OverloadExpected";
/// Some clients cannot reach the Service.
pub const UNREACHABLE: &str = "UnreachableFromSome";
/// A node or endpoint has no zone, or an inconsistent region.
pub const TOPOLOGY_UNKNOWN: &str = "TopologyUnknown";

/// Whether a Notice depends on the settings alone, so that its message changes only with them.
pub(super) fn is_about_settings(reason: &str) -> bool {
    matches!(reason, INVALID_VALUE | DEPRECATED_VALUE | SETTING_IGNORED | GATE_OFF)
}

/// Whether an Event with this reason is a Warning; the others are Normal.
pub fn is_warning(reason: &str) -> bool {
    !matches!(reason, AUTO_ENABLED | PROGRAMMED | ENDED)
}
