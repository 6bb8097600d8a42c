//! Services: every field that decides where traffic goes.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address::{Family, Protocol};
use crate::annotation;
use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::time::Timestamp;
use crate::uid::Uid;

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub key: ServiceKey,
    /// Its identity; missing in files that were never applied.
    pub uid: Option<Uid>,
    /// Labels.
    pub labels: Labels,
    /// The annotations listed in [`annotation::READ_FROM_SERVICES`].
    pub annotations: Labels,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `spec.type`.
    pub kind: ServiceType,
    /// Which pods are its endpoints. `None`: somebody else writes its slices.
    pub selector: Option<Labels>,
    /// The ports.
    pub ports: Box<[ServicePort]>,
    /// Its virtual addresses inside the cluster.
    pub cluster_ips: ClusterIps,
    /// The families that it asks for, the primary one first.
    pub families: Box<[Family]>,
    /// How many families it wants.
    pub family_policy: Option<FamilyPolicy>,
    /// Addresses outside of the cluster's control that lead to its nodes.
    pub external_ips: Box<[IpAddr]>,
    /// What its load balancer reports.
    pub load_balancer: Box<[LoadBalancerIngress]>,
    /// Who may use the load balancer's addresses; empty: everybody.
    pub source_ranges: Box<[IpNet]>,
    /// For traffic to the cluster IP.
    pub internal_policy: TrafficPolicy,
    /// For traffic to every other address.
    pub external_policy: TrafficPolicy,
    /// For how many seconds a client keeps its endpoint.
    pub affinity_seconds: Option<u32>,
    /// Whether pods count as ready whatever they say.
    pub publish_not_ready: bool,
    /// Where load balancers ask whether this node has endpoints.
    pub health_check_node_port: Option<u16>,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Name>,
    /// The conditions that we wrote, as [`condition_text`] puts them, by type.
    pub conditions: Labels,
}

/// A condition as one text, so that two can be compared: its status, reason and message, without its times.
pub fn condition_text(status: &str, reason: &str, message: &str) -> String {
    format!("{status} {reason} {message}")
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    ClusterIp,
    /// And on a port of every node.
    NodePort,
    /// And through a load balancer.
    LoadBalancer,
    /// An alias in DNS; nothing is routed.
    ExternalName,
}

impl ServiceType {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
            Self::ExternalName => "ExternalName",
        }
    }
}

/// `spec.clusterIP` and `spec.clusterIPs` as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterIps {
    /// Nothing given: to be assigned.
    Unset,
    /// Given as "None": a headless Service.
    None,
    /// One address, or one of each family.
    Addresses(Box<[IpAddr]>),
}

impl ClusterIps {
    /// The addresses, if there are any.
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
    /// One family.
    SingleStack,
    /// Two where the cluster has two.
    PreferDualStack,
    /// Two, or it fails.
    RequireDualStack,
}

impl FamilyPolicy {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, empty where there is only one port.
    pub name: Name,
    /// The protocol.
    pub protocol: Protocol,
    /// The number on the Service's addresses.
    pub port: u16,
    /// The number on the endpoints.
    pub target: TargetPort,
    /// The number on the nodes' addresses.
    pub node_port: Option<u16>,
    /// What is spoken on it.
    pub app_protocol: Option<Name>,
}

/// `targetPort`: a number, or a name that each pod resolves for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// The same number on each endpoint.
    Number(u16),
    /// The container port of that name.
    Name(Name),
}

/// `Cluster` or `Local`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Every endpoint.
    #[default]
    Cluster,
    /// The endpoints of this node.
    Local,
}

/// One address that the load balancer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBalancerIngress {
    /// The address.
    pub ip: IpAddr,
    /// Whether packets arrive at the node with that address still in them (`ipMode: VIP`, the default).
    pub is_vip: bool,
}

impl Service {
    /// One of the annotations that we read.
    pub fn annotation(&self, key: &str) -> Option<&Name> {
        self.annotations.value(key)
    }

    /// Whether slices of it carry the headless label: no cluster IP, or not one yet.
    pub fn is_headless(&self) -> bool {
        self.cluster_ips.addresses().is_empty()
    }

    /// Its virtual address of a family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips.addresses().iter().copied().find(|ip| Family::of(*ip) == family)
    }

    /// The load balancer's addresses of a family that the node has to answer for.
    pub fn load_balancer_vips(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        self.load_balancer.iter().filter(move |i| i.is_vip && Family::of(i.ip) == family).map(|i| i.ip)
    }

    /// The external addresses of a family.
    pub fn external_ips(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        self.external_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Whether another service proxy takes care of it.
    pub fn is_for_another_proxy(&self) -> bool {
        self.labels.has(annotation::SERVICE_PROXY_NAME)
    }
}
