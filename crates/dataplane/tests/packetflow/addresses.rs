//! Who is who around the node of the tests, by address.

/// The addresses of the node.
pub(crate) const OWN: [&str; 4] = ["198.51.100.1", "2001:db8:51::1", "198.51.101.1", "2001:db8:52::1"];
/// The pods by number.
pub(crate) const PODS: std::ops::Range<u8> = 1..8;
/// Clients that are neither pods nor the node.
pub(crate) const OUTSIDE: [&str; 5] =
    ["203.0.113.2", "203.0.113.200", "192.0.2.1", "2001:db8:203::2", "2001:db8:204::2"];

/// The address of an endpoint; of those up to 7 there is a pod.
pub(crate) fn endpoint(v6: bool, index: u8) -> String {
    if v6 { format!("fd00:1::{index}") } else { format!("10.1.0.{index}") }
}
