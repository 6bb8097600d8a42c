//! Services: types, traffic policies, session affinity, load balancers.
//!
//! Ports are in [`ports`], cluster IPs and IP families in [`addresses`], immutable fields in [`update`]. Fields that the
//! API server defaults may be absent.

mod addresses;
mod ports;
#[cfg(test)]
mod tests;
mod update;

use std::ops::RangeInclusive;

use model::annotation;

use super::Admission;
use super::ip::{address, canonical_cidr, reachable};
use super::meta::{self, Naming};
use super::ports::{optional_number, outside_of_range};
use super::syntax::one_of;
use super::syntax::{dns_label, dns_subdomain, is_domain_prefixed, qualified_name};
use model::field::{Field, FieldErrors, quoted};

const MAX_AFFINITY_SECONDS: i64 = 86_400;

/// `spec` with the values that most rules depend on.
struct Spec<'a> {
    field: Field<'a>,
    kind: &'a str,
    headless: bool,
}

impl<'a> Spec<'a> {
    fn new(service: &Field<'a>) -> Self {
        let field = service.child("spec");
        let kind = field.child("type").as_nonempty_str().unwrap_or("ClusterIP");
        let headless = addresses::listed(&field) == ["None"];
        Self { field, kind, headless }
    }

    fn child(&self, name: &'static str) -> Field<'a> {
        self.field.child(name)
    }

    fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether it is reachable from outside the cluster.
    fn is_external(&self) -> bool {
        let by_address = self.is("ClusterIP") && self.child("externalIPs").is_nonempty();
        self.is("NodePort") || self.is("LoadBalancer") || by_address
    }

    /// Whether load balancers check each node for local endpoints.
    fn needs_health_check(&self) -> bool {
        self.is("LoadBalancer") && self.child("externalTrafficPolicy").as_str() == Some("Local")
    }
}

pub(super) fn check(admission: &Admission, errors: &mut FieldErrors) {
    // Since Kubernetes 1.37, names may start with a digit.
    meta::check(admission, &Naming { rule: dns_label, namespaced: true, generated: true }, errors);
    annotations(&admission.new.child("metadata").child("annotations"), errors);
    admission.new.child("spec").map(errors);
    let spec = Spec::new(&admission.new);
    let old = admission.old.as_ref().map(Spec::new);
    kind(&spec, errors);
    ports::check(&spec, old.as_ref(), &admission.options.node_ports, errors);
    meta::labels(&spec.child("selector"), errors);
    addresses::check(&spec, old.as_ref(), errors);
    external_ips(&spec, errors);
    affinity(&spec, errors);
    load_balancer(&spec, errors);
    policies(&spec, old.as_ref(), &admission.options.node_ports, errors);
    traffic_distribution(&spec.child("trafficDistribution"), errors);
    spec.child("publishNotReadyAddresses").boolean(errors);
    ingress(&spec, &admission.new.child("status"), errors);
    if let Some(old) = &old {
        update::check(old, &spec, errors);
    }
}

/// The two annotations are old and new name of one setting.
fn annotations(annotations: &Field, errors: &mut FieldErrors) {
    let older = annotations.child(annotation::TOPOLOGY_AWARE_HINTS).as_str();
    let newer = annotations.child(annotation::TOPOLOGY_MODE).as_str();
    if let (Some(older), Some(newer)) = (older, newer)
        && older != newer
    {
        let path = format!("metadata.annotations[{}]", annotation::TOPOLOGY_MODE);
        let reason = format!("must equal {}, or remove one of them", annotation::TOPOLOGY_AWARE_HINTS);
        errors.invalid_at(&path, reason);
    }
}

fn kind(spec: &Spec, errors: &mut FieldErrors) {
    one_of(&spec.child("type"), &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"], errors);
    if spec.headless && (spec.is("NodePort") || spec.is("LoadBalancer")) {
        let reason = format!("a Service of type {} cannot be headless: remove None", spec.kind);
        errors.invalid(&spec.child("clusterIPs").index(0), reason);
    }
    let name = spec.child("externalName");
    let target = name.string(errors).unwrap_or_default();
    if !spec.is("ExternalName") {
        return;
    }
    let target = target.strip_suffix('.').unwrap_or(target);
    if target.is_empty() {
        errors.required(&name, "a Service of type ExternalName needs a DNS name, e.g. example.com");
    } else {
        errors.invalid_if(&name, dns_subdomain(target));
    }
}

fn external_ips(spec: &Spec, errors: &mut FieldErrors) {
    for item in spec.child("externalIPs").items(errors) {
        if let Some(address) = address(&item, errors) {
            reachable(address, &item, errors);
        }
    }
}

fn affinity(spec: &Spec, errors: &mut FieldErrors) {
    let kind = one_of(&spec.child("sessionAffinity"), &["None", "ClientIP"], errors);
    let config = spec.child("sessionAffinityConfig").map(errors);
    if !config.is_nonempty() {
        return;
    }
    if kind != Some("ClientIP") {
        errors.invalid(&config, "requires sessionAffinity: ClientIP");
        return;
    }
    let timeout = config.child("clientIP").map(errors).child("timeoutSeconds");
    let seconds = timeout.integer(errors);
    if seconds.is_some_and(|seconds| !(1..=MAX_AFFINITY_SECONDS).contains(&seconds)) {
        errors.invalid(&timeout, format!("must be between 1 and {MAX_AFFINITY_SECONDS} seconds (one day)"));
    }
}

/// Fields that require type LoadBalancer.
fn load_balancer(spec: &Spec, errors: &mut FieldErrors) {
    let ranges = spec.child("loadBalancerSourceRanges");
    for item in ranges.items(errors) {
        if let Some(text) = item.string(errors) {
            // Semantics D2: spaces around a range are allowed.
            errors.invalid_if(&item, canonical_cidr(text.trim()).err());
        }
    }
    let class = spec.child("loadBalancerClass");
    errors.check_format(&class, qualified_name);
    let node_ports = spec.child("allocateLoadBalancerNodePorts");
    node_ports.boolean(errors);
    if spec.is("LoadBalancer") {
        return;
    }
    for field in [ranges.is_nonempty().then_some(ranges), Some(class), Some(node_ports)].iter().flatten() {
        if field.is_set() {
            errors.forbidden(field, "requires type: LoadBalancer");
        }
    }
}

fn policies(spec: &Spec, old: Option<&Spec>, node_ports: &RangeInclusive<u16>, errors: &mut FieldErrors) {
    one_of(&spec.child("internalTrafficPolicy"), &["Cluster", "Local"], errors);
    let external = spec.child("externalTrafficPolicy");
    let policy = one_of(&external, &["Cluster", "Local"], errors);
    if policy.is_some() && !spec.is_external() {
        let reason = "requires type NodePort or LoadBalancer, or externalIPs";
        errors.invalid(&external, reason);
    }
    let check = spec.child("healthCheckNodePort");
    let Some(number) = optional_number(&check, errors) else { return };
    if !spec.needs_health_check() {
        errors.invalid(&check, "requires type: LoadBalancer and externalTrafficPolicy: Local");
    }
    let is_stored = old.is_some_and(|old| old.child("healthCheckNodePort").value() == check.value());
    if !node_ports.contains(&number) && !is_stored {
        errors.invalid(&check, outside_of_range(number, node_ports));
    }
}

/// KEP-4444: standard values, and `domain/name` for those of an implementation.
fn traffic_distribution(field: &Field, errors: &mut FieldErrors) {
    let Some(text) = field.string(errors) else { return };
    let standard = ["PreferSameZone", "PreferSameNode", "PreferClose"];
    if !standard.contains(&text) && !is_domain_prefixed(text) {
        let reason = format!(
            "{} is not supported: use PreferSameZone, PreferSameNode or PreferClose, or a value with the domain of \
             its implementation, e.g. zoneward.dev/Spill",
            quoted(text)
        );
        errors.not_supported(field, reason);
    }
}

fn ingress(spec: &Spec, status: &Field, errors: &mut FieldErrors) {
    let list = status.child("loadBalancer").child("ingress");
    let items = list.items(errors);
    if !items.is_empty() && !spec.is("LoadBalancer") {
        errors.forbidden(&list, "requires type: LoadBalancer");
    }
    for item in items {
        let (ip, mode, host) = (item.child("ip"), item.child("ipMode"), item.child("hostname"));
        if ip.nonempty_string(errors).is_some() {
            address(&ip, errors);
        } else if mode.is_set() {
            errors.forbidden(&mode, "requires ip");
        }
        one_of(&mode, &["VIP", "Proxy"], errors);
        errors.check_format_if_set(&host, dns_subdomain);
    }
}
