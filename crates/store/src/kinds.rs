//! The table of served kinds: names, verbs, print columns and schema of each. Reads, writes, discovery, OpenAPI and
//! tables are generic over it; allocation for Services is in `admission`.

mod crd_columns;
mod crds;
mod event_conversion;
mod gateway_api_channel;
mod print_cells;
mod print_columns;
mod request_bodies;

use std::borrow::Cow;

use serde_json::Value;

use crate::engine::ResourceId;

pub(crate) use crd_columns::cell as printed_cell;
pub use gateway_api_channel::{GatewayApiChannel, set_gateway_api_channel};
pub(crate) use print_cells::since;
use print_columns::{
    CONFIG_MAP, ENDPOINT_SLICE, EVENT, IP_ADDRESS, LEASE, NAMESPACE, NODE, OTHER, POD, POLICY,
    POLICY_BINDING, ROLE, ROLE_BINDING, SECRET, SERVICE, SERVICE_ACCOUNT, SERVICE_CIDR,
};
pub(crate) use print_columns::{Cell, Column};
pub(crate) use request_bodies::{BINDING, EVICTION, TOKEN_REQUEST};

/// A served kind.
#[derive(Debug)]
pub struct ResourceKind {
    /// The number on disk, never reused; 0 for kinds that are not stored. A converted kind has the number of the stored
    /// kind.
    pub id: u16,
    /// The API group, empty for core.
    pub group: &'static str,
    /// The version, as `v1`.
    pub version: &'static str,
    /// The kind, as `Service`.
    pub kind: &'static str,
    /// The name in paths, as `services`.
    pub plural: &'static str,
    pub singular: &'static str,
    pub short: &'static [&'static str],
    /// Such as `all`.
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    /// Whether it has the subresource `status`.
    pub status: bool,
    /// Whether it has the subresources `binding` and `eviction`.
    pub binds: bool,
    /// Whether it has the subresource `token`.
    pub issues_tokens: bool,
    /// The format of its names.
    pub naming: Naming,
    /// Fields for field selectors, beside name and namespace.
    pub selectable: &'static [&'static str],
    /// The name of its OpenAPI definition.
    pub definition: &'static str,
    /// The schema of a custom resource, with limits and CEL rules; see `schema::of_crd`.
    pub schema: Option<fn() -> &'static Value>,
    /// The print columns, unless `crd_columns` has them.
    columns: &'static [Column],
    /// The print columns of a CustomResourceDefinition.
    crd_columns: Option<fn() -> &'static [Column]>,
    /// Seconds after which its objects expire.
    pub lifetime: Option<u64>,
    /// Whether an update must have a resourceVersion.
    pub needs_version: bool,
    /// The member of the stored object that an update only compares: admission does not read it, and it is owned as a whole.
    pub compared: Option<&'static str>,
    /// Whether an update of a missing object creates it, as in Kubernetes for a few kinds.
    pub update_creates: bool,
    /// Whether a delete returns the object instead of a Status.
    pub returns_deleted: bool,
    pub verbs: &'static [&'static str],
    /// For a converted kind: the name of each field as stored, and in this kind.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// The verbs of stored kinds.
const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of reviews, which are not stored.
const REVIEW: &[&str] = &["create"];

/// The format of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Lower-case letters, digits and dashes.
    Label,
    /// Labels joined by dots.
    Subdomain,
    /// An IP address in its canonical form.
    Address,
}

const BASE: ResourceKind = ResourceKind {
    id: 0,
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short: &[],
    categories: &[],
    namespaced: true,
    status: false,
    binds: false,
    issues_tokens: false,
    naming: Naming::Subdomain,
    selectable: &[],
    definition: "",
    schema: None,
    columns: OTHER,
    crd_columns: None,
    lifetime: None,
    needs_version: false,
    compared: None,
    update_creates: false,
    returns_deleted: false,
    verbs: VERBS,
    renamed: &[],
};

/// An hour, as in kube-apiserver.
const EVENT_LIFETIME: u64 = 3_600;

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

/// All kinds, in the order of discovery.
pub static KINDS: &[ResourceKind] = &[
    ResourceKind {
        id: 1,
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short: &["cm"],
        definition: "io.k8s.api.core.v1.ConfigMap",
        columns: CONFIG_MAP,
        ..BASE
    },
    ResourceKind {
        id: 2,
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        selectable: EVENT_FIELDS,
        definition: "io.k8s.api.core.v1.Event",
        columns: EVENT,
        lifetime: Some(EVENT_LIFETIME),
        update_creates: true,
        ..BASE
    },
    ResourceKind {
        id: 3,
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short: &["ns"],
        namespaced: false,
        status: true,
        naming: Naming::Label,
        selectable: &["status.phase"],
        definition: "io.k8s.api.core.v1.Namespace",
        columns: NAMESPACE,
        ..BASE
    },
    ResourceKind {
        id: 4,
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short: &["no"],
        namespaced: false,
        status: true,
        selectable: &["spec.unschedulable"],
        definition: "io.k8s.api.core.v1.Node",
        columns: NODE,
        ..BASE
    },
    ResourceKind {
        id: 5,
        kind: "Pod",
        plural: "pods",
        singular: "pod",
        short: &["po"],
        categories: &["all"],
        status: true,
        binds: true,
        selectable: POD_FIELDS,
        definition: "io.k8s.api.core.v1.Pod",
        columns: POD,
        returns_deleted: true,
        ..BASE
    },
    ResourceKind {
        id: 6,
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        selectable: &["type"],
        definition: "io.k8s.api.core.v1.Secret",
        columns: SECRET,
        ..BASE
    },
    ResourceKind {
        id: 7,
        kind: "Service",
        plural: "services",
        singular: "service",
        short: &["svc"],
        categories: &["all"],
        status: true,
        naming: Naming::Label,
        selectable: &["spec.clusterIP", "spec.type"],
        definition: "io.k8s.api.core.v1.Service",
        columns: SERVICE,
        update_creates: true,
        returns_deleted: true,
        ..BASE
    },
    ResourceKind {
        id: 50,
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short: &["sa"],
        issues_tokens: true,
        definition: "io.k8s.api.core.v1.ServiceAccount",
        columns: SERVICE_ACCOUNT,
        returns_deleted: true,
        ..BASE
    },
    ResourceKind {
        group: "admissionregistration.k8s.io",
        id: 8,
        kind: "ValidatingAdmissionPolicy",
        plural: "validatingadmissionpolicies",
        singular: "validatingadmissionpolicy",
        categories: &["api-extensions"],
        namespaced: false,
        status: true,
        definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
        columns: POLICY,
        needs_version: true,
        ..BASE
    },
    ResourceKind {
        group: "admissionregistration.k8s.io",
        id: 9,
        kind: "ValidatingAdmissionPolicyBinding",
        plural: "validatingadmissionpolicybindings",
        singular: "validatingadmissionpolicybinding",
        categories: &["api-extensions"],
        namespaced: false,
        definition: "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
        columns: POLICY_BINDING,
        needs_version: true,
        ..BASE
    },
    ResourceKind {
        group: "authentication.k8s.io",
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        namespaced: false,
        definition: "io.k8s.api.authentication.v1.SelfSubjectReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "authentication.k8s.io",
        kind: "TokenReview",
        plural: "tokenreviews",
        singular: "tokenreview",
        namespaced: false,
        definition: "io.k8s.api.authentication.v1.TokenReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "authorization.k8s.io",
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        definition: "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "authorization.k8s.io",
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        namespaced: false,
        definition: "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "authorization.k8s.io",
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        namespaced: false,
        definition: "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "authorization.k8s.io",
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        namespaced: false,
        definition: "io.k8s.api.authorization.v1.SubjectAccessReview",
        verbs: REVIEW,
        ..BASE
    },
    ResourceKind {
        group: "coordination.k8s.io",
        id: 10,
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        definition: "io.k8s.api.coordination.v1.Lease",
        columns: LEASE,
        needs_version: true,
        update_creates: true,
        ..BASE
    },
    ResourceKind {
        group: "discovery.k8s.io",
        id: 11,
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        definition: "io.k8s.api.discovery.v1.EndpointSlice",
        columns: ENDPOINT_SLICE,
        compared: Some("endpoints"),
        ..BASE
    },
    ResourceKind {
        group: "events.k8s.io",
        id: 2,
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        selectable: event_conversion::EVENT_FIELDS,
        definition: "io.k8s.api.events.v1.Event",
        columns: EVENT,
        lifetime: Some(EVENT_LIFETIME),
        update_creates: true,
        renamed: event_conversion::EVENT,
        ..BASE
    },
    ResourceKind {
        group: "networking.k8s.io",
        id: 12,
        kind: "IPAddress",
        plural: "ipaddresses",
        singular: "ipaddress",
        short: &["ip"],
        namespaced: false,
        naming: Naming::Address,
        selectable: &["spec.parentRef.name"],
        definition: "io.k8s.api.networking.v1.IPAddress",
        columns: IP_ADDRESS,
        ..BASE
    },
    ResourceKind {
        group: "networking.k8s.io",
        id: 13,
        kind: "ServiceCIDR",
        plural: "servicecidrs",
        singular: "servicecidr",
        namespaced: false,
        status: true,
        definition: "io.k8s.api.networking.v1.ServiceCIDR",
        columns: SERVICE_CIDR,
        ..BASE
    },
    ResourceKind {
        id: 51,
        kind: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        namespaced: false,
        definition: "io.k8s.api.rbac.v1.ClusterRoleBinding",
        columns: ROLE_BINDING,
        ..RBAC
    },
    ResourceKind {
        id: 52,
        kind: "ClusterRole",
        plural: "clusterroles",
        singular: "clusterrole",
        namespaced: false,
        definition: "io.k8s.api.rbac.v1.ClusterRole",
        columns: ROLE,
        ..RBAC
    },
    ResourceKind {
        id: 53,
        kind: "RoleBinding",
        plural: "rolebindings",
        singular: "rolebinding",
        definition: "io.k8s.api.rbac.v1.RoleBinding",
        columns: ROLE_BINDING,
        ..RBAC
    },
    ResourceKind {
        id: 54,
        kind: "Role",
        plural: "roles",
        singular: "role",
        definition: "io.k8s.api.rbac.v1.Role",
        columns: ROLE,
        ..RBAC
    },
    ResourceKind {
        id: 55,
        kind: "BackendTLSPolicy",
        plural: "backendtlspolicies",
        singular: "backendtlspolicy",
        short: &["btlspolicy"],
        schema: Some(crds::standard_tls_policy::schema),
        crd_columns: Some(crds::standard_tls_policy::columns),
        ..GATEWAY_API
    },
    GATEWAY_CLASS,
    GATEWAY,
    ResourceKind {
        id: 58,
        kind: "GRPCRoute",
        plural: "grpcroutes",
        singular: "grpcroute",
        schema: Some(crds::standard_grpc_route::schema),
        crd_columns: Some(crds::standard_grpc_route::columns),
        ..GATEWAY_API
    },
    HTTP_ROUTE,
    ResourceKind {
        id: 60,
        kind: "ListenerSet",
        plural: "listenersets",
        singular: "listenerset",
        short: &["lset"],
        schema: Some(crds::standard_listener_set::schema),
        crd_columns: Some(crds::standard_listener_set::columns),
        ..GATEWAY_API
    },
    REFERENCE_GRANT,
    ResourceKind {
        id: 62,
        kind: "TCPRoute",
        plural: "tcproutes",
        singular: "tcproute",
        schema: Some(crds::standard_tcp_route::schema),
        crd_columns: Some(crds::standard_tcp_route::columns),
        ..GATEWAY_API
    },
    ResourceKind {
        id: 63,
        kind: "TLSRoute",
        plural: "tlsroutes",
        singular: "tlsroute",
        schema: Some(crds::standard_tls_route::schema),
        crd_columns: Some(crds::standard_tls_route::columns),
        ..GATEWAY_API
    },
    ResourceKind {
        id: 64,
        kind: "UDPRoute",
        plural: "udproutes",
        singular: "udproute",
        schema: Some(crds::standard_udp_route::schema),
        crd_columns: Some(crds::standard_udp_route::columns),
        ..GATEWAY_API
    },
    beta(GATEWAY_CLASS),
    beta(GATEWAY),
    beta(HTTP_ROUTE),
    beta(REFERENCE_GRANT),
    ResourceKind {
        id: 14,
        kind: "MeshGateway",
        plural: "meshgateways",
        singular: "meshgateway",
        short: &["mgw"],
        schema: Some(crds::gateway::schema),
        crd_columns: Some(crds::gateway::columns),
        ..OURS
    },
    ResourceKind {
        id: 15,
        kind: "MeshGatewayHTTPRoute",
        plural: "meshgatewayhttproutes",
        singular: "meshgatewayhttproute",
        short: &["mghr"],
        schema: Some(crds::gateway_http_route::schema),
        crd_columns: Some(crds::gateway_http_route::columns),
        ..OURS
    },
    ResourceKind {
        id: 16,
        kind: "MeshHTTPRoute",
        plural: "meshhttproutes",
        singular: "meshhttproute",
        short: &["mhr"],
        schema: Some(crds::http_route::schema),
        crd_columns: Some(crds::http_route::columns),
        ..OURS
    },
    ResourceKind {
        id: 66,
        kind: "MeshLoadBalancing",
        plural: "meshloadbalancings",
        singular: "meshloadbalancing",
        short: &["mlb"],
        schema: Some(crds::load_balancing::schema),
        crd_columns: Some(crds::load_balancing::columns),
        ..OURS
    },
    ResourceKind {
        id: 67,
        kind: "MeshRouteFilter",
        plural: "meshroutefilters",
        singular: "meshroutefilter",
        short: &["mrf"],
        schema: Some(crds::route_filter::schema),
        crd_columns: Some(crds::route_filter::columns),
        ..OURS
    },
    ResourceKind {
        id: 17,
        kind: "MeshTCPRoute",
        plural: "meshtcproutes",
        singular: "meshtcproute",
        short: &["mtr"],
        schema: Some(crds::tcp_route::schema),
        crd_columns: Some(crds::tcp_route::columns),
        ..OURS
    },
    ResourceKind {
        id: 65,
        kind: "ZoneDrain",
        plural: "zonedrains",
        singular: "zonedrain",
        short: &["zd"],
        namespaced: false,
        schema: Some(crds::zone_drain::schema),
        crd_columns: Some(crds::zone_drain::columns),
        ..OURS
    },
];

/// Custom resources; each has the schema of its CustomResourceDefinition.
const OURS: ResourceKind = ResourceKind {
    group: "zoneward.dev",
    version: "v1alpha1",
    categories: &["zoneward"],
    status: true,
    needs_version: true,
    definition: OPEN_DEFINITION,
    ..BASE
};

/// The Gateway API, with its published schemas and rules.
const GATEWAY_API: ResourceKind = ResourceKind {
    group: "gateway.networking.k8s.io",
    version: "v1",
    categories: &["gateway-api"],
    status: true,
    needs_version: true,
    definition: OPEN_DEFINITION,
    ..BASE
};

const GATEWAY_CLASS: ResourceKind = ResourceKind {
    id: 56,
    kind: "GatewayClass",
    plural: "gatewayclasses",
    singular: "gatewayclass",
    short: &["gc"],
    namespaced: false,
    schema: Some(crds::standard_class::schema),
    crd_columns: Some(crds::standard_class::columns),
    ..GATEWAY_API
};
const GATEWAY: ResourceKind = ResourceKind {
    id: 57,
    kind: "Gateway",
    plural: "gateways",
    singular: "gateway",
    short: &["gtw"],
    schema: Some(crds::standard_gateway::schema),
    crd_columns: Some(crds::standard_gateway::columns),
    ..GATEWAY_API
};
const HTTP_ROUTE: ResourceKind = ResourceKind {
    id: 59,
    kind: "HTTPRoute",
    plural: "httproutes",
    singular: "httproute",
    schema: Some(crds::standard_http_route::schema),
    crd_columns: Some(crds::standard_http_route::columns),
    ..GATEWAY_API
};
const REFERENCE_GRANT: ResourceKind = ResourceKind {
    id: 61,
    kind: "ReferenceGrant",
    plural: "referencegrants",
    singular: "referencegrant",
    short: &["refgrant"],
    status: false,
    schema: Some(crds::standard_reference_grant::schema),
    crd_columns: Some(crds::standard_reference_grant::columns),
    ..GATEWAY_API
};

/// A kind of the Gateway API in its older version, with the same schema; stored as v1.
const fn beta(kind: ResourceKind) -> ResourceKind {
    ResourceKind { version: "v1beta1", renamed: &[("spec", "spec")], ..kind }
}

/// Roles and bindings.
const RBAC: ResourceKind = ResourceKind { group: apimachinery::rbac::GROUP, update_creates: true, ..BASE };

/// The definition of objects with an open `spec` and `status`.
pub(crate) const OPEN_DEFINITION: &str = "dev.zoneward.v1alpha1.OpenObject";

/// The kind of a path.
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The kind of an object.
pub fn of(api_version: &str, kind: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|row| row.kind == kind && row.api_version() == api_version)
}

/// The kinds that are stored.
pub fn stored() -> impl Iterator<Item = &'static ResourceKind> {
    KINDS.iter().filter(|kind| kind.is_stored() && !kind.is_converted())
}

/// The resources that are encrypted at rest if there is a key, and their kinds.
pub fn encrypted() -> Vec<(ResourceId, &'static str)> {
    let secrets = stored().filter(|kind| kind.group.is_empty() && kind.kind == "Secret");
    secrets.map(|kind| (ResourceId(kind.id), kind.kind)).collect()
}

/// A kind by its name; if two groups have it, the stored one.
pub fn named(kind: &str) -> Option<&'static ResourceKind> {
    KINDS.iter().find(|row| row.kind == kind)
}

impl ResourceKind {
    /// `v1`, or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `/v1`, or `group/version`, as Go writes it.
    pub(crate) fn group_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// `services`, or `endpointslices.discovery.k8s.io`.
    pub fn qualified(&self) -> String {
        join(self.plural, self.group)
    }

    /// `Service`, or `EndpointSlice.discovery.k8s.io`.
    pub fn qualified_kind(&self) -> String {
        join(self.kind, self.group)
    }

    /// The print columns.
    pub(crate) fn columns(&self) -> &'static [Column] {
        self.crd_columns.map_or(self.columns, |columns| columns())
    }

    /// False for reviews.
    pub fn is_stored(&self) -> bool {
        self.id != 0
    }

    /// Whether its objects are stored as another kind.
    pub fn is_converted(&self) -> bool {
        !self.renamed.is_empty()
    }

    /// The kind that is stored for this one.
    pub fn as_stored(&'static self) -> &'static ResourceKind {
        if self.is_converted() { stored().find(|kind| kind.id == self.id).unwrap_or(self) } else { self }
    }

    /// Converts a stored object to this kind.
    pub fn converted<'a>(&self, object: &'a Value) -> Cow<'a, Value> {
        if !self.is_converted() {
            return Cow::Borrowed(object);
        }
        let mut shown = event_conversion::renamed(object, self.renamed.iter().copied());
        self.stamp(&mut shown);
        Cow::Owned(shown)
    }

    /// Converts an object of this kind to the stored kind.
    pub fn to_stored<'a>(&'static self, object: &'a Value) -> Cow<'a, Value> {
        if !self.is_converted() {
            return Cow::Borrowed(object);
        }
        let mut kept =
            event_conversion::renamed(object, self.renamed.iter().map(|(stored, shown)| (*shown, *stored)));
        self.as_stored().stamp(&mut kept);
        Cow::Owned(kept)
    }

    /// As [`ResourceKind::to_stored`], of an owned object.
    pub fn into_stored(&'static self, object: Value) -> Value {
        if self.is_converted() { self.to_stored(&object).into_owned() } else { object }
    }

    /// Whether an `apiVersion` is that of this kind.
    pub fn has_version(&self, api_version: &str) -> bool {
        match api_version.rsplit_once('/') {
            Some((group, version)) => !group.is_empty() && group == self.group && version == self.version,
            None => self.group.is_empty() && api_version == self.version,
        }
    }

    /// Sets kind and apiVersion.
    pub fn stamp(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        let field = |name: &str| map.get(name).and_then(Value::as_str);
        let has_both = field("kind") == Some(self.kind)
            && field("apiVersion").is_some_and(|version| self.has_version(version));
        if !has_both {
            map.insert("kind".to_owned(), self.kind.into());
            map.insert("apiVersion".to_owned(), self.api_version().into());
        }
    }
}

fn join(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_share_a_name() {
        let mut words: Vec<&str> = Vec::new();
        // kubectl takes the first of two groups that have the same word, as with Kubernetes' two kinds of Event.
        for kind in KINDS.iter().filter(|kind| !kind.is_converted()) {
            words.extend([kind.plural, kind.singular]);
            words.extend(kind.short);
        }
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }

    #[test]
    fn a_version_is_that_of_its_kind_and_of_no_other() {
        for kind in KINDS {
            assert!(kind.has_version(&kind.api_version()));
            for other in ["", "/", "v1/", "/v1", "v2", "apps/v1", "v1/v1", "discovery.k8s.io/v1/v1"] {
                assert!(!kind.has_version(other), "{} {other}", kind.kind);
            }
        }
    }

    #[test]
    fn every_kind_has_its_own_number() {
        let ids: std::collections::BTreeSet<u16> = stored().map(|kind| kind.id).collect();
        assert_eq!(ids.len(), stored().count());
        assert!(!ids.contains(&0));
    }

    #[test]
    fn kinds_are_found_by_version_and_name() {
        for (api_version, kind) in [
            ("v1", "Namespace"),
            ("v1", "Service"),
            ("v1", "Pod"),
            ("v1", "Node"),
            ("discovery.k8s.io/v1", "EndpointSlice"),
            ("networking.k8s.io/v1", "ServiceCIDR"),
            ("networking.k8s.io/v1", "IPAddress"),
            ("v1", "Event"),
            ("events.k8s.io/v1", "Event"),
            ("coordination.k8s.io/v1", "Lease"),
            ("v1", "ConfigMap"),
            ("v1", "Secret"),
            ("v1", "ServiceAccount"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole"),
            ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
            ("rbac.authorization.k8s.io/v1", "Role"),
            ("rbac.authorization.k8s.io/v1", "RoleBinding"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
            ("gateway.networking.k8s.io/v1", "GatewayClass"),
            ("gateway.networking.k8s.io/v1", "HTTPRoute"),
            ("gateway.networking.k8s.io/v1beta1", "ReferenceGrant"),
            ("zoneward.dev/v1alpha1", "MeshHTTPRoute"),
            ("zoneward.dev/v1alpha1", "MeshGatewayHTTPRoute"),
            ("zoneward.dev/v1alpha1", "MeshTCPRoute"),
            ("zoneward.dev/v1alpha1", "MeshGateway"),
            ("zoneward.dev/v1alpha1", "MeshLoadBalancing"),
            ("zoneward.dev/v1alpha1", "MeshRouteFilter"),
            ("zoneward.dev/v1alpha1", "ZoneDrain"),
        ] {
            assert!(of(api_version, kind).is_some(), "{api_version} {kind}");
        }
    }
}
