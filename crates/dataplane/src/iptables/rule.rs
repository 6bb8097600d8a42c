//! One rule, written as iptables-save prints it, so that rules of the kernel compare as text.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};

use arcstr::ArcStr;
use ipnet::IpNet;
use model::{Family, Protocol};

use super::names::protocol;

/// Parts of a rule. The text has them in the order of iptables-save: addresses, interface, protocol, matches, target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleText {
    head: Head,
    matches: String,
    target: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Head {
    source: String,
    destination: String,
    interface: String,
    protocol: String,
}

impl RuleText {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn from(mut self, range: impl Into<IpNet>) -> Self {
        self.head.source = format!("-s {} ", range.into());
        self
    }

    pub fn not_from(mut self, range: impl Into<IpNet>) -> Self {
        self.head.source = format!("! -s {} ", range.into());
        self
    }

    pub fn to(mut self, range: impl Into<IpNet>) -> Self {
        self.head.destination = format!("-d {} ", range.into());
        self
    }

    pub fn not_to(mut self, range: impl Into<IpNet>) -> Self {
        self.head.destination = format!("! -d {} ", range.into());
        self
    }

    /// By the incoming interface; `+` at the end is a wildcard.
    pub fn on(mut self, interface: &str) -> Self {
        self.head.interface = format!("-i {interface} ");
        self
    }

    pub fn not_on(mut self, interface: &str) -> Self {
        self.head.interface = format!("! -i {interface} ");
        self
    }

    pub fn protocol(mut self, of: Protocol) -> Self {
        self.head.protocol = format!("-p {} ", protocol(of));
        self
    }

    /// A destination port or `first:last`, after [`Self::comment`] as kube-proxy writes it.
    pub fn port(mut self, of: Protocol, ports: impl fmt::Display) -> Self {
        let name = protocol(of);
        self.matches += &format!("-m {name} --dport {ports} ");
        self.protocol(of)
    }

    pub fn comment(self, text: &str) -> Self {
        let quoted = quoted(text);
        self.matching(format_args!("-m comment --comment {quoted}"))
    }

    pub fn matching(mut self, text: impl fmt::Display) -> Self {
        write!(self.matches, "{text} ").expect("a String takes every text");
        self
    }

    pub fn jump(mut self, target: impl fmt::Display) -> Self {
        self.target = format!("-j {target}");
        self
    }

    pub fn dnat(self, endpoint: SocketAddr) -> Self {
        self.jump(format_args!("DNAT --to-destination {endpoint}"))
    }

    pub fn text(&self) -> ArcStr {
        let Head { source, destination, interface, protocol } = &self.head;
        let text = [source, destination, interface, protocol, &self.matches, &self.target];
        let text: String = text.into_iter().map(String::as_str).collect();
        text.trim_end().into()
    }
}

/// A text as iptables-save prints it. Control characters cannot occur in a line.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' | '\'' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push('?'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A probability with the precision of the kernel, which has 31 bits.
pub fn probability(share: f64) -> String {
    const ONE: f64 = 2_147_483_648.0;
    format!("{:.11}", (share * ONE).round() / ONE)
}

/// The IPv4 loopback addresses.
pub fn loopback_v4() -> IpNet {
    range_of(IpAddr::from([127, 0, 0, 0]), 2)
}

/// The first 4-bit steps of an address as a range.
pub fn range_of(address: IpAddr, nibbles: usize) -> IpNet {
    let length = u8::try_from(4 * nibbles).unwrap_or(u8::MAX);
    let longest = match Family::of(address) {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    IpNet::new(address, length.min(longest)).expect("the length is limited").trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_the_order_of_iptables_save() {
        let rule = RuleText::new()
            .comment("shop/web:http cluster IP")
            .port(Protocol::Tcp, 80)
            .to(IpAddr::from([10, 96, 0, 1]))
            .not_from("10.244.0.0/16".parse::<IpNet>().unwrap())
            .jump("KUBE-MARK-MASQ");
        let wanted = "! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment \"shop/web:http cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ";
        assert_eq!(rule.text(), wanted);
    }

    #[test]
    fn no_name_can_end_a_line() {
        assert_eq!(quoted("a\"b\nCOMMIT\\"), "\"a\\\"b?COMMIT\\\\\"");
        assert_eq!(quoted("plain-1"), "plain-1");
    }

    #[test]
    fn probabilities_have_the_bits_of_the_kernel() {
        assert_eq!(probability(1.0 / 3.0), "0.33333333349");
        assert_eq!(probability(0.1), "0.10000000009");
        assert_eq!(probability(0.5), "0.50000000000");
    }
}
