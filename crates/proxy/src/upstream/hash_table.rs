//! Consistent hashing: the endpoint of a key, so that few keys move when an endpoint comes or goes.
//!
//! A ring has several points for each endpoint, and a key belongs to the next one. Maglev's table is filled by the endpoints
//! in turns, each by a permutation of its own: it is more even, and costs more to build. Both depend on addresses and
//! weights alone, so all proxies agree.

use std::net::SocketAddr;
use std::ops::Range;

use model::hash::fnv1a_64;
use model::random::mix;

/// The size of Maglev's table, a prime as in Envoy.
const MAGLEV_SIZE: u64 = 65_537;
/// Points of the heaviest endpoint of a ring. The number of endpoints does not change it, so that no key moves between
/// two endpoints that stay.
const POINTS_PER_ENDPOINT: usize = 256;
const MAX_RING: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) enum HashTable {
    /// Requests are not hashed.
    #[default]
    None,
    /// Points with the index of their endpoint, sorted.
    Ring(Box<[(u64, u32)]>),
    /// The index of an endpoint for each remainder.
    Maglev(Box<[u32]>),
}

impl HashTable {
    pub(crate) fn ring(endpoints: &[(SocketAddr, f32)]) -> Self {
        let heaviest = heaviest(endpoints);
        let most = POINTS_PER_ENDPOINT.min(MAX_RING / endpoints.len().max(1)) as f32;
        let mut points = Vec::new();
        for (index, (address, weight)) in (0u32..).zip(endpoints) {
            let count = (most * weight / heaviest).round().max(1.0) as u64;
            let own = hash_of_address(*address);
            points.extend((0..count).map(|point| (mix(own ^ mix(point)), index)));
        }
        points.sort_unstable();
        Self::Ring(points.into())
    }

    pub(crate) fn maglev(endpoints: &[(SocketAddr, f32)]) -> Self {
        const FREE: u32 = u32::MAX;
        let heaviest = heaviest(endpoints);
        if endpoints.is_empty() || heaviest <= 0.0 {
            return Self::None;
        }
        struct Turns {
            /// The next place of the permutation.
            next: u64,
            skip: u64,
            /// Places due so far; one whole is a turn.
            due: f32,
            weight: f32,
        }
        let turns = |(address, weight): &(SocketAddr, f32)| {
            let (first, second) = (hash_of_address(*address), mix(hash_of_address(*address)));
            let skip = second % (MAGLEV_SIZE - 1) + 1;
            Turns { next: first % MAGLEV_SIZE, skip, due: 0.0, weight: weight / heaviest }
        };
        let mut all: Vec<Turns> = endpoints.iter().map(turns).collect();
        let mut table = vec![FREE; MAGLEV_SIZE as usize];
        let mut left = table.len();
        // The heaviest endpoint takes a place in each round.
        while left > 0 {
            for (index, own) in (0u32..).zip(&mut all) {
                own.due += own.weight;
                if own.due < 1.0 || left == 0 {
                    continue;
                }
                own.due -= 1.0;
                while table[own.next as usize] != FREE {
                    own.next = (own.next + own.skip) % MAGLEV_SIZE;
                }
                table[own.next as usize] = index;
                left -= 1;
            }
        }
        Self::Maglev(table.into())
    }

    /// The index of the first usable endpoint for a key, in the table's order; of the first one if none of `endpoints` is
    /// usable.
    pub(crate) fn find(
        &self,
        key: u64,
        endpoints: usize,
        is_usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Ring(points) => {
                let start = points.partition_point(|(point, _)| *point < key);
                let index_at = |at: usize| points.get(at % points.len()).map(|(_, index)| *index as usize);
                first_usable(start..start + points.len(), index_at, endpoints, is_usable)
            }
            Self::Maglev(table) => {
                let start = (key % MAGLEV_SIZE) as usize;
                let index_at = |at: usize| table.get(at % table.len()).map(|index| *index as usize);
                first_usable(start..start + table.len(), index_at, endpoints, is_usable)
            }
        }
    }
}

fn first_usable(
    mut places: Range<usize>,
    index_at: impl Fn(usize) -> Option<usize>,
    endpoints: usize,
    is_usable: impl Fn(usize) -> bool,
) -> Option<usize> {
    let own = index_at(places.next()?)?;
    // A table is much longer than the list of endpoints.
    if is_usable(own) || !(0..endpoints).any(&is_usable) {
        return Some(own);
    }
    places.filter_map(index_at).find(|index| is_usable(*index)).or(Some(own))
}

fn heaviest(endpoints: &[(SocketAddr, f32)]) -> f32 {
    endpoints.iter().map(|(_, weight)| *weight).fold(0.0, f32::max)
}

fn hash_of_address(address: SocketAddr) -> u64 {
    hash_of(address.to_string().as_bytes())
}

/// The key of a header, cookie or address.
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    mix(fnv1a_64(0, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(count: u16, weight: impl Fn(u16) -> f32) -> Vec<(SocketAddr, f32)> {
        (0..count).map(|i| (SocketAddr::from(([10, 0, 0, 1], 1_000 + i)), weight(i))).collect()
    }

    fn owners(table: &HashTable, endpoints: &[(SocketAddr, f32)]) -> Vec<SocketAddr> {
        let owner = |key: u64| table.find(mix(key), endpoints.len(), |_| true).expect("not empty");
        (0..20_000).map(|key| endpoints[owner(key)].0).collect()
    }

    fn both(endpoints: &[(SocketAddr, f32)]) -> [(HashTable, f32); 2] {
        // With the shares' tolerance: a ring is less even.
        [(HashTable::ring(endpoints), 0.35), (HashTable::maglev(endpoints), 0.06)]
    }

    #[test]
    fn keys_are_shared_by_weight() {
        let endpoints = endpoints(10, |i| if i == 0 { 3.0 } else { 1.0 });
        for (table, tolerance) in both(&endpoints) {
            let owners = owners(&table, &endpoints);
            for (address, weight) in &endpoints {
                let share = owners.iter().filter(|owner| *owner == address).count() as f32 / 20_000.0;
                let wanted = weight / 12.0;
                assert!((share / wanted - 1.0).abs() < tolerance, "{share} is not {wanted}");
            }
        }
    }

    #[test]
    fn few_keys_move_when_an_endpoint_goes() {
        let all = endpoints(10, |_| 1.0);
        // Maglev's table is filled anew: a few of its keys move.
        let tables = both(&all).into_iter().zip(both(&all[..9])).zip([0, 20_000 / 100]);
        for (((before, _), (after, _)), most) in tables {
            let before = owners(&before, &all);
            let after = owners(&after, &all[..9]);
            let gone = all[9].0;
            let moved = before.iter().zip(&after).filter(|(a, b)| a != b && **a != gone).count();
            assert!(moved <= most, "{moved} keys of other endpoints moved");
        }
    }

    #[test]
    fn keys_of_an_unusable_endpoint_are_spread_and_the_others_stay() {
        let all = endpoints(5, |_| 1.0);
        for (table, _) in both(&all) {
            for key in (0..1_000).map(mix) {
                let own = table.find(key, 5, |_| true).expect("one");
                let next = table.find(key, 5, |index| index != 0).expect("another");
                assert!(next != 0 && (own == 0 || own == next));
                assert_eq!(table.find(key, 5, |_| false), Some(own), "none is usable");
            }
        }
    }

    #[test]
    fn nothing_is_found_among_none() {
        assert_eq!(HashTable::ring(&[]).find(1, 0, |_| true), None);
        assert_eq!(HashTable::maglev(&[]).find(1, 0, |_| true), None);
        assert_eq!(HashTable::None.find(1, 0, |_| true), None);
    }
}
