//! Proportional CPU allocation: the arithmetic of Auto (semantics A2).
//!
//! In IEEE doubles and in upstream's order of operations: 20 % of 6 endpoints needs 2, because 0.2 x 6 is slightly more
//! than 1.2.

/// The overload threshold for new hints (seed 001, safeguard 2).
pub(super) const OVERLOAD: f64 = 0.2;
/// The overload threshold for existing hints: every zone keeps half of its share. Upstream has one threshold for both, so
/// that a single pod may remove all hints (pitfall 35). With a lower one, two endpoints per zone would not survive the loss
/// of one.
pub(super) const HOLD_OVERLOAD: f64 = 1.0;

/// The allocation of one zone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ZoneAllocation {
    pub zone: usize,
    /// The fewest endpoints within the overload threshold.
    pub minimum: usize,
    /// The proportional share of the endpoints.
    pub desired: f64,
    /// The most that leave every other zone its minimum.
    pub maximum: usize,
}

/// Why there is no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// More zones than endpoints.
    Zones,
    /// Too few endpoints for the minimum of every zone.
    Minimum,
}

/// Allocates endpoints by each zone's CPU ratio.
pub(super) fn allocate(
    ratios: &[(usize, f64)],
    endpoints: usize,
    overload: f64,
) -> Result<Vec<ZoneAllocation>, Shortage> {
    if ratios.len() > endpoints {
        return Err(Shortage::Zones);
    }
    let allocation = |(zone, ratio): &(usize, f64)| {
        let desired = ratio * endpoints as f64;
        let minimum = minimum(desired, overload);
        ZoneAllocation { zone: *zone, minimum, desired: desired.max(minimum as f64), maximum: 0 }
    };
    let mut allocations: Vec<ZoneAllocation> = ratios.iter().map(allocation).collect();
    let needed: usize = allocations.iter().map(|a| a.minimum).sum();
    let spare = endpoints.checked_sub(needed).ok_or(Shortage::Minimum)?;
    for allocation in &mut allocations {
        allocation.maximum = allocation.minimum + spare;
    }
    Ok(allocations)
}

fn minimum(desired: f64, overload: f64) -> usize {
    (desired * (1.0 / (1.0 + overload))).ceil() as usize
}

/// The minimum of a zone with this share of all endpoints.
pub(super) fn needed(ratio: f64, endpoints: usize) -> usize {
    minimum(ratio * endpoints as f64, OVERLOAD)
}

/// How many endpoints each zone gives and receives; `counts` and the results are by zone number.
///
/// One at a time from the largest surplus to the largest deficit, ties by name, while one of both is at least one endpoint
/// and neither is below half of one.
pub(super) fn giving_and_receiving(
    allocations: &[ZoneAllocation],
    counts: &[usize],
) -> (Vec<usize>, Vec<usize>) {
    let mut balance: Vec<f64> = allocations.iter().map(|a| counts[a.zone] as f64 - a.desired).collect();
    let mut giving = vec![0; counts.len()];
    let mut receiving = vec![0; counts.len()];
    loop {
        let giver = largest(balance.iter().copied());
        let receiver = largest(balance.iter().map(|b| -b));
        let (Some((giver, surplus)), Some((receiver, lack))) = (giver, receiver) else { break };
        if (surplus < 1.0 && lack < 1.0) || surplus < 0.5 || lack < 0.5 {
            break;
        }
        giving[allocations[giver].zone] += 1;
        receiving[allocations[receiver].zone] += 1;
        balance[giver] -= 1.0;
        balance[receiver] += 1.0;
    }
    (giving, receiving)
}

fn largest(amounts: impl Iterator<Item = f64>) -> Option<(usize, f64)> {
    let positive = amounts.enumerate().filter(|(_, amount)| *amount > 0.0);
    positive.fold(None, |largest, (at, amount)| match largest {
        Some((_, most)) if most >= amount => largest,
        _ => Some((at, amount)),
    })
}

/// Assigns endpoints of giving zones to receiving zones until the quotas are used up. `serves` has the zone of each endpoint
/// that may be reassigned, in slice order; receiving zones are filled in the order of their names.
pub(super) fn redistribute(serves: &mut [Option<usize>], giving: &mut [usize], receiving: &mut [usize]) {
    let mut receiver = 0;
    for zone in serves.iter_mut().flatten() {
        while receiving.get(receiver) == Some(&0) {
            receiver += 1;
        }
        if receiver >= receiving.len() {
            return;
        }
        if giving[*zone] > 0 {
            giving[*zone] -= 1;
            receiving[receiver] -= 1;
            *zone = receiver;
        }
    }
}

/// Whether existing hints give a zone less than its minimum under new ratios (semantics A2).
pub(crate) fn is_overloaded(hints_by_zone: &[(&str, usize)], ratios: &[(&str, f64)]) -> bool {
    if hints_by_zone.is_empty() || ratios.is_empty() {
        return !hints_by_zone.is_empty();
    }
    let total: usize = hints_by_zone.iter().map(|(_, count)| count).sum();
    ratios.iter().any(|(zone, ratio)| {
        let has = hints_by_zone.iter().find(|(z, _)| z == zone);
        has.is_none_or(|(_, count)| *count < minimum(total as f64 * ratio, OVERLOAD))
    })
}

#[cfg(test)]
mod tests;
