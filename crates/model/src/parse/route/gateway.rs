//! MeshGateway: its listeners, and what two of them may not share.

use std::collections::BTreeMap;

use super::at::{At, Problems};
use super::words::hostname;
use crate::label::Labels;
use crate::name::{Name, ObjectKey};
use crate::route::{Certificate, Gateway, GatewayListener, GatewayProtocol, Hostname};

/// As many listeners as a gateway may have; the schema says the same.
const MANY: usize = 64;

pub(super) fn gateway(key: ObjectKey, spec: &At, problems: &mut Problems) -> Gateway {
    spec.only(&["listeners"], problems);
    let list = spec.child("listeners");
    let items = list.items_or_one(problems, "listeners");
    if items.len() > MANY {
        problems.add(&list, format!("at most {MANY} can be given"));
    }
    let read: Vec<_> = items.iter().map(|item| (item, listener(&key, item, problems))).collect();
    check_together(&read, problems);
    Gateway { key, listeners: read.into_iter().filter_map(|(_, listener)| listener).collect() }
}

fn listener(gateway: &ObjectKey, at: &At, problems: &mut Problems) -> Option<GatewayListener> {
    at.only(&["name", "port", "protocol", "hostname", "tags", "tls"], problems);
    let name = at.child("name").needed(problems).map(Name::new);
    let port = at.child("port");
    if at.is_map() && !port.is_set() {
        problems.add(&port, "it is missing");
    }
    let port = port.port(problems);
    let protocol = protocol(at, problems);
    let host = at.child("hostname");
    if host.is_set() && protocol == Some(GatewayProtocol::Tcp) {
        problems.add(&host, "connections in the clear name no host: leave it out, or use TLS or HTTP");
    }
    let hostname = if host.is_set() { hostname(&host, problems)? } else { Hostname::Any };
    Some(GatewayListener {
        tags: Labels::from_pairs(at.child("tags").pairs(problems)),
        certificate: certificate(gateway, at, protocol, problems),
        name: name?,
        port: port?,
        protocol: protocol?,
        hostname,
    })
}

fn protocol(at: &At, problems: &mut Problems) -> Option<GatewayProtocol> {
    let field = at.child("protocol");
    if at.is_map() && !field.is_set() {
        problems.add(&field, "it is missing: write HTTP, HTTPS, TCP or TLS");
    }
    Some(match field.word(&["HTTP", "HTTPS", "TCP", "TLS"], problems)? {
        "HTTPS" => GatewayProtocol::Https,
        "TCP" => GatewayProtocol::Tcp,
        "TLS" => GatewayProtocol::Tls,
        _ => GatewayProtocol::Http,
    })
}

/// `tls: {certificateRef: {name}}`: HTTPS needs it. TLS ends here with it and goes on unread without; elsewhere it would
/// mean nothing.
fn certificate(
    gateway: &ObjectKey,
    at: &At,
    protocol: Option<GatewayProtocol>,
    problems: &mut Problems,
) -> Option<Certificate> {
    let tls = at.child("tls");
    let protocol = protocol?;
    if protocol == GatewayProtocol::Tls && !tls.is_set() {
        return None;
    }
    if !protocol.is_tls() {
        if tls.is_set() {
            problems.add(&tls, "only listeners of the protocols HTTPS and TLS have a certificate");
        }
        return None;
    }
    tls.only(&["certificateRef"], problems);
    let reference = tls.child("certificateRef");
    reference.only(&["name"], problems);
    if !reference.is_set() {
        problems.add(&reference, "name the Secret with tls.crt and tls.key, as {name: example-com}");
        return None;
    }
    let name = Name::new(reference.child("name").needed(problems)?);
    Some(Certificate { secret: ObjectKey { namespace: gateway.namespace.clone(), name } })
}

/// A name is used once; a port speaks one protocol and has each host name once.
fn check_together(read: &[(&At, Option<GatewayListener>)], problems: &mut Problems) {
    let mut names: BTreeMap<&Name, ()> = BTreeMap::new();
    let mut by_port: BTreeMap<u16, Vec<&GatewayListener>> = BTreeMap::new();
    for (at, listener) in read.iter().filter_map(|(at, l)| Some((at, l.as_ref()?))) {
        if names.insert(&listener.name, ()).is_some() {
            problems
                .add(&at.child("name"), format!("{} is the name of another listener, too", listener.name));
        }
        let others = by_port.entry(listener.port).or_default();
        if let Some(other) = others.iter().find(|other| other.protocol != listener.protocol) {
            let text = format!("port {} speaks {} already", listener.port, other.protocol.as_str());
            problems.add(&at.child("protocol"), text);
        }
        if others.iter().any(|other| other.hostname == listener.hostname) {
            let text = format!("port {} has a listener for {} already", listener.port, listener.hostname);
            problems.add(&at.child("hostname"), text);
        }
        others.push(listener);
    }
}
