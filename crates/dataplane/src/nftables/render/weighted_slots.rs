//! Assigns endpoints to numbered slots, of which the kernel picks one at random.
//!
//! Equal weights take one slot each and are exact. Unequal weights take 256 slots or more, by rounding the running sum of
//! the shares, which starts at another fraction of a slot on each node.

use model::forward::EndpointSet;

/// Slots for unequal weights: an error of at most 1/256.
const WEIGHTED: usize = 256;

pub(super) fn slot_count(set: &EndpointSet) -> usize {
    let count = set.endpoints.len();
    // Four per endpoint, so that small weights get a slot.
    if set.is_even() { count } else { WEIGHTED.max((count * 4).next_power_of_two()) }
}

/// The index of the endpoint of each slot.
pub(super) fn slots(set: &EndpointSet) -> impl Iterator<Item = usize> {
    let counts = (!set.is_even()).then(|| slots_per_endpoint(set, slot_count(set)));
    (0..set.endpoints.len()).flat_map(move |index| {
        let count = counts.as_ref().map_or(1, |counts| counts[index]);
        std::iter::repeat_n(index, count)
    })
}

/// The number of slots of each endpoint, `total` in all.
///
/// The running sum is rounded, not each share: so the endpoints of a zone, which have equal weights and are adjacent, get
/// their share as a group, to one slot. A share far below one slot may get none; a minimum of one each would send a zone
/// many times its share. Which endpoints of the group get a slot depends on the start of the sum (`set.rounding`), so over
/// the nodes of a zone each gets its share.
pub(crate) fn slots_per_endpoint(set: &EndpointSet, total: usize) -> Vec<usize> {
    let shares: Vec<f64> = set.shares().map(|(_, share)| share * total as f64).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
    let mut counts = vec![0; shares.len()];
    let (mut sum, mut given) = (f64::from(set.rounding) / 2f64.powi(32), 0);
    for (rank, index) in order.iter().enumerate() {
        sum += shares[*index];
        let until = if rank + 1 == order.len() { total } else { (sum.floor() as usize).clamp(given, total) };
        counts[*index] = until - given;
        given = until;
    }
    counts
}

#[cfg(test)]
mod tests {
    use model::forward::ForwardedEndpoint;

    use super::*;

    fn set(weights: &[f32]) -> EndpointSet {
        let endpoint = |(i, weight): (usize, &f32)| {
            ForwardedEndpoint::new(std::net::SocketAddr::from(([10, 0, 0, i as u8], 80)), *weight, false)
        };
        EndpointSet { endpoints: weights.iter().enumerate().map(endpoint).collect(), rounding: 1 << 31 }
    }

    fn counts(weights: &[f32]) -> Vec<usize> {
        let slots: Vec<usize> = slots(&set(weights)).collect();
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
        assert_eq!(counts(&[1.0, 1.0, 4.0]), [42, 43, 171]);
    }

    #[test]
    fn endpoints_of_equal_weight_have_their_share_as_a_group() {
        // 6 endpoints that get 0.4 % together, beside 8 and 4 that get the rest: as Spill gives them out.
        let weights = [vec![0.004f32 / 6.0; 6], vec![0.309 / 8.0; 8], vec![0.687 / 4.0; 4]].concat();
        let counted = counts(&weights);
        assert_eq!(counted[..6].iter().sum::<usize>(), 1);
        assert_eq!(counted[6..14].iter().sum::<usize>(), 79);
        assert_eq!(counted[14..].iter().sum::<usize>(), 176);
    }

    #[test]
    fn a_small_spill_reaches_each_endpoint_over_the_nodes_of_a_zone() {
        // 8 endpoints elsewhere get 0.4 % together, about one slot; the zone's own two get the rest.
        let weights = [vec![0.004f32 / 8.0; 8], vec![0.498; 2]].concat();
        const NODES: u32 = 1000;
        let mut total = vec![0usize; weights.len()];
        for node in 0..NODES {
            let set = EndpointSet { rounding: node * (u32::MAX / NODES), ..set(&weights) };
            slots(&set).for_each(|index| total[index] += 1);
        }
        let all = NODES as usize * WEIGHTED;
        assert_eq!(total.iter().sum::<usize>(), all);
        for (count, weight) in total.iter().zip(&weights) {
            let wanted = f64::from(*weight) * all as f64;
            assert!((*count as f64 - wanted).abs() < 0.05 * wanted + 2.0, "{total:?}");
        }
    }

    #[test]
    fn every_slot_is_given_whatever_the_weights() {
        assert_eq!(counts(&[1.0, 0.0001]), [256, 0]);
        let many: Vec<f32> = (0..200).map(|i| if i == 0 { 1000.0 } else { 0.001 }).collect();
        assert_eq!(counts(&many).iter().sum::<usize>(), 1024);
    }
}
