//! Explains a selection, for `trace`. Selecting itself keeps only numbers.

use model::{Service, ServiceType, TrafficPolicy};

use super::hints::hints_count;
use super::{EndpointCounts, NodeView, PortSelection, SelectedEndpoints, SelectionMode, external_policy};
use crate::hints::TopologyScope;

/// One step of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectionReason {
    pub rule: &'static str,
    /// What the rule did, with numbers.
    pub detail: String,
}

fn reason(rule: &'static str, detail: impl Into<String>) -> SelectionReason {
    SelectionReason { rule, detail: detail.into() }
}

/// Why a node sends the traffic of a port to these endpoints.
pub fn explain(
    service: &Service,
    selection: &PortSelection<'_>,
    node: &NodeView<'_>,
) -> Vec<SelectionReason> {
    let mut why = vec![policies(service, selection)];
    let sets = [("cluster", &selection.cluster), ("local", &selection.local)];
    for (class, set) in sets.into_iter().filter_map(|(class, set)| Some((class, set.as_ref()?))) {
        if class == "cluster" {
            why.extend(set_aside(set));
            why.extend(hints(service, set, node));
        }
        why.push(chosen(class, set, node));
        if set.drained > 0.0 {
            let detail = format!(
                "{:.0} % of the traffic avoids the endpoints of a zone that is drained",
                set.drained * 100.0
            );
            why.push(reason("zone drain", detail));
        }
        let end = set.endpoints.is_empty().then(|| empty(class, set, selection.has_any));
        // Two empty sets may have the same reason.
        why.extend(end.filter(|reason| !why.contains(reason)));
    }
    why
}

/// Why DNS gives a node these addresses of a headless Service.
pub fn explain_addresses(
    service: &Service,
    set: &SelectedEndpoints,
    node: &NodeView<'_>,
) -> Vec<SelectionReason> {
    let mut why: Vec<SelectionReason> = set_aside(set).into_iter().collect();
    why.extend(hints(service, set, node));
    why.push(SelectionReason { rule: "endpoints", ..chosen("cluster", set, node) });
    why.extend((set.drained > 0.0).then(|| {
        let detail =
            "endpoints of a zone that is drained are given until the drain is complete: DNS has no weights";
        reason("zone drain", detail)
    }));
    why
}

fn policies(service: &Service, selection: &PortSelection<'_>) -> SelectionReason {
    let word = |policy| if policy == TrafficPolicy::Local { "Local" } else { "Cluster" };
    let mut detail = format!("internalTrafficPolicy is {}", word(service.internal_policy));
    let external = external_policy(service);
    if service.kind != ServiceType::ClusterIp || !service.external_ips.is_empty() {
        detail += &format!(", externalTrafficPolicy is {}", word(external));
    }
    detail += match (&selection.cluster, &selection.local) {
        (Some(_), Some(_)) => ": some traffic may use every endpoint, some only those of this node",
        (None, Some(_)) => ": all traffic of this port stays on this node",
        _ => ": all traffic of this port may use every endpoint",
    };
    reason("traffic policy", detail)
}

/// A mechanism that has outlived its setting.
fn set_aside(set: &SelectedEndpoints) -> Option<SelectionReason> {
    let mechanism = set.set_aside?;
    let (rule, effect) = match mechanism.required() {
        Some(_) => ("requirement set aside", "it is ignored"),
        None => ("mechanism set aside", "only hints are used"),
    };
    let detail = format!(
        "a slice has the mechanism {}, but neither the Service nor a default requests it any more, so {effect}",
        mechanism.as_str()
    );
    Some(reason(rule, detail))
}

/// What the hints select, or the gate or safeguard that disables them.
fn hints(service: &Service, set: &SelectedEndpoints, node: &NodeView<'_>) -> Option<SelectionReason> {
    let EndpointCounts { ready, with_node_hint, for_this_node, with_zone_hint, for_this_zone, .. } =
        set.counts;
    let decide_nothing = set.bound.is_some() || set.mode == SelectionMode::Spill || ready == 0;
    if decide_nothing || with_zone_hint + with_node_hint == 0 {
        return None;
    }
    if !hints_count(service, node.gates) {
        let detail = "the feature gate ServiceTrafficDistribution is off, so hints are used only for Services with \
                      topology-mode Auto";
        return Some(reason("feature gate", detail));
    }
    let zone = node.zone.unwrap_or("(none)");
    Some(match set.mode {
        SelectionMode::SameNode => reason(
            "node hints",
            format!("{for_this_node} of {ready} ready endpoints have a hint for this node"),
        ),
        SelectionMode::SameZone => reason(
            "zone hints",
            format!("{for_this_zone} of {ready} ready endpoints have a hint for zone {zone}"),
        ),
        _ if with_zone_hint == 0 => node_hints_alone(set.counts, node),
        _ if with_zone_hint < ready => {
            let missing = ready - with_zone_hint;
            let detail = format!(
                "{missing} of {ready} ready endpoints have no zone hint: hints may be in transition, so none are used"
            );
            reason("safeguard: a hint is missing", detail)
        }
        _ if node.zone.is_none() => {
            let detail = "this node has no label topology.kubernetes.io/zone, so zone hints are not used";
            reason("safeguard: zone unknown", detail)
        }
        _ => {
            let detail = format!("no ready endpoint has a hint for zone {zone}, so hints are not used");
            reason("safeguard: zone not represented", detail)
        }
    })
}

/// Why node hints are not used, if there are no zone hints.
fn node_hints_alone(counts: EndpointCounts, node: &NodeView<'_>) -> SelectionReason {
    let EndpointCounts { ready, with_node_hint, .. } = counts;
    if !node.gates.prefer_same_traffic_distribution {
        let detail = "the feature gate PreferSameTrafficDistribution is off, so node hints are not used, and there are no \
                      zone hints";
        return reason("feature gate", detail);
    }
    if with_node_hint < ready {
        let missing = ready - with_node_hint;
        let detail = format!(
            "{missing} of {ready} ready endpoints have no node hint: hints may be in transition, so none are used"
        );
        return reason("safeguard: a hint is missing", detail);
    }
    let detail = format!(
        "no ready endpoint has a hint for node {}, and there are no zone hints, so hints are not used",
        node.name
    );
    reason("safeguard: node not represented", detail)
}

fn chosen(class: &'static str, set: &SelectedEndpoints, node: &NodeView<'_>) -> SelectionReason {
    let EndpointCounts { listed, ready, terminating, .. } = set.counts;
    let count = set.endpoints.len();
    let chosen = if count == 1 { "1 ready endpoint".to_owned() } else { format!("{count} ready endpoints") };
    let zone = node.zone.unwrap_or("(none)");
    let rule = if class == "cluster" { "cluster set" } else { "local set" };
    let detail = match set.mode {
        SelectionMode::All => format!("every ready endpoint: {count} of {listed} listed"),
        SelectionMode::SameZone => format!("{chosen} for zone {zone}"),
        SelectionMode::SameNode => format!("{chosen} for node {}", node.name),
        SelectionMode::SameRegion => {
            format!("{chosen} in the region of zone {zone}, by the zones in the slices' annotation")
        }
        SelectionMode::Local => format!("{chosen} on node {}, of {ready} in all", node.name),
        SelectionMode::Terminating if class == "local" => {
            format!("no endpoint on this node is ready: {count} terminating endpoints that still serve")
        }
        SelectionMode::Terminating if set.bound.is_some() => {
            format!(
                "no endpoint {} is ready: {count} terminating endpoints that still serve",
                bound(set, node)
            )
        }
        SelectionMode::Terminating => {
            format!("no endpoint is ready: {count} of {terminating} terminating endpoints that still serve")
        }
        SelectionMode::Require if set.node_first => {
            let (node, bound) = (node.name, bound(set, node));
            format!(
                "{chosen} on node {node}, which is preferred: the Service requires traffic to stay {bound}"
            )
        }
        SelectionMode::Require => {
            format!("{chosen}: the Service requires traffic to stay {}", bound(set, node))
        }
        SelectionMode::Spill => {
            format!(
                "{count} of {ready} ready endpoints, weighted: zone {zone} keeps what its endpoints have capacity for"
            )
        }
    };
    reason(rule, detail)
}

/// The scope that traffic must not leave.
fn bound(set: &SelectedEndpoints, node: &NodeView<'_>) -> String {
    let zone = node.zone.unwrap_or("(none)");
    match set.bound {
        Some(TopologyScope::Node) => format!("on node {}", node.name),
        Some(TopologyScope::Region) => format!("in the region of zone {zone}"),
        Some(TopologyScope::Zone) | None => format!("in zone {zone}"),
    }
}

fn empty(class: &'static str, set: &SelectedEndpoints, has_any: bool) -> SelectionReason {
    if set.mode == SelectionMode::Require {
        let detail =
            "no endpoint in scope is ready: connections are refused (add endpoints here, or use Prefer)";
        return reason("rejected", detail);
    }
    if has_any {
        let where_else =
            if class == "local" { "endpoints exist on other nodes" } else { "endpoints exist elsewhere" };
        return reason("dropped", format!("{where_else}, but the traffic policy excludes them"));
    }
    reason("rejected", "there is no endpoint that is ready or still serves: connections are refused at once")
}
