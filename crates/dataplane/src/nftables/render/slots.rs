//! Endpoints on numbered slots, out of which the kernel picks one at random.
//!
//! Equal shares take one slot each, so that they are exact. Unequal ones take 256 slots or more, by the method
//! of the largest remainder.

use model::forward::EndpointSet;

/// Slots for unequal shares: an error of 1/256 at most.
const WEIGHTED: usize = 256;

/// How many slots there are.
pub(super) fn slot_count(set: &EndpointSet) -> usize {
    let count = set.endpoints.len();
    // With few slots for many endpoints the small ones would get none.
    if set.is_even() { count } else { WEIGHTED.max((count * 4).next_power_of_two()) }
}

/// The index of the endpoint on each slot.
pub(super) fn slots(set: &EndpointSet) -> Vec<usize> {
    let total = slot_count(set);
    if set.is_even() {
        return (0..total).collect();
    }
    let parts = portions(set, total);
    let mut slots = Vec::with_capacity(total);
    for (index, part) in parts.iter().enumerate() {
        slots.extend(std::iter::repeat_n(index, *part));
    }
    slots
}

/// How many of `total` slots each endpoint gets: at least one, together all of them.
fn portions(set: &EndpointSet, total: usize) -> Vec<usize> {
    let shares: Vec<f64> = set.shares().map(|(_, share)| share * total as f64).collect();
    let mut portions: Vec<usize> = shares.iter().map(|share| (share.floor() as usize).max(1)).collect();
    let mut given: usize = portions.iter().sum();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    // Equal remainders go by the order of addresses, so that the result is always the same.
    by_remainder.sort_by(|a, b| shares[*b].fract().total_cmp(&shares[*a].fract()).then(a.cmp(b)));
    for index in by_remainder.iter().cycle().take(total) {
        if given >= total {
            break;
        }
        portions[*index] += 1;
        given += 1;
    }
    // The minimum of one may have given away too many: the largest give them back.
    while given > total {
        let Some(largest) = (0..portions.len()).max_by_key(|i| portions[*i]) else { break };
        portions[largest] -= 1;
        given -= 1;
    }
    portions
}

#[cfg(test)]
mod tests {
    use model::forward::ForwardedEndpoint;

    use super::*;

    fn set(weights: &[f32]) -> EndpointSet {
        let endpoint = |(i, weight): (usize, &f32)| ForwardedEndpoint {
            address: std::net::SocketAddr::from(([10, 0, 0, i as u8], 80)),
            weight: *weight,
            is_local: false,
        };
        EndpointSet { endpoints: weights.iter().enumerate().map(endpoint).collect() }
    }

    fn counts(weights: &[f32]) -> Vec<usize> {
        let slots = slots(&set(weights));
        (0..weights.len()).map(|i| slots.iter().filter(|s| **s == i).count()).collect()
    }

    #[test]
    fn equal_weights_take_one_slot_each() {
        assert_eq!(counts(&[1.0; 10]), [1; 10]);
        assert_eq!(counts(&[]), [0usize; 0]);
    }

    #[test]
    fn unequal_weights_are_met_to_one_slot() {
        assert_eq!(counts(&[3.0, 1.0]), [192, 64]);
        assert_eq!(counts(&[1.0, 1.0, 4.0]), [43, 43, 170]);
    }

    #[test]
    fn no_endpoint_goes_without_a_slot() {
        assert_eq!(counts(&[1.0, 0.0001]), [255, 1]);
        let many: Vec<f32> = (0..200).map(|i| if i == 0 { 1000.0 } else { 0.001 }).collect();
        let counted = counts(&many);
        assert!(counted.iter().all(|c| *c >= 1));
        assert_eq!(counted.iter().sum::<usize>(), 1024);
    }
}
