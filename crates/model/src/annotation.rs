//! The labels, annotations and values that Zoneward reads or writes, spelled once.

/// On an EndpointSlice: the Service that it belongs to.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On an EndpointSlice: who writes it.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The writer that we are. Kubernetes' own controller uses the same name, so that one can take over from the other.
pub const CONTROLLER_NAME: &str = "endpointslice-controller.k8s.io";
/// On an EndpointSlice that we wrote beside those of Kubernetes' own controller: the Service that it belongs to.
/// kube-proxy, DNS and that controller do not see such a slice; our nodes prefer it.
pub const BESIDE_SERVICE_NAME: &str = "zoneward.dev/service-name";
/// The writer of such slices.
pub const BESIDE_CONTROLLER_NAME: &str = "zoneward.dev";
/// The writer of the slices that `zoneward expose` makes. Their endpoints are its own; their hints are the controller's.
pub const EXPOSE_CONTROLLER_NAME: &str = "expose.zoneward.dev";
/// On an EndpointSlice: its Service has no cluster IP.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// On a Service: another service proxy takes care of it.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// On an EndpointSlice: when the change happened that made us write it.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// On a Service: the older of the two annotations that turn Auto on.
pub const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// On a Service: the newer of the two annotations that turn Auto on.
pub const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// On a Service: Balanced, Require or Prefer within the node.
pub const SAME_NODE: &str = "endpointslice.kubernetes.io/same-node";
/// On a Service: Balanced, Require or Prefer within the zone (seed 003).
pub const SAME_ZONE: &str = "endpointslice.kubernetes.io/same-zone";
/// On a Service: Balanced, Require or Prefer within the region.
pub const SAME_REGION: &str = "endpointslice.kubernetes.io/same-region";
/// On a Service: from how many endpoints on Prefer starts.
pub const SAME_ZONE_STARTING_THRESHOLD: &str = "endpointslice.kubernetes.io/same-zone-starting-threshold";
/// On a Service: our own heuristics, as `Spill`.
pub const TRAFFIC_DISTRIBUTION: &str = "zoneward.dev/traffic-distribution";
/// On a Namespace: the traffic distribution of its Services that say none.
pub const DEFAULT_TRAFFIC_DISTRIBUTION: &str = "zoneward.dev/default-traffic-distribution";
/// On an EndpointSlice that we wrote: the mechanism behind its hints.
pub const MECHANISM: &str = "zoneward.dev/mechanism";
/// On an EndpointSlice that we wrote: the default that the mechanism comes from, `namespace` or `controller`. Without it,
/// the Service itself asks for the mechanism.
pub const MECHANISM_SOURCE: &str = "zoneward.dev/mechanism-source";
/// On an EndpointSlice that we wrote: the share of traffic expected from each zone, in 1/256.
pub const DEMAND: &str = "zoneward.dev/demand";
/// On an EndpointSlice that we wrote: the zones of each region, where a region has more zones than hints can name.
pub const REGIONS: &str = "zoneward.dev/regions";

/// On a Lease: which part of Zoneward renews it.
pub const COMPONENT: &str = "zoneward.dev/component";
/// The component that a node proxy is. Its Lease is named `zoneward-node-<node>`.
pub const NODE_PROXY: &str = "node-proxy";
/// What the name of a node proxy's Lease starts with; the node's name follows.
pub const NODE_LEASE_PREFIX: &str = "zoneward-node-";
/// On a node proxy's Lease: the highest resourceVersion of an EndpointSlice that the node has programmed.
pub const PROGRAMMED_REVISION: &str = "zoneward.dev/programmed-revision";
/// On a node proxy's Lease: the Services that could not be programmed, as `namespace/name`, with commas between.
pub const FAILED_SERVICES: &str = "zoneward.dev/failed-services";

/// What the conditions that we write on Services start with.
pub const CONDITION_PREFIX: &str = "zoneward.dev/";

/// On a Node: its zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// On a Node: its region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// On a Node: it runs the control plane.
pub const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// On a Node: the older spelling of the same.
pub const MASTER: &str = "node-role.kubernetes.io/master";
/// A taint: the cluster autoscaler is about to delete the Node.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// On an IPAddress: its family.
pub const IP_FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
/// On an IPAddress: who writes it.
pub const IP_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// The writer of IPAddress objects.
pub const IP_ALLOCATOR: &str = "ipallocator.k8s.io";
/// On a ServiceCIDR: it may not go while addresses depend on it.
pub const SERVICE_CIDR_FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// The annotations of a Service that decide something; no other is kept.
pub const READ_FROM_SERVICES: &[&str] = &[
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    SAME_ZONE_STARTING_THRESHOLD,
    TOPOLOGY_AWARE_HINTS,
    TOPOLOGY_MODE,
    TRAFFIC_DISTRIBUTION,
];

/// The annotations of an EndpointSlice that decide something.
pub const READ_FROM_SLICES: &[&str] = &[TRIGGER_TIME, DEMAND, MECHANISM, MECHANISM_SOURCE, REGIONS];

/// The labels that we set on every slice ourselves: a Service's own value for them never counts.
pub const RESERVED_ON_SLICES: &[&str] = &[MANAGED_BY, SERVICE_NAME, BESIDE_SERVICE_NAME, HEADLESS];
