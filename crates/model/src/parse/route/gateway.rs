//! MeshGateway: its listeners, and conflicts between them.

use std::collections::BTreeMap;

use super::syntax::hostname;
use super::target_ref::{MAX_NAME_BYTES, tags};
use crate::field::{Field, FieldErrors};
use crate::name::{Name, ObjectKey};
use crate::route::{Certificate, Hostname, MeshGateway, MeshGatewayListener, MeshGatewayProtocol};

const MAX_LISTENERS: usize = 64;
const MAX_CERTIFICATES: usize = 64;

pub(super) fn gateway(key: ObjectKey, spec: &Field, errors: &mut FieldErrors) -> MeshGateway {
    spec.only(&["listeners"], errors);
    let list = spec.child("listeners");
    let items = list.required_items("listeners", errors);
    list.limit(MAX_LISTENERS, "listeners", errors);
    let read: Vec<_> = items.iter().map(|item| (item, listener(&key, item, errors))).collect();
    check_conflicts(&read, errors);
    MeshGateway { key, listeners: read.into_iter().filter_map(|(_, listener)| listener).collect() }
}

fn listener(gateway: &ObjectKey, at: &Field, errors: &mut FieldErrors) -> Option<MeshGatewayListener> {
    at.only(&["name", "port", "protocol", "hostname", "tags", "tls"], errors);
    at.child("name").limit_bytes(MAX_NAME_BYTES, errors);
    let name = at.child("name").required_string(errors).map(Name::new);
    let port = at.child("port");
    if at.is_map() && !port.is_set() {
        errors.invalid(&port, "is missing");
    }
    let port = port.port(errors);
    let protocol = protocol(at, errors);
    let host = at.child("hostname");
    if host.is_set() && protocol == Some(MeshGatewayProtocol::Tcp) {
        errors.invalid(&host, "plain TCP connections carry no host name: remove it, or use TLS or HTTP");
    }
    let hostname = if host.is_set() { hostname(&host, errors)? } else { Hostname::Any };
    Some(MeshGatewayListener {
        tags: tags(at, false, errors),
        certificates: certificates(gateway, at, protocol, errors),
        has_certificate_refs: at.child("tls").child("certificateRefs").is_set(),
        name: name?,
        port: port?,
        protocol: protocol?,
        hostname,
    })
}

fn protocol(at: &Field, errors: &mut FieldErrors) -> Option<MeshGatewayProtocol> {
    let field = at.child("protocol");
    if at.is_map() && !field.is_set() {
        errors.invalid(&field, "is missing: use HTTP, HTTPS, TCP or TLS");
    }
    Some(match field.keyword(&["HTTP", "HTTPS", "TCP", "TLS"], errors)? {
        "HTTPS" => MeshGatewayProtocol::Https,
        "TCP" => MeshGatewayProtocol::Tcp,
        "TLS" => MeshGatewayProtocol::Tls,
        _ => MeshGatewayProtocol::Http,
    })
}

/// `tls: {certificateRef: {name}}`, or `certificateRefs` for several: required for HTTPS, absent for TLS passthrough,
/// invalid for other protocols.
fn certificates(
    gateway: &ObjectKey,
    at: &Field,
    protocol: Option<MeshGatewayProtocol>,
    errors: &mut FieldErrors,
) -> Box<[Certificate]> {
    let tls = at.child("tls");
    let Some(protocol) = protocol else { return Box::default() };
    if !protocol.is_tls() {
        if tls.is_set() {
            errors.invalid(&tls, "only HTTPS and TLS listeners have a certificate");
        }
        return Box::default();
    }
    if !tls.is_set() && protocol == MeshGatewayProtocol::Tls {
        return Box::default();
    }
    tls.only(&["certificateRef", "certificateRefs"], errors);
    let (one, several) = (tls.child("certificateRef"), tls.child("certificateRefs"));
    if several.is_set() {
        if one.is_set() {
            errors.invalid(&one, "use either certificateRef or certificateRefs: move it into the list");
        }
        return certificate_refs(gateway, &several, errors);
    }
    if !one.is_set() {
        errors
            .invalid(&one, "is missing: name the Secret with tls.crt and tls.key, e.g. {name: example-com}");
        return Box::default();
    }
    certificate(gateway, &one, errors).into_iter().collect()
}

fn certificate_refs(gateway: &ObjectKey, list: &Field, errors: &mut FieldErrors) -> Box<[Certificate]> {
    let items = list.required_items("references to Secrets", errors);
    list.limit(MAX_CERTIFICATES, "certificates", errors);
    let mut read: Vec<Certificate> = Vec::new();
    for item in items.iter().take(MAX_CERTIFICATES) {
        let Some(certificate) = certificate(gateway, item, errors) else { continue };
        if read.contains(&certificate) {
            errors.invalid(item, format!("Secret {} is in the list already", certificate.secret.name));
            continue;
        }
        read.push(certificate);
    }
    read.into()
}

fn certificate(gateway: &ObjectKey, reference: &Field, errors: &mut FieldErrors) -> Option<Certificate> {
    reference.only(&["name"], errors);
    reference.child("name").limit_bytes(MAX_NAME_BYTES, errors);
    let name = Name::new(reference.child("name").required_string(errors)?);
    Some(Certificate { secret: ObjectKey { namespace: gateway.namespace.clone(), name } })
}

/// Listener names are unique; a port has one protocol and each host name once.
fn check_conflicts(read: &[(&Field, Option<MeshGatewayListener>)], errors: &mut FieldErrors) {
    let mut names: BTreeMap<&Name, ()> = BTreeMap::new();
    let mut by_port: BTreeMap<u16, Vec<&MeshGatewayListener>> = BTreeMap::new();
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
