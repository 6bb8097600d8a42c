//! The routes of `plan routes` and `trace http`: from a client to a destination, or of a gateway.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use model::gateway_api::RouteKind;
use model::route::{Arrival, GatewayPort, HttpRule, Listener, PolicyTarget, RouteTable, Routing, Scheme};
use model::suggestion::did_you_mean;
use model::{Labels, Name, Notice, ObjectKey, ObjectRef, ServiceKey, Snapshot};
use plan::gateway_api::gateway_table;
use plan::routes::{
    MeshClient, PolicyConsumer, gateway, never_matching_within, outbound, set_load_balancing, unused_targets,
};

use mesh::destination_port;

use crate::cli::{InputArgs, RouteArgs};
use cluster::object_name::ObjectName;

pub struct PlannedRoutes {
    /// The table of the proxy; of a sidecar only one destination.
    pub table: RouteTable,
    pub scope: PlannedScope,
    /// `--port`: the port of a gateway.
    pub port: Option<u16>,
    /// The UDP ports of a gateway.
    pub udp: Vec<(u16, Routing)>,
    pub notices: Vec<Notice>,
}

pub enum PlannedScope {
    /// One port of a Service.
    Outbound(ServiceKey, u16),
    /// A MeshGateway, or one listener of it.
    MeshGateway(ObjectKey, Option<Name>),
    /// A Gateway of the Gateway API, or one listener of it.
    Gateway(ObjectKey, Option<Name>),
}

impl PlannedRoutes {
    /// Plans by the flags; `namespace` is the default of names.
    pub fn plan(args: &RouteArgs, snapshot: &Snapshot, namespace: &str) -> Result<Self> {
        let namespace = Name::new(namespace);
        let (mut routes, namespaces) = match (&args.gateway, &args.from, &args.to) {
            (Some(gateway), ..) => at_gateway(gateway, args.port, snapshot, &namespace)?,
            (None, Some(from), Some(to)) => between(from, to, snapshot, &namespace)?,
            _ => bail!("either --from and --to, or --gateway is required"),
        };
        for namespace in &namespaces {
            routes.notices.extend(unused_targets(snapshot, namespace));
            routes.notices.extend(never_matching_within(snapshot, namespace));
        }
        Ok(routes)
    }

    /// The routing of a host; `None` where a gateway has none.
    pub fn routing(&self, host: &str) -> (Option<&Routing>, Arrival) {
        match &self.scope {
            PlannedScope::Outbound(service, port) => {
                let routing = self.table.outbound(service, *port).map(|outbound| &outbound.routing);
                (routing, Arrival { scheme: Scheme::Http, port: None })
            }
            PlannedScope::MeshGateway(_, listener) | PlannedScope::Gateway(_, listener) => {
                let found = self.gateway_port(listener.as_ref(), host);
                let scheme = found.map_or(Scheme::Http, |port| port.protocol.scheme());
                let arrival = Arrival { scheme, port: found.map(|port| port.number) };
                let listener = found.and_then(|port| port.listener(host));
                (listener.and_then(|listener| listener.routing(host)), arrival)
            }
        }
    }

    /// Whether the gateway is one of the Gateway API.
    pub fn is_standard(&self) -> bool {
        matches!(self.scope, PlannedScope::Gateway(..))
    }

    /// Whether routes of the Gateway API decide.
    pub fn has_standard_routes(&self) -> bool {
        let is_standard = |rule: &HttpRule| {
            rule.origin.policy.as_ref().is_some_and(|policy| RouteKind::parse(&policy.kind).is_some())
        };
        let mut outbounds = self.table.outbounds();
        self.is_standard()
            || outbounds.any(|outbound| match &outbound.routing {
                Routing::Http(routes) => routes.rules().any(is_standard),
                Routing::Tcp(_) => false,
            })
    }

    /// The port that a request to a Gateway of the Gateway API arrives at.
    pub fn standard_port(&self, host: &str) -> Option<u16> {
        let PlannedScope::Gateway(_, listener) = &self.scope else { return None };
        let first =
            || self.table.ports().map(|port| port.number).chain(self.table.udp_ports().map(|(n, _)| n)).min();
        self.port
            .or_else(|| self.gateway_port(listener.as_ref(), host).map(|port| port.number))
            .or_else(first)
    }

    /// The port of `--port` or of the listener; without one, the port of the host if it has one, else the first that
    /// serves HTTP.
    fn gateway_port(&self, listener: Option<&Name>, host: &str) -> Option<&GatewayPort> {
        let mut ports = self.table.ports().map(|port| &**port);
        if let Some(number) = self.port {
            return self.table.port(number).map(|port| &**port);
        }
        if let Some(name) = listener {
            return ports.find(|port| port.listeners.iter().any(|l: &Listener| l.name == *name));
        }
        let named: Option<u16> = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        if let Some(port) = named.and_then(|number| self.table.port(number)) {
            return Some(port);
        }
        let mut http = ports.filter(|port| port.protocol.is_http());
        let first = http.next()?;
        // The first of several ports that serves the host.
        let serves = |port: &&GatewayPort| port.listener(host).is_some_and(|l| l.routing(host).is_some());
        Some(if serves(&first) { first } else { http.find(serves).unwrap_or(first) })
    }
}

impl RouteArgs {
    /// The input; objects of all namespaces if a flag has a namespace.
    pub fn input(&self, given: &InputArgs) -> InputArgs {
        let has_namespace = |text: &String| {
            let name = text.split([',', ':']).next().unwrap_or_default();
            name.parse::<ObjectName>().is_ok_and(|name| name.namespace.is_some())
        };
        let all = [&self.from, &self.to, &self.gateway].into_iter().flatten().any(has_namespace);
        InputArgs { all_namespaces: given.all_namespaces || all, ..given.clone() }
    }
}

/// The routes of `[NAMESPACE/]NAME[:LISTENER]`, and the namespaces whose policies count. A MeshGateway comes before a
/// Gateway of the same name.
fn at_gateway(
    text: &str,
    port: Option<u16>,
    snapshot: &Snapshot,
    namespace: &Name,
) -> Result<(PlannedRoutes, BTreeSet<Name>)> {
    let (name, listener) = match text.split_once(':') {
        Some((name, listener)) => (name, Some(Name::new(listener))),
        None => (text, None),
    };
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Name::new(namespace), name),
        None => (namespace.clone(), name),
    };
    let key = ObjectKey { namespace: namespace.clone(), name: Name::new(name) };
    let namespaces: BTreeSet<Name> = [namespace].into();
    let Some(object) = snapshot.mesh_gateway(&key) else {
        let standard = snapshot.gateway(&key);
        let standard = standard.with_context(|| format!("no MeshGateway and no Gateway {key}"))?;
        let (table, notices) = gateway_table(snapshot, standard);
        let names = table.ports().flat_map(|port| port.listeners.iter().map(|l| l.name.clone()));
        check_listener("Gateway", &key, listener.as_ref(), &names.collect::<Vec<_>>())?;
        let scope = PlannedScope::Gateway(key, listener);
        let udp = table.udp_ports().map(|(number, split)| (number, Routing::Tcp(split.clone()))).collect();
        return Ok((PlannedRoutes { table, scope, port, udp, notices }, namespaces));
    };
    let names: Vec<Name> = object.listeners.iter().map(|l| l.name.clone()).collect();
    check_listener("MeshGateway", &key, listener.as_ref(), &names)?;
    let (table, notices) = gateway(snapshot, object);
    check_port(&key, port, &table)?;
    let scope = PlannedScope::MeshGateway(key, listener);
    Ok((PlannedRoutes { table, scope, port, udp: Vec::new(), notices }, namespaces))
}

fn check_listener(kind: &str, key: &ObjectKey, wanted: Option<&Name>, known: &[Name]) -> Result<()> {
    match wanted {
        Some(wanted) if !known.contains(wanted) => {
            let known: Vec<&str> = known.iter().map(Name::as_str).collect();
            bail!("{kind} {key} has no listener {wanted}; it has {}", known.join(", "))
        }
        _ => Ok(()),
    }
}

fn check_port(key: &ObjectKey, wanted: Option<u16>, table: &RouteTable) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let known: Vec<String> = table.ports().map(|port| port.number.to_string()).collect();
    if table.port(wanted).is_none() {
        bail!("MeshGateway {key} has no listener on port {wanted}; it has {}", known.join(", "));
    }
    Ok(())
}

/// The routes of a client to `[svc/][NAMESPACE/]NAME[:PORT]`, and the namespaces whose policies count.
fn between(
    from: &str,
    to: &str,
    snapshot: &Snapshot,
    namespace: &Name,
) -> Result<(PlannedRoutes, BTreeSet<Name>)> {
    let (client, remark) = client(from, snapshot, namespace)?;
    let (name, port) = match to.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (to, None),
    };
    let name = object_name("--to", name)?;
    let key = name.key(namespace);
    let known = || snapshot.services().map(|(service, _)| &service.key);
    let service = snapshot.service(&key).with_context(|| name.unknown(Some(namespace.as_str()), known()))?;
    let port = destination_port(service, port)?;
    let (found, mut notices) =
        outbound(snapshot, &client, service, port).context("only TCP ports have routes")?;
    notices.extend(remark);
    let scope = PlannedScope::Outbound(key, found.port);
    let mut table = RouteTable::default();
    table.put_outbound(found.into());
    notices.extend(set_load_balancing(&mut table, snapshot, PolicyConsumer::Client(&client)));
    let namespaces = [client.namespace, service.key.namespace.clone()].into();
    Ok((PlannedRoutes { table, scope, port: None, udp: Vec::new(), notices }, namespaces))
}

fn object_name(flag: &str, text: &str) -> Result<ObjectName> {
    text.parse().map_err(|why| anyhow!("{flag} {text}: {why}"))
}

/// `[svc/][NAMESPACE/]SERVICE[,TAG=VALUE...]`, with a warning if nothing in the input has this name.
fn client(text: &str, snapshot: &Snapshot, namespace: &Name) -> Result<(MeshClient, Option<Notice>)> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let mut tags = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').with_context(|| format!("{part}: expected TAG=VALUE"))?;
        tags.push((Name::new(key), Name::new(value)));
    }
    let key = object_name("--from", name)?.key(namespace);
    let client = MeshClient::of_service(snapshot, &key, &Labels::from_pairs(tags));
    Ok((client, unknown_client(&key, snapshot)))
}

/// A client needs no Service, but a name that no Service has and no policy selects may be misspelled.
fn unknown_client(key: &ServiceKey, snapshot: &Snapshot) -> Option<Notice> {
    let selected = |target: &PolicyTarget| match target {
        PolicyTarget::Service(name) | PolicyTarget::ServiceSubset(name, _) => Some(name.clone()),
        PolicyTarget::Mesh | PolicyTarget::Subset(_) | PolicyTarget::Gateway(..) => None,
    };
    let http = snapshot.mesh_http_routes(&key.namespace).filter_map(|route| selected(&route.target));
    let tcp = snapshot.mesh_tcp_routes(&key.namespace).filter_map(|route| selected(&route.target));
    let balancing =
        snapshot.load_balancing_policies(&key.namespace).filter_map(|policy| selected(&policy.target));
    let services = snapshot.services_within(&key.namespace).map(|service| service.key.name.clone());
    let known: BTreeSet<Name> = services.chain(http).chain(tcp).chain(balancing).collect();
    if known.contains(&key.name) {
        return None;
    }
    let near = did_you_mean(&key.name, known.iter().map(Name::as_str));
    let message =
        format!("--from: there is no such Service, and no policy selects it, so only its tags count{near}");
    Some(Notice::new(ObjectRef::service(key), "UnknownClient", message))
}
