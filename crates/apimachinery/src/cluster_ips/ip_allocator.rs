//! Allocates cluster IPs out of the ranges of all ServiceCIDRs.
//!
//! ```text
//! allocate(ip)                    a free, usable address of a ready range
//! allocate_next(family, offset)   dynamic bands from an offset with wrap-around, then static bands
//! mark_allocated(ip)              an address that turned out to be in use
//! release(ip)                     independent of the state of its range
//! ```
//!
//! It is a value: a dry run works on a clone.

use std::fmt;
use std::net::IpAddr;

use model::hash::{BASIS_64, fnv1a_64};
use model::random::Random;
use model::{Family, ServiceKey};

use super::address_set::AddressSet;
use super::ip_range::{IpRange, Span, address};

/// Ranges and their allocated addresses. Ranges may overlap; an address is allocated in all of them at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpAllocator {
    pools: Vec<IpPool>,
    allocated: AddressSet,
}

/// A range, and whether addresses are allocated from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPool {
    pub range: IpRange,
    /// Semantics E2: one of its ServiceCIDRs is Ready and not being deleted.
    pub ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateError {
    /// It is not a usable address of any range.
    OutOfRange,
    /// None of its ranges is ready.
    NotReady,
    Taken,
    Full,
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "not a usable address of any range",
            Self::NotReady => "its ranges are not ready or being deleted",
            Self::Taken => "already allocated",
            Self::Full => "no free address in the ranges of its IP family",
        })
    }
}

impl std::error::Error for AllocateError {}

impl IpAllocator {
    /// An empty allocator. Earlier ranges are exhausted before later ones are used.
    pub fn new(pools: impl IntoIterator<Item = IpPool>) -> Self {
        Self { pools: pools.into_iter().collect(), allocated: AddressSet::default() }
    }

    /// Replaces the ranges and keeps the allocated addresses.
    pub fn set_pools(&mut self, pools: impl IntoIterator<Item = IpPool>) {
        self.pools = pools.into_iter().collect();
    }

    /// In the order of use.
    pub fn pools(&self) -> &[IpPool] {
        &self.pools
    }

    /// Whether some range of a family is ready, full or not.
    pub fn serves(&self, family: Family) -> bool {
        self.ready(family).any(|range| range.usable().is_some())
    }

    pub fn is_allocated(&self, ip: IpAddr) -> bool {
        self.allocated.contains(ip)
    }

    /// Marks an address as allocated, in a range or not; false if it was already.
    ///
    /// On AlreadyExists for an IPAddress, call this and [`Self::allocate_next`] with the same offset for the next address
    /// (pitfall 40). Any other error ends the search.
    pub fn mark_allocated(&mut self, ip: IpAddr) -> bool {
        self.allocated.insert(ip)
    }

    /// Whether an address could be allocated if it was free.
    pub fn admits(&self, ip: IpAddr) -> Result<(), AllocateError> {
        // Semantics E2, pitfall 44: the network address of one range may be usable in a larger one.
        let mut holding = self.pools.iter().filter(|pool| pool.range.contains(ip)).peekable();
        if holding.peek().is_none() {
            return Err(AllocateError::OutOfRange);
        }
        if holding.any(|pool| pool.ready) { Ok(()) } else { Err(AllocateError::NotReady) }
    }

    /// Allocates a requested address.
    pub fn allocate(&mut self, ip: IpAddr) -> Result<(), AllocateError> {
        self.admits(ip)?;
        if self.allocated.insert(ip) { Ok(()) } else { Err(AllocateError::Taken) }
    }

    /// Allocates a free address: from the dynamic bands of the ready ranges, and from the static bands if those are full.
    /// Each band is searched from `offset` modulo its length.
    pub fn allocate_next(&mut self, family: Family, offset: u64) -> Result<IpAddr, AllocateError> {
        let dynamic = self.ready(family).filter_map(|range| range.dynamic_span());
        let fixed = self.ready(family).filter_map(|range| range.static_span());
        let found = dynamic.chain(fixed).find_map(|span| self.first_free(span, offset));
        let ip = found.ok_or(AllocateError::Full)?;
        self.allocated.insert(ip);
        Ok(ip)
    }

    /// The address that a dry run reports instead of an allocated one: the base of a range (semantics E3).
    pub fn dry_run_address(&self, family: Family) -> Option<IpAddr> {
        self.ready(family).next().map(|range| range.network())
    }

    /// Releases an address, whether its ranges are ready or not (semantics E2); false if it was not allocated.
    pub fn release(&mut self, ip: IpAddr) -> bool {
        self.allocated.remove(ip)
    }

    /// Allocated addresses of a range, saturating.
    pub fn used(&self, range: &IpRange) -> u64 {
        let used = range.usable().map_or(0, |span| self.allocated.count(span));
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// Free addresses of a range, saturating.
    pub fn free(&self, range: &IpRange) -> u64 {
        let free = range.usable().map_or(0, |span| span.len().saturating_sub(self.allocated.count(span)));
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    /// Free addresses in all ranges of a family, ready or not, each counted once.
    pub fn free_in_all(&self, family: Family) -> u64 {
        let ranges = || self.pools.iter().map(|pool| pool.range).filter(|range| range.family() == family);
        let inside_another = |(i, range): &(usize, IpRange)| {
            let covers = |(j, other): (usize, IpRange)| {
                let equal = other.contains_range(range) && range.contains_range(&other);
                other.contains_range(range) && if equal { j < *i } else { true }
            };
            ranges().enumerate().any(covers)
        };
        let outermost = ranges().enumerate().filter(|entry| !inside_another(entry));
        outermost.map(|(_, range)| self.free(&range)).fold(0, u64::saturating_add)
    }

    fn ready(&self, family: Family) -> impl Iterator<Item = IpRange> + '_ {
        let ready = self.pools.iter().filter(|pool| pool.ready).map(|pool| pool.range);
        ready.filter(move |range| range.family() == family)
    }

    /// The first free address in [`super::ip_range::search_order`], without a scan over allocated ones.
    fn first_free(&self, span: Span, offset: u64) -> Option<IpAddr> {
        let start = span.first + u128::from(offset) % span.len();
        let before = || {
            let last = start.checked_sub(1)?;
            (span.first <= last).then(|| self.allocated.first_missing(Span { last, ..span }))?
        };
        let found = self.allocated.first_missing(Span { first: start, ..span }).or_else(before)?;
        Some(address(span.family, found))
    }
}

/// The offset at which the search for a Service starts: deterministic for a seed, and spread evenly, so that concurrent
/// requests rarely collide.
pub fn start_offset(seed: u64, service: &ServiceKey, family: Family) -> u64 {
    let hash = fnv1a_64(BASIS_64, format!("{service}/{family}").as_bytes());
    Random::seeded(Random::seeded(seed).next_u64().wrapping_add(hash)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(cidrs: &[(&str, bool)]) -> IpAllocator {
        let pool = |(cidr, ready): &(&str, bool)| IpPool {
            range: IpRange::new(cidr.parse().unwrap()),
            ready: *ready,
        };
        IpAllocator::new(cidrs.iter().map(pool))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    // Semantics E1: dynamic first, the static band only when nothing else is left, in every range.
    #[test]
    fn static_bands_are_used_last() {
        let mut allocator = allocator(&[("10.0.0.0/27", true), ("10.1.0.0/27", true)]);
        let order: Vec<IpAddr> = (0..60).map(|_| allocator.allocate_next(Family::V4, 0).unwrap()).collect();
        assert_eq!((order[0], order[13]), (ip("10.0.0.17"), ip("10.0.0.30")));
        assert_eq!((order[14], order[27]), (ip("10.1.0.17"), ip("10.1.0.30")));
        assert_eq!((order[28], order[44]), (ip("10.0.0.1"), ip("10.1.0.1")));
        assert_eq!(allocator.allocate_next(Family::V4, 0), Err(AllocateError::Full));
        assert_eq!(allocator.free_in_all(Family::V4), 0);
    }

    // Pitfall 39: an offset of 64 bits into a range of 64 bits.
    #[test]
    fn the_largest_range_is_never_left() {
        let mut allocator = allocator(&[("fd00::/64", true)]);
        for offset in [0, 1, u64::MAX - 257, u64::MAX - 256, u64::MAX - 255, u64::MAX] {
            let got = allocator.allocate_next(Family::V6, offset).unwrap();
            assert!(allocator.pools[0].range.contains(got), "{offset}: {got}");
        }
        assert_eq!(allocator.allocate_next(Family::V4, 0), Err(AllocateError::Full));
        assert_eq!(allocator.free_in_all(Family::V6), u64::MAX - 6);
    }

    // Pitfall 44.
    #[test]
    fn the_network_address_of_one_range_is_usable_through_a_larger_one() {
        let mut small = allocator(&[("192.168.1.0/24", true)]);
        assert_eq!(small.allocate(ip("192.168.1.0")), Err(AllocateError::OutOfRange));
        let mut both = allocator(&[("192.168.1.0/24", true), ("192.168.0.0/16", true)]);
        assert_eq!(both.allocate(ip("192.168.1.0")), Ok(()));
        assert_eq!(both.allocate(ip("192.168.1.0")), Err(AllocateError::Taken));
        assert_eq!(both.free_in_all(Family::V4), 65_533, "each address counts once");
    }

    // Semantics E2: a range that is not ready gives nothing out and takes everything back.
    #[test]
    fn ranges_that_are_not_ready_only_take_back() {
        let mut allocator = allocator(&[("10.0.0.0/28", false)]);
        allocator.mark_allocated(ip("10.0.0.1"));
        assert_eq!(allocator.allocate(ip("10.0.0.2")), Err(AllocateError::NotReady));
        assert_eq!(allocator.allocate_next(Family::V4, 0), Err(AllocateError::Full));
        assert!(!allocator.serves(Family::V4));
        assert!(allocator.release(ip("10.0.0.1")) && !allocator.release(ip("10.0.0.1")));
    }

    // Pitfall 40: a collision moves on to the next address.
    #[test]
    fn a_collision_moves_on_to_the_next_address() {
        let mut allocator = allocator(&[("10.0.0.0/28", true)]);
        let first = allocator.clone().allocate_next(Family::V4, 13).unwrap();
        assert_eq!(first, ip("10.0.0.14"));
        allocator.mark_allocated(first);
        assert_eq!(allocator.allocate_next(Family::V4, 13), Ok(ip("10.0.0.1")));
    }

    #[test]
    fn a_dry_run_shows_the_base_of_the_range() {
        let allocator = allocator(&[("10.0.0.0/28", false), ("10.1.0.0/28", true)]);
        assert_eq!(allocator.dry_run_address(Family::V4), Some(ip("10.1.0.0")));
        assert_eq!(allocator.dry_run_address(Family::V6), None);
    }

    #[test]
    fn a_range_of_a_quarter_million_addresses_fills_quickly() {
        let mut allocator = allocator(&[("10.0.0.0/14", true)]);
        let mut random = Random::seeded(1);
        for _ in 0..262_142 {
            allocator.allocate_next(Family::V4, random.next_u64()).unwrap();
        }
        assert_eq!(allocator.allocate_next(Family::V4, 0), Err(AllocateError::Full));
    }

    #[test]
    fn services_start_at_different_places() {
        let key = |name: &str| ServiceKey::new(&"ns".into(), &name.into());
        let offsets: std::collections::BTreeSet<u64> =
            (0..1000).map(|i| start_offset(7, &key(&format!("s{i}")), Family::V4) % 4096).collect();
        assert!(offsets.len() > 800, "{} of 1000 differ", offsets.len());
        assert_eq!(start_offset(7, &key("a"), Family::V4), start_offset(7, &key("a"), Family::V4));
        assert_ne!(start_offset(7, &key("a"), Family::V4), start_offset(8, &key("a"), Family::V4));
        assert_ne!(start_offset(7, &key("a"), Family::V4), start_offset(7, &key("a"), Family::V6));
    }
}
