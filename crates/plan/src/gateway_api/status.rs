//! The statuses of the Gateway API, as a controller writes them, without times.
//!
//! Each object has its own function, so that one change costs the statuses that it affects.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use model::gateway_api::{
    BackendTlsPolicy, CertificateKind, GROUP, Gateway, GatewayApiKind, GatewayClass, ListenerSet,
    ObjectIdentity, ParentKind, ParentReference, Route,
};
use model::{ObjectKey, ServiceKey, Snapshot};
use serde_json::{Map, Value, json};

use super::addresses::{self, AssignedAddresses, GatewayAssignment};
use super::attached_routes::AttachedRoutes;
use super::attachment::{attached_listeners, gateway_of};
use super::bound_ports::{UnboundPorts, bound, pending};
use super::features::{BUNDLE_VERSION, SUPPORTED_FEATURES};
use super::listeners::{EffectiveGateway, EffectiveListener, is_ours};
use super::mesh_routes::{attached_to_service, overridden_policies};
use super::references::Referrer;
use super::rules::RouteRules;
use super::{Problem, backend_tls, shared_hosts};
use crate::condition_status::ConditionStatus;

/// The status of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectStatus {
    pub kind: &'static str,
    pub key: ObjectKey,
    pub status: Value,
}

/// The statuses of all objects of a controller: GatewayClass, Gateway, ListenerSet, routes and BackendTLSPolicies.
pub fn statuses(
    snapshot: &Snapshot,
    controller: &str,
    addresses: &AssignedAddresses,
    unbound: &UnboundPorts,
) -> Vec<ObjectStatus> {
    let mut attached = AttachedRoutes::default();
    let planner =
        StatusPlanner::new(snapshot, controller, addresses, &mut attached).with_unbound_ports(unbound);
    let key = |identity: &ObjectIdentity| identity.key.clone();
    let classes = snapshot.gateway_classes().map(|o| (GatewayApiKind::Class, key(&o.identity)));
    let gateways = snapshot.gateways().map(|o| (GatewayApiKind::Gateway, key(&o.identity)));
    let sets = snapshot.listener_sets().map(|o| (GatewayApiKind::ListenerSet, key(&o.identity)));
    let routes = snapshot.routes().map(|o| (GatewayApiKind::Route(o.kind), key(&o.identity)));
    let policies = snapshot.all_backend_tls_policies();
    let policies = policies.map(|o| (GatewayApiKind::TlsPolicy, key(&o.identity)));
    let all = classes.chain(gateways).chain(sets).chain(routes).chain(policies);
    all.filter_map(|(kind, key)| {
        let status = planner.status(kind, &key)?;
        Some(ObjectStatus { kind: kind.as_str(), key, status })
    })
    .collect()
}

/// The condition of a route with the same Service as Mesh* policies.
const OVERRIDES: &str = "zoneward.dev/OverridesMeshPolicies";
/// The condition of a route with a host and port that MeshGatewayHTTPRoutes have, too.
const SHARED_HOST: &str = "zoneward.dev/SharedHost";
/// How many objects a message lists.
const LISTED: usize = 10;
/// The most ancestors in the status of a policy.
const MAX_ANCESTORS: usize = 16;

/// Plans the statuses of single objects of one snapshot.
pub struct StatusPlanner<'s> {
    snapshot: &'s Snapshot,
    controller: &'s str,
    addresses: &'s AssignedAddresses,
    attached: RefCell<&'s mut AttachedRoutes>,
    /// The Gateways that were looked at: many routes share one.
    effective: RefCell<BTreeMap<ObjectKey, Rc<EffectiveGateway<'s>>>>,
    bundle_version: Option<&'s str>,
    unbound: Option<&'s UnboundPorts>,
    /// Of [`AssignedAddresses::Machine`].
    assigned: OnceCell<BTreeMap<ObjectKey, GatewayAssignment>>,
}

impl<'s> StatusPlanner<'s> {
    pub fn new(
        snapshot: &'s Snapshot,
        controller: &'s str,
        addresses: &'s AssignedAddresses,
        attached: &'s mut AttachedRoutes,
    ) -> Self {
        let attached = RefCell::new(attached);
        let (effective, assigned) = Default::default();
        let (bundle_version, unbound) = (None, None);
        Self { snapshot, controller, addresses, attached, effective, bundle_version, unbound, assigned }
    }

    /// Sets the version of the definitions in the cluster; `None`: the API has the kinds built in.
    #[must_use]
    pub fn with_bundle_version(self, bundle_version: Option<&'s str>) -> Self {
        Self { bundle_version, ..self }
    }

    /// Sets the ports that proxies could not bind.
    #[must_use]
    pub fn with_unbound_ports(self, unbound: &'s UnboundPorts) -> Self {
        Self { unbound: Some(unbound), ..self }
    }

    /// The status of an object; `None` if this controller has nothing to say about it.
    pub fn status(&self, kind: GatewayApiKind, key: &ObjectKey) -> Option<Value> {
        let snapshot = self.snapshot;
        match kind {
            GatewayApiKind::Class => self.class(snapshot.gateway_class(&key.name)?),
            GatewayApiKind::Gateway => self.gateway(snapshot.gateway(key)?),
            GatewayApiKind::ListenerSet => self.listener_set(snapshot.listener_set(key)?),
            GatewayApiKind::Route(kind) => self.route(snapshot.route(kind, key)?),
            GatewayApiKind::TlsPolicy => {
                let policy = snapshot.backend_tls_policy(key)?;
                self.tls_policy(policy)
            }
            GatewayApiKind::Grant => None,
        }
    }

    fn is_ours(&self, gateway: &Gateway) -> bool {
        is_ours(self.snapshot, gateway, self.controller)
    }

    fn effective(&self, gateway: &'s Gateway) -> Rc<EffectiveGateway<'s>> {
        let mut known = self.effective.borrow_mut();
        let entry = known.entry(gateway.identity.key.clone());
        entry.or_insert_with(|| Rc::new(EffectiveGateway::new(self.snapshot, gateway))).clone()
    }

    fn class(&self, class: &GatewayClass) -> Option<Value> {
        if class.controller != self.controller {
            return None;
        }
        let accepted = if class.has_parameters {
            Err(Problem::new("InvalidParameters", "spec.parametersRef is not supported: remove it"))
        } else {
            Ok(())
        };
        let version = supported_version(self.bundle_version);
        let conditions =
            Conditions::new(&class.identity).put("Accepted", &accepted).put("SupportedVersion", &version);
        let features: Vec<Value> = SUPPORTED_FEATURES.iter().map(|name| json!({"name": name})).collect();
        Some(json!({"conditions": conditions.0, "supportedFeatures": features}))
    }

    fn gateway(&self, gateway: &'s Gateway) -> Option<Value> {
        if !self.is_ours(gateway) {
            return None;
        }
        let effective = self.effective(gateway);
        let key = &gateway.identity.key;
        let listeners = self.listeners(&gateway.identity, &effective, None);
        let sets = effective.sets.iter().filter(|(set, _)| effective.set_accepted(set).is_ok()).count();
        let (assigned, addresses) = self.assigned_addresses(gateway);
        let mut conditions = Conditions::new(&gateway.identity);
        let accepted = accepted(gateway, &effective);
        conditions = match &accepted {
            Ok(Some(warning)) => {
                conditions.add("Accepted", ConditionStatus::True, warning.reason, &warning.message)
            }
            Ok(None) => conditions.put("Accepted", &Ok(())),
            Err(problem) => conditions.put("Accepted", &Err(problem.clone())),
        };
        let programmed =
            programmed(&accepted, assigned, &effective).and_then(|()| self.all_bound(&effective, None));
        conditions = conditions.put("Programmed", &programmed);
        if let Some(certificate) = &gateway.client_certificate {
            let referrer = Referrer { snapshot: self.snapshot, kind: "Gateway", namespace: &key.namespace };
            let found = referrer.certificate(certificate, "InvalidClientCertificateRef").map(drop);
            conditions = conditions.put("ResolvedRefs", &found);
        }
        let is_insecure = |listener: &EffectiveListener<'_>| {
            effective
                .client_validation(listener.listener)
                .is_some_and(|validation| validation.allows_insecure)
        };
        if effective.listeners.iter().any(is_insecure) {
            let message = "clients without a valid certificate are let through";
            let (kind, reason) = ("InsecureFrontendValidationMode", "ConfigurationChanged");
            conditions = conditions.add(kind, ConditionStatus::True, reason, message);
        }
        Some(json!({
            "addresses": addresses,
            "conditions": conditions.0,
            "listeners": listeners,
            "attachedListenerSets": sets,
        }))
    }

    fn listener_set(&self, set: &'s ListenerSet) -> Option<Value> {
        let is_of_gateway = set.parent.kind() == ParentKind::Gateway;
        let gateway = is_of_gateway.then(|| self.snapshot.gateway(&set.parent.object.key()))??;
        if !self.is_ours(gateway) {
            return None;
        }
        let effective = self.effective(gateway);
        let key = &set.identity.key;
        let accepted = effective.set_accepted(set);
        let is_served = effective.listeners_of(Some(key)).any(|(_, listener)| listener.is_programmed());
        let programmed = accepted.clone().and(if is_served {
            Ok(())
        } else {
            Err(Problem::new("Invalid", "no listener of the ListenerSet can be served"))
        });
        let programmed = programmed.and_then(|()| self.all_bound(&effective, Some(key)));
        let listeners = self.listeners(&set.identity, &effective, Some(key));
        let conditions =
            Conditions::new(&set.identity).put("Accepted", &accepted).put("Programmed", &programmed);
        Some(json!({"conditions": conditions.0, "listeners": listeners}))
    }

    /// Whether proxies have bound the port of a listener.
    fn bound(&self, gateway: &EffectiveGateway<'_>, listener: &EffectiveListener<'_>) -> Result<(), Problem> {
        let unbound = self.unbound.and_then(|unbound| unbound.get(&gateway.gateway.identity.key));
        let own = listener.listener;
        bound(unbound, own.port, own.protocol == "UDP").map_err(pending)
    }

    /// Whether the ports of all listeners of one object that can be served are bound.
    fn all_bound(&self, gateway: &EffectiveGateway<'_>, set: Option<&ObjectKey>) -> Result<(), Problem> {
        let mut served = gateway.listeners_of(set).filter(|(_, listener)| listener.is_programmed());
        served.try_for_each(|(_, listener)| self.bound(gateway, listener))
    }

    fn listeners(
        &self,
        owner: &ObjectIdentity,
        gateway: &EffectiveGateway<'_>,
        set: Option<&ObjectKey>,
    ) -> Vec<Value> {
        let mut attached = self.attached.borrow_mut();
        let counts = attached.counts(self.snapshot, gateway, set);
        let own = gateway.listeners_of(set).enumerate();
        own.map(|(place, (_, listener))| {
            let bound = self.bound(gateway, listener);
            listener_status(owner, listener, bound, counts.get(&place).copied())
        })
        .collect()
    }

    /// Whether all addresses can be used, and those that the Gateway has.
    fn assigned_addresses(&self, gateway: &Gateway) -> (Result<(), Problem>, Vec<Value>) {
        let own = match self.addresses {
            AssignedAddresses::Any(all) => addresses::any(gateway, all),
            AssignedAddresses::Services => addresses::of_services(self.snapshot, gateway),
            AssignedAddresses::Machine(machine) => {
                let assign = || addresses::assign(self.snapshot, self.controller, machine);
                let all = self.assigned.get_or_init(assign);
                let none = || GatewayAssignment { addresses: Vec::new(), problem: None };
                all.get(&gateway.identity.key).cloned().unwrap_or_else(none)
            }
        };
        let values = own.addresses.iter().map(|ip| json!({"type": "IPAddress", "value": ip.to_string()}));
        let values = values.collect();
        (own.problem.map_or(Ok(()), Err), values)
    }

    fn route(&self, route: &'s Route) -> Option<Value> {
        let is_mesh_parent = |parent: &&ParentReference| parent.kind() == ParentKind::Service;
        let mut parents = Vec::new();
        for parent in &*route.parents {
            let (accepted, is_mesh) = if is_mesh_parent(&parent) {
                let Some(attached) = attached_to_service(self.snapshot, route, parent) else { continue };
                (attached, true)
            } else {
                let Some((gateway, set)) = gateway_of(self.snapshot, parent) else { continue };
                if !self.is_ours(gateway) {
                    continue;
                }
                let effective = self.effective(gateway);
                let attached = attached_listeners(self.snapshot, &effective, set.as_ref(), route, parent);
                (attached.map(drop), false)
            };
            let accepted = accepted.and(supported(route));
            let unresolved = RouteRules { snapshot: self.snapshot, route, is_mesh }.unresolved();
            let resolved = match &unresolved[..] {
                [] => Ok(()),
                [first, ..] => {
                    let texts: Vec<&str> = unresolved.iter().map(|p| p.message.as_str()).collect();
                    Err(Problem::new(first.reason, texts.join("; ")))
                }
            };
            let mut conditions =
                Conditions::new(&route.identity).put("Accepted", &accepted).put("ResolvedRefs", &resolved);
            if accepted.is_ok()
                && let Some(dropped) = dropped(route)
            {
                conditions =
                    conditions.add("PartiallyInvalid", ConditionStatus::True, "UnsupportedValue", &dropped);
            }
            if is_mesh && accepted.is_ok() {
                conditions = self.add_overridden(conditions, parent);
            }
            if !is_mesh
                && accepted.is_ok()
                && let Some(message) = shared_hosts::of_route(self.snapshot, route)
            {
                conditions = conditions.add(SHARED_HOST, ConditionStatus::True, "SameHost", &message);
            }
            parents.push(json!({
                "parentRef": parent_value(route, parent),
                "controllerName": self.controller,
                "conditions": conditions.0,
            }));
        }
        (!parents.is_empty()).then(|| json!({"parents": parents}))
    }

    /// Tells the owner of a route that Mesh* policies of the same Service have no effect.
    fn add_overridden(&self, conditions: Conditions, parent: &ParentReference) -> Conditions {
        let service = ServiceKey::new(&parent.object.namespace, &parent.object.name);
        let policies = overridden_policies(self.snapshot, &service);
        if policies.is_empty() {
            return conditions;
        }
        let names: Vec<String> = policies.iter().take(LISTED).map(ToString::to_string).collect();
        let more = policies.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!("without effect, because this route decides: {}{more}", names.join(", "));
        conditions.add(OVERRIDES, ConditionStatus::True, "SameService", &message)
    }

    fn tls_policy(&self, policy: &BackendTlsPolicy) -> Option<Value> {
        let (resolved, certificates) = backend_tls::authorities(self.snapshot, policy);
        let accepted = if backend_tls::is_overridden(self.snapshot, policy) {
            Err(Problem::new("Conflicted", "an older BackendTLSPolicy has the same targets"))
        } else {
            certificates
        };
        let ancestors: Vec<Value> = self
            .ancestors(policy)
            .into_iter()
            .take(MAX_ANCESTORS)
            .map(|key| {
                let conditions = Conditions::new(&policy.identity)
                    .put("Accepted", &accepted)
                    .put("ResolvedRefs", &resolved);
                json!({
                    "ancestorRef": {"group": GROUP, "kind": "Gateway",
                        "namespace": key.namespace.as_str(), "name": key.name.as_str()},
                    "controllerName": self.controller,
                    "conditions": conditions.0,
                })
            })
            .collect();
        (!ancestors.is_empty()).then(|| json!({"ancestors": ancestors}))
    }

    /// The Gateways with a route to a target of a policy.
    fn ancestors(&self, policy: &BackendTlsPolicy) -> BTreeSet<ObjectKey> {
        let namespace = &policy.identity.key.namespace;
        let services: BTreeSet<ServiceKey> =
            policy.targets.iter().map(|target| ServiceKey::new(namespace, &target.name)).collect();
        let routes = services.iter().flat_map(|service| self.snapshot.routes_of_backend(service));
        let parents = routes.flat_map(|route| route.parents.iter().map(move |parent| (route, parent)));
        let mut found = BTreeSet::new();
        for (route, parent) in parents {
            let Some((gateway, set)) = gateway_of(self.snapshot, parent) else { continue };
            // Of ten thousand routes to one Service, one per Gateway tells.
            if found.contains(&gateway.identity.key) || !self.is_ours(gateway) {
                continue;
            }
            let effective = self.effective(gateway);
            if attached_listeners(self.snapshot, &effective, set.as_ref(), route, parent).is_ok() {
                found.insert(gateway.identity.key.clone());
            }
        }
        found
    }

    /// The Gateways of this controller.
    pub fn gateways(&self) -> Vec<ObjectKey> {
        let own = self.snapshot.gateways().filter(|gateway| self.is_ours(gateway));
        own.map(|gateway| gateway.identity.key.clone()).collect()
    }

    /// The Secrets and ConfigMaps that Gateways of this controller need and may refer to; with `of`, those of one.
    /// Policies count if a Gateway is their ancestor.
    pub fn certificates(&self, of: Option<&ObjectKey>) -> BTreeSet<(CertificateKind, ObjectKey)> {
        let mut wanted = BTreeSet::new();
        let is_wanted = |key: &ObjectKey| of.is_none_or(|of| of == key);
        let gateways = self.snapshot.gateways();
        for gateway in gateways.filter(|gateway| is_wanted(&gateway.identity.key) && self.is_ours(gateway)) {
            let effective = self.effective(gateway);
            wanted.extend(effective.certificate_references(self.snapshot));
        }
        for policy in self.snapshot.all_backend_tls_policies() {
            if policy.authorities.is_empty() || !self.ancestors(policy).iter().any(is_wanted) {
                continue;
            }
            let namespace = &policy.identity.key.namespace;
            let referrer = Referrer { snapshot: self.snapshot, kind: "BackendTLSPolicy", namespace };
            wanted.extend(policy.authorities.iter().filter_map(|authority| referrer.source(authority)));
        }
        wanted
    }
}

/// Whether a route has a rule that is not dropped.
pub(super) fn supported(route: &Route) -> Result<(), Problem> {
    let mut dropped = route.rules.iter().filter_map(|rule| rule.unsupported.as_ref());
    match dropped.next() {
        Some(first) if dropped.count() + 1 == route.rules.len() => {
            Err(Problem::new("UnsupportedValue", first.to_string()))
        }
        _ => Ok(()),
    }
}

/// The message about dropped rules.
fn dropped(route: &Route) -> Option<String> {
    let rules = route.rules.iter().enumerate();
    let texts: Vec<String> = rules
        .filter_map(|(i, rule)| Some(format!("Dropped Rule {i}: {}", rule.unsupported.as_ref()?)))
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// Whether the definitions in the cluster are of the release that this is written for. Others are used as far as they go.
fn supported_version(bundle: Option<&str>) -> Result<(), Problem> {
    let minor = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    match bundle {
        Some(other) if minor(other) != minor(BUNDLE_VERSION) => {
            let message = format!(
                "the definitions of the Gateway API are of version {other}, but {BUNDLE_VERSION} is supported: install that"
            );
            Err(Problem::new("UnsupportedVersion", message))
        }
        _ => Ok(()),
    }
}

/// Accepted of a Gateway, perhaps with the reason that some listeners are not.
fn accepted(gateway: &Gateway, effective: &EffectiveGateway<'_>) -> Result<Option<Problem>, Problem> {
    if gateway.has_parameters {
        let message = "spec.infrastructure.parametersRef is not supported: remove it";
        return Err(Problem::new("InvalidParameters", message));
    }
    if let Some(address) = gateway.addresses.iter().find(|address| address.kind != "IPAddress") {
        let message = format!("spec.addresses: type {} is not supported: use IPAddress", address.kind);
        return Err(Problem::new("UnsupportedAddress", message));
    }
    let wrong: Vec<&str> = effective
        .listeners_of(None)
        .filter(|(_, listener)| listener.accepted.is_err())
        .map(|(_, listener)| listener.listener.name.as_str())
        .collect();
    if wrong.is_empty() {
        return Ok(None);
    }
    let problem = Problem::new("ListenersNotValid", format!("not accepted: {}", wrong.join(", ")));
    // Listeners of ListenerSets keep the Gateway useful.
    let has_good = effective.listeners.iter().any(|listener| listener.accepted.is_ok());
    if has_good { Ok(Some(problem)) } else { Err(problem) }
}

fn programmed(
    accepted: &Result<Option<Problem>, Problem>,
    assigned: Result<(), Problem>,
    effective: &EffectiveGateway<'_>,
) -> Result<(), Problem> {
    if let Err(problem) = accepted {
        return Err(Problem::new("Invalid", problem.message.clone()));
    }
    assigned?;
    if effective.listeners.iter().any(EffectiveListener::is_programmed) {
        return Ok(());
    }
    Err(Problem::new("Invalid", "no listener can be served"))
}

fn listener_status(
    owner: &ObjectIdentity,
    listener: &EffectiveListener<'_>,
    bound: Result<(), Problem>,
    routes: Option<usize>,
) -> Value {
    let programmed = listener.accepted.clone().and(match &listener.resolved {
        Ok(()) => bound,
        Err(problem) => Err(Problem::new("Invalid", problem.message.clone())),
    });
    let mut conditions = Conditions::new(owner)
        .put("Accepted", &listener.accepted)
        .put("ResolvedRefs", &listener.resolved)
        .put("Programmed", &programmed);
    if let Some(conflict) = &listener.conflict {
        conditions = conditions.add("Conflicted", ConditionStatus::True, conflict.reason, &conflict.message);
    }
    let kinds: &[_] = if listener.conflict.is_some() { &[] } else { &listener.kinds };
    let kinds: Vec<Value> = kinds.iter().map(|kind| json!({"group": GROUP, "kind": kind.as_str()})).collect();
    json!({
        "name": listener.listener.name.as_str(),
        "supportedKinds": kinds,
        "attachedRoutes": routes.unwrap_or_default(),
        "conditions": conditions.0,
    })
}

/// A parentRef with group and kind, and the namespace if it is another.
fn parent_value(route: &Route, parent: &ParentReference) -> Value {
    let to = &parent.object;
    let mut value = Map::new();
    value.insert("group".to_owned(), to.group.as_str().into());
    value.insert("kind".to_owned(), to.kind.as_str().into());
    if parent.has_namespace || to.namespace != route.identity.key.namespace {
        value.insert("namespace".to_owned(), to.namespace.as_str().into());
    }
    value.insert("name".to_owned(), to.name.as_str().into());
    if let Some(section) = &parent.section {
        value.insert("sectionName".to_owned(), section.as_str().into());
    }
    if let Some(port) = parent.port {
        value.insert("port".to_owned(), port.into());
    }
    value.into()
}

/// The conditions of one object; the reason of a condition that is met is its type.
struct Conditions(Vec<Value>, i64);

impl Conditions {
    fn new(owner: &ObjectIdentity) -> Self {
        Self(Vec::new(), owner.generation)
    }

    fn put(self, kind: &'static str, met: &Result<(), Problem>) -> Self {
        match met {
            Ok(()) => self.add(kind, ConditionStatus::True, kind, ""),
            Err(problem) => self.add(kind, ConditionStatus::False, problem.reason, &problem.message),
        }
    }

    fn add(mut self, kind: &str, status: ConditionStatus, reason: &str, message: &str) -> Self {
        self.0.push(json!({
            "type": kind,
            "status": status.as_str(),
            "reason": reason,
            "message": message,
            "observedGeneration": self.1,
        }));
        self
    }
}
