//! Validation of objects as an API server does it, plus lint rules for annotations and kinds.
//!
//! It works on JSON, so that all errors are reported at once, each with the path of its field. `zoneward plan validate`
//! and the admission of the embedded API call it.
//!
//! ```text
//! JSON -> Field (path + value) -> meta, then one file per kind -> FieldErrors -> Vec<Violation>
//! ```

mod annotations;
mod disabled_fields;
mod endpoint_slice;
mod ip;
mod ip_address;
mod meta;
mod node;
mod pod;
mod ports;
mod rbac;
mod service;
mod service_cidr;
mod syntax;
#[cfg(test)]
mod test_cases;
#[cfg(test)]
mod tests;
mod unknown_kinds;
mod zone_drain;

use std::fmt;
use std::ops::RangeInclusive;

use model::field::{Field, FieldErrors};
use model::json;
use model::parse::object_ref;
use model::parse::route::{GROUP, KINDS, mesh_errors, mesh_object};
use model::{Interner, ObjectRef};
use serde_json::Value;

pub use disabled_fields::{drop_disabled, refuse_disabled};
use meta::Naming;
pub use model::field::FieldErrorType;
use syntax::{dns_label, dns_subdomain};

/// An error in one field of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub object: ObjectRef,
    /// The path, as `spec.ports[0].port`.
    pub field: String,
    /// What is wrong, and which values are allowed.
    pub reason: String,
    pub error_type: FieldErrorType,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.reason)
    }
}

fn violations(object: &Value, errors: FieldErrors) -> Vec<Violation> {
    let (errors, _) = errors.into_parts();
    let object = object_ref(object);
    let violation = |error: model::field::FieldError| Violation {
        object: object.clone(),
        field: error.field,
        reason: error.message,
        error_type: error.error_type,
    };
    errors.into_iter().map(violation).collect()
}

/// Options of the API server that validation depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationOptions {
    /// `--service-node-port-range`
    pub node_ports: RangeInclusive<u16>,
}

impl ValidationOptions {
    /// Kubernetes' own range.
    pub const WITHOUT_FLAGS: Self = Self { node_ports: 30_000..=32_767 };

    /// Validates the creation of an object. Unknown kinds have no violations.
    pub fn validate(&self, object: &Value) -> Vec<Violation> {
        let Some(kind) = ValidatedKind::of(object) else { return Vec::new() };
        let mut errors = FieldErrors::default();
        kind.check(&Admission { new: Field::root(object), old: None, options: self }, &mut errors);
        violations(object, errors)
    }

    /// Validates the update of `old` to `new`, including immutable fields.
    pub fn validate_update(&self, old: &Value, new: &Value) -> Vec<Violation> {
        let Some(kind) = ValidatedKind::of(new) else { return Vec::new() };
        let mut errors = FieldErrors::default();
        if ValidatedKind::of(old) == Some(kind) {
            let admission = Admission { new: Field::root(new), old: Some(Field::root(old)), options: self };
            kind.check(&admission, &mut errors);
        } else {
            let was = old["kind"].as_str().unwrap_or("object without a kind");
            errors.invalid_at(
                "kind",
                format!("cannot change from {was} to {}: create a new object", kind.name()),
            );
        }
        violations(new, errors)
    }
}

/// Validates the creation of an object as an API server without flags.
pub fn validate(object: &Value) -> Vec<Violation> {
    ValidationOptions::WITHOUT_FLAGS.validate(object)
}

/// Validates an update as an API server without flags.
pub fn validate_update(old: &Value, new: &Value) -> Vec<Violation> {
    ValidationOptions::WITHOUT_FLAGS.validate_update(old, new)
}

/// Mistakes that an API server accepts but that have no effect: kinds that do not exist, misspelled annotations, and
/// values of annotations that are ignored. For manifests before they are applied; admission does not lint.
pub fn lint(object: &Value) -> Vec<Violation> {
    let mut errors = FieldErrors::default();
    unknown_kinds::check(object, &mut errors);
    annotations::check(object, &mut errors);
    violations(object, errors)
}

/// Rules of a valid route policy that no request can match.
pub fn without_effect(object: &Value) -> Vec<Violation> {
    let (group, _) = group_and_version(object);
    if group != GROUP || !object["kind"].as_str().is_some_and(|kind| KINDS.contains(&kind)) {
        return Vec::new();
    }
    let reading = mesh_object(object, &mut Interner::default());
    let notices = reading.object.as_ref().map(plan::routes::never_matching).unwrap_or_default();
    let warning = |notice: model::Notice| Violation {
        object: notice.object,
        field: notice.message.split(' ').next().unwrap_or_default().to_owned(),
        reason: notice.message,
        error_type: FieldErrorType::Invalid,
    };
    notices.into_iter().map(warning).collect()
}

/// Whether objects of this kind are validated.
pub fn is_known(object: &Value) -> bool {
    ValidatedKind::of(object).is_some()
}

/// An object to store, and on an update the stored one.
struct Admission<'a> {
    new: Field<'a>,
    old: Option<Field<'a>>,
    options: &'a ValidationOptions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ValidatedKind {
    Service,
    EndpointSlice,
    Pod,
    Node,
    Namespace,
    ServiceCidr,
    IpAddress,
    MeshHttpRoute,
    MeshGatewayHttpRoute,
    MeshTcpRoute,
    MeshGateway,
    ZoneDrain,
    MeshLoadBalancing,
    MeshRouteFilter,
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

impl ValidatedKind {
    /// By group and kind: a version that is not served is a violation, not another kind.
    fn of(object: &Value) -> Option<Self> {
        let (group, _) = group_and_version(object);
        match (group, object["kind"].as_str()?) {
            ("", "Service") => Some(Self::Service),
            ("", "Pod") => Some(Self::Pod),
            ("", "Node") => Some(Self::Node),
            ("", "Namespace") => Some(Self::Namespace),
            ("discovery.k8s.io", "EndpointSlice") => Some(Self::EndpointSlice),
            ("networking.k8s.io", "ServiceCIDR") => Some(Self::ServiceCidr),
            ("networking.k8s.io", "IPAddress") => Some(Self::IpAddress),
            (GROUP, "MeshHTTPRoute") => Some(Self::MeshHttpRoute),
            (GROUP, "MeshGatewayHTTPRoute") => Some(Self::MeshGatewayHttpRoute),
            (GROUP, "MeshTCPRoute") => Some(Self::MeshTcpRoute),
            (GROUP, "MeshGateway") => Some(Self::MeshGateway),
            (GROUP, "ZoneDrain") => Some(Self::ZoneDrain),
            (GROUP, "MeshLoadBalancing") => Some(Self::MeshLoadBalancing),
            (GROUP, "MeshRouteFilter") => Some(Self::MeshRouteFilter),
            (crate::rbac::GROUP, "Role") => Some(Self::Role),
            (crate::rbac::GROUP, "ClusterRole") => Some(Self::ClusterRole),
            (crate::rbac::GROUP, "RoleBinding") => Some(Self::RoleBinding),
            (crate::rbac::GROUP, "ClusterRoleBinding") => Some(Self::ClusterRoleBinding),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::ServiceCidr => "ServiceCIDR",
            Self::IpAddress => "IPAddress",
            Self::MeshHttpRoute => "MeshHTTPRoute",
            Self::MeshGatewayHttpRoute => "MeshGatewayHTTPRoute",
            Self::MeshTcpRoute => "MeshTCPRoute",
            Self::MeshGateway => "MeshGateway",
            Self::ZoneDrain => "ZoneDrain",
            Self::MeshLoadBalancing => "MeshLoadBalancing",
            Self::MeshRouteFilter => "MeshRouteFilter",
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
            Self::RoleBinding => "RoleBinding",
            Self::ClusterRoleBinding => "ClusterRoleBinding",
        }
    }

    /// The versions that a current API server serves, the preferred one first.
    fn versions(self) -> &'static [&'static str] {
        match self {
            Self::Service | Self::Pod | Self::Node | Self::Namespace => &["v1"],
            Self::EndpointSlice => &["discovery.k8s.io/v1"],
            Self::ServiceCidr | Self::IpAddress => &["networking.k8s.io/v1", "networking.k8s.io/v1beta1"],
            Self::MeshHttpRoute
            | Self::MeshGatewayHttpRoute
            | Self::MeshTcpRoute
            | Self::MeshGateway
            | Self::MeshLoadBalancing
            | Self::MeshRouteFilter
            | Self::ZoneDrain => &["zoneward.dev/v1alpha1"],
            Self::Role | Self::ClusterRole | Self::RoleBinding | Self::ClusterRoleBinding => {
                &["rbac.authorization.k8s.io/v1"]
            }
        }
    }

    fn check(self, admission: &Admission, errors: &mut FieldErrors) {
        let version = admission.new.child("apiVersion");
        if !version.as_str().is_some_and(|text| self.versions().contains(&text)) {
            errors.invalid(&version, format!("use {}", self.versions()[0]));
        }
        match self {
            Self::Service => service::check(admission, errors),
            Self::EndpointSlice => endpoint_slice::check(admission, errors),
            Self::Pod => pod::check(admission, errors),
            Self::Node => node::check(admission, errors),
            Self::Namespace => {
                let naming = Naming { rule: dns_label, namespaced: false, generated: true };
                meta::check(admission, &naming, errors);
            }
            Self::ServiceCidr => service_cidr::check(admission, errors),
            Self::IpAddress => ip_address::check(admission, errors),
            Self::MeshHttpRoute
            | Self::MeshGatewayHttpRoute
            | Self::MeshTcpRoute
            | Self::MeshGateway
            | Self::MeshLoadBalancing
            | Self::MeshRouteFilter => check_mesh(admission, errors),
            Self::ZoneDrain => zone_drain::check(admission, errors),
            Self::Role => rbac::role(admission, true, errors),
            Self::ClusterRole => rbac::role(admission, false, errors),
            Self::RoleBinding => rbac::binding(admission, true, errors),
            Self::ClusterRoleBinding => rbac::binding(admission, false, errors),
        }
    }
}

/// The kinds of zoneward.dev: the errors of the parser that the data plane uses.
fn check_mesh(admission: &Admission, errors: &mut FieldErrors) {
    meta::check(admission, &Naming { rule: dns_subdomain, namespaced: true, generated: true }, errors);
    // Ratcheting, as API servers do for custom resources: an unchanged spec, or an unchanged rule, is not validated again.
    // So a stored invalid object can still get the status that reports its errors.
    let (old, new) = (admission.old.as_ref().map(Field::value), admission.new.value());
    if old.is_some_and(|old| json::same(&old["spec"], &new["spec"])) {
        return;
    }
    for error in mesh_errors(new, old) {
        errors.invalid_at(&error.field, error.message);
    }
}

fn group_and_version(object: &Value) -> (&str, &str) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    api_version.split_once('/').unwrap_or(("", api_version))
}
