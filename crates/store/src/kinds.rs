//! The kinds that are served, as data: one row each with names, verbs, columns and schema.
//!
//! Everything that differs between kinds stands here, so that reading, writing, discovery, OpenAPI and
//! tables are written once for all of them. What Services need beyond that is in `admission`.

mod cells;
mod columns;
mod mesh;
mod printed;
mod views;

use std::borrow::Cow;

use serde_json::Value;

pub(crate) use cells::since;
use columns::{
    CONFIG_MAP, ENDPOINT_SLICE, EVENT, IP_ADDRESS, LEASE, NAMESPACE, NODE, OTHER, POD, POLICY,
    POLICY_BINDING, SECRET, SERVICE, SERVICE_CIDR,
};
pub use columns::{Cell, Column};
pub use printed::JsonPath;
pub(crate) use printed::cell as printed_cell;

/// What is particular about a kind.
#[derive(Debug)]
pub struct Kind {
    /// Its number on disk, which is its own for ever; 0 for kinds that are not stored. A view has the number of
    /// the kind that it is a view of.
    pub id: u16,
    /// The API group, empty for core.
    pub group: &'static str,
    /// The version, as `v1`.
    pub version: &'static str,
    /// The kind, as `Service`.
    pub kind: &'static str,
    /// The name in paths, as `services`.
    pub plural: &'static str,
    /// The name for one, as `service`.
    pub singular: &'static str,
    /// What people type for it.
    pub short: &'static [&'static str],
    /// The groups of kinds that it belongs to, as `all`.
    pub categories: &'static [&'static str],
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Whether its status is written by a path of its own.
    pub status: bool,
    /// Whether its objects are bound to a node by a path of their own.
    pub binds: bool,
    /// How its names are spelled.
    pub naming: Naming,
    /// The fields beyond name and namespace that a field selector may ask for.
    pub selectable: &'static [&'static str],
    /// The definition of its schema in OpenAPI.
    pub definition: &'static str,
    /// A schema of our own in place of the definition, with limits and CEL rules that writes are held to; see
    /// [`crate::schema::of_crd`].
    pub schema: Option<fn() -> &'static Value>,
    /// What `kubectl get` shows, unless its definition says it: see [`Kind::columns`].
    columns: &'static [Column],
    /// The columns of its definition.
    printed: Option<fn() -> &'static [Column]>,
    /// After how many seconds its objects go by themselves.
    pub lifetime: Option<u64>,
    /// Whether an update must say which version it is based on.
    pub needs_version: bool,
    /// The members of the stored object that admission of an update looks at; `None`: all.
    pub glance: Option<&'static [&'static str]>,
    /// Whether an update of an object that is not there creates it, as Kubernetes has it for a few kinds.
    pub update_creates: bool,
    /// Whether a delete answers with the object that went instead of a Status.
    pub returns_deleted: bool,
    /// What may be done with it.
    pub verbs: &'static [&'static str],
    /// For a view of another kind's objects: each field as it is stored, and as it is shown.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// What may be done with kinds that are stored.
pub const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// A question that is answered and not kept.
const QUESTION: &[&str] = &["create"];

/// How names of a kind are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Lower-case letters, digits and dashes.
    Label,
    /// Labels joined by dots.
    Subdomain,
    /// An IP address in its canonical form.
    Address,
}

const BASE: Kind = Kind {
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
    naming: Naming::Subdomain,
    selectable: &[],
    definition: "",
    schema: None,
    columns: OTHER,
    printed: None,
    lifetime: None,
    needs_version: false,
    glance: None,
    update_creates: false,
    returns_deleted: false,
    verbs: VERBS,
    renamed: &[],
};

/// An hour, as API servers keep events.
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

/// Every kind, in the order in which they are listed.
pub static KINDS: &[Kind] = &[
    Kind {
        id: 1,
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short: &["cm"],
        definition: "io.k8s.api.core.v1.ConfigMap",
        columns: CONFIG_MAP,
        ..BASE
    },
    Kind {
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
    Kind {
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
    Kind {
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
    Kind {
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
    Kind {
        id: 6,
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        selectable: &["type"],
        definition: "io.k8s.api.core.v1.Secret",
        columns: SECRET,
        ..BASE
    },
    Kind {
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
    Kind {
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
    Kind {
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
    Kind {
        group: "authentication.k8s.io",
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        namespaced: false,
        definition: "io.k8s.api.authentication.v1.SelfSubjectReview",
        verbs: QUESTION,
        ..BASE
    },
    Kind {
        group: "authorization.k8s.io",
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        namespaced: false,
        definition: "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
        verbs: QUESTION,
        ..BASE
    },
    Kind {
        group: "authorization.k8s.io",
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        namespaced: false,
        definition: "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
        verbs: QUESTION,
        ..BASE
    },
    Kind {
        group: "coordination.k8s.io",
        id: 10,
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        definition: "io.k8s.api.coordination.v1.Lease",
        columns: LEASE,
        needs_version: true,
        update_creates: true,
        glance: Some(&["apiVersion", "kind", "metadata"]),
        ..BASE
    },
    Kind {
        group: "discovery.k8s.io",
        id: 11,
        kind: "EndpointSlice",
        plural: "endpointslices",
        singular: "endpointslice",
        definition: "io.k8s.api.discovery.v1.EndpointSlice",
        columns: ENDPOINT_SLICE,
        glance: Some(&["apiVersion", "kind", "metadata", "addressType"]),
        ..BASE
    },
    Kind {
        group: "events.k8s.io",
        id: 2,
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        selectable: views::EVENT_FIELDS,
        definition: "io.k8s.api.events.v1.Event",
        columns: EVENT,
        lifetime: Some(EVENT_LIFETIME),
        update_creates: true,
        renamed: views::EVENT,
        ..BASE
    },
    Kind {
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
    Kind {
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
    Kind {
        id: 14,
        kind: "MeshGateway",
        plural: "meshgateways",
        singular: "meshgateway",
        short: &["mgw"],
        schema: Some(mesh::gateway::schema),
        printed: Some(mesh::gateway::columns),
        ..OURS
    },
    Kind {
        id: 15,
        kind: "MeshGatewayHTTPRoute",
        plural: "meshgatewayhttproutes",
        singular: "meshgatewayhttproute",
        short: &["mghr"],
        schema: Some(mesh::gateway_http_route::schema),
        printed: Some(mesh::gateway_http_route::columns),
        ..OURS
    },
    Kind {
        id: 16,
        kind: "MeshHTTPRoute",
        plural: "meshhttproutes",
        singular: "meshhttproute",
        short: &["mhr"],
        schema: Some(mesh::http_route::schema),
        printed: Some(mesh::http_route::columns),
        ..OURS
    },
    Kind {
        id: 17,
        kind: "MeshTCPRoute",
        plural: "meshtcproutes",
        singular: "meshtcproute",
        short: &["mtr"],
        schema: Some(mesh::tcp_route::schema),
        printed: Some(mesh::tcp_route::columns),
        ..OURS
    },
];

/// Our own kinds; each has the schema of its definition.
const OURS: Kind = Kind {
    group: "zoneward.dev",
    version: "v1alpha1",
    categories: &["zoneward"],
    status: true,
    needs_version: true,
    definition: OPEN_DEFINITION,
    ..BASE
};

/// What is written to `pods/NAME/binding`. It is no kind of the table: it has no objects and no path of its own.
pub static BINDING: Kind = Kind {
    kind: "Binding",
    plural: "bindings",
    singular: "binding",
    definition: "io.k8s.api.core.v1.Binding",
    verbs: QUESTION,
    ..BASE
};

/// The schema of objects with whatever `spec` and `status`.
pub const OPEN_DEFINITION: &str = "dev.zoneward.v1alpha1.OpenObject";

/// The kind of a path.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

/// The kind of an object.
pub fn of(api_version: &str, kind: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|row| row.kind == kind && row.api_version() == api_version)
}

/// The kinds that have objects of their own.
pub fn stored() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| kind.is_stored() && !kind.is_view())
}

/// The kind by its word alone; where two groups have it, the one whose objects are stored.
pub fn named(kind: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|row| row.kind == kind)
}

impl Kind {
    /// `v1`, or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `services`, or `endpointslices.discovery.k8s.io`.
    pub fn qualified(&self) -> String {
        join(self.plural, self.group)
    }

    /// `Service`, or `EndpointSlice.discovery.k8s.io`.
    pub fn qualified_kind(&self) -> String {
        join(self.kind, self.group)
    }

    /// What `kubectl get` shows.
    pub fn columns(&self) -> &'static [Column] {
        self.printed.map_or(self.columns, |printed| printed())
    }

    /// Whether objects of it are kept at all.
    pub fn is_stored(&self) -> bool {
        self.id != 0
    }

    /// Whether its objects are those of another kind, with other names of fields.
    pub fn is_view(&self) -> bool {
        !self.renamed.is_empty()
    }

    /// The kind whose objects are stored for this one.
    pub fn as_stored(&'static self) -> &'static Kind {
        if self.is_view() { stored().find(|kind| kind.id == self.id).unwrap_or(self) } else { self }
    }

    /// A stored object as this kind shows it.
    pub fn shown<'a>(&self, object: &'a Value) -> Cow<'a, Value> {
        if !self.is_view() {
            return Cow::Borrowed(object);
        }
        let mut shown = views::renamed(object, self.renamed.iter().copied());
        self.stamp(&mut shown);
        Cow::Owned(shown)
    }

    /// An object that this kind shows, as it is stored.
    pub fn kept<'a>(&'static self, object: &'a Value) -> Cow<'a, Value> {
        if !self.is_view() {
            return Cow::Borrowed(object);
        }
        let mut kept = views::renamed(object, self.renamed.iter().map(|(stored, shown)| (*shown, *stored)));
        self.as_stored().stamp(&mut kept);
        Cow::Owned(kept)
    }

    /// The same, of an object that nobody else needs.
    pub fn keep(&'static self, object: Value) -> Value {
        if self.is_view() { self.kept(&object).into_owned() } else { object }
    }

    /// Whether this is its `apiVersion`.
    pub fn has_version(&self, api_version: &str) -> bool {
        match api_version.rsplit_once('/') {
            Some((group, version)) => !group.is_empty() && group == self.group && version == self.version,
            None => self.group.is_empty() && api_version == self.version,
        }
    }

    /// Puts kind and apiVersion first in an object; most have them already.
    pub fn stamp(&self, object: &mut Value) {
        let Some(map) = object.as_object_mut() else { return };
        let said = |name: &str| map.get(name).and_then(Value::as_str);
        let has_both =
            said("kind") == Some(self.kind) && said("apiVersion").is_some_and(|said| self.has_version(said));
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
    fn no_two_kinds_share_a_word_that_people_type() {
        let mut words: Vec<&str> = Vec::new();
        // kubectl takes the first of two groups that have the same word, as with Kubernetes' two kinds of Event.
        for kind in KINDS.iter().filter(|kind| !kind.is_view()) {
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
    fn every_kind_of_the_issue_is_served() {
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
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
            ("zoneward.dev/v1alpha1", "MeshHTTPRoute"),
            ("zoneward.dev/v1alpha1", "MeshGatewayHTTPRoute"),
            ("zoneward.dev/v1alpha1", "MeshTCPRoute"),
            ("zoneward.dev/v1alpha1", "MeshGateway"),
        ] {
            assert!(of(api_version, kind).is_some(), "{api_version} {kind}");
        }
    }
}
