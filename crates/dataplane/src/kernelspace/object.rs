//! HCN v2 objects (schema version 2.0): the JSON documents that HNS takes and returns. Fields that it adds are ignored.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use model::Family;
use model::hash::{BASIS_64, fnv1a_64};
use model::random::mix;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// `zoneward` in ASCII: how ids of our objects begin.
const OWNER: &str = "7a6f6e65-7761-7264";

/// The id of an object. HNS answers in either case.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String")]
pub struct Guid(String);

impl Guid {
    /// The id of our object with this name: the same after a restart, so that nothing else has to be remembered.
    pub fn ours(name: &str) -> Self {
        Self::named(OWNER, name)
    }

    pub(super) fn named(prefix: &str, name: &str) -> Self {
        let hash = format!("{:016x}", mix(fnv1a_64(BASIS_64, name.as_bytes())));
        let (first, last) = hash.split_at(4);
        Self(format!("{prefix}-{first}-{last}"))
    }

    pub fn is_ours(&self) -> bool {
        self.0.starts_with(OWNER)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Guid {
    fn from(text: String) -> Self {
        Self(text.trim_matches(['{', '}']).to_ascii_lowercase())
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `Flags` of a load balancer.
pub(super) const DSR: u32 = 1;
pub(super) const IPV6: u32 = 2;
/// `Flags` of a port mapping.
pub(super) const LOCAL_ROUTED_VIP: u32 = 2;
pub(super) const VIP_EXTERNAL_IP: u32 = 16;
/// `DistributionType`: by all of the connection, or by the client's address.
pub(super) const BY_CONNECTION: u32 = 0;
pub(super) const BY_CLIENT: u32 = 2;
/// `Flags` of an endpoint that is not on this node.
pub(super) const REMOTE: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SchemaVersion {
    major: u32,
    minor: u32,
}

impl Default for SchemaVersion {
    fn default() -> Self {
        Self { major: 2, minor: 0 }
    }
}

/// One frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoadBalancer {
    #[serde(rename = "ID")]
    pub id: Guid,
    /// Sorted.
    pub host_compute_endpoints: Vec<Guid>,
    #[serde(rename = "SourceVIP", deserialize_with = "address", skip_serializing_if = "Option::is_none")]
    pub source_vip: Option<IpAddr>,
    /// Empty for a node port: every address of the node.
    #[serde(rename = "FrontendVIPs")]
    pub frontend_vips: Vec<IpAddr>,
    /// One.
    pub port_mappings: Vec<PortMapping>,
    pub schema_version: SchemaVersion,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PortMapping {
    /// 6, 17 or 132.
    pub protocol: u32,
    /// The port of the endpoints.
    pub internal_port: u16,
    pub external_port: u16,
    pub distribution_type: u32,
    pub flags: u32,
}

impl LoadBalancer {
    pub fn family(&self) -> Family {
        if self.flags & IPV6 != 0 { Family::V6 } else { Family::V4 }
    }

    pub fn is_dsr(&self) -> bool {
        self.flags & DSR != 0
    }

    /// Without what HNS is free to answer in another way.
    pub(super) fn normalized(mut self) -> Self {
        self.host_compute_endpoints.sort();
        self.schema_version = SchemaVersion::default();
        self
    }
}

/// An empty text is none.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IpAddr>, D::Error> {
    Ok(String::deserialize(from)?.parse().ok())
}

/// A pod, or another destination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HcnEndpoint {
    #[serde(rename = "ID")]
    pub id: Guid,
    pub host_compute_network: Guid,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<HcnPolicy>,
    pub ip_configurations: Vec<IpConfiguration>,
    pub mac_address: String,
    pub flags: u32,
    pub schema_version: SchemaVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpConfiguration {
    pub ip_address: IpAddr,
}

/// A policy of an endpoint or of a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HcnPolicy {
    #[serde(rename = "Type")]
    pub kind: String,
    pub settings: Value,
}

/// The policy of a remote endpoint in an overlay network: the node that has it.
const PROVIDER_ADDRESS: &str = "ProviderAddress";

impl HcnEndpoint {
    /// An endpoint that the node does not have itself.
    pub(super) fn remote(address: IpAddr, network: &Guid, provider: Option<IpAddr>) -> Self {
        let policy = |provider| HcnPolicy {
            kind: PROVIDER_ADDRESS.to_owned(),
            settings: json!({ "ProviderAddress": provider }),
        };
        Self {
            id: Guid::ours(&format!("endpoint {address}")),
            host_compute_network: network.clone(),
            policies: provider.map(policy).into_iter().collect(),
            ip_configurations: vec![IpConfiguration { ip_address: address }],
            mac_address: mac_address(address),
            flags: REMOTE,
            schema_version: SchemaVersion::default(),
        }
    }

    pub fn is_remote(&self) -> bool {
        self.flags & REMOTE != 0
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ip_configurations.iter().map(|configuration| configuration.ip_address)
    }

    /// The node that has a remote endpoint of an overlay network.
    pub(super) fn provider(&self) -> Option<IpAddr> {
        let policy = self.policies.iter().find(|policy| policy.kind == PROVIDER_ADDRESS)?;
        policy.settings.get("ProviderAddress")?.as_str()?.parse().ok()
    }

    /// Whether HNS holds what it should, whatever policies it added.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let content = |of: &Self| {
            let mac = of.mac_address.to_ascii_lowercase();
            (
                of.host_compute_network.clone(),
                of.ip_configurations.clone(),
                of.provider(),
                mac,
                of.is_remote(),
            )
        };
        content(self) == content(other)
    }
}

/// A locally administered address from the last four bytes of the IP address.
fn mac_address(address: IpAddr) -> String {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => (u128::from(address) as u32).to_be_bytes(),
    };
    format!("02-11-{a:02x}-{b:02x}-{c:02x}-{d:02x}")
}

/// The network of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Network {
    #[serde(rename = "ID")]
    pub id: Guid,
    pub name: String,
    /// `Overlay` or `L2Bridge`.
    #[serde(rename = "Type")]
    pub kind: String,
    pub policies: Vec<HcnPolicy>,
}

/// A range of pods in an overlay network, and the node that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSubnet {
    pub range: IpNet,
    pub provider: IpAddr,
}

const REMOTE_SUBNET_ROUTE: &str = "RemoteSubnetRoute";

impl Network {
    /// An overlay network with these ranges.
    pub fn overlay(name: &str, subnets: &[RemoteSubnet]) -> Self {
        let policy = |subnet: &RemoteSubnet| HcnPolicy {
            kind: REMOTE_SUBNET_ROUTE.to_owned(),
            settings: json!({"DestinationPrefix": subnet.range, "ProviderAddress": subnet.provider}),
        };
        let policies = subnets.iter().map(policy).collect();
        Self { kind: "Overlay".to_owned(), policies, ..Self::l2bridge(name) }
    }

    pub fn l2bridge(name: &str) -> Self {
        let id = Guid::named(FOREIGN, &format!("network {name}"));
        Self { id, name: name.to_owned(), kind: "L2Bridge".to_owned(), policies: Vec::new() }
    }

    pub fn is_overlay(&self) -> bool {
        self.kind.eq_ignore_ascii_case("Overlay")
    }

    pub fn remote_subnets(&self) -> Vec<RemoteSubnet> {
        let routes = self.policies.iter().filter(|policy| policy.kind == REMOTE_SUBNET_ROUTE);
        let text = |settings: &Value, field: &str| settings.get(field)?.as_str().map(str::to_owned);
        let subnet = |policy: &HcnPolicy| {
            Some(RemoteSubnet {
                range: text(&policy.settings, "DestinationPrefix")?.parse().ok()?,
                provider: text(&policy.settings, "ProviderAddress")?.parse().ok()?,
            })
        };
        routes.filter_map(subnet).collect()
    }
}

/// How ids of objects begin that stand for those of other programs.
pub(super) const FOREIGN: &str = "0f0f0f0f-0000-4000";
