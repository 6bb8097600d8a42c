//! One CIDR of a ServiceCIDR: its usable addresses, static and dynamic band, and search order.
//!
//! All arithmetic is on 128-bit numbers, so that nothing overflows (pitfall 39).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use model::Family;

/// Semantics E1: a range of this size or smaller has no static band.
const MIN_STATIC_BAND: u128 = 16;
const MAX_STATIC_BAND: u128 = 256;
/// The static band is 1/16 of the range, within these limits.
const STATIC_BAND_FRACTION: u128 = 16;
/// Semantics E1: IPv6 ranges with a shorter prefix are not used.
const MIN_V6_PREFIX: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpRange {
    /// Host bits are ignored.
    pub cidr: IpNet,
}

/// The first and the last address of a band.
pub type Band = (IpAddr, IpAddr);

/// Consecutive addresses of one family as numbers, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) family: Family,
    pub(super) first: u128,
    pub(super) last: u128,
}

impl Span {
    /// Saturating: all of IPv6 is one more than fits.
    pub(super) fn len(self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    fn band(self) -> Band {
        (address(self.family, self.first), address(self.family, self.last))
    }
}

pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

pub(super) fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(number)),
    }
}

impl IpRange {
    pub fn new(cidr: IpNet) -> Self {
        Self { cidr }
    }

    pub fn family(&self) -> Family {
        Family::of(self.cidr.addr())
    }

    /// The network address, which is not usable.
    pub fn network(&self) -> IpAddr {
        self.cidr.network()
    }

    fn whole(&self) -> Span {
        let (first, last) = (number(self.cidr.network()), number(self.cidr.broadcast()));
        Span { family: self.family(), first, last }
    }

    /// Semantics E1: without the network address, and for IPv4 without the broadcast address.
    pub(super) fn usable(&self) -> Option<Span> {
        let whole = self.whole();
        let first = whole.first.checked_add(1)?;
        let last = match whole.family {
            Family::V4 => whole.last.checked_sub(1)?,
            Family::V6 => whole.last,
        };
        (first <= last).then_some(Span { first, last, ..whole })
    }

    pub fn first(&self) -> Option<IpAddr> {
        self.usable().map(|span| span.band().0)
    }

    pub fn last(&self) -> Option<IpAddr> {
        self.usable().map(|span| span.band().1)
    }

    /// Usable addresses, saturating.
    pub fn capacity(&self) -> u64 {
        self.usable().map_or(0, |span| u64::try_from(span.len()).unwrap_or(u64::MAX))
    }

    /// Semantics E1 and seed 002: `min(max(16, size / 16), 256)`, where size includes unusable addresses; zero for 16
    /// addresses or fewer.
    pub fn static_size(&self) -> u64 {
        let size = self.whole().len();
        if size <= MIN_STATIC_BAND {
            return 0;
        }
        (size / STATIC_BAND_FRACTION).clamp(MIN_STATIC_BAND, MAX_STATIC_BAND) as u64
    }

    pub(super) fn static_span(&self) -> Option<Span> {
        let usable = self.usable()?;
        let size = u128::from(self.static_size());
        (size > 0).then(|| Span { last: usable.first + size - 1, ..usable })
    }

    pub(super) fn dynamic_span(&self) -> Option<Span> {
        let usable = self.usable()?;
        Some(Span { first: usable.first + u128::from(self.static_size()), ..usable })
    }

    /// The lower band, for addresses that users choose.
    pub fn static_band(&self) -> Option<Band> {
        self.static_span().map(Span::band)
    }

    /// The upper band, searched first.
    pub fn dynamic_band(&self) -> Option<Band> {
        self.dynamic_span().map(Span::band)
    }

    /// Whether it is a usable address of this range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let holds = |span: Span| (span.first..=span.last).contains(&number(ip));
        Family::of(ip) == self.family() && self.usable().is_some_and(holds)
    }

    pub fn contains_range(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.whole(), other.whole());
        ours.family == theirs.family && ours.first <= theirs.first && theirs.last <= ours.last
    }

    /// CIDRs overlap only if one contains the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains_range(other) || other.contains_range(self)
    }

    /// Why the range is not used, as the end of a sentence, and what to do.
    pub fn unusable_because(&self) -> Option<String> {
        let cidr = self.cidr;
        if self.family() == Family::V6 && cidr.prefix_len() < MIN_V6_PREFIX {
            let shortest = MIN_V6_PREFIX;
            return Some(format!("is larger than /{shortest}; use an IPv6 prefix of /{shortest} or longer"));
        }
        if cidr.addr() != cidr.network() {
            return Some(format!("has host bits set; use {}", cidr.trunc()));
        }
        if self.overlaps(&mapped_v4()) {
            return Some("contains IPv4-mapped addresses; use the IPv4 range".to_owned());
        }
        let none = "has no usable address; use a shorter prefix";
        self.usable().is_none().then(|| none.to_owned())
    }
}

/// `::ffff:0:0/96`
fn mapped_v4() -> IpRange {
    IpRange::new(IpNet::new_assert(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(), 96))
}

/// The addresses of a band from `offset` to the end, then from the start. An offset beyond the end counts as zero.
pub fn search_order(first: IpAddr, last: IpAddr, offset: u64) -> impl Iterator<Item = IpAddr> {
    let family = Family::of(first);
    let (low, high) = (number(first), number(last));
    let start = low.checked_add(u128::from(offset)).filter(|start| *start <= high).unwrap_or(low);
    let after = if Family::of(last) == family { Some(start..=high) } else { None };
    after.into_iter().flatten().chain(low..start).map(move |n| address(family, n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cidr: &str) -> IpRange {
        IpRange::new(cidr.parse().unwrap())
    }

    #[test]
    fn the_ends_of_the_number_space_do_not_overflow() {
        for (cidr, capacity) in [
            ("0.0.0.0/32", 0),
            ("255.255.255.255/32", 0),
            ("255.255.255.254/31", 0),
            ("0.0.0.0/0", 4_294_967_294),
            ("::/128", 0),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", 0),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127", 1),
            ("fd00::/64", u64::MAX),
            ("::/0", u64::MAX),
        ] {
            assert_eq!(range(cidr).capacity(), capacity, "{cidr}");
            let bands = (range(cidr).static_band().is_some(), range(cidr).dynamic_band().is_some());
            assert_eq!(bands.1, capacity > 0, "{cidr}");
            assert!(!bands.0 || capacity > 16, "{cidr}");
        }
    }

    // Semantics E1: the static band grows in steps between its two limits.
    #[test]
    fn the_static_band_is_a_sixteenth_within_limits() {
        for (cidr, size) in [
            ("10.0.0.0/28", 0),
            ("10.0.0.0/27", 16),
            ("10.0.0.0/24", 16),
            ("10.0.0.0/23", 32),
            ("10.0.0.0/20", 256),
            ("10.0.0.0/19", 256),
            ("fd00::/124", 0),
            ("fd00::/123", 16),
            ("fd00::/64", 256),
        ] {
            assert_eq!(range(cidr).static_size(), size, "{cidr}");
        }
    }

    #[test]
    fn unusable_ranges_have_a_reason() {
        for (cidr, refused) in [
            ("10.96.0.0/12", false),
            ("0.0.0.0/0", false),
            ("fd00::/64", false),
            ("fd00::/127", false),
            ("fd00::/63", true),
            ("2001:db8::/1", true),
            ("192.168.1.1/24", true),
            ("10.0.0.0/31", true),
            ("10.0.0.0/32", true),
            ("fd00::/128", true),
            ("::ffff:10.0.0.0/112", true),
            ("::/64", true),
        ] {
            assert_eq!(range(cidr).unusable_because().is_some(), refused, "{cidr}");
        }
        assert!(range("192.168.1.1/24").unusable_because().unwrap().ends_with("use 192.168.1.0/24"));
    }

    #[test]
    fn a_band_of_two_families_is_searched_nowhere_beyond_it() {
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(search_order(v4, v6, 0).count(), 0);
        assert_eq!(search_order(v4, v4, u64::MAX).count(), 1);
    }
}
