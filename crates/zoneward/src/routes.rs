//! Whose routes `plan routes` and `trace http` are about: a client and a destination, or a gateway.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use model::route::{Arrival, GatewayPort, Listener, RouteTable, Routing, Scheme};
use model::{Labels, Name, Notice, ObjectKey, Protocol, Service, ServiceKey, Snapshot};
use plan::routes::{Client, gateway, never_matching_within, outbound, unused_targets};

use crate::cli::{InputArgs, RouteArgs};
use crate::object_name::ObjectName;

/// The routes that a command is about.
pub struct Routes {
    /// The table of the proxy; of a sidecar only the one destination.
    pub table: RouteTable,
    /// Which part of the table.
    pub scope: Scope,
    /// What there is to say about the policies.
    pub notices: Vec<Notice>,
}

/// A part of a table.
pub enum Scope {
    /// A client's way to one port of a Service.
    Outbound(ServiceKey, u16),
    /// A gateway, or one listener of it.
    Gateway(ObjectKey, Option<Name>),
}

impl Routes {
    /// Plans what the flags ask for. A name without a namespace is of this one.
    pub fn plan(args: &RouteArgs, snapshot: &Snapshot, namespace: &str) -> Result<Self> {
        let namespace = Name::new(namespace);
        let (mut routes, namespaces) = match (&args.gateway, &args.from, &args.to) {
            (Some(gateway), ..) => at_gateway(gateway, snapshot, &namespace)?,
            (None, Some(from), Some(to)) => between(from, to, snapshot, &namespace)?,
            _ => bail!("either --from and --to, or --gateway is required"),
        };
        for namespace in &namespaces {
            routes.notices.extend(unused_targets(snapshot, namespace));
            routes.notices.extend(never_matching_within(snapshot, namespace));
        }
        Ok(routes)
    }

    /// Where a request to this host is decided; `None` where a gateway has nothing for it.
    pub fn routing(&self, host: &str) -> (Option<&Routing>, Arrival) {
        match &self.scope {
            Scope::Outbound(service, port) => {
                let routing = self.table.outbound(service, *port).map(|outbound| &outbound.routing);
                (routing, Arrival { scheme: Scheme::Http, port: None })
            }
            Scope::Gateway(_, listener) => {
                let found = self.gateway_port(listener.as_ref(), host);
                let scheme = found.map_or(Scheme::Http, |port| port.protocol.scheme());
                let arrival = Arrival { scheme, port: found.map(|port| port.number) };
                let listener = found.and_then(|port| port.listener(host));
                (listener.and_then(|listener| listener.routing(host)), arrival)
            }
        }
    }

    /// The port of the listener; without one, the port of the host if it has one, else the first that serves HTTP.
    fn gateway_port(&self, listener: Option<&Name>, host: &str) -> Option<&GatewayPort> {
        let mut ports = self.table.ports().map(|port| &**port);
        if let Some(name) = listener {
            return ports.find(|port| port.listeners.iter().any(|l: &Listener| l.name == *name));
        }
        let named: Option<u16> = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        if let Some(port) = named.and_then(|number| self.table.port(number)) {
            return Some(port);
        }
        let mut http = ports.filter(|port| port.protocol.is_http());
        let first = http.next()?;
        // Of several ports, the first that has something for the host.
        let serves = |port: &&GatewayPort| port.listener(host).is_some_and(|l| l.routing(host).is_some());
        Some(if serves(&first) { first } else { http.find(serves).unwrap_or(first) })
    }
}

impl RouteArgs {
    /// Where the objects come from: where a flag names a namespace, from all of them.
    pub fn input(&self, given: &InputArgs) -> InputArgs {
        let has_namespace = |text: &String| {
            let name = text.split([',', ':']).next().unwrap_or_default();
            name.parse::<ObjectName>().is_ok_and(|name| name.namespace.is_some())
        };
        let all = [&self.from, &self.to, &self.gateway].into_iter().flatten().any(has_namespace);
        InputArgs { all_namespaces: given.all_namespaces || all, ..given.clone() }
    }
}

/// The routes of `[NAMESPACE/]NAME[:LISTENER]`, and the namespaces whose policies count.
fn at_gateway(text: &str, snapshot: &Snapshot, namespace: &Name) -> Result<(Routes, BTreeSet<Name>)> {
    let (name, listener) = match text.split_once(':') {
        Some((name, listener)) => (name, Some(Name::new(listener))),
        None => (text, None),
    };
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (Name::new(namespace), name),
        None => (namespace.clone(), name),
    };
    let key = ObjectKey { namespace: namespace.clone(), name: Name::new(name) };
    let object = snapshot.gateway(&key).with_context(|| format!("there is no MeshGateway {key}"))?;
    if let Some(wanted) = &listener
        && !object.listeners.iter().any(|l| l.name == *wanted)
    {
        let known: Vec<&str> = object.listeners.iter().map(|l| l.name.as_str()).collect();
        bail!("MeshGateway {key} has no listener {wanted}; it has {}", known.join(", "));
    }
    let (table, notices) = gateway(snapshot, object);
    Ok((Routes { table, scope: Scope::Gateway(key, listener), notices }, [namespace].into()))
}

/// The routes of a client to `[svc/][NAMESPACE/]NAME[:PORT]`, and the namespaces whose policies count.
fn between(from: &str, to: &str, snapshot: &Snapshot, namespace: &Name) -> Result<(Routes, BTreeSet<Name>)> {
    let client = client(from, snapshot, namespace)?;
    let (name, port) = match to.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (to, None),
    };
    let name = object_name("--to", name)?;
    let key = name.key(namespace);
    let known = || snapshot.services().map(|(service, _)| &service.key);
    let service = snapshot.service(&key).with_context(|| name.unknown(Some(namespace.as_str()), known()))?;
    let port = destination_port(service, port)?;
    let (found, notices) =
        outbound(snapshot, &client, service, port).context("only TCP ports have routes")?;
    let namespaces = [client.namespace, key.namespace.clone()].into();
    let scope = Scope::Outbound(key, found.port);
    let mut table = RouteTable::default();
    table.put_outbound(found.into());
    Ok((Routes { table, scope, notices }, namespaces))
}

fn object_name(flag: &str, text: &str) -> Result<ObjectName> {
    text.parse().map_err(|why| anyhow!("{flag} {text}: {why}"))
}

/// `[svc/][NAMESPACE/]SERVICE[,TAG=VALUE...]`.
fn client(text: &str, snapshot: &Snapshot, namespace: &Name) -> Result<Client> {
    let mut parts = text.split(',');
    let name = parts.next().unwrap_or_default();
    let mut tags = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').with_context(|| format!("{part}: expected TAG=VALUE"))?;
        tags.push((Name::new(key), Name::new(value)));
    }
    let name = object_name("--from", name)?;
    let key = name.key(namespace);
    let known = || snapshot.services().map(|(service, _)| &service.key);
    // Without any Service in the input, whether it exists is unknown.
    if snapshot.service(&key).is_none() && known().next().is_some() {
        bail!("--from: {}", name.unknown(Some(namespace.as_str()), known()));
    }
    Ok(Client::of_service(snapshot, &key, &Labels::from_pairs(tags)))
}

pub(crate) fn destination_port<'s>(
    service: &'s Service,
    wanted: Option<&str>,
) -> Result<&'s model::ServicePort> {
    let key = &service.key;
    let mut ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    if let Some(wanted) = wanted {
        let is_wanted = |p: &&model::ServicePort| p.name == wanted || p.port.to_string() == wanted;
        return ports.find(is_wanted).with_context(|| format!("Service {key} has no TCP port {wanted}"));
    }
    let speaks_http =
        |p: &&model::ServicePort| model::route::AppProtocol::of(p.app_protocol.as_deref(), &p.name).is_http();
    let first = ports.clone().next().with_context(|| format!("Service {key} has no TCP port"))?;
    Ok(ports.find(speaks_http).unwrap_or(first))
}
