//! Services: types, policies, affinity, and what belongs to load balancers.
//!
//! Ports are in [`ports`], cluster IPs and families in [`addresses`]; what may not change is in [`update`].
//! A field that the API server fills in may be missing.

mod addresses;
mod ports;
#[cfg(test)]
mod tests;
mod update;

use model::annotation;

use super::Change;
use super::field::{Field, Findings, one_of, quoted};
use super::ip::{address, canonical_cidr, reachable};
use super::meta::{self, Naming};
use super::ports::optional_number;
use super::syntax::{dns_label, dns_subdomain, is_domain_prefixed, qualified_name};

/// The longest that a client may keep its endpoint: a day.
const MAX_AFFINITY_SECONDS: i64 = 86_400;

/// `spec` with the facts that most rules ask for.
struct Spec<'a> {
    field: Field<'a>,
    kind: &'a str,
    headless: bool,
}

impl<'a> Spec<'a> {
    fn new(service: &Field<'a>) -> Self {
        let field = service.child("spec");
        let kind = field.child("type").peek_nonempty().unwrap_or("ClusterIP");
        let headless = addresses::listed(&field) == ["None"];
        Self { field, kind, headless }
    }

    fn child(&self, name: &'static str) -> Field<'a> {
        self.field.child(name)
    }

    fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether anything from outside the cluster can reach it.
    fn is_external(&self) -> bool {
        let by_address = self.is("ClusterIP") && self.child("externalIPs").is_given();
        self.is("NodePort") || self.is("LoadBalancer") || by_address
    }

    /// Whether a load balancer asks each node if it has endpoints of its own.
    fn needs_health_check(&self) -> bool {
        self.is("LoadBalancer") && self.child("externalTrafficPolicy").peek_text() == Some("Local")
    }
}

pub(super) fn check(change: &Change, findings: &mut Findings) {
    // Kubernetes 1.37 takes names that begin with a digit; earlier ones wanted a letter.
    meta::check(change, &Naming { rule: dns_label, namespaced: true, generated: true }, findings);
    annotations(&change.new.child("metadata").child("annotations"), findings);
    change.new.child("spec").map(findings);
    let spec = Spec::new(&change.new);
    let old = change.old.as_ref().map(Spec::new);
    kind(&spec, findings);
    ports::check(&spec, old.as_ref(), &change.settings.node_ports, findings);
    meta::labels(&spec.child("selector"), findings);
    addresses::check(&spec, old.as_ref(), findings);
    external_ips(&spec, findings);
    affinity(&spec, findings);
    load_balancer(&spec, findings);
    policies(&spec, findings);
    traffic_distribution(&spec.child("trafficDistribution"), findings);
    spec.child("publishNotReadyAddresses").flag(findings);
    ingress(&spec, &change.new.child("status"), findings);
    if let Some(old) = &old {
        update::check(old, &spec, findings);
    }
}

/// The two annotations that turn Auto on are one setting under two names.
fn annotations(annotations: &Field, findings: &mut Findings) {
    let older = annotations.child(annotation::TOPOLOGY_AWARE_HINTS).peek_text();
    let newer = annotations.child(annotation::TOPOLOGY_MODE).peek_text();
    if let (Some(older), Some(newer)) = (older, newer)
        && older != newer
    {
        let path = format!("metadata.annotations[{}]", annotation::TOPOLOGY_MODE);
        let reason = format!("make it equal to {}, or remove that one", annotation::TOPOLOGY_AWARE_HINTS);
        findings.refuse_at(&path, reason);
    }
}

fn kind(spec: &Spec, findings: &mut Findings) {
    one_of(&spec.child("type"), &["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"], findings);
    if spec.headless && (spec.is("NodePort") || spec.is("LoadBalancer")) {
        let reason = format!("a Service of type {} cannot be headless: leave None out", spec.kind);
        findings.refuse(&spec.child("clusterIPs").entry(0), reason);
    }
    let name = spec.child("externalName");
    let target = name.text(findings).unwrap_or_default();
    if !spec.is("ExternalName") {
        return;
    }
    let target = target.strip_suffix('.').unwrap_or(target);
    if target.is_empty() {
        findings.require(
            &name,
            "a Service of type ExternalName needs the DNS name it stands for, as example.com",
        );
    } else {
        findings.refuse_if(&name, dns_subdomain(target));
    }
}

fn external_ips(spec: &Spec, findings: &mut Findings) {
    for item in spec.child("externalIPs").items(findings) {
        if let Some(address) = address(&item, findings) {
            reachable(address, &item, findings);
        }
    }
}

fn affinity(spec: &Spec, findings: &mut Findings) {
    let kind = one_of(&spec.child("sessionAffinity"), &["None", "ClientIP"], findings);
    let config = spec.child("sessionAffinityConfig").map(findings);
    if !config.is_given() {
        return;
    }
    if kind != Some("ClientIP") {
        findings.refuse(&config, "counts only with sessionAffinity: ClientIP: set that, or leave this out");
        return;
    }
    let timeout = config.child("clientIP").map(findings).child("timeoutSeconds");
    let seconds = timeout.integer(findings);
    if seconds.is_some_and(|seconds| !(1..=MAX_AFFINITY_SECONDS).contains(&seconds)) {
        findings.refuse(&timeout, format!("from 1 to {MAX_AFFINITY_SECONDS} seconds (a day)"));
    }
}

/// What only a Service of type LoadBalancer may carry.
fn load_balancer(spec: &Spec, findings: &mut Findings) {
    let ranges = spec.child("loadBalancerSourceRanges");
    for item in ranges.items(findings) {
        if let Some(text) = item.text(findings) {
            // Semantics D2: blanks around a range are legal.
            findings.refuse_if(&item, canonical_cidr(text.trim()).err());
        }
    }
    let class = spec.child("loadBalancerClass");
    findings.spelled(&class, qualified_name);
    let node_ports = spec.child("allocateLoadBalancerNodePorts");
    node_ports.flag(findings);
    if spec.is("LoadBalancer") {
        return;
    }
    for field in [ranges.is_given().then_some(ranges), Some(class), Some(node_ports)].iter().flatten() {
        if field.is_set() {
            findings.forbid(field, "counts only with type: LoadBalancer: set that, or leave this out");
        }
    }
}

fn policies(spec: &Spec, findings: &mut Findings) {
    one_of(&spec.child("internalTrafficPolicy"), &["Cluster", "Local"], findings);
    let external = spec.child("externalTrafficPolicy");
    let policy = one_of(&external, &["Cluster", "Local"], findings);
    if policy.is_some() && !spec.is_external() {
        let reason =
            "counts only for traffic from outside: with type NodePort or LoadBalancer, or with externalIPs";
        findings.refuse(&external, reason);
    }
    let check = spec.child("healthCheckNodePort");
    if optional_number(&check, findings).is_some() && !spec.needs_health_check() {
        findings.refuse(&check, "counts only with type: LoadBalancer and externalTrafficPolicy: Local");
    }
}

/// KEP-4444: standard words, and `domain/name` for what an implementation adds.
fn traffic_distribution(field: &Field, findings: &mut Findings) {
    let Some(text) = field.text(findings) else { return };
    let standard = ["PreferSameZone", "PreferSameNode", "PreferClose"];
    if !standard.contains(&text) && !is_domain_prefixed(text) {
        let reason = format!(
            "{} is not known here: write PreferSameZone, PreferSameNode or PreferClose, or a value with the \
             domain of who obeys it, as zoneward.dev/Spill",
            quoted(text)
        );
        findings.unknown(field, reason);
    }
}

fn ingress(spec: &Spec, status: &Field, findings: &mut Findings) {
    let list = status.child("loadBalancer").child("ingress");
    let items = list.items(findings);
    if !items.is_empty() && !spec.is("LoadBalancer") {
        findings.forbid(&list, "only a Service of type LoadBalancer has these");
    }
    for item in items {
        let (ip, mode, host) = (item.child("ip"), item.child("ipMode"), item.child("hostname"));
        if ip.nonempty(findings).is_some() {
            address(&ip, findings);
        } else if mode.is_set() {
            findings.forbid(&mode, "says how ip is reached, and there is no ip");
        }
        one_of(&mode, &["VIP", "Proxy"], findings);
        findings.spelled_if_given(&host, dns_subdomain);
    }
}
