//! Why a name has its answer, for `trace`.

use std::net::IpAddr;

use model::{Family, Name, ServiceKey};

use super::{DnsName, DnsQueryType, DnsView};
use crate::select::{SelectedEndpoints, SelectionReason, explain_addresses};

/// One step of an answer.
#[derive(Clone, Debug)]
pub enum DnsReason {
    NotSynced,
    Transfer,
    NotAService,
    PodName,
    NoNamespace(Name),
    NoService(ServiceKey),
    TooManyLabels,
    ClusterIp(ServiceKey),
    /// The selection of one family.
    Headless(ServiceKey, Family, Box<SelectedEndpoints>),
    NoEndpoints(ServiceKey),
    /// The name of an endpoint, and how many endpoints have it.
    Endpoint(ServiceKey, String, usize),
    NoPort(ServiceKey, String),
    Alias(ServiceKey, DnsName),
    NoAlias(ServiceKey),
    AliasLoop(DnsName),
    Reverse(IpAddr),
    UnusedClusterIp(IpAddr),
    NoData(DnsQueryType),
}

impl DnsReason {
    /// In words.
    pub fn explain(&self, view: &DnsView<'_>) -> Vec<SelectionReason> {
        if let Self::Headless(key, family, set) = self {
            let Some(service) = view.snapshot.service(key) else { return Vec::new() };
            let detail = format!("Service {key} is headless: its {family} addresses are those of endpoints");
            let mut why = vec![SelectionReason { rule: "headless", detail }];
            why.extend(explain_addresses(service, set, &view.node));
            return why;
        }
        let (rule, detail) = self.words(view.domain);
        vec![SelectionReason { rule, detail }]
    }

    fn words(&self, domain: &DnsName) -> (&'static str, String) {
        match self {
            Self::NotSynced => {
                ("not synced", "not all objects are known yet: a missing name is no proof".to_owned())
            }
            Self::Transfer => ("zone transfer", "zone transfers are refused".to_owned()),
            Self::NotAService => {
                ("name", format!("no such name: those of Services are SERVICE.NAMESPACE.svc.{domain}"))
            }
            Self::PodName => ("name", "names of pods are not served".to_owned()),
            Self::NoNamespace(name) => ("namespace", format!("there is no namespace {name}")),
            Self::NoService(key) => ("service", format!("there is no Service {key}")),
            Self::TooManyLabels => {
                let forms = "an endpoint's name, or _PORT._PROTOCOL, may be in front of a Service's name";
                ("name", format!("no such name: {forms}"))
            }
            Self::ClusterIp(key) => ("cluster IP", format!("Service {key} has its cluster IPs as addresses")),
            Self::Headless(key, ..) | Self::NoEndpoints(key) => {
                ("headless", format!("Service {key} is headless and has no ready endpoint: no such name"))
            }
            Self::Endpoint(key, hostname, 0) => {
                ("endpoint name", format!("no ready endpoint of Service {key} is named {hostname}"))
            }
            Self::Endpoint(key, hostname, _) => {
                let detail = format!("endpoints of Service {key} named {hostname}, whatever their zone");
                ("endpoint name", detail)
            }
            Self::NoPort(key, port) => ("port", format!("Service {key} has no port {port}")),
            Self::Alias(key, target) => ("alias", format!("Service {key} is an ExternalName for {target}")),
            Self::NoAlias(key) => {
                let detail =
                    format!("Service {key} is an ExternalName: it has no endpoints or ports, and no address");
                ("alias", detail)
            }
            Self::AliasLoop(target) => {
                ("alias", format!("the alias {target} leads back, or the chain is too long"))
            }
            Self::Reverse(address) => {
                ("reverse", format!("{address} is an address of Services or endpoints"))
            }
            Self::UnusedClusterIp(address) => {
                ("reverse", format!("{address} is in a range of cluster IPs, and no Service has it"))
            }
            Self::NoData(kind) => {
                ("no data", format!("the name exists, without records of type {}", kind.as_str()))
            }
        }
    }
}
