//! What becomes of a policy or gateway that is valid: whether everything that it names is there (ResolvedRefs), and
//! whether proxies get something of it (Programmed). The words are those of the Gateway API where it has them.
//!
//! ```text
//! policy + Services, gateways, Secrets -> Standing: two conditions, each with a reason and what to do
//! ```

use std::collections::BTreeMap;

use model::route::{
    AppProtocol, BackendRef, Filter, Gateway, GatewayHttpRoute, HttpRoute, PolicyTarget, Rule, TcpRoute,
};
use model::{Name, ObjectKey, Protocol, ServiceKey, Snapshot};

use super::gateway::{is_meant, takes};
use super::resolve::Resolver;

/// What is known of a Secret that a listener names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// It is there and holds a certificate with its key.
    Usable,
    /// It is missing, or cannot be used; why, and what to do.
    Unusable(String),
    /// It cannot be read; why, and what to do.
    Unknown(String),
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It holds.
    True,
    /// It does not.
    False,
    /// That cannot be known.
    Unknown,
}

impl Holds {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whether it holds.
    pub holds: Holds,
    /// A word for programs.
    pub reason: &'static str,
    /// What is so, and what to do.
    pub message: String,
}

/// The conditions of a valid object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether everything that it names is there and can be used.
    pub resolved: Finding,
    /// Whether proxies get something of it.
    pub programmed: Finding,
}

/// How many mistakes a message names.
const NAMED: usize = 10;

/// The conditions of a MeshHTTPRoute.
pub fn of_http_route(snapshot: &Snapshot, policy: &HttpRoute) -> Standing {
    let mut refs = Refs::new(snapshot, &policy.key.namespace);
    let selects = refs.target(&policy.target);
    let mut acts = 0;
    for (i, to) in policy.to.iter().enumerate() {
        acts += usize::from(refs.destination(i, &to.service, true));
        refs.rules(&format!("spec.to[{i}].rules"), &to.rules);
    }
    refs.standing(selects && acts > 0)
}

/// The conditions of a MeshGatewayHTTPRoute.
pub fn of_gateway_http_route(snapshot: &Snapshot, policy: &GatewayHttpRoute) -> Standing {
    let mut refs = Refs::new(snapshot, &policy.key.namespace);
    let mut acts = refs.target(&policy.target);
    if let Some(gateway) = refs.gateway(&policy.target)
        && !takes(gateway, policy)
    {
        acts = false;
        refs.idle.push((
            "NoListener",
            format!(
                "no HTTP or HTTPS listener of MeshGateway {} has these hosts and tags: compare spec.hostnames and spec.targetRef.tags with the listeners",
                gateway.key.name
            ),
        ));
    }
    refs.rules("spec.rules", &policy.rules);
    refs.standing(acts)
}

/// The conditions of a MeshTCPRoute.
pub fn of_tcp_route(snapshot: &Snapshot, policy: &TcpRoute) -> Standing {
    let mut refs = Refs::new(snapshot, &policy.key.namespace);
    let selects = refs.target(&policy.target);
    let mut acts = 0;
    for (i, to) in policy.to.iter().enumerate() {
        acts += usize::from(match &to.service {
            Some(service) => refs.destination(i, service, false),
            None => refs.tcp_listener(&policy.target),
        });
        for (j, backend) in to.backends.iter().enumerate() {
            refs.backend(&format!("spec.to[{i}].rules[0].default.backendRefs[{j}]"), backend, false);
        }
    }
    refs.standing(selects && acts > 0)
}

/// The conditions of a MeshGateway. A Secret that is not among `secrets` was not looked at yet.
pub fn of_gateway(gateway: &Gateway, secrets: &BTreeMap<ObjectKey, SecretState>) -> Standing {
    let (mut broken, mut unknown) = (Vec::new(), Vec::new());
    for (i, listener) in gateway.listeners.iter().enumerate() {
        let Some(certificate) = &listener.certificate else { continue };
        let field = format!("spec.listeners[{i}].tls.certificateRef");
        match secrets.get(&certificate.secret) {
            Some(SecretState::Usable) => {}
            Some(SecretState::Unusable(why)) => broken.push(format!("{field}: {why}")),
            Some(SecretState::Unknown(why)) => unknown.push(format!("{field}: {why}")),
            None => unknown.push(format!("{field}: Secret {} was not read yet", certificate.secret)),
        }
    }
    let finding = |holds, reason, message: String| Finding { holds, reason, message };
    if !broken.is_empty() {
        let effect = "clients of such a listener get no certificate, and other listeners are served";
        return Standing {
            resolved: finding(Holds::False, "InvalidCertificateRef", named(&broken)),
            programmed: finding(
                Holds::False,
                "ListenersNotValid",
                format!(
                    "{} of {} listeners lack a certificate: {effect}",
                    broken.len(),
                    gateway.listeners.len()
                ),
            ),
        };
    }
    if !unknown.is_empty() {
        return Standing {
            resolved: finding(Holds::Unknown, "SecretNotReadable", named(&unknown)),
            programmed: finding(Holds::Unknown, "SecretNotReadable", named(&unknown)),
        };
    }
    Standing {
        resolved: finding(Holds::True, "ResolvedRefs", "every certificate is there".to_owned()),
        programmed: finding(
            Holds::True,
            "Programmed",
            "its listeners are in the tables that proxies obey".to_owned(),
        ),
    }
}

/// What a policy names, looked up.
struct Refs<'s> {
    snapshot: &'s Snapshot,
    namespace: &'s Name,
    /// What is not there, with the reason of the condition.
    missing: Vec<(&'static str, String)>,
    /// What is there and takes nothing of the policy.
    idle: Vec<(&'static str, String)>,
}

impl<'s> Refs<'s> {
    fn new(snapshot: &'s Snapshot, namespace: &'s Name) -> Self {
        Self { snapshot, namespace, missing: Vec::new(), idle: Vec::new() }
    }

    fn gateway(&self, target: &PolicyTarget) -> Option<&'s Gateway> {
        let PolicyTarget::Gateway(name, _) = target else { return None };
        self.snapshot.gateway(&ObjectKey::new(self.namespace, name))
    }

    /// Whether the targetRef selects something that is there.
    fn target(&mut self, target: &PolicyTarget) -> bool {
        let (kind, name, is_there) = match target {
            PolicyTarget::Mesh | PolicyTarget::Subset(_) => return true,
            PolicyTarget::Gateway(name, _) => ("MeshGateway", name, self.gateway(target).is_some()),
            PolicyTarget::Service(name) | PolicyTarget::ServiceSubset(name, _) => {
                let key = ServiceKey::new(self.namespace, name);
                ("Service", name, self.snapshot.service(&key).is_some())
            }
        };
        if !is_there {
            let namespace = self.namespace;
            self.missing.push((
                "TargetNotFound",
                format!(
                    "spec.targetRef: there is no {kind} {namespace}/{name}: create it, or correct the name"
                ),
            ));
        }
        is_there
    }

    /// Whether a destination is there and its requests or connections can be routed.
    fn destination(&mut self, at: usize, key: &ServiceKey, http: bool) -> bool {
        let Some(service) = self.snapshot.service(key) else {
            let what = format!("spec.to[{at}].targetRef: there is no Service {key}");
            self.missing.push(("TargetNotFound", format!("{what}: create it, or correct the name")));
            return false;
        };
        let mut ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        let fits =
            ports.any(|port| !http || AppProtocol::of(port.app_protocol.as_deref(), &port.name).is_http());
        if !fits {
            let advice = "set the appProtocol of a port to http, http2 or grpc, or use a MeshTCPRoute";
            let what =
                if http { format!("speaks HTTP as far as we know; {advice}") } else { "is TCP".to_owned() };
            self.idle.push((
                "DestinationNotHTTP",
                format!("spec.to[{at}].targetRef: no port of Service {key} {what}"),
            ));
        }
        fits
    }

    fn tcp_listener(&mut self, target: &PolicyTarget) -> bool {
        let Some(gateway) = self.gateway(target) else { return false };
        let mut listeners = gateway.listeners.iter().filter(|listener| !listener.protocol.is_http());
        let found = listeners.any(|listener| is_meant(gateway, target, listener));
        if !found {
            let name = &gateway.key.name;
            self.idle
                .push(("NoListener", format!("no TCP or TLS listener of MeshGateway {name} has these tags")));
        }
        found
    }

    fn rules(&mut self, field: &str, rules: &[std::sync::Arc<Rule>]) {
        for (i, rule) in rules.iter().enumerate() {
            for (j, backend) in rule.backends.iter().flatten().enumerate() {
                self.backend(&format!("{field}[{i}].default.backendRefs[{j}]"), backend, true);
            }
            for (j, filter) in rule.filters.iter().flatten().enumerate() {
                if let Filter::Mirror { backend, .. } = filter {
                    let field = format!("{field}[{i}].default.filters[{j}].requestMirror.backendRef");
                    self.backend(&field, backend, true);
                }
            }
        }
    }

    fn backend(&mut self, field: &str, backend: &BackendRef, http: bool) {
        let resolver = Resolver { snapshot: self.snapshot, near: None };
        if let Err(why) = resolver.backend(backend, self.namespace, http) {
            let key = ServiceKey::new(self.namespace, &backend.name);
            let is_there = self.snapshot.service(&key).is_some();
            let reason = if is_there { "UnsupportedProtocol" } else { "BackendNotFound" };
            self.missing.push((reason, format!("{field}: {why}")));
        }
    }

    fn standing(self, acts: bool) -> Standing {
        let Self { missing, idle, .. } = self;
        let texts =
            |list: &[(&'static str, String)]| list.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
        let resolved = match missing.first() {
            Some((reason, _)) => Finding { holds: Holds::False, reason, message: named(&texts(&missing)) },
            None => Finding {
                holds: Holds::True,
                reason: "ResolvedRefs",
                message: "everything that it names is there".to_owned(),
            },
        };
        let programmed = if acts {
            let is_backend = |(reason, _): &(&str, String)| *reason != "TargetNotFound";
            let mut message = "its rules are in the tables that proxies obey".to_owned();
            if missing.iter().any(is_backend) {
                message += "; the share of a backend that cannot be resolved is answered with 500";
            }
            if missing.iter().any(|entry| !is_backend(entry)) || !idle.is_empty() {
                message += "; parts of it do nothing: see ResolvedRefs";
            }
            if !idle.is_empty() {
                message += &format!(": {}", named(&texts(&idle)));
            }
            Finding { holds: Holds::True, reason: "Programmed", message }
        } else {
            let all: Vec<(&'static str, String)> =
                missing.into_iter().filter(|(reason, _)| *reason == "TargetNotFound").chain(idle).collect();
            let reason = all.first().map_or("TargetNotFound", |(reason, _)| reason);
            Finding {
                holds: Holds::False,
                reason,
                message: format!("it does nothing: {}", named(&texts(&all))),
            }
        };
        Standing { resolved, programmed }
    }
}

fn named(all: &[String]) -> String {
    let mut text = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > NAMED {
        text += &format!("; and {} more", all.len() - NAMED);
    }
    text
}
