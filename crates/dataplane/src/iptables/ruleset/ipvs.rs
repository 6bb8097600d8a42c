//! IPVS virtual servers beside a rule set, as kube-proxy's mode ipvs uses them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::IptablesError;
use super::parse::words;

/// Virtual servers by IP protocol number and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsServers(pub BTreeMap<(u8, SocketAddr), IpvsVirtualServer>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpvsVirtualServer {
    /// Such as `rr`.
    pub scheduler: String,
    /// The timeout of persistence in seconds.
    pub persistence: Option<u32>,
    pub destinations: Vec<IpvsDestination>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsDestination {
    pub address: SocketAddr,
    /// 0 for one that gets no new connections.
    pub weight: u32,
}

impl IpvsServers {
    /// Parses the output of `ipvsadm -Sn`. Virtual servers of firewall marks are left out: a packet has no mark of IPVS.
    pub fn parse(text: &str) -> Result<Self, IptablesError> {
        let mut servers = BTreeMap::<_, IpvsVirtualServer>::new();
        for (index, line) in text.lines().enumerate() {
            let words = words(line).map_err(|error| error.at(index + 1))?;
            if words.is_empty() || words.iter().any(|word| word == "-f" || word == "--fwmark-service") {
                continue;
            }
            let parsed = parse_line(&words)
                .ok_or_else(|| IptablesError::new(format!("unknown line {line:?}")).at(index + 1))?;
            let server = servers.entry(parsed.server).or_default();
            match parsed.destination {
                Some(destination) => server.destinations.push(destination),
                None => {
                    server.scheduler = parsed.scheduler;
                    server.persistence = parsed.persistence;
                }
            }
        }
        Ok(Self(servers))
    }
}

impl IpvsVirtualServer {
    /// The share of new connections that each destination gets.
    pub fn shares(&self) -> Vec<(SocketAddr, f64)> {
        let is_weighted = matches!(self.scheduler.as_str(), "wrr" | "wlc" | "sed" | "nq" | "sh" | "mh");
        let weight = |of: &IpvsDestination| match (is_weighted, of.weight) {
            (_, 0) => 0.0,
            (true, weight) => f64::from(weight),
            (false, _) => 1.0,
        };
        let total: f64 = self.destinations.iter().map(weight).sum();
        let used = self.destinations.iter().filter(|of| of.weight > 0);
        used.map(|of| (of.address, weight(of) / total)).collect()
    }
}

struct Line {
    server: (u8, SocketAddr),
    scheduler: String,
    persistence: Option<u32>,
    destination: Option<IpvsDestination>,
}

/// `-A -t 10.0.0.1:80 -s rr -p 10800`, or `-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1`.
fn parse_line(words: &[String]) -> Option<Line> {
    let mut rest = words.iter();
    let is_destination = match rest.next()?.as_str() {
        "-A" | "--add-service" => false,
        "-a" | "--add-server" => true,
        _ => return None,
    };
    let (mut server, mut scheduler, mut persistence) = (None, String::from("wlc"), None);
    let (mut address, mut weight) = (None, 1);
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-t" | "--tcp-service" => server = Some((6, rest.next()?.parse().ok()?)),
            "-u" | "--udp-service" => server = Some((17, rest.next()?.parse().ok()?)),
            "--sctp-service" => server = Some((132, rest.next()?.parse().ok()?)),
            "-s" | "--scheduler" => scheduler.clone_from(rest.next()?),
            "-p" | "--persistent" => persistence = Some(rest.next()?.parse().ok()?),
            "-r" | "--real-server" => address = Some(rest.next()?.parse().ok()?),
            "-w" | "--weight" => weight = rest.next()?.parse().ok()?,
            // Forwarding methods.
            "-m" | "-g" | "-i" | "-o" | "--ops" => {}
            // An option with one argument that does not change where packets go.
            _ => drop(rest.next()?),
        }
    }
    let destination = match is_destination {
        true => Some(IpvsDestination { address: address?, weight }),
        false => None,
    };
    Some(Line { server: server?, scheduler, persistence, destination })
}
