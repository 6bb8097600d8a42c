//! Flags about the Gateway API: `plan status`, and which schemas count.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use ipnet::IpNet;
use plan::gateway_api::{MachineAddresses, UnboundPort};
use store::kinds::{GatewayApiChannel, set_gateway_api_channel};

use super::{InputArgs, OutputArgs, Up};

/// `zoneward plan status`
#[derive(Debug, Args)]
pub struct PlanStatus {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Address that a Gateway may have; the first is that of Gateways without spec.addresses; repeatable
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub gateway_address: Vec<IpAddr>,
    /// Controller whose GatewayClasses count
    #[arg(long, value_name = "NAME", default_value = model::gateway_api::CONTROLLER)]
    pub controller_name: String,
    /// Plan as if proxies could not bind this port of a gateway; repeatable
    #[arg(long, value_name = "NAMESPACE/GATEWAY:PORT[/udp]", value_parser = unbound_port)]
    pub unbound_port: Vec<UnboundPort>,
}

fn unbound_port(text: &str) -> Result<UnboundPort, String> {
    let wrong =
        || format!("{text:?}: expected NAMESPACE/GATEWAY:PORT, such as shop/edge:80 or dns/edge:53/udp");
    let (namespace, rest) = text.split_once('/').ok_or_else(wrong)?;
    let (gateway, port) = rest.split_once(':').ok_or_else(wrong)?;
    let (port, is_udp) = match port.split_once('/') {
        None => (port, false),
        Some((port, "udp")) => (port, true),
        Some(_) => return Err(wrong()),
    };
    let port = port.parse().map_err(|_| wrong())?;
    if namespace.is_empty() || gateway.is_empty() {
        return Err(wrong());
    }
    Ok(UnboundPort {
        namespace: namespace.to_owned(),
        gateway: gateway.to_owned(),
        is_udp,
        address: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
        listener_port: None,
        envoy: String::new(),
        node: String::new(),
        error: "as --unbound-port says".to_owned(),
    })
}

/// Addresses of Gateways: one, or a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayAddressRange(Vec<IpAddr>);

impl FromStr for GatewayAddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 256;
        let wrong = || format!("{text:?} is neither an IP address nor a range, such as 127.0.0.16/28");
        if let Ok(ip) = text.parse::<IpAddr>() {
            return if ip.is_unspecified() { Err(wrong()) } else { Ok(Self(vec![ip])) };
        }
        let range: IpNet = text.parse().map_err(|_| wrong())?;
        let all: Vec<IpAddr> = range.hosts().take(MOST + 1).collect();
        if all.len() > MOST {
            return Err(format!("{text} has more than {MOST} addresses"));
        }
        Ok(Self(all))
    }
}

impl Up {
    /// The addresses of Gateways on this machine; without L7 proxies, those that the flags name.
    pub fn machine_addresses(&self) -> MachineAddresses {
        match self.no_mesh {
            true => MachineAddresses { usable: named(&self.gateway_address), mesh: Vec::new() },
            false => gateway_addresses(&self.gateway_address, &self.mesh_bind),
        }
    }
}

fn named(ranges: &[GatewayAddressRange]) -> Vec<IpAddr> {
    ranges.iter().flat_map(|range| range.0.iter().copied()).collect()
}

/// The addresses of Gateways on a machine, of `--gateway-address` and `--mesh-bind`.
pub fn gateway_addresses(ranges: &[GatewayAddressRange], mesh: &[IpAddr]) -> MachineAddresses {
    let mut usable = named(ranges);
    if usable.is_empty() {
        usable.extend(mesh.iter().filter(|ip| !ip.is_unspecified()));
    }
    if usable.is_empty() {
        usable.push(own_address());
    }
    MachineAddresses { usable, mesh: mesh.to_vec() }
}

/// The address that this machine reaches others from; loopback if it has none.
fn own_address() -> IpAddr {
    // Connecting a UDP socket sends nothing: the kernel only chooses a route.
    let found = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    found.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GatewayApiSchemas {
    /// Stable fields
    Standard,
    /// Experimental fields of Gateway, HTTPRoute and GRPCRoute, too
    Experimental,
}

impl GatewayApiSchemas {
    /// Sets the channel of this process.
    pub fn apply(self) {
        set_gateway_api_channel(match self {
            Self::Standard => GatewayApiChannel::Standard,
            Self::Experimental => GatewayApiChannel::Experimental,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbound_ports_are_read_and_mistakes_show_the_right_form() {
        let read = unbound_port("shop/edge:80").unwrap();
        assert_eq!(
            (read.key().to_string(), read.address.port(), read.is_udp),
            ("shop/edge".to_owned(), 80, false)
        );
        assert!(unbound_port("dns/edge:53/udp").unwrap().is_udp);
        for wrong in ["edge:80", "shop/edge", "shop/:80", "/edge:80", "shop/edge:x", "shop/edge:80/sctp"] {
            let error = unbound_port(wrong).unwrap_err();
            assert!(error.contains(wrong) && error.contains("NAMESPACE/GATEWAY:PORT"), "{error}");
        }
    }
}
