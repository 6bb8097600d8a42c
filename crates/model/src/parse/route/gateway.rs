//! MeshGateway: its listeners, and conflicts between them.

use std::collections::BTreeMap;

use super::syntax::hostname;
use crate::field::{Field, FieldErrors};
use crate::label::Labels;
use crate::name::{Name, ObjectKey};
use crate::route::{Certificate, Gateway, GatewayListener, GatewayProtocol, Hostname};

/// The schema has the same limit.
const MAX_LISTENERS: usize = 64;

pub(super) fn gateway(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> Gateway {
    spec.only(&["listeners"], errors);
    let list = spec.child("listeners");
    let items = list.required_items("listeners", errors);
    if items.len() > MAX_LISTENERS {
        errors.invalid(&list, format!("at most {MAX_LISTENERS} listeners are allowed"));
    }
    let read: Vec<_> = items.iter().map(|item| (item, listener(&key, item, errors))).collect();
    check_conflicts(&read, errors);
    Gateway { key, listeners: read.into_iter().filter_map(|(_, listener)| listener).collect() }
}

fn listener(gateway: &ObjectKey, at: &Field, errors: &mut FieldErrors) -> Option<GatewayListener> {
    at.only(&["name", "port", "protocol", "hostname", "tags", "tls"], errors);
    let name = at.child("name").required_string(errors).map(Name::new);
    let port = at.child("port");
    if at.is_map() && !port.is_set() {
        errors.invalid(&port, "is missing");
    }
    let port = port.port(errors);
    let protocol = protocol(at, errors);
    let host = at.child("hostname");
    if host.is_set() && protocol == Some(GatewayProtocol::Tcp) {
        errors.invalid(&host, "plain TCP connections carry no host name: remove it, or use TLS or HTTP");
    }
    let hostname = if host.is_set() { hostname(&host, errors)? } else { Hostname::Any };
    Some(GatewayListener {
        tags: Labels::from_pairs(at.child("tags").string_map(errors)),
        certificate: certificate(gateway, at, protocol, errors),
        name: name?,
        port: port?,
        protocol: protocol?,
        hostname,
    })
}

fn protocol(at: &Field, errors: &mut FieldErrors) -> Option<GatewayProtocol> {
    let field = at.child("protocol");
    if at.is_map() && !field.is_set() {
        errors.invalid(&field, "is missing: use HTTP, HTTPS, TCP or TLS");
    }
    Some(match field.keyword(&["HTTP", "HTTPS", "TCP", "TLS"], errors)? {
        "HTTPS" => GatewayProtocol::Https,
        "TCP" => GatewayProtocol::Tcp,
        "TLS" => GatewayProtocol::Tls,
        _ => GatewayProtocol::Http,
    })
}

/// `tls: {certificateRef: {name}}`: required for HTTPS, absent for TLS passthrough, invalid for other protocols.
fn certificate(
    gateway: &ObjectKey,
    at: &Field,
    protocol: Option<GatewayProtocol>,
    errors: &mut FieldErrors,
) -> Option<Certificate> {
    let tls = at.child("tls");
    let is_tls = protocol?.is_tls();
    if !is_tls {
        if tls.is_set() {
            errors.invalid(&tls, "only HTTPS and TLS listeners have a certificate");
        }
        return None;
    }
    if !tls.is_set() && protocol == Some(GatewayProtocol::Tls) {
        return None;
    }
    tls.only(&["certificateRef"], errors);
    let reference = tls.child("certificateRef");
    reference.only(&["name"], errors);
    if !reference.is_set() {
        errors.invalid(
            &reference,
            "is missing: name the Secret with tls.crt and tls.key, e.g. {name: example-com}",
        );
        return None;
    }
    let name = Name::new(reference.child("name").required_string(errors)?);
    Some(Certificate { secret: ObjectKey { namespace: gateway.namespace.clone(), name } })
}

/// Listener names are unique; a port has one protocol and each host name once.
fn check_conflicts(read: &[(&Field, Option<GatewayListener>)], errors: &mut FieldErrors) {
    let mut names: BTreeMap<&Name, ()> = BTreeMap::new();
    let mut by_port: BTreeMap<u16, Vec<&GatewayListener>> = BTreeMap::new();
    for (at, listener) in read.iter().filter_map(|(at, l)| Some((at, l.as_ref()?))) {
        if names.insert(&listener.name, ()).is_some() {
            errors.invalid(&at.child("name"), format!("another listener has the name {}", listener.name));
        }
        let others = by_port.entry(listener.port).or_default();
        if let Some(other) = others.iter().find(|other| other.protocol != listener.protocol) {
            let text =
                format!("port {} has a listener with protocol {}", listener.port, other.protocol.as_str());
            errors.invalid(&at.child("protocol"), text);
        }
        if others.iter().any(|other| other.hostname == listener.hostname) {
            let text = format!("port {} has another listener for {}", listener.port, listener.hostname);
            errors.invalid(&at.child("hostname"), text);
        }
        others.push(listener);
    }
}
