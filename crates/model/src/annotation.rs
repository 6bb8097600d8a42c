//! Keys and values of the labels, annotations, taints and finalizers that Zoneward reads or writes.

/// On an EndpointSlice: its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// On an EndpointSlice: the controller that manages it.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY`], the same as upstream's, so that each controller can take over from the other.
pub const CONTROLLER_NAME: &str = "endpointslice-controller.k8s.io";
/// On an EndpointSlice of `--coexist`: its Service. kube-proxy, DNS and upstream's controller ignore such a slice; our
/// nodes prefer it.
pub const COEXIST_SERVICE_NAME: &str = "zoneward.dev/service-name";
/// [`MANAGED_BY`] of slices of `--coexist`.
pub const COEXIST_CONTROLLER_NAME: &str = "zoneward.dev";
/// [`MANAGED_BY`] of slices of `zoneward expose`, which writes their endpoints; the controller writes their hints.
pub const EXPOSE_CONTROLLER_NAME: &str = "expose.zoneward.dev";
/// On an EndpointSlice of `zoneward expose` on a joined machine: its node, which alone replaces the slice.
pub const EXPOSE_NODE: &str = "zoneward.dev/expose-node";
/// On an EndpointSlice of `zoneward expose`: how its endpoints are checked, as a Probe of Kubernetes in JSON.
pub const HEALTH_CHECK: &str = "zoneward.dev/health-check";
/// On the same slice: why endpoints are not ready, as a JSON object by address.
pub const NOT_READY: &str = "zoneward.dev/not-ready";
/// On an EndpointSlice with `--subset-slices`: the only zone whose nodes need it. Nodes with `--watch-own-zone` watch those
/// of their zone and those without the label. KEP-2030 called it `endpointslice.kubernetes.io/for-zone`.
pub const FOR_ZONE: &str = "zoneward.dev/for-zone";
/// On an EndpointSlice of a headless Service.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// On a Service that another service proxy implements.
pub const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// On an EndpointSlice: the time of the change that caused its last write.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// On a Service: enables Auto (older name).
pub const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
/// On a Service: enables Auto.
pub const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// On a Service: Balanced, Require or Prefer within the node.
pub const SAME_NODE: &str = "endpointslice.kubernetes.io/same-node";
/// On a Service: Balanced, Require or Prefer within the zone (seed 003).
pub const SAME_ZONE: &str = "endpointslice.kubernetes.io/same-zone";
/// On a Service: Balanced, Require or Prefer within the region.
pub const SAME_REGION: &str = "endpointslice.kubernetes.io/same-region";
/// On a Service: minimum number of endpoints for Prefer.
pub const SAME_ZONE_STARTING_THRESHOLD: &str = "endpointslice.kubernetes.io/same-zone-starting-threshold";
/// On a Service: a traffic distribution of Zoneward, e.g. `Spill`.
pub const TRAFFIC_DISTRIBUTION: &str = "zoneward.dev/traffic-distribution";
/// On a Service: the PROXY protocol header that its endpoints expect from L7 proxies, `v1` or `v2`.
pub const PROXY_PROTOCOL: &str = "zoneward.dev/proxy-protocol";
/// On a Namespace: the default traffic distribution of its Services.
pub const DEFAULT_TRAFFIC_DISTRIBUTION: &str = "zoneward.dev/default-traffic-distribution";
/// On an EndpointSlice that we wrote: the mechanism behind its hints.
pub const MECHANISM: &str = "zoneward.dev/mechanism";
/// On an EndpointSlice that we wrote: `namespace` or `controller` if the mechanism is a default; absent if the Service
/// requests it.
pub const MECHANISM_SOURCE: &str = "zoneward.dev/mechanism-source";
/// On an EndpointSlice that we wrote: expected traffic share of each zone, in 1/256.
pub const DEMAND: &str = "zoneward.dev/demand";
/// On an EndpointSlice that we wrote: how far above its fair share an endpoint may be loaded, and for how many endpoints
/// that holds. It is there if the demand is measured.
pub const KEEP: &str = "zoneward.dev/keep";
/// On an EndpointSlice that we wrote: the load that the endpoints of the Service have carried, and when.
pub const PROVED: &str = "zoneward.dev/proved";
/// On a Service with Spill: where its demand comes from, instead of the controller's `--spill-demand`.
pub const SPILL_DEMAND: &str = "zoneward.dev/spill-demand";
/// On a Pod: how much its endpoints can carry, compared with others of the Service; 1 without it. On an EndpointSlice that
/// we wrote: those that differ from 1, as `ADDRESS=CAPACITY`, comma-separated.
pub const CAPACITY: &str = "zoneward.dev/capacity";
/// On a Service: how long a new endpoint takes to its full share of the traffic.
pub const SLOW_START: &str = "zoneward.dev/slow-start";
/// On an EndpointSlice that we wrote: since when new endpoints warm up, as `60s ADDRESS=SECONDS,...`.
pub const WARMING: &str = "zoneward.dev/warming";
/// On an EndpointSlice that we wrote: zones that are drained, as `ZONE=PERCENT%@START+SECONDS..END`, comma-separated.
pub const DRAIN: &str = "zoneward.dev/drain";
/// On an EndpointSlice that we wrote: the zones of each region, if a region has more zones than hints allow.
pub const REGIONS: &str = "zoneward.dev/regions";

/// On a Lease: the component of Zoneward that renews it.
pub const COMPONENT: &str = "zoneward.dev/component";
/// [`COMPONENT`] of a node proxy.
pub const NODE_PROXY: &str = "node-proxy";
/// The Lease of a node proxy is named `zoneward-node-<node>`.
pub const NODE_LEASE_PREFIX: &str = "zoneward-node-";
/// On a node proxy's Lease: the highest resourceVersion of an EndpointSlice that the node has programmed.
pub const PROGRAMMED_REVISION: &str = "zoneward.dev/programmed-revision";
/// On a node proxy's Lease: the zone of `--watch-own-zone`, whose slices it watches beside those without a zone.
pub const WATCHED_ZONE: &str = "zoneward.dev/watched-zone";
/// On a node proxy's Lease: the Services that failed to be programmed, as comma-separated `namespace/name`.
pub const FAILED_SERVICES: &str = "zoneward.dev/failed-services";
/// On a node's Lease: how long changes took from a pod to the kernel, as counts by bucket.
pub const CONVERGENCE: &str = "zoneward.dev/convergence";
/// On a node's Lease: how often tables were restored that others had modified.
pub const REPAIRS: &str = "zoneward.dev/repairs";
/// On a node's Lease: overflows of conntrack events.
pub const LOST_EVENTS: &str = "zoneward.dev/lost-events";
/// On a node's Lease: the last time that it served without the API, as the age of its objects in seconds, the end of the
/// outage in seconds since 1970, and `file` or `memory`.
pub const LAST_OUTAGE: &str = "zoneward.dev/last-outage";
/// On the leader's Lease: the address of its status listener; on a node's Lease, of its metrics server.
pub const STATUS_ADDRESS: &str = "zoneward.dev/status-address";
/// On the leader's Lease: where nodes report their traffic, `https://HOST:PORT#sha256:HEX` with the digest of the
/// certificate, or `unix:PATH`.
pub const LEDGER_ADDRESS: &str = "zoneward.dev/ledger-address";

/// Prefix of the condition types that we write on Services.
pub const CONDITION_PREFIX: &str = "zoneward.dev/";

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
/// On a control-plane Node.
pub const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Older name of [`CONTROL_PLANE`].
pub const MASTER: &str = "node-role.kubernetes.io/master";
/// Taint of Nodes that the cluster autoscaler is about to delete.
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

pub const IP_FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
pub const IP_MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Our value of [`IP_MANAGED_BY`].
pub const IP_ALLOCATOR: &str = "ipallocator.k8s.io";
/// Finalizer of a ServiceCIDR while addresses depend on it.
pub const SERVICE_CIDR_FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// The annotations of a Service that are parsed.
pub const READ_FROM_SERVICES: &[&str] = &[
    PROXY_PROTOCOL,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    SAME_ZONE_STARTING_THRESHOLD,
    SLOW_START,
    SPILL_DEMAND,
    TOPOLOGY_AWARE_HINTS,
    TOPOLOGY_MODE,
    TRAFFIC_DISTRIBUTION,
];

/// The annotations of an EndpointSlice that are parsed.
pub const READ_FROM_SLICES: &[&str] =
    &[TRIGGER_TIME, CAPACITY, DEMAND, DRAIN, KEEP, MECHANISM, MECHANISM_SOURCE, PROVED, REGIONS, WARMING];

/// Labels of a slice that are not copied from its Service.
pub const RESERVED_ON_SLICES: &[&str] = &[MANAGED_BY, SERVICE_NAME, COEXIST_SERVICE_NAME, FOR_ZONE, HEADLESS];
