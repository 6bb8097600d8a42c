//! EndpointSlice subsetting (KEP-2030, seed 003): which slices a node receives, and which Services have slices by zone.
//!
//! ```text
//! Service, mechanism, drains -> may_subset --\
//! ready endpoints by zone, size, last switch -> decide -> slices by zone with the label zoneward.dev/for-zone,
//!                                                         and the reserve without it
//! label, zone of the node -> SliceView::sees -> watches of the node, trace, plan node, acknowledgements, replay
//! ```
//!
//! Labels decide what is delivered, hints what is used. So a Service has slices by zone only while every ready endpoint has
//! hints for its own zone alone: then a node selects the same endpoints from its view as from all slices. The reserve, a few
//! endpoints of every zone, is what a node falls back on at once if its zone has none left; the controller then drops the
//! labels.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{Name, Service, Slice, SliceContent, TrafficPolicy, annotation};
use serde::{Deserialize, Serialize};

use crate::drain::ZoneDrains;
use crate::feature_gates::FeatureGates;
use crate::hints::Mechanism;
use crate::select::{external_policy, not_proxied};

/// The default of `--subset-from`.
pub const DEFAULT_SUBSET_FROM: u32 = 100;
/// Ready endpoints of each zone in the reserve. A zone with fewer ready endpoints drops the labels.
pub const RESERVE: usize = 3;
/// Most ready endpoints of a zone in the reserve. Above [`RESERVE`], so that an endpoint that is not ready for a moment
/// moves no other one twice.
pub const MAX_RESERVE: usize = 6;
/// How long a Service whose labels were dropped stays without them.
pub const WIDE_FOR: Duration = Duration::from_secs(300);
/// How long a Service that has become small keeps its labels after the last switch.
pub const NARROW_FOR: Duration = Duration::from_secs(60);
/// How long a node keeps the UDP flows of a slice that left its view: a label may have changed, and not an endpoint.
pub const FLOWS_KEPT: Duration = Duration::from_secs(60);
/// How long a node keeps a slice that left one of its watches: a changed label moves it to the other, in any order.
pub const MOVE_GRACE: Duration = Duration::from_secs(1);

/// Settings of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsetOptions {
    /// Ready endpoints from which on a Service has slices by zone.
    pub from: usize,
}

impl SubsetOptions {
    /// Ready endpoints below which it has them no longer.
    pub fn until(self) -> usize {
        self.from * 7 / 10
    }
}

/// The slices that a node receives.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SliceView {
    #[default]
    All,
    /// Those of its zone, and those without a zone.
    Zone(Name),
}

impl SliceView {
    /// The view of a node with or without `--watch-own-zone`. A node without a zone needs all slices, and so does one that
    /// ignores hints by a feature gate.
    pub fn of(watches_own_zone: bool, zone: Option<&str>, gates: FeatureGates) -> Self {
        match zone.filter(|zone| watches_own_zone && !zone.is_empty()) {
            Some(zone) if gates.service_traffic_distribution => Self::Zone(Name::new(zone)),
            _ => Self::All,
        }
    }

    /// Whether a node with this view receives a slice.
    pub fn sees(&self, slice: &SliceContent) -> bool {
        match self {
            Self::All => true,
            Self::Zone(own) => slice.for_zone().is_none_or(|zone| zone == own),
        }
    }

    /// The label selectors of its watches, which together match what [`SliceView::sees`] does. A selector has no "or", so a
    /// zone takes two.
    pub fn selectors(&self) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            Self::Zone(zone) => {
                vec![format!("!{}", annotation::FOR_ZONE), format!("{}={zone}", annotation::FOR_ZONE)]
            }
        }
    }

    /// The slices of a Service that a node with this view receives.
    pub fn visible(&self, slices: &[Slice]) -> Vec<Slice> {
        slices.iter().filter(|slice| self.sees(&slice.content)).cloned().collect()
    }

    /// The highest resourceVersion of the slices that a node with this view receives.
    pub fn highest_revision(&self, slices: &[Slice]) -> u64 {
        let seen = slices.iter().filter(|slice| self.sees(&slice.content));
        seen.filter_map(|slice| slice.resource_version.as_ref()?.parse().ok()).max().unwrap_or(0)
    }
}

/// Whether a Service may have slices by zone, as far as it and its mechanism are concerned.
///
/// Traffic of the others needs endpoints of other zones while its own zone has some: without hints, by Spill or a region, by
/// session affinity, by a drain. Under the policy Local an endpoint counts on its own node, whatever its hints.
pub fn may_subset(
    service: &Service,
    mechanism: Mechanism,
    drains: Option<&ZoneDrains>,
    stored: &[Slice],
) -> bool {
    let stays_in_zone = matches!(
        mechanism,
        Mechanism::PreferSameZone
            | Mechanism::PreferZone
            | Mechanism::RequireNode
            | Mechanism::RequireZone
            | Mechanism::PreferNodeRequireZone
    );
    let is_drained = drains.is_some_and(|drains| !drains.zones().is_empty())
        || stored.iter().any(|slice| slice.content.annotation(annotation::DRAIN).is_some());
    stays_in_zone
        && !is_drained
        && not_proxied(service).is_none()
        && service.internal_policy == TrafficPolicy::Cluster
        && external_policy(service) == TrafficPolicy::Cluster
        && service.affinity_seconds.is_none()
}

/// What is known of a Service and IP family, beside its setting.
#[derive(Clone, Debug)]
pub struct SubsetFacts<'a> {
    /// Whether it has slices by zone now.
    pub is_subset: bool,
    /// Ready endpoints by zone, with the zones of all nodes.
    pub ready_by_zone: BTreeMap<&'a Name, usize>,
    /// Since its labels were set or dropped; `None` if that is not known, as after a start.
    pub since_switch: Option<Duration>,
}

/// Whether a Service has slices by zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubsetDecision {
    pub is_subset: bool,
    /// When to decide again, because the last switch is too recent.
    pub retry_after: Option<Duration>,
}

/// Decides by size, with hysteresis. A zone with too few ready endpoints drops the labels at once: its nodes would send
/// everything to the reserve.
pub fn decide(options: SubsetOptions, facts: &SubsetFacts<'_>) -> SubsetDecision {
    let ready: usize = facts.ready_by_zone.values().sum();
    let is_possible = facts.ready_by_zone.len() > 1 && facts.ready_by_zone.values().all(|n| *n >= RESERVE);
    let wait = |period: Duration| facts.since_switch.and_then(|since| period.checked_sub(since));
    let wait = |period| wait(period).filter(|left| !left.is_zero());
    let (is_subset, retry_after) = match (facts.is_subset, is_possible) {
        (_, false) => (false, None),
        (false, true) if ready < options.from => (false, None),
        (false, true) => match wait(WIDE_FOR) {
            Some(left) => (false, Some(left)),
            None => (true, None),
        },
        (true, true) if ready >= options.until() => (true, None),
        (true, true) => match wait(NARROW_FOR) {
            Some(left) => (true, Some(left)),
            None => (false, None),
        },
    };
    SubsetDecision { is_subset, retry_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(is_subset: bool, counts: &[usize], since: Option<u64>) -> SubsetDecision {
        let names: Vec<Name> = (0..counts.len()).map(|i| Name::new(&format!("zone-{i}"))).collect();
        let ready_by_zone = names.iter().zip(counts.iter().copied()).collect();
        let since_switch = since.map(Duration::from_secs);
        decide(SubsetOptions { from: 100 }, &SubsetFacts { is_subset, ready_by_zone, since_switch })
    }

    fn subset(is_subset: bool) -> SubsetDecision {
        SubsetDecision { is_subset, retry_after: None }
    }

    /// Conflict 8 of the design: a Service near the threshold is not rewritten again and again.
    #[test]
    fn a_service_near_the_threshold_switches_rarely() {
        assert_eq!(facts(false, &[33, 33, 33], None), subset(false), "below 100");
        assert_eq!(facts(false, &[34, 33, 33], None), subset(true));
        assert_eq!(facts(true, &[24, 23, 23], Some(3600)), subset(true), "not below 70");
        assert_eq!(facts(true, &[23, 23, 23], Some(3600)), subset(false));
        let kept = SubsetDecision { is_subset: true, retry_after: Some(Duration::from_secs(15)) };
        assert_eq!(facts(true, &[23, 23, 23], Some(45)), kept, "at most one switch a minute by size");
        let wide = SubsetDecision { is_subset: false, retry_after: Some(Duration::from_secs(255)) };
        assert_eq!(facts(false, &[40, 40, 40], Some(45)), wide);
        assert_eq!(facts(false, &[40, 40, 40], Some(300)), subset(true), "narrow again after five minutes");
    }

    #[test]
    fn a_zone_with_too_few_ready_endpoints_drops_the_labels_at_once() {
        assert_eq!(facts(true, &[100, 100, 3], Some(0)), subset(true));
        assert_eq!(facts(true, &[100, 100, 2], Some(0)), subset(false));
        assert_eq!(facts(true, &[100, 100, 0], Some(0)), subset(false), "a zone with nodes alone counts");
        assert_eq!(facts(false, &[200], None), subset(false), "one zone gains nothing");
        assert_eq!(facts(false, &[], None), subset(false));
    }

    #[test]
    fn a_node_without_a_zone_or_without_hints_sees_everything() {
        let gates = FeatureGates::ALL;
        assert_eq!(SliceView::of(false, Some("a"), gates), SliceView::All);
        assert_eq!(SliceView::of(true, None, gates), SliceView::All);
        assert_eq!(SliceView::of(true, Some(""), gates), SliceView::All);
        assert_eq!(SliceView::of(true, Some("a"), gates), SliceView::Zone("a".into()));
        let ignores_hints = FeatureGates { service_traffic_distribution: false, ..gates };
        assert_eq!(SliceView::of(true, Some("a"), ignores_hints), SliceView::All);
    }

    #[test]
    fn a_zone_takes_two_selectors() {
        assert!(SliceView::All.selectors().is_empty());
        let wanted = ["!zoneward.dev/for-zone", "zoneward.dev/for-zone=a"];
        assert_eq!(SliceView::Zone("a".into()).selectors(), wanted);
    }
}
