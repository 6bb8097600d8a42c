//! The listeners of a Gateway and of its ListenerSets: which may be served, and why not the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::gateway_api::{
    CertificateKind, ClientValidation, GROUP, Gateway, GatewayListener, ListenerSet, NamespaceScope,
    ParentKind, RouteKind,
};
use model::route::ClientAuthentication;
use model::{Name, ObjectKey, Snapshot};

use super::Problem;
use super::references::Referrer;

/// A Gateway with all listeners that it has.
pub(super) struct EffectiveGateway<'s> {
    pub(super) gateway: &'s Gateway,
    /// Its own, then those of its ListenerSets, older ones first.
    pub(super) listeners: Vec<EffectiveListener<'s>>,
    /// Its ListenerSets, in order of precedence, and whether it allows them.
    pub(super) sets: Vec<(&'s ListenerSet, Result<(), Problem>)>,
}

/// A listener of a Gateway or ListenerSet.
pub(super) struct EffectiveListener<'s> {
    pub(super) listener: &'s GatewayListener,
    /// `None`: of the Gateway itself.
    pub(super) set: Option<&'s ListenerSet>,
    /// The kinds of routes that it takes.
    pub(super) kinds: Vec<RouteKind>,
    pub(super) accepted: Result<(), Problem>,
    pub(super) resolved: Result<(), Problem>,
    pub(super) conflict: Option<Problem>,
    /// The usable certificates.
    pub(super) certificates: Box<[ObjectKey]>,
    /// How client certificates are validated, by the usable authorities.
    pub(super) clients: Option<Arc<ClientAuthentication>>,
}

impl EffectiveListener<'_> {
    /// Whether proxies serve it.
    pub(super) fn is_programmed(&self) -> bool {
        self.accepted.is_ok() && self.resolved.is_ok()
    }

    /// The namespace of the object that it belongs to.
    pub(super) fn namespace<'a>(&'a self, gateway: &'a Gateway) -> &'a Name {
        self.set.map_or(&gateway.identity.key.namespace, |set| &set.identity.key.namespace)
    }
}

/// Whether a Gateway belongs to a controller.
pub(super) fn is_ours(snapshot: &Snapshot, gateway: &Gateway, controller: &str) -> bool {
    snapshot.gateway_class(&gateway.class).is_some_and(|class| class.controller == controller)
}

/// Whether a namespace is in scope; `own` is the namespace of the object that has the scope.
pub(super) fn in_scope(snapshot: &Snapshot, scope: &NamespaceScope, own: &Name, namespace: &Name) -> bool {
    match scope {
        NamespaceScope::All => true,
        NamespaceScope::Same => own == namespace,
        NamespaceScope::None => false,
        NamespaceScope::Selector(selector) => {
            let labels = snapshot.namespace(namespace).map(|namespace| &namespace.labels);
            // The API server gives every namespace this label.
            selector.selects(|key| match key {
                "kubernetes.io/metadata.name" => Some(namespace),
                key => labels.and_then(|labels| labels.value(key)),
            })
        }
    }
}

impl<'s> EffectiveGateway<'s> {
    pub(super) fn new(snapshot: &'s Snapshot, gateway: &'s Gateway) -> Self {
        let key = &gateway.identity.key;
        let mut sets: Vec<&ListenerSet> = snapshot.listener_sets_of(key).collect();
        sets.retain(|set| set.parent.kind() == ParentKind::Gateway);
        sets.sort_by_cached_key(|set| set.identity.age_order());
        let allow = |set: &ListenerSet| {
            let namespace = &set.identity.key.namespace;
            let is_allowed = in_scope(snapshot, &gateway.listener_sets_from, &key.namespace, namespace);
            let message = || format!("Gateway {key} does not allow ListenerSets of namespace {namespace}");
            if is_allowed { Ok(()) } else { Err(Problem::new("NotAllowed", message())) }
        };
        let sets: Vec<_> = sets.into_iter().map(|set| (set, allow(set))).collect();
        let own = gateway.listeners.iter().map(|listener| (listener, None));
        let allowed = sets.iter().filter(|(_, allowed)| allowed.is_ok());
        let others =
            allowed.flat_map(|(set, _)| set.listeners.iter().map(move |listener| (listener, Some(*set))));
        let mut listeners: Vec<EffectiveListener<'s>> =
            own.chain(others).map(|(listener, set)| check(snapshot, gateway, listener, set)).collect();
        mark_conflicts(&mut listeners);
        Self { gateway, listeners, sets }
    }

    /// The listeners of one object: the Gateway itself, or a ListenerSet.
    pub(super) fn listeners_of<'a>(
        &'a self,
        set: Option<&'a ObjectKey>,
    ) -> impl Iterator<Item = (usize, &'a EffectiveListener<'s>)> {
        let is_of = move |listener: &EffectiveListener<'_>| listener.set.map(|set| &set.identity.key) == set;
        self.listeners.iter().enumerate().filter(move |(_, listener)| is_of(listener))
    }

    /// Whether a ListenerSet has a listener that can be served.
    pub(super) fn set_accepted(&self, set: &ListenerSet) -> Result<(), Problem> {
        let key = &set.identity.key;
        if let Some((_, Err(problem))) = self.sets.iter().find(|(own, _)| own.identity.key == *key) {
            return Err(problem.clone());
        }
        if self.listeners_of(Some(key)).any(|(_, listener)| listener.accepted.is_ok()) {
            return Ok(());
        }
        Err(Problem::new("ListenersNotValid", "no listener of the ListenerSet is accepted"))
    }

    /// The Secrets and ConfigMaps of its listeners and of the Gateway itself that they may refer to.
    pub(super) fn certificate_references(&self, snapshot: &Snapshot) -> Vec<(CertificateKind, ObjectKey)> {
        let gateway = self.gateway;
        let own = Referrer { snapshot, kind: "Gateway", namespace: &gateway.identity.key.namespace };
        let mut found = Vec::new();
        for listener in &self.listeners {
            let namespace = listener.namespace(gateway);
            let kind = if listener.set.is_some() { "ListenerSet" } else { "Gateway" };
            let referrer = Referrer { snapshot, kind, namespace };
            let certificates = listener.listener.tls.iter().flat_map(|tls| tls.certificates.iter());
            if terminates(listener.listener) {
                found.extend(certificates.filter_map(|to| referrer.source(to)));
            }
            let validation = self.client_validation(listener.listener).into_iter();
            found.extend(validation.flat_map(|rule| rule.authorities.iter()).filter_map(|to| own.source(to)));
        }
        found.extend(gateway.client_certificate.iter().filter_map(|to| own.source(to)));
        found
    }

    /// How the clients of a listener are validated.
    pub(super) fn client_validation(&self, listener: &GatewayListener) -> Option<&'s ClientValidation> {
        client_validation(self.gateway, listener)
    }
}

fn client_validation<'s>(gateway: &'s Gateway, listener: &GatewayListener) -> Option<&'s ClientValidation> {
    if !terminates(listener) {
        return None;
    }
    let by_port = gateway.client_validation_by_port.iter().find(|(port, _)| *port == listener.port);
    by_port.map_or(gateway.client_validation.as_ref(), |(_, validation)| validation.as_ref())
}

fn terminates(listener: &GatewayListener) -> bool {
    match listener.protocol.as_str() {
        "HTTPS" => true,
        "TLS" => listener.tls.as_ref().is_none_or(|tls| tls.terminates),
        _ => false,
    }
}

/// The kinds of routes of a protocol.
fn kinds_of(protocol: &str) -> &'static [RouteKind] {
    match protocol {
        "HTTP" | "HTTPS" => &[RouteKind::Http, RouteKind::Grpc],
        "TLS" => &[RouteKind::Tls],
        "TCP" => &[RouteKind::Tcp],
        "UDP" => &[RouteKind::Udp],
        _ => &[],
    }
}

fn check<'s>(
    snapshot: &'s Snapshot,
    gateway: &'s Gateway,
    listener: &'s GatewayListener,
    set: Option<&'s ListenerSet>,
) -> EffectiveListener<'s> {
    let known = kinds_of(&listener.protocol);
    let mut resolved = Ok(());
    let kinds = if listener.route_kinds.is_empty() {
        known.to_vec()
    } else {
        let (mut kinds, mut wrong) = (Vec::new(), Vec::new());
        for entry in &listener.route_kinds {
            let kind = RouteKind::parse(&entry.1).filter(|kind| entry.0 == GROUP && known.contains(kind));
            match kind {
                Some(kind) if !kinds.contains(&kind) => kinds.push(kind),
                Some(_) => {}
                None => wrong.push(format!("{}/{}", entry.0, entry.1)),
            }
        }
        if !wrong.is_empty() {
            let message = format!("protocol {} does not take {}", listener.protocol, wrong.join(", "));
            resolved = Err(Problem::new("InvalidRouteKinds", message));
        }
        kinds
    };
    let mut accepted = Ok(());
    if known.is_empty() {
        let message =
            format!("protocol {} is not supported: use HTTP, HTTPS, TLS, TCP or UDP", listener.protocol);
        accepted = Err(Problem::new("UnsupportedProtocol", message));
    }
    let own_kind = if set.is_some() { "ListenerSet" } else { "Gateway" };
    let own_namespace = set.map_or(&gateway.identity.key.namespace, |set| &set.identity.key.namespace);
    let referrer = Referrer { snapshot, kind: own_kind, namespace: own_namespace };
    let (certificates, are_usable) = certificates(&referrer, listener);
    resolved = resolved.and(are_usable);
    let mut clients = None;
    if let Some(validation) = client_validation(gateway, listener) {
        // The authorities belong to the Gateway, whichever object has the listener.
        let owner = Referrer { snapshot, kind: "Gateway", namespace: &gateway.identity.key.namespace };
        let all: Vec<Result<ObjectKey, Problem>> = validation
            .authorities
            .iter()
            .map(|authority| owner.authority(authority, "InvalidCACertificateKind"))
            .collect();
        if !all.iter().any(Result::is_ok) {
            let message = "no certificate authority of tls.frontend can be used";
            accepted = accepted.and(Err(Problem::new("NoValidCACertificate", message)));
        }
        let usable = all.iter().filter_map(|authority| authority.as_ref().ok().cloned()).collect();
        let is_required = !validation.allows_insecure;
        clients = Some(Arc::new(ClientAuthentication { authorities: usable, is_required }));
        resolved = resolved.and(all.into_iter().collect::<Result<Vec<_>, _>>().map(drop));
    }
    EffectiveListener { listener, set, kinds, accepted, resolved, conflict: None, certificates, clients }
}

/// The usable certificates, and whether all are.
fn certificates(
    referrer: &Referrer<'_>,
    listener: &GatewayListener,
) -> (Box<[ObjectKey]>, Result<(), Problem>) {
    const REASON: &str = "InvalidCertificateRef";
    if !terminates(listener) {
        return (Box::default(), Ok(()));
    }
    let refs = listener.tls.as_ref().map(|tls| &*tls.certificates).unwrap_or_default();
    if refs.is_empty() {
        let message = "a listener that terminates TLS needs tls.certificateRefs";
        return (Box::default(), Err(Problem::new(REASON, message)));
    }
    let all: Vec<_> = refs.iter().map(|to| referrer.certificate(to, REASON)).collect();
    let usable = all.iter().filter_map(|found| found.as_ref().ok().cloned()).collect();
    (usable, all.into_iter().collect::<Result<Vec<_>, _>>().map(drop))
}

/// Listeners on one port must be told apart. In one object, all that cannot lose; of two objects, the one of higher
/// precedence wins.
fn mark_conflicts(listeners: &mut [EffectiveListener<'_>]) {
    let mut lost: BTreeSet<usize> = BTreeSet::new();
    let mut problems = Vec::new();
    for at in 0..listeners.len() {
        let own = &listeners[at];
        let set = |listener: &EffectiveListener<'_>| listener.set.map(|set| set.identity.key.clone());
        let is_rival = |(other_at, other): &(usize, &EffectiveListener<'_>)| {
            *other_at != at && (set(other) == set(own) || (*other_at < at && !lost.contains(other_at)))
        };
        let others = listeners.iter().enumerate().filter(is_rival);
        let found = others.into_iter().find_map(|(_, other)| conflict(own.listener, other.listener));
        if let Some(problem) = found {
            lost.insert(at);
            problems.push((at, problem));
        }
    }
    for (at, problem) in problems {
        let listener = &mut listeners[at];
        listener.accepted = Err(problem.clone());
        listener.conflict = Some(problem);
    }
}

/// Why two listeners cannot share a port.
fn conflict(a: &GatewayListener, b: &GatewayListener) -> Option<Problem> {
    let is_udp = |listener: &GatewayListener| listener.protocol == "UDP";
    // TCP and UDP ports are different ports.
    if a.port != b.port || is_udp(a) != is_udp(b) {
        return None;
    }
    let both = (a.protocol.as_str(), b.protocol.as_str());
    let is_tls = |protocol: &str| matches!(protocol, "HTTPS" | "TLS");
    let can_share = match both {
        ("TCP", _) | (_, "TCP") => a.protocol == b.protocol,
        ("TLS", "TLS") => terminates(a) == terminates(b),
        (one, other) => one == other || (is_tls(one) && is_tls(other)),
    };
    if !can_share {
        let message = format!("listener {} has another protocol on port {}: {}", b.name, b.port, b.protocol);
        return Some(Problem::new("ProtocolConflict", message));
    }
    let is_same_host = a.hostname == b.hostname || matches!(a.protocol.as_str(), "TCP" | "UDP");
    let message = || format!("listener {} has the same hostname on port {}: {}", b.name, b.port, b.hostname);
    is_same_host.then(|| Problem::new("HostnameConflict", message()))
}
