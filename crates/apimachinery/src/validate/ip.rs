//! IP addresses and CIDRs in canonical form.
//!
//! Parsers disagree about `010.0.0.1` (10.0.0.1 or 8.0.0.1) and `::ffff:10.0.0.1` (IPv4 or IPv6). A new object must not
//! contain such values (semantics E2).

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use model::Family;
use model::address::{parse_ip, unreachable_range};

use model::field::{Field, FieldErrors, quoted};

/// An address in canonical form.
pub(super) fn canonical(text: &str) -> Result<IpAddr, String> {
    let Some(address) = parse_ip(text) else {
        return Err(format!("{} is not an IP address, e.g. 10.0.0.1 or 2001:db8::1", quoted(text)));
    };
    let right = address.to_string();
    if right == text {
        Ok(address)
    } else {
        Err(format!("{} is not in canonical form: use {right}", quoted(text)))
    }
}

pub(super) fn address(field: &Field, errors: &mut FieldErrors) -> Option<IpAddr> {
    match canonical(field.string(errors)?) {
        Ok(address) => Some(address),
        Err(reason) => {
            errors.invalid(field, reason);
            None
        }
    }
}

/// Reports an address that other nodes cannot reach.
pub(super) fn reachable(address: IpAddr, field: &Field, errors: &mut FieldErrors) {
    if let Some(range) = unreachable_range(address) {
        errors.invalid(field, format!("{address} is {range}: use an address that other nodes can reach"));
    }
}

/// A CIDR in canonical form.
pub(super) fn canonical_cidr(text: &str) -> Result<IpNet, String> {
    let wrong = || format!("{} is not a CIDR, e.g. 10.96.0.0/16 or fd00:10:96::/112", quoted(text));
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let ip = parse_ip(address).ok_or_else(wrong)?;
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    let mut prefix: u8 = length.parse().ok().filter(|_| digits).ok_or_else(wrong)?;
    // The prefix of an IPv4-mapped IPv6 CIDR counts 96 bits more.
    if ip.is_ipv4() && address.parse::<Ipv6Addr>().is_ok() {
        prefix = prefix.checked_sub(96).ok_or_else(wrong)?;
    }
    let range = IpNet::new(ip, prefix).map_err(|_| wrong())?;
    let right = range.trunc();
    if right.addr() != ip {
        return Err(format!("{} has host bits set: use {right}", quoted(text)));
    }
    if right.to_string() == text {
        Ok(right)
    } else {
        Err(format!("{} is not in canonical form: use {right}", quoted(text)))
    }
}

/// Reports a second entry of the same IP family.
pub(super) fn one_per_family(list: &Field, families: &[Family], what: &str, errors: &mut FieldErrors) {
    if families.len() > 2 || matches!(families, [a, b] if a == b) {
        errors.invalid(list, format!("at most one {what} of each IP family is allowed"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_canonical() {
        for good in ["10.0.0.1", "2001:db8::1", "::1", "fd00::1:0:0:1", "0.0.0.0"] {
            assert_eq!(canonical(good).map(|a| a.to_string()).as_deref(), Ok(good));
        }
        for (bad, shown) in [
            ("010.0.0.1", "use 10.0.0.1"),
            ("::ffff:10.0.0.1", "use 10.0.0.1"),
            ("2001:DB8::1", "use 2001:db8::1"),
            ("2001:db8:0:0:0:0:0:1", "use 2001:db8::1"),
            ("10.0.0", "is not an IP address"),
            ("10.0.0.1/32", "is not an IP address"),
            (" 10.0.0.1", "is not an IP address"),
            ("fe80::1%eth0", "is not an IP address"),
            ("", "is not an IP address"),
        ] {
            let reason = canonical(bad).unwrap_err();
            assert!(reason.contains(shown), "{bad}: {reason}");
        }
    }

    #[test]
    fn cidrs_are_canonical() {
        for good in ["10.96.0.0/16", "0.0.0.0/0", "10.0.0.1/32", "fd00::/64", "::/0", "2001:db8::1/128"] {
            assert_eq!(canonical_cidr(good).map(|r| r.to_string()).as_deref(), Ok(good));
        }
        for (bad, shown) in [
            ("10.96.0.1/16", "has host bits set: use 10.96.0.0/16"),
            ("010.96.0.0/16", "use 10.96.0.0/16"),
            ("10.96.0.0/016", "use 10.96.0.0/16"),
            ("::ffff:10.96.0.0/112", "use 10.96.0.0/16"),
            ("FD00::/64", "use fd00::/64"),
            ("::ffff:10.96.0.0/12", "is not a CIDR"),
            ("10.96.0.0", "is not a CIDR"),
            ("10.96.0.0/33", "is not a CIDR"),
            ("10.96.0.0/+8", "is not a CIDR"),
            ("10.96.0.0/", "is not a CIDR"),
            ("fd00::/129", "is not a CIDR"),
            ("fd00::/1000", "is not a CIDR"),
            ("not-a-cidr", "is not a CIDR"),
        ] {
            let reason = canonical_cidr(bad).unwrap_err();
            assert!(reason.contains(shown), "{bad}: {reason}");
        }
    }
}
