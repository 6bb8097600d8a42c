//! Which frontends the accelerator takes, and their slots: a ForwardingTable as entries of maps.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::forward::{Frontend, FrontendAction, FrontendHost, FrontendKind, Masquerade, NodeRules};
use model::{ForwardingTable, Protocol, TrafficPolicy};

use super::apply::AccelerateScope;
use super::entries::{NOT_FROM_NODE, NOT_FROM_PODS};
use crate::nftables::render::slots;

/// Why a frontend is left to the rules for every client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAccelerated {
    NoClusterIp,
    NotTcp,
    SessionAffinity,
    MasqueradeAll,
    NoEndpoint,
    SourceRanges,
    /// An endpoint is on this node, and sockets of the node itself are masqueraded or not wanted.
    LocalEndpoint,
}

impl NotAccelerated {
    /// The words in explanations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoClusterIp => "the destination is not a cluster IP of a Service and one of its ports",
            Self::NotTcp => "only TCP is accelerated",
            Self::SessionAffinity => "session affinity is kept by the rules",
            Self::MasqueradeAll => "masqueradeAll is set",
            Self::NoEndpoint => "no endpoint is available; the rules refuse",
            Self::SourceRanges => "source ranges are checked by the rules",
            Self::LocalEndpoint => {
                "an endpoint is on this node and may be the client itself, which the rules masquerade"
            }
        }
    }
}

/// The entries of one frontend, without its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RenderedFrontend {
    pub(super) flags: u32,
    pub(super) slots: Vec<SocketAddr>,
}

pub(super) type RenderedFrontends = BTreeMap<SocketAddr, RenderedFrontend>;

pub(super) fn render(table: &ForwardingTable, scope: AccelerateScope) -> RenderedFrontends {
    let all = table.services().flat_map(|(_, frontends)| frontends);
    all.filter_map(|frontend| render_frontend(frontend, &table.node, scope)).collect()
}

/// `None` if every socket is left to the rules.
pub(super) fn render_frontend(
    frontend: &Frontend,
    node: &NodeRules,
    scope: AccelerateScope,
) -> Option<(SocketAddr, RenderedFrontend)> {
    let (policy, flags) = policy_and_flags(frontend, node, scope).ok()?;
    let FrontendHost::Address(address) = frontend.address.host else { return None };
    let set = frontend.port.endpoints(policy);
    let slots = slots(set).map(|index| set.endpoints[index].address()).collect();
    Some((SocketAddr::new(address, frontend.address.port), RenderedFrontend { flags, slots }))
}

/// Why a frontend has no entry; `None` if it has one.
pub fn not_accelerated(
    frontend: Option<&Frontend>,
    node: &NodeRules,
    scope: AccelerateScope,
) -> Option<NotAccelerated> {
    let Some(frontend) = frontend else { return Some(NotAccelerated::NoClusterIp) };
    policy_and_flags(frontend, node, scope).err()
}

fn policy_and_flags(
    frontend: &Frontend,
    node: &NodeRules,
    scope: AccelerateScope,
) -> Result<(TrafficPolicy, u32), NotAccelerated> {
    if frontend.kind != FrontendKind::ClusterIp || frontend.inside.is_some() {
        return Err(NotAccelerated::NoClusterIp);
    }
    if frontend.address.protocol != Protocol::Tcp {
        return Err(NotAccelerated::NotTcp);
    }
    if frontend.port.affinity_seconds.is_some() {
        return Err(NotAccelerated::SessionAffinity);
    }
    if frontend.source_ranges.is_some() {
        return Err(NotAccelerated::SourceRanges);
    }
    if node.masquerade_all || frontend.masquerade != Masquerade::NotPods {
        return Err(NotAccelerated::MasqueradeAll);
    }
    let FrontendAction::Send(policy) = frontend.outside else { return Err(NotAccelerated::NoEndpoint) };
    let endpoints = &frontend.port.endpoints(policy).endpoints;
    if endpoints.is_empty() {
        return Err(NotAccelerated::NoEndpoint);
    }
    // Leaving only those sockets whose slot is local would take connections from local endpoints: the rules choose again.
    let is_local = endpoints.iter().any(|endpoint| endpoint.is_local);
    let is_masqueraded = node.detect_local.knows(frontend.port.family());
    let from_pods = !is_local && scope == AccelerateScope::AllNamespaces;
    let from_node = !is_masqueraded || scope == AccelerateScope::NodeNamespace;
    if !from_pods && !from_node {
        return Err(NotAccelerated::LocalEndpoint);
    }
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    Ok((policy, flag(is_local, NOT_FROM_PODS) | flag(is_masqueraded, NOT_FROM_NODE)))
}
