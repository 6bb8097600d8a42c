//! How much of the traffic each endpoint takes: its capacity, its warmth after its start, and the drain of its zone.
//!
//! ```text
//! Pod: zoneward.dev/capacity ----\
//! Service: zoneward.dev/slow-start -> slice annotations (capacity, warming, drain) -> advance(now) -> Slice::shares
//! ZoneDrain ---------------------/         written once                               each consumer, by its clock
//! ```
//!
//! Slices carry when something started and how long it takes. Nodes, proxies and the controller compute the steps between
//! by the same functions, so that a slow start or a drain needs one write and not one per step.

mod slice_annotations;
mod warming;
mod zone_share;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{EndpointShares, Name, ObjectKey, ServiceKey, Slice, Snapshot, Timestamp, annotation};

use crate::spill::thousandths;
pub use slice_annotations::{BAD_CAPACITY, BAD_SLOW_START, annotate, capacities, notices};
pub use warming::{MAX_SLOW_START, Warming, parse_slow_start, warmth};
pub use zone_share::{DrainWindow, drains, format_drains};

/// One endpoint like any other, in the unit of shares.
pub const WHOLE: u32 = 1_000;
/// Bounds of `zoneward.dev/capacity`: 0.01 to 100.
const MIN_CAPACITY: u64 = 10;
const MAX_CAPACITY: u64 = 100_000;

/// Reads `zoneward.dev/capacity` of a Pod, in thousandths; `None` if it is not a number from 0.01 to 100.
pub fn parse_capacity(text: &str) -> Option<u32> {
    let capacity = thousandths(text.trim()).filter(|value| (MIN_CAPACITY..=MAX_CAPACITY).contains(value))?;
    u32::try_from(capacity).ok()
}

/// A number of thousandths without needless zeros: `2`, `0.5`.
pub fn format_thousandths(value: u64) -> String {
    let text = format!("{}.{:03}", value / 1_000, value % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Whether the shares of a Service's endpoints contain their slow start. Proxies, which see when an endpoint is new to them,
/// ramp it up for all other Services, and only for those.
pub fn has_slow_start(slices: &[Slice]) -> bool {
    let mut texts = slices.iter().filter_map(|slice| slice.content.annotation(annotation::WARMING));
    texts.any(|text| Warming::parse(text).is_some())
}

/// The result of [`advance`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShareChanges {
    /// Services whose endpoints take another share than before.
    pub services: BTreeSet<ServiceKey>,
    /// When the next share changes.
    pub next: Option<Timestamp>,
}

/// Sets the shares of all endpoints to those of this time.
pub fn advance(snapshot: &mut Snapshot, now: Timestamp) -> ShareChanges {
    let all: Vec<ObjectKey> = snapshot.slices_with_shares().map(|slice| slice.key.clone()).collect();
    advance_slices(snapshot, &all, now)
}

/// The same for the endpoints of some slices, such as those that changed.
pub fn advance_slices<'k>(
    snapshot: &mut Snapshot,
    slices: impl IntoIterator<Item = &'k ObjectKey>,
    now: Timestamp,
) -> ShareChanges {
    let mut changes = ShareChanges::default();
    let mut changed = Vec::new();
    for slice in slices.into_iter().filter_map(|key| snapshot.slice(key)) {
        let (shares, next) = shares_at(slice, now);
        changes.next = changes.next.into_iter().chain(next).min();
        if shares != slice.shares {
            changes.services.extend(slice.service());
            changed.push((slice.key.clone(), shares));
        }
    }
    changed.into_iter().for_each(|(key, shares)| snapshot.set_shares(&key, shares));
    changes
}

/// What the annotations of a slice say at a time, and when that changes. Annotations that cannot be read count as absent.
fn shares_at(slice: &Slice, now: Timestamp) -> (Option<Box<EndpointShares>>, Option<Timestamp>) {
    let text = |key| slice.content.annotation(key).map(Name::as_str).unwrap_or_default();
    let mut capacities = parse_capacities(text(annotation::CAPACITY));
    let mut next: Option<Timestamp> = None;
    let mut add = |at: Option<Timestamp>| next = next.into_iter().chain(at).min();
    if let Some(warming) = Warming::parse(text(annotation::WARMING)) {
        for (address, since) in &warming.since_by_address {
            let (warm, change) = warmth(*since, warming.seconds, now);
            add(change);
            if warm < WHOLE {
                let capacity = capacities.entry(*address).or_insert(WHOLE);
                *capacity = (u64::from(*capacity) * u64::from(warm) / u64::from(WHOLE)).max(1) as u32;
            }
        }
    }
    let mut drained_by_zone = Vec::new();
    for (zone, window) in drains(text(annotation::DRAIN)) {
        let (share, change) = window.share_at(now);
        add(change);
        if share > 0 {
            drained_by_zone.push((zone, share));
        }
    }
    let shares = EndpointShares { capacities: capacities.into_iter().collect(), drained_by_zone };
    ((shares != EndpointShares::default()).then(|| Box::new(shares)), next)
}

/// `10.0.0.1=2,10.0.0.2=0.5`; what cannot be read is left out.
fn parse_capacities(text: &str) -> BTreeMap<IpAddr, u32> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.filter_map(|(ip, capacity)| Some((ip.parse().ok()?, parse_capacity(capacity)?))).collect()
}

#[cfg(test)]
mod tests;
