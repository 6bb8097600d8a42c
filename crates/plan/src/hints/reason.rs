//! The reasons of Notices about hints: words for programs, in the manner of Event reasons.

/// Auto's hints are set. Upstream's word.
pub const AUTO_ENABLED: &str = "TopologyAwareHintsEnabled";
/// Auto's hints are not set, or no longer. Upstream's word.
pub const AUTO_DISABLED: &str = "TopologyAwareHintsDisabled";
/// A mechanism is at work.
pub const PROGRAMMED: &str = "TrafficDistributionProgrammed";
/// A mechanism was at work and no setting asks for it any more.
pub const ENDED: &str = "TrafficDistributionEnded";
/// The slices carry hints, but no service proxy sends traffic by them.
pub const NOT_PROXIED: &str = "TrafficDistributionNotProxied";
/// Endpoints carry no hints for zones, because a region has more zones than an endpoint's hints may name.
pub const TOO_MANY_ZONES: &str = "TooManyZonesForHints";
/// A mechanism was asked for and holds back.
pub const WITHHELD: &str = "TrafficDistributionWithheld";
/// A value that is none of those known.
pub const INVALID_VALUE: &str = "InvalidTrafficDistribution";
/// A value that works but has a better name.
pub const DEPRECATED_VALUE: &str = "DeprecatedTrafficDistribution";
/// A setting without effect, because another one decides.
pub const SETTING_IGNORED: &str = "TrafficDistributionIgnored";
/// A setting without effect, because its feature gate is off.
pub const GATE_OFF: &str = "FeatureGateOff";
/// Some endpoints have to expect much more traffic than others.
pub const OVERLOAD: &str = "OverloadExpected";
/// Some clients cannot reach the Service at all.
pub const UNREACHABLE: &str = "UnreachableFromSome";
/// A node or endpoint is nowhere, as far as its labels tell.
pub const PLACE_UNKNOWN: &str = "TopologyUnknown";

/// Whether a Notice with this reason is about the settings alone, so that its words change only with them.
pub(super) fn is_about_settings(reason: &str) -> bool {
    matches!(reason, INVALID_VALUE | DEPRECATED_VALUE | SETTING_IGNORED | GATE_OFF)
}

/// Whether an Event with this reason is a Warning; the others are Normal.
pub fn is_warning(reason: &str) -> bool {
    !matches!(reason, AUTO_ENABLED | PROGRAMMED | ENDED)
}
