//! DNS: which records a name of the cluster domain has, for the node that asks.
//!
//! ```text
//! question -> below the cluster domain --> lookup -> entries: an address or alias, with port and name
//!                                                       -> records by type, or NODATA / NXDOMAIN with the SOA
//!          -> reverse name of an address --> PTR of Services and endpoints
//!          -> any other name ------------> Forward
//! ```
//!
//! Names, TTLs and response codes are those of the Kubernetes DNS specification 1.1.0 and of CoreDNS' plugin `kubernetes`
//! with its defaults. Headless Services differ: a node gets the endpoints that it would select, by
//! [`crate::select::select_addresses`].

mod lookup;
mod name;
mod reason;
mod record;
mod reverse;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use model::{Family, Snapshot};

use crate::select::NodeView;
use lookup::{DnsEntry, DnsEntryTarget, LookupFailure, lookup};
pub use name::DnsName;
pub use reason::DnsReason;
pub use record::{DnsQueryType, DnsQuestion, DnsRecord, DnsRecordData};
pub use reverse::ReverseIndex;

/// TTL of records and of negative answers: the default of CoreDNS.
const TTL: u32 = 5;
/// Version of the DNS specification, and the TTL of the record that says so, as CoreDNS has it.
const SCHEMA_VERSION: &str = "1.1.0";
const SCHEMA_TTL: u32 = 28_800;
/// Longest chain of aliases within the cluster domain, as in CoreDNS.
const MAX_ALIASES: usize = 10;

/// What answers depend on.
#[derive(Clone, Copy, Debug)]
pub struct DnsView<'a> {
    pub snapshot: &'a Snapshot,
    pub reverse: &'a ReverseIndex,
    /// Such as cluster.local.
    pub domain: &'a DnsName,
    /// The node that asks.
    pub node: NodeView<'a>,
    /// Addresses of the server, which the zone names as its own.
    pub servers: &'a [IpAddr],
    /// Serial of the SOA: CoreDNS has the time of the last change.
    pub serial: u32,
    /// Whether all objects are known: before that, absence means nothing.
    pub synced: bool,
}

/// What happens to a question.
#[derive(Clone, Debug)]
pub enum DnsDecision {
    Answer(DnsAnswer),
    /// Another server is asked: the name is not of the cluster.
    Forward,
}

#[derive(Clone, Debug)]
pub struct DnsAnswer {
    pub rcode: DnsRcode,
    /// Sorted; the server rotates them.
    pub answers: Vec<DnsRecord>,
    /// The SOA of a negative answer (RFC 2308).
    pub authority: Vec<DnsRecord>,
    pub additional: Vec<DnsRecord>,
    /// The last alias leads out of the cluster domain: the records of this name follow, from another server.
    pub chase: Option<DnsName>,
    pub why: Vec<DnsReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DnsRcode {
    NoError,
    ServFail,
    NxDomain,
    Refused,
}

impl DnsRcode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoError => "NOERROR",
            Self::ServFail => "SERVFAIL",
            Self::NxDomain => "NXDOMAIN",
            Self::Refused => "REFUSED",
        }
    }
}

/// The answer to a question, or the decision to forward it.
pub fn answer(question: &DnsQuestion, view: &DnsView<'_>) -> DnsDecision {
    if let Some(labels) = question.name.below(view.domain) {
        return DnsDecision::Answer(answer_cluster(question, labels, view));
    }
    match question.name.reverse_net() {
        Some(net) => answer_reverse(question, net, view),
        None => DnsDecision::Forward,
    }
}

fn answer_cluster(question: &DnsQuestion, labels: &[Box<str>], view: &DnsView<'_>) -> DnsAnswer {
    let mut answer = DnsAnswer::empty(DnsRcode::NoError);
    let soa = soa(view.domain.clone(), view);
    let found = match question.kind {
        DnsQueryType::Transfer => {
            return DnsAnswer { why: vec![DnsReason::Transfer], ..DnsAnswer::empty(DnsRcode::Refused) };
        }
        DnsQueryType::Txt if is(labels, &["dns-version"]) => {
            let data = DnsRecordData::Txt(SCHEMA_VERSION.to_owned());
            answer.answers.push(DnsRecord { name: question.name.clone(), ttl: SCHEMA_TTL, data });
            Ok(())
        }
        DnsQueryType::Soa if labels.is_empty() => {
            answer.answers.push(soa.clone());
            Ok(())
        }
        DnsQueryType::Ns if labels.is_empty() => {
            let server = view.domain.child(&["ns", "dns"]);
            answer.answers.push(record(&question.name, DnsRecordData::Ns(server.clone())));
            answer.additional.extend(view.servers.iter().map(|ip| address_record(&server, *ip)));
            Ok(())
        }
        _ if is(labels, &["ns", "dns"]) => {
            let of_kind = view.servers.iter().filter(|ip| is_of_kind(**ip, question.kind));
            answer.answers.extend(of_kind.map(|ip| address_record(&question.name, *ip)));
            Ok(())
        }
        kind => lookup(labels, view, &mut answer.why)
            .map(|entries| add_records(&mut answer, &question.name, kind, &entries, view)),
    };
    match found {
        Ok(()) => {}
        // CoreDNS: before the objects are known, a missing name is no proof.
        Err(LookupFailure) if !view.synced => {
            answer.rcode = DnsRcode::ServFail;
            answer.why.push(DnsReason::NotSynced);
        }
        Err(LookupFailure) => answer.rcode = DnsRcode::NxDomain,
    }
    if answer.answers.is_empty() {
        answer.additional.clear();
        answer.authority.push(soa);
        if answer.rcode == DnsRcode::NoError {
            answer.why.push(DnsReason::NoData(question.kind));
        }
    }
    answer
}

fn is(labels: &[Box<str>], wanted: &[&str]) -> bool {
    labels.iter().map(|label| &**label).eq(wanted.iter().copied())
}

fn is_of_kind(address: IpAddr, kind: DnsQueryType) -> bool {
    match Family::of(address) {
        Family::V4 => kind == DnsQueryType::A,
        Family::V6 => kind == DnsQueryType::Aaaa,
    }
}

fn add_records(
    answer: &mut DnsAnswer,
    name: &DnsName,
    kind: DnsQueryType,
    entries: &[DnsEntry],
    view: &DnsView<'_>,
) {
    match kind {
        DnsQueryType::A | DnsQueryType::Aaaa => add_addresses(answer, name, kind, entries, view),
        DnsQueryType::Srv => add_services(answer, name, entries),
        DnsQueryType::Cname => {
            let alias = entries.first().and_then(|entry| match &entry.target {
                DnsEntryTarget::Alias(alias) => Some(alias.clone()),
                DnsEntryTarget::Address(_) => None,
            });
            answer.answers.extend(alias.map(|alias| record(name, DnsRecordData::Cname(alias))));
        }
        _ => {}
    }
}

/// Addresses of one family; an alias is followed within the cluster domain.
fn add_addresses(
    answer: &mut DnsAnswer,
    name: &DnsName,
    kind: DnsQueryType,
    entries: &[DnsEntry],
    view: &DnsView<'_>,
) {
    let mut alias = None;
    let mut addresses = BTreeSet::new();
    for entry in entries {
        match &entry.target {
            DnsEntryTarget::Address(address) => {
                if is_of_kind(*address, kind) {
                    addresses.insert(*address);
                }
            }
            DnsEntryTarget::Alias(target) => alias = Some(target.clone()),
        }
    }
    answer.answers.extend(addresses.into_iter().map(|address| address_record(name, address)));
    let Some(target) = alias else { return };
    // CoreDNS: an alias in a loop, or to nothing within the domain, leaves no records.
    let is_loop = *name == target || answer.answers.iter().any(|record| record.name == target);
    if is_loop || answer.answers.len() >= MAX_ALIASES {
        answer.why.push(DnsReason::AliasLoop(target));
        answer.answers.clear();
        return;
    }
    answer.answers.push(record(name, DnsRecordData::Cname(target.clone())));
    let Some(labels) = target.below(view.domain) else {
        answer.chase = Some(target);
        return;
    };
    let before = answer.answers.len();
    if let Ok(entries) = lookup(labels, view, &mut answer.why) {
        add_addresses(answer, &target, kind, &entries, view);
    }
    if answer.answers.len() <= before {
        answer.answers.clear();
    }
}

/// A record per port and name, and the addresses of the names.
fn add_services(answer: &mut DnsAnswer, name: &DnsName, entries: &[DnsEntry]) {
    let sum: f64 = entries.iter().filter(|entry| entry.address().is_some()).map(|entry| entry.weight).sum();
    let (mut ports, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        let (Some(address), Some(port)) = (entry.address(), entry.port) else { continue };
        if ports.insert((&entry.name, port)) {
            // CoreDNS: shares of 100, at least 1.
            let weight = ((100.0 * entry.weight / sum).floor() as u16).max(1);
            let data = DnsRecordData::Srv { priority: 0, weight, port, target: entry.name.clone() };
            answer.answers.push(record(name, data));
        }
        if addresses.insert((&entry.name, address)) {
            answer.additional.push(address_record(&entry.name, address));
        }
    }
}

/// Addresses of the ranges of cluster IPs are the cluster's; others only where an endpoint has them.
fn answer_reverse(question: &DnsQuestion, net: IpNet, view: &DnsView<'_>) -> DnsDecision {
    let is_whole = net.prefix_len() == net.max_prefix_len();
    let mut ranges = view.snapshot.service_cidrs().flat_map(|cidr| &cidr.cidrs).map(IpNet::trunc);
    let range = ranges.find(|range| range.contains(&net));
    let names = if is_whole { reverse_names(net.addr(), view) } else { Vec::new() };
    let mut answer = DnsAnswer::empty(DnsRcode::NoError);
    if question.kind == DnsQueryType::Ptr {
        let pointer = |name: &DnsName| record(&question.name, DnsRecordData::Ptr(name.clone()));
        answer.answers.extend(names.iter().map(pointer));
    }
    if !answer.answers.is_empty() {
        answer.why.push(DnsReason::Reverse(net.addr()));
        return DnsDecision::Answer(answer);
    }
    let Some(range) = range else { return DnsDecision::Forward };
    answer.authority.push(soa(DnsName::reverse_zone_of(net.addr(), &range), view));
    if !names.is_empty() || !is_whole {
        answer.why.push(DnsReason::NoData(question.kind));
    } else if view.synced {
        answer.rcode = DnsRcode::NxDomain;
        answer.why.push(DnsReason::UnusedClusterIp(net.addr()));
    } else {
        answer.rcode = DnsRcode::ServFail;
        answer.why.push(DnsReason::NotSynced);
    }
    DnsDecision::Answer(answer)
}

/// The Service with this cluster IP, else every endpoint with this address, by its name.
fn reverse_names(address: IpAddr, view: &DnsView<'_>) -> Vec<DnsName> {
    if let Some(key) = view.reverse.service(address) {
        return vec![lookup::service_name(key, view.domain)];
    }
    let keys = view.reverse.with_endpoint(address);
    let names: BTreeSet<DnsName> = keys.flat_map(|key| lookup::endpoint_names(key, address, view)).collect();
    names.into_iter().collect()
}

impl DnsAnswer {
    fn empty(rcode: DnsRcode) -> Self {
        let (answers, authority, additional) = Default::default();
        Self { rcode, answers, authority, additional, chase: None, why: Vec::new() }
    }

    /// The answer if the name of [`DnsAnswer::chase`] cannot be resolved: no proof that it does not exist.
    pub fn unresolved() -> Self {
        Self::empty(DnsRcode::ServFail)
    }
}

fn record(name: &DnsName, data: DnsRecordData) -> DnsRecord {
    DnsRecord { name: name.clone(), ttl: TTL, data }
}

fn address_record(name: &DnsName, address: IpAddr) -> DnsRecord {
    record(name, DnsRecordData::address(address))
}

/// With the timers of CoreDNS.
fn soa(zone: DnsName, view: &DnsView<'_>) -> DnsRecord {
    let data = DnsRecordData::Soa {
        mname: zone.child(&["ns", "dns"]),
        rname: zone.child(&["hostmaster"]),
        serial: view.serial,
        refresh: 7_200,
        retry: 1_800,
        expire: 86_400,
        minimum: TTL,
    };
    record(&zone, data)
}

#[cfg(test)]
mod tests;
