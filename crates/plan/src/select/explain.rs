//! The reasons behind a selection, in words for people.
//!
//! Selecting keeps numbers only; words are made here, when a command asks for them.

use model::{Service, ServiceType, TrafficPolicy};

use super::{Counts, EndpointSet, Mode, NodeView, PortSelection, external_policy, hints_count};
use crate::hints::Scope;

/// One step of the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// What it did here, with the numbers.
    pub detail: String,
}

fn reason(rule: &'static str, detail: impl Into<String>) -> Reason {
    Reason { rule, detail: detail.into() }
}

/// Why a port's traffic goes where it goes from this node.
pub fn explain(service: &Service, selection: &PortSelection<'_>, node: &NodeView<'_>) -> Vec<Reason> {
    let mut why = vec![policies(service, selection)];
    let sets = [("cluster", &selection.cluster), ("local", &selection.local)];
    for (class, set) in sets.into_iter().filter_map(|(class, set)| Some((class, set.as_ref()?))) {
        if class == "cluster" {
            why.extend(set_aside(set));
            why.extend(hints(service, set, node));
        }
        why.push(chosen(class, set, node));
        let end = set.endpoints.is_empty().then(|| empty(class, set, selection.has_any));
        // Two empty sets may end the same way: once is enough.
        why.extend(end.filter(|reason| !why.contains(reason)));
    }
    why
}

fn policies(service: &Service, selection: &PortSelection<'_>) -> Reason {
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

/// A mechanism that has outlived the setting behind it.
fn set_aside(set: &EndpointSet) -> Option<Reason> {
    let mechanism = set.set_aside?;
    let (rule, effect) = match mechanism.required() {
        Some(_) => ("requirement set aside", "it does not bind"),
        None => ("mechanism set aside", "hints alone decide"),
    };
    let detail = format!(
        "a slice says {}, but the Service does not ask for it any more and no default does, so {effect}",
        mechanism.as_str()
    );
    Some(reason(rule, detail))
}

/// What the hints say, and the gate or safeguard that set them aside if one did.
fn hints(service: &Service, set: &EndpointSet, node: &NodeView<'_>) -> Option<Reason> {
    let Counts { ready, with_node_hint, for_this_node, with_zone_hint, for_this_zone, .. } = set.counts;
    let decide_nothing = set.bound.is_some() || set.mode == Mode::Spill || ready == 0;
    if decide_nothing || with_zone_hint + with_node_hint == 0 {
        return None;
    }
    if !hints_count(service, node.gates) {
        let detail = "the feature gate ServiceTrafficDistribution is off, and without it hints count only for a Service \
                      with topology-mode Auto, so none is used";
        return Some(reason("feature gate", detail));
    }
    let zone = node.zone.unwrap_or("(none)");
    Some(match set.mode {
        Mode::SameNode => {
            reason("node hints", format!("{for_this_node} of {ready} ready endpoints are for this node"))
        }
        Mode::SameZone => {
            reason("zone hints", format!("{for_this_zone} of {ready} ready endpoints are for zone {zone}"))
        }
        _ if with_zone_hint == 0 => node_hints_alone(set.counts, node),
        _ if with_zone_hint < ready => {
            let missing = ready - with_zone_hint;
            let detail = format!(
                "{missing} of {ready} ready endpoints carry no zone hint: hints are being added or removed, so none is used"
            );
            reason("safeguard: a hint is missing", detail)
        }
        _ if node.zone.is_none() => {
            let detail = "this node has no topology.kubernetes.io/zone label, so no zone hint can be for it";
            reason("safeguard: zone unknown", detail)
        }
        _ => {
            let detail = format!("no ready endpoint is for zone {zone}, so hints are not used here");
            reason("safeguard: zone not represented", detail)
        }
    })
}

/// Why hints for nodes do not decide, where there are none for zones.
fn node_hints_alone(counts: Counts, node: &NodeView<'_>) -> Reason {
    let Counts { ready, with_node_hint, .. } = counts;
    if !node.gates.prefer_same_traffic_distribution {
        let detail = "the feature gate PreferSameTrafficDistribution is off, so hints for nodes are not used, and there \
                      are none for zones";
        return reason("feature gate", detail);
    }
    if with_node_hint < ready {
        let missing = ready - with_node_hint;
        let detail = format!(
            "{missing} of {ready} ready endpoints carry no node hint: hints are being added or removed, so none is used"
        );
        return reason("safeguard: a hint is missing", detail);
    }
    let detail = format!(
        "no ready endpoint is for node {}, and there are no hints for zones, so hints are not used here",
        node.name
    );
    reason("safeguard: node not represented", detail)
}

fn chosen(class: &'static str, set: &EndpointSet, node: &NodeView<'_>) -> Reason {
    let Counts { listed, ready, terminating, .. } = set.counts;
    let count = set.endpoints.len();
    let chosen = if count == 1 { "1 ready endpoint".to_owned() } else { format!("{count} ready endpoints") };
    let zone = node.zone.unwrap_or("(none)");
    let rule = if class == "cluster" { "cluster set" } else { "local set" };
    let detail = match set.mode {
        Mode::All => format!("every ready endpoint: {count} of {listed} listed"),
        Mode::SameZone => format!("{chosen} for zone {zone}"),
        Mode::SameNode => format!("{chosen} for node {}", node.name),
        Mode::SameRegion => {
            format!("{chosen} in the region of zone {zone}, by the zones that the slices list for it")
        }
        Mode::Local => format!("{chosen} on node {}, of {ready} in all", node.name),
        Mode::Terminating if class == "local" => {
            format!("nothing on this node is ready: {count} that go away but still serve")
        }
        Mode::Terminating if set.bound.is_some() => {
            format!("nothing {} is ready: {count} that go away but still serve", bound(set, node))
        }
        Mode::Terminating => {
            format!("nothing is ready: {count} of {terminating} that go away but still serve")
        }
        Mode::Require if set.node_first => {
            let (node, bound) = (node.name, bound(set, node));
            format!(
                "{chosen} on node {node}, which comes first: the Service requires traffic to stay {bound}"
            )
        }
        Mode::Require => {
            format!("{chosen} near enough: the Service requires traffic to stay {}", bound(set, node))
        }
        Mode::Spill => {
            format!("{count} of {ready} ready endpoints, weighted: zone {zone} keeps what its own can take")
        }
    };
    reason(rule, detail)
}

/// What traffic must not leave.
fn bound(set: &EndpointSet, node: &NodeView<'_>) -> String {
    let zone = node.zone.unwrap_or("(none)");
    match set.bound {
        Some(Scope::Node) => format!("on node {}", node.name),
        Some(Scope::Region) => format!("in the region of zone {zone}"),
        Some(Scope::Zone) | None => format!("in zone {zone}"),
    }
}

fn empty(class: &'static str, set: &EndpointSet, has_any: bool) -> Reason {
    if set.mode == Mode::Require {
        let detail = "nothing within reach is ready: connections are refused, they never leave (add endpoints here, or use Prefer)";
        return reason("rejected", detail);
    }
    if has_any {
        let where_else =
            if class == "local" { "endpoints exist on other nodes" } else { "endpoints exist elsewhere" };
        return reason("dropped", format!("{where_else}, but this traffic may not use them"));
    }
    reason("rejected", "there is no endpoint that is ready or still serves: connections are refused at once")
}
