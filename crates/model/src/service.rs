//! Services: the fields that affect where traffic goes.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::{Family, Protocol};
use crate::annotation;
use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::time::Timestamp;
use crate::uid::Uid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub key: ServiceKey,
    /// Absent in manifests that were never applied.
    pub uid: Option<Uid>,
    pub labels: Labels,
    /// Only those in [`annotation::READ_FROM_SERVICES`].
    pub annotations: Labels,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    /// `spec.type`.
    pub kind: ServiceType,
    /// `None`: another controller writes its slices.
    pub selector: Option<Labels>,
    pub ports: Box<[ServicePort]>,
    pub cluster_ips: ClusterIps,
    /// `spec.externalName`.
    pub external_name: Option<Name>,
    /// `spec.ipFamilies`, primary first.
    pub families: Box<[Family]>,
    pub family_policy: Option<FamilyPolicy>,
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress`.
    pub load_balancer: Box<[LoadBalancerIngress]>,
    /// `spec.loadBalancerSourceRanges`; empty: no restriction.
    pub source_ranges: Box<[IpNet]>,
    /// For traffic to cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// For traffic to all other addresses.
    pub external_policy: TrafficPolicy,
    /// Timeout of session affinity; `None`: disabled.
    pub affinity_seconds: Option<u32>,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready: bool,
    pub health_check_node_port: Option<u16>,
    pub traffic_distribution: Option<Name>,
    /// Conditions that we wrote, as [`condition_text`], by type.
    pub conditions: Labels,
}

/// Status, reason and message of a condition, without times, for comparison.
pub fn condition_text(status: &str, reason: &str, message: &str) -> String {
    format!("{status} {reason} {message}")
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

impl ServiceType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalName => "ExternalName",
        }
    }
}

/// `spec.clusterIP` and `spec.clusterIPs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterIps {
    /// To be allocated.
    Unset,
    /// "None": a headless Service.
    None,
    /// One address, or one of each IP family.
    Addresses(Box<[IpAddr]>),
}

impl ClusterIps {
    pub fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Addresses(addresses) => addresses,
            Self::Unset | Self::None => &[],
        }
    }
}

/// `spec.ipFamilyPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyPolicy {
    SingleStack,
    PreferDualStack,
    RequireDualStack,
}

impl FamilyPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// May be empty if there is only one port.
    pub name: Name,
    pub protocol: Protocol,
    pub port: u16,
    pub target: TargetPort,
    pub node_port: Option<u16>,
    pub app_protocol: Option<Name>,
}

/// `targetPort`: a number, or a name that is resolved per pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    Number(u16),
    Name(Name),
}

/// `Cluster` or `Local`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// All endpoints.
    #[default]
    Cluster,
    /// Endpoints on the same node.
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBalancerIngress {
    pub ip: IpAddr,
    /// `ipMode: VIP`, the default: packets arrive at the node with this destination address.
    pub is_vip: bool,
}

impl Service {
    pub fn annotation(&self, key: &str) -> Option<&Name> {
        self.annotations.value(key)
    }

    /// Whether its slices have the headless label: no cluster IP, or none yet.
    pub fn is_headless(&self) -> bool {
        self.cluster_ips.addresses().is_empty()
    }

    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips.addresses().iter().copied().find(|ip| Family::of(*ip) == family)
    }

    /// Load balancer addresses with `ipMode: VIP`, which the node has to serve.
    pub fn load_balancer_vips(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        self.load_balancer.iter().filter(move |i| i.is_vip && Family::of(i.ip) == family).map(|i| i.ip)
    }

    pub fn external_ips(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        self.external_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Whether another service proxy implements it.
    pub fn is_for_another_proxy(&self) -> bool {
        self.labels.has(annotation::SERVICE_PROXY_NAME)
    }
}
