//! Parses packets: text and JSON.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, anyhow, bail};
use model::address::parse_ip;
use model::forward::FirstPacket;
use model::{Family, Name, Protocol};
use serde::Deserialize;

/// For clap: a malformed packet is a usage error.
pub(crate) fn flag(text: &str) -> Result<FirstPacket, String> {
    one(text).map_err(|error| error.to_string())
}

/// `tcp 10.0.0.2:40000 -> 172.30.0.41:80`, with optional ` iif eth0`.
fn one(text: &str) -> Result<FirstPacket> {
    let advice = || anyhow!("{text:?}: expected 'tcp 10.0.0.2:40000 -> 172.30.0.41:80 [iif eth0]'");
    let words: Vec<&str> = text.split_whitespace().collect();
    let (proto, src, dst, iif) = match words[..] {
        [proto, src, "->", dst] => (proto, src, dst, None),
        [proto, src, "->", dst, "iif", iif] => (proto, src, dst, Some(iif)),
        _ => return Err(advice()),
    };
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|_| advice());
    packet(proto, address(src)?, address(dst)?, iif)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PacketEntry {
    src: String,
    #[serde(default = "some_port")]
    sport: u16,
    dst: String,
    dport: u16,
    proto: String,
    iif: Option<String>,
}

/// The source port does not matter.
fn some_port() -> u16 {
    40_000
}

/// A JSON list of `{"src","sport","dst","dport","proto","iif"}`.
pub(super) fn list(text: &str) -> Result<Vec<FirstPacket>> {
    let rows: Vec<PacketEntry> = serde_json::from_str(text).context(
        "expected a JSON list of {\"src\",\"sport\",\"dst\",\"dport\",\"proto\"}, each with an optional \"iif\"",
    )?;
    rows.iter().enumerate().map(|(i, row)| row.packet().with_context(|| format!("packet {i}"))).collect()
}

impl PacketEntry {
    fn packet(&self) -> Result<FirstPacket> {
        let address = |text: &str| -> Result<IpAddr> {
            parse_ip(text).ok_or_else(|| anyhow!("{text:?} is not an IP address"))
        };
        let src = SocketAddr::new(address(&self.src)?, self.sport);
        let dst = SocketAddr::new(address(&self.dst)?, self.dport);
        packet(&self.proto, src, dst, self.iif.as_deref())
    }
}

fn packet(proto: &str, src: SocketAddr, dst: SocketAddr, iif: Option<&str>) -> Result<FirstPacket> {
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let Some(protocol) = known.into_iter().find(|p| p.as_str().eq_ignore_ascii_case(proto)) else {
        bail!("{proto:?}: expected tcp, udp or sctp");
    };
    if Family::of(src.ip()) != Family::of(dst.ip()) {
        bail!("{src} and {dst} have different address families");
    }
    Ok(FirstPacket { src, dst, protocol, iif: iif.map(Name::new) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_as_people_write_them() {
        let packet = one("tcp 10.0.0.2:40000 -> 172.30.0.41:80").unwrap();
        assert_eq!((packet.dst.port(), packet.protocol, packet.iif), (80, Protocol::Tcp, None));
        let packet = one("UDP [fd00::2]:1 -> [fd00::3]:53 iif cni0").unwrap();
        assert_eq!((packet.protocol, packet.iif), (Protocol::Udp, Some(Name::new("cni0"))));
        for wrong in [
            "",
            "tcp 10.0.0.2 -> 10.0.0.3:80",
            "icmp 10.0.0.2:1 -> 10.0.0.3:80",
            "tcp [::1]:1 -> 10.0.0.3:80",
        ] {
            assert!(one(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn packets_are_read_from_a_list() {
        let packets =
            list(r#"[{"src": "10.0.0.2", "dst": "10.0.0.3", "dport": 80, "proto": "TCP"}]"#).unwrap();
        assert_eq!(packets[0].src.to_string(), "10.0.0.2:40000");
        let wrong = list(r#"[{"src": "10.0.0.2", "dst": "x", "dport": 80, "proto": "TCP"}]"#).unwrap_err();
        assert_eq!(format!("{wrong:#}"), "packet 0: \"x\" is not an IP address");
    }
}
