//! Gateway and ListenerSet.

use super::{name, optional_name, parent, reference};
use crate::field::{Field, FieldErrors};
use crate::gateway_api::{
    ClientValidation, GROUP, Gateway, GatewayAddress, GatewayListener, LabelOperator, LabelRequirement,
    ListenerSet, ListenerTls, NamespaceScope, NamespaceSelector, ObjectIdentity,
};
use crate::name::Name;
use crate::route::Hostname;

pub(super) fn gateway(identity: ObjectIdentity, spec: &Field, errors: &mut FieldErrors) -> Gateway {
    let namespace = identity.key.namespace.clone();
    let addresses = spec.child("addresses").items(errors);
    let tls = spec.child("tls").map(errors);
    let frontend = tls.child("frontend").map(errors);
    let per_port = frontend.child("perPort").items(errors);
    let certificate = tls.child("backend").map(errors).child("clientCertificateRef");
    Gateway {
        class: name(&spec.child("gatewayClassName"), errors),
        listeners: listeners(&spec.child("listeners"), &namespace, errors),
        addresses: addresses.iter().map(|address| gateway_address(address, errors)).collect(),
        listener_sets_from: scope(&spec.child("allowedListeners"), NamespaceScope::None, errors),
        client_validation: validation(&frontend.child("default"), &namespace, errors),
        client_validation_by_port: per_port
            .iter()
            .filter_map(|entry| {
                let port = entry.child("port").port(errors)?;
                Some((port, validation(&entry.child("tls"), &namespace, errors)))
            })
            .collect(),
        client_certificate: certificate
            .is_set()
            .then(|| reference(&certificate, "", "Secret", &namespace, errors)),
        has_parameters: spec.child("infrastructure").child("parametersRef").is_set(),
        identity,
    }
}

pub(super) fn listener_set(identity: ObjectIdentity, spec: &Field, errors: &mut FieldErrors) -> ListenerSet {
    let namespace = identity.key.namespace.clone();
    ListenerSet {
        identity,
        parent: parent(&spec.child("parentRef"), &namespace, errors),
        listeners: listeners(&spec.child("listeners"), &namespace, errors),
    }
}

fn gateway_address(at: &Field, errors: &mut FieldErrors) -> GatewayAddress {
    GatewayAddress {
        kind: optional_name(&at.child("type"), errors).unwrap_or_else(|| Name::new("IPAddress")),
        value: Name::new(at.child("value").string(errors).unwrap_or_default()),
    }
}

fn listeners(at: &Field, namespace: &Name, errors: &mut FieldErrors) -> Box<[GatewayListener]> {
    at.items(errors).iter().filter_map(|entry| listener(entry, namespace, errors)).collect()
}

fn listener(at: &Field, namespace: &Name, errors: &mut FieldErrors) -> Option<GatewayListener> {
    let port = at.child("port");
    if !port.is_set() {
        errors.invalid(&port, "is missing");
    }
    let routes = at.child("allowedRoutes").map(errors);
    let kinds = routes.child("kinds").items(errors);
    let tls = at.child("tls").map(errors);
    let certificates = tls.child("certificateRefs").items(errors);
    Some(GatewayListener {
        name: name(&at.child("name"), errors),
        hostname: hostname(&at.child("hostname"), errors).unwrap_or(Hostname::Any),
        port: port.port(errors)?,
        protocol: name(&at.child("protocol"), errors),
        tls: tls.is_set().then(|| ListenerTls {
            terminates: tls.child("mode").string(errors) != Some("Passthrough"),
            certificates: certificates
                .iter()
                .map(|entry| reference(entry, "", "Secret", namespace, errors))
                .collect(),
        }),
        routes_from: scope(&routes, NamespaceScope::Same, errors),
        route_kinds: kinds
            .iter()
            .map(|entry| {
                let group = entry.child("group").string(errors).unwrap_or(GROUP);
                (Name::new(group), name(&entry.child("kind"), errors))
            })
            .collect(),
    })
}

/// A host name in lower case; an empty one counts as absent.
pub(super) fn hostname(at: &Field, errors: &mut FieldErrors) -> Option<Hostname> {
    at.nonempty_string(errors).map(|text| Hostname::parse(&text.to_ascii_lowercase()))
}

/// `namespaces` of a field.
fn scope(at: &Field, default: NamespaceScope, errors: &mut FieldErrors) -> NamespaceScope {
    let namespaces = at.child("namespaces").map(errors);
    match namespaces.child("from").string(errors) {
        None => default,
        Some("All") => NamespaceScope::All,
        Some("Same") => NamespaceScope::Same,
        Some("Selector") => NamespaceScope::Selector(selector(&namespaces.child("selector"), errors)),
        Some(_) => NamespaceScope::None,
    }
}

fn selector(at: &Field, errors: &mut FieldErrors) -> NamespaceSelector {
    let pairs = at.child("matchLabels").string_map(errors);
    let mut requirements: Vec<LabelRequirement> = pairs
        .into_iter()
        .map(|(key, value)| LabelRequirement { key, operator: LabelOperator::In, values: [value].into() })
        .collect();
    for entry in at.child("matchExpressions").items(errors) {
        let words = ["In", "NotIn", "Exists", "DoesNotExist"];
        let operator = match entry.child("operator").keyword(&words, errors) {
            Some("In") => LabelOperator::In,
            Some("NotIn") => LabelOperator::NotIn,
            Some("Exists") => LabelOperator::Exists,
            _ => LabelOperator::DoesNotExist,
        };
        let values = entry.child("values").items(errors);
        let values = values.iter().filter_map(|value| value.string(errors).map(Name::new)).collect();
        requirements.push(LabelRequirement { key: name(&entry.child("key"), errors), operator, values });
    }
    NamespaceSelector { requirements: requirements.into() }
}

fn validation(at: &Field, namespace: &Name, errors: &mut FieldErrors) -> Option<ClientValidation> {
    let validation = at.child("validation").map(errors);
    if !validation.is_set() {
        return None;
    }
    let authorities = validation.child("caCertificateRefs").items(errors);
    Some(ClientValidation {
        authorities: authorities
            .iter()
            .map(|entry| reference(entry, "", "ConfigMap", namespace, errors))
            .collect(),
        allows_insecure: validation.child("mode").string(errors) == Some("AllowInsecureFallback"),
    })
}
