//! What a name below the cluster domain stands for.
//!
//! ```text
//! [[_port._protocol | endpoint].] service . namespace . svc
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{
    ClusterIps, Endpoint, Family, Name, Protocol, Service, ServiceKey, ServiceType, Slice, SlicePort,
};

use super::{DnsName, DnsReason, DnsView};
use crate::select::{SelectionMode, consumed, select_addresses};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// One address and port of a name, or the name that it is an alias of.
#[derive(Clone, Debug)]
pub(super) struct DnsEntry {
    pub(super) target: DnsEntryTarget,
    /// `None` if no port is declared.
    pub(super) port: Option<u16>,
    /// The name of the address: that of the Service, or of the endpoint.
    pub(super) name: DnsName,
    pub(super) weight: f64,
}

#[derive(Clone, Debug)]
pub(super) enum DnsEntryTarget {
    Address(IpAddr),
    Alias(DnsName),
}

impl DnsEntry {
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.target {
            DnsEntryTarget::Address(address) => Some(address),
            DnsEntryTarget::Alias(_) => None,
        }
    }
}

/// The name does not exist.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookupFailure;

/// The labels left of the Service.
enum Part<'a> {
    Whole,
    Endpoint(&'a str),
    Port { name: &'a str, protocol: &'a str },
}

impl Part<'_> {
    fn has(&self, name: &str, protocol: Protocol) -> bool {
        match self {
            Self::Port { name: wanted, protocol: wanted_protocol } => {
                name.eq_ignore_ascii_case(wanted) && protocol.as_str().eq_ignore_ascii_case(wanted_protocol)
            }
            Self::Whole | Self::Endpoint(_) => true,
        }
    }
}

/// The entries of a name; none if it exists and has no records.
pub(super) fn lookup(
    labels: &[Box<str>],
    view: &DnsView<'_>,
    why: &mut Vec<DnsReason>,
) -> Result<Vec<DnsEntry>, LookupFailure> {
    let mut no = |reason: DnsReason| {
        why.push(reason);
        LookupFailure
    };
    let from_right: Vec<&str> = labels.iter().rev().map(|label| &**label).collect();
    let (namespace, rest) = match from_right.as_slice() {
        [] | ["svc" | "pod"] => return Ok(Vec::new()),
        // CoreDNS: `pods disabled`, its default.
        ["pod", ..] => return Err(no(DnsReason::PodName)),
        ["svc", namespace, rest @ ..] => (Name::new(namespace), rest),
        _ => return Err(no(DnsReason::NotAService)),
    };
    // Input from files may lack Namespace objects.
    let snapshot = view.snapshot;
    if snapshot.namespace(&namespace).is_none() && snapshot.services_within(&namespace).next().is_none() {
        return Err(no(DnsReason::NoNamespace(namespace)));
    }
    let (service, part) = match rest {
        [] => return Ok(Vec::new()),
        [service] => (service, Part::Whole),
        [service, endpoint] => (service, Part::Endpoint(endpoint)),
        [service, protocol, port] => {
            (service, Part::Port { name: stripped(port), protocol: stripped(protocol) })
        }
        _ => return Err(no(DnsReason::TooManyLabels)),
    };
    let key = ServiceKey::new(&namespace, &Name::new(service));
    let Some(service) = snapshot.service(&key) else { return Err(no(DnsReason::NoService(key))) };
    service_entries(service, &part, view, why)
}

/// Without the underscore of SRV names.
fn stripped(label: &str) -> &str {
    label.strip_prefix('_').unwrap_or(label)
}

fn service_entries(
    service: &Service,
    part: &Part<'_>,
    view: &DnsView<'_>,
    why: &mut Vec<DnsReason>,
) -> Result<Vec<DnsEntry>, LookupFailure> {
    let key = &service.key;
    if service.kind == ServiceType::ExternalName {
        return alias(service, part, view, why);
    }
    let (entries, exists) = match part {
        Part::Endpoint(hostname) => {
            let entries = named_endpoints(service, hostname, view);
            why.push(DnsReason::Endpoint(key.clone(), (*hostname).to_owned(), entries.len()));
            (entries, false)
        }
        _ if service.cluster_ips == ClusterIps::None => headless(service, part, view, why),
        _ => {
            why.push(DnsReason::ClusterIp(key.clone()));
            (cluster_ips(service, part, view), service.ports.iter().any(|p| part.has(&p.name, p.protocol)))
        }
    };
    if entries.is_empty() && !exists {
        if let Part::Port { name, protocol } = part {
            why.push(DnsReason::NoPort(key.clone(), format!("{name}/{protocol}")));
        }
        return Err(LookupFailure);
    }
    Ok(entries)
}

/// An ExternalName has no endpoints and no ports; an address is no name.
fn alias(
    service: &Service,
    part: &Part<'_>,
    view: &DnsView<'_>,
    why: &mut Vec<DnsReason>,
) -> Result<Vec<DnsEntry>, LookupFailure> {
    let text = service.external_name.as_deref().unwrap_or_default();
    let target = DnsName::parse(text).ok();
    let target = target.filter(|target| !target.labels().is_empty() && text.parse::<IpAddr>().is_err());
    let Some(target) = target.filter(|_| matches!(part, Part::Whole)) else {
        why.push(DnsReason::NoAlias(service.key.clone()));
        return Err(LookupFailure);
    };
    why.push(DnsReason::Alias(service.key.clone(), target.clone()));
    let name = service_name(&service.key, view.domain);
    Ok(vec![DnsEntry { target: DnsEntryTarget::Alias(target), port: None, name, weight: 1.0 }])
}

fn cluster_ips(service: &Service, part: &Part<'_>, view: &DnsView<'_>) -> Vec<DnsEntry> {
    let name = service_name(&service.key, view.domain);
    let ports = service.ports.iter().filter(|port| part.has(&port.name, port.protocol));
    let entry = |port: u16, address: &IpAddr| DnsEntry {
        target: DnsEntryTarget::Address(*address),
        port: Some(port),
        name: name.clone(),
        weight: 1.0,
    };
    ports
        .flat_map(|port| service.cluster_ips.addresses().iter().map(move |address| (port.port, address)))
        .map(|(port, address)| entry(port, address))
        .collect()
}

/// The endpoints that the node would select, and whether the Service has any ready one.
fn headless(
    service: &Service,
    part: &Part<'_>,
    view: &DnsView<'_>,
    why: &mut Vec<DnsReason>,
) -> (Vec<DnsEntry>, bool) {
    let slices = view.snapshot.slices(&service.key);
    let (mut entries, mut has_ready) = (Vec::new(), false);
    let reasons = why.len();
    for family in FAMILIES {
        let set = select_addresses(service, slices, family, &view.node);
        let ready = set.counts.ready > 0;
        has_ready |= ready && matches!(part, Part::Whole);
        let weights: BTreeMap<IpAddr, f64> =
            set.endpoints.iter().map(|selected| (selected.address.ip(), selected.weight)).collect();
        let is_given =
            |endpoint: &Endpoint| endpoint.conditions.is_ready() || set.mode == SelectionMode::Terminating;
        for slice in consumed(slices, family) {
            for endpoint in slice.content.endpoints.iter().filter(|endpoint| is_given(endpoint)) {
                if let Some(weight) = weights.get(&endpoint.addresses.first()) {
                    entries.extend(endpoint_entries(service, slice, endpoint, part, *weight, view));
                }
            }
        }
        if ready || !set.endpoints.is_empty() {
            why.push(DnsReason::Headless(service.key.clone(), family, Box::new(set)));
        }
    }
    if why.len() == reasons {
        why.push(DnsReason::NoEndpoints(service.key.clone()));
    }
    (entries, has_ready)
}

/// Endpoints by their own name: those of all zones, because the name asks for one of them.
fn named_endpoints(service: &Service, hostname: &str, view: &DnsView<'_>) -> Vec<DnsEntry> {
    let slices = view.snapshot.slices(&service.key);
    let mut entries = Vec::new();
    for slice in FAMILIES.into_iter().flat_map(|family| consumed(slices, family)) {
        let ready = slice.content.endpoints.iter().filter(|endpoint| endpoint.conditions.is_ready());
        for endpoint in ready.filter(|endpoint| self::hostname(endpoint) == hostname) {
            entries.extend(endpoint_entries(service, slice, endpoint, &Part::Whole, 1.0, view));
        }
    }
    entries
}

/// An entry per port of the slice; one without a port if the slice has none.
fn endpoint_entries(
    service: &Service,
    slice: &Slice,
    endpoint: &Endpoint,
    part: &Part<'_>,
    weight: f64,
    view: &DnsView<'_>,
) -> Vec<DnsEntry> {
    let name = service_name(&service.key, view.domain).child(&[&hostname(endpoint)]);
    let address = endpoint.addresses.first();
    let entry = |port: Option<u16>| DnsEntry {
        target: DnsEntryTarget::Address(address),
        port,
        name: name.clone(),
        weight,
    };
    if slice.content.ports.is_empty() {
        let is_wanted = !matches!(part, Part::Port { .. });
        return is_wanted.then(|| entry(None)).into_iter().collect();
    }
    let has = |port: &&SlicePort| part.has(port.name.as_deref().unwrap_or_default(), port.protocol);
    slice.content.ports.iter().filter(has).map(|port| entry(port.port)).collect()
}

/// CoreDNS: the hostname of the endpoint, else its address with dashes.
fn hostname(endpoint: &Endpoint) -> String {
    if let Some(name) = endpoint.hostname() {
        return name.to_ascii_lowercase();
    }
    match endpoint.addresses.first() {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        IpAddr::V6(address) => {
            let text = address.to_string().replace(':', "-");
            if text.ends_with('-') { text + "0" } else { text }
        }
    }
}

pub(super) fn service_name(key: &ServiceKey, domain: &DnsName) -> DnsName {
    domain.child(&[&key.name, &key.namespace, "svc"])
}

/// The names of a Service's ready endpoints with this address.
pub(super) fn endpoint_names(key: &ServiceKey, address: IpAddr, view: &DnsView<'_>) -> Vec<DnsName> {
    let service = service_name(key, view.domain);
    let slices = consumed(view.snapshot.slices(key), Family::of(address));
    let endpoints = slices.iter().flat_map(|slice| &slice.content.endpoints);
    let own = endpoints.filter(|e| e.conditions.is_ready() && e.addresses.first() == address);
    own.map(|endpoint| service.child(&[&hostname(endpoint)])).collect()
}
