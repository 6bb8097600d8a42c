//! Which addresses are taken, and which one comes next.
//!
//! ```text
//! allocate(ip)                 any usable address of a ready range that nobody holds
//! allocate_next(family, n)     dynamic bands from an offset on with wrap, then static bands likewise
//! take(ip)                     somebody else turned out to hold it: the next call passes over it
//! release(ip)                  free again, whatever became of its range
//! ```
//!
//! It is a value: a dry run works on a clone.

use std::fmt;
use std::net::IpAddr;

use model::{Family, ServiceKey};

use super::range::{Range, Span, address};
use super::runs::AddressSet;

/// Ranges and the addresses taken in them. Ranges may overlap; an address is taken in all of them at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocator {
    pools: Vec<Pool>,
    taken: AddressSet,
}

/// A range, and whether new addresses may come out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The range.
    pub range: Range,
    /// Semantics E2: some ServiceCIDR that names it is Ready and not being deleted.
    pub ready: bool,
}

/// Why an address cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateError {
    /// No range has it as a usable address.
    OutOfRange,
    /// Ranges have it, but none that is ready.
    NotReady,
    /// Somebody holds it.
    Taken,
    /// No range of the family has a free address.
    Full,
}

impl fmt::Display for AllocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfRange => "no range has it as a usable address",
            Self::NotReady => "the ranges that have it are not ready or are being deleted",
            Self::Taken => "somebody holds it",
            Self::Full => "no range of its family has a free address",
        })
    }
}

impl std::error::Error for AllocateError {}

impl Allocator {
    /// An allocator in which nothing is taken. Earlier ranges are used up before later ones.
    pub fn new(pools: impl IntoIterator<Item = Pool>) -> Self {
        Self { pools: pools.into_iter().collect(), taken: AddressSet::default() }
    }

    /// The same taken addresses with other ranges, as when a ServiceCIDR comes or goes.
    pub fn set_pools(&mut self, pools: impl IntoIterator<Item = Pool>) {
        self.pools = pools.into_iter().collect();
    }

    /// The ranges, in the order in which they are used.
    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    /// Whether new addresses of a family can come out of some range, be it full or not.
    pub fn serves(&self, family: Family) -> bool {
        self.ready(family).any(|range| range.usable().is_some())
    }

    /// Whether somebody holds an address.
    pub fn is_taken(&self, ip: IpAddr) -> bool {
        self.taken.contains(ip)
    }

    /// Marks an address as held, in a range or not; false if it was.
    ///
    /// When the API answers that an IPAddress exists already, this and another [`Self::allocate_next`] with
    /// the same offset give the next address (pitfall 40). Any other answer of the API ends the search.
    pub fn take(&mut self, ip: IpAddr) -> bool {
        self.taken.insert(ip)
    }

    /// Whether an address could be allocated if nobody held it.
    pub fn admits(&self, ip: IpAddr) -> Result<(), AllocateError> {
        // Semantics E2, pitfall 44: the network address of one range may be usable in a larger one.
        let mut holding = self.pools.iter().filter(|pool| pool.range.contains(ip)).peekable();
        if holding.peek().is_none() {
            return Err(AllocateError::OutOfRange);
        }
        if holding.any(|pool| pool.ready) { Ok(()) } else { Err(AllocateError::NotReady) }
    }

    /// Takes the address that somebody asks for.
    pub fn allocate(&mut self, ip: IpAddr) -> Result<(), AllocateError> {
        self.admits(ip)?;
        if self.taken.insert(ip) { Ok(()) } else { Err(AllocateError::Taken) }
    }

    /// Takes a free address: out of the dynamic bands of the ready ranges, and only when these are full out
    /// of the static ones. Each band is searched from `offset` (modulo its length) on.
    pub fn allocate_next(&mut self, family: Family, offset: u64) -> Result<IpAddr, AllocateError> {
        let dynamic = self.ready(family).filter_map(|range| range.dynamic_span());
        let fixed = self.ready(family).filter_map(|range| range.static_span());
        let found = dynamic.chain(fixed).find_map(|span| self.first_free(span, offset));
        let ip = found.ok_or(AllocateError::Full)?;
        self.taken.insert(ip);
        Ok(ip)
    }

    /// What a dry run shows in place of a dynamic address (semantics E3: the base of a range, so that
    /// nobody takes it for a promise).
    pub fn dry_run_address(&self, family: Family) -> Option<IpAddr> {
        self.ready(family).next().map(|range| range.network())
    }

    /// Gives an address back; false if nobody held it. Semantics E2: ready ranges or not make no difference.
    pub fn release(&mut self, ip: IpAddr) -> bool {
        self.taken.remove(ip)
    }

    /// How many addresses of a range are taken; more than fit are as many as fit.
    pub fn used(&self, range: &Range) -> u64 {
        let used = range.usable().map_or(0, |span| self.taken.count(span));
        u64::try_from(used).unwrap_or(u64::MAX)
    }

    /// How many addresses of a range are free; more than fit are as many as fit.
    pub fn free(&self, range: &Range) -> u64 {
        let free = range.usable().map_or(0, |span| span.len().saturating_sub(self.taken.count(span)));
        u64::try_from(free).unwrap_or(u64::MAX)
    }

    /// How many addresses are free in all ranges of a family, ready or not, each counted once.
    pub fn free_in_all(&self, family: Family) -> u64 {
        let ranges = || self.pools.iter().map(|pool| pool.range).filter(|range| range.family() == family);
        let inside_another = |(i, range): &(usize, Range)| {
            let covers = |(j, other): (usize, Range)| {
                let equal = other.contains_range(range) && range.contains_range(&other);
                other.contains_range(range) && if equal { j < *i } else { true }
            };
            ranges().enumerate().any(covers)
        };
        let outermost = ranges().enumerate().filter(|entry| !inside_another(entry));
        outermost.map(|(_, range)| self.free(&range)).fold(0, u64::saturating_add)
    }

    fn ready(&self, family: Family) -> impl Iterator<Item = Range> + '_ {
        let ready = self.pools.iter().filter(|pool| pool.ready).map(|pool| pool.range);
        ready.filter(move |range| range.family() == family)
    }

    /// The first free address in the order of [`super::range::visits`], found without visiting the taken
    /// ones.
    fn first_free(&self, span: Span, offset: u64) -> Option<IpAddr> {
        let start = span.first + u128::from(offset) % span.len();
        let before = || {
            let last = start.checked_sub(1)?;
            (span.first <= last).then(|| self.taken.first_missing(Span { last, ..span }))?
        };
        let found = self.taken.first_missing(Span { first: start, ..span }).or_else(before)?;
        Some(address(span.family, found))
    }
}

/// Where a Service's search starts: spread evenly, so that Services that come at the same time do not all try
/// the same address, and the same for the same seed.
pub fn start_offset(seed: u64, service: &ServiceKey, family: Family) -> u64 {
    let key = service.namespace.bytes().chain([b'/']).chain(service.name.bytes());
    let bytes = key.chain([b'/']).chain(family.as_str().bytes());
    // FNV-1a: a few bytes into one number, the same on every machine.
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    scramble(scramble(seed).wrapping_add(hash))
}

/// One step of the generator splitmix64: near numbers become far ones.
fn scramble(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocator(cidrs: &[(&str, bool)]) -> Allocator {
        let pool =
            |(cidr, ready): &(&str, bool)| Pool { range: Range::new(cidr.parse().unwrap()), ready: *ready };
        Allocator::new(cidrs.iter().map(pool))
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
        allocator.take(ip("10.0.0.1"));
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
        allocator.take(first);
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
        let mut seed = 1;
        for _ in 0..262_142 {
            seed = scramble(seed);
            allocator.allocate_next(Family::V4, seed).unwrap();
        }
        assert_eq!(allocator.allocate_next(Family::V4, seed), Err(AllocateError::Full));
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
