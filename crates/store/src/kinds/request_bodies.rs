//! Kinds that only have requests: they are not in the table, because they have no objects and no path.

use super::{BASE, REVIEW, ResourceKind};

/// The body of `serviceaccounts/NAME/token`; not in the table, as [`BINDING`].
pub(crate) static TOKEN_REQUEST: ResourceKind = ResourceKind {
    group: "authentication.k8s.io",
    kind: "TokenRequest",
    plural: "tokenrequests",
    singular: "tokenrequest",
    definition: "io.k8s.api.authentication.v1.TokenRequest",
    verbs: REVIEW,
    ..BASE
};

/// The body of `pods/NAME/binding`; it is not in the table, because it has no objects and no path.
pub(crate) static BINDING: ResourceKind = ResourceKind {
    kind: "Binding",
    plural: "bindings",
    singular: "binding",
    definition: "io.k8s.api.core.v1.Binding",
    verbs: REVIEW,
    ..BASE
};

/// The body of `pods/NAME/eviction`; not in the table, as [`BINDING`].
pub(crate) static EVICTION: ResourceKind = ResourceKind {
    group: "policy",
    kind: "Eviction",
    plural: "evictions",
    singular: "eviction",
    definition: "io.k8s.api.policy.v1.Eviction",
    verbs: REVIEW,
    ..BASE
};
