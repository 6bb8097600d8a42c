//! After healing: slices equal `plan slices`, kernels equal `plan node` of the same objects from nothing (18), endpoints
//! are in one slice (5) and reachable (20).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use dataplane::backend::{NodeBackend, TracedVerdict};
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::fake::FakeKernel;
use model::{Family, Hints, Interner, Service, Slice, SliceContent, Snapshot, annotation, parse};
use plan::PlanningConfig;
use plan::drain::ZoneDrains;
use plan::forward::{NodeConfig, table};
use plan::hints::{Hysteresis, Mechanism};
use plan::planner::Planner;
use plan::slices::{SliceOptions, TriggerTimes, orphans};
use serde_json::Value;
use store::engine::{Engine, ListQuery, ResourceId};
use store::kinds;

use crate::drains;
use crate::kernels::{agrees, connect, reached};
use crate::parties::{Machine, node_settings};
use crate::service_conditions::planner;
use crate::spill;
use crate::time::wall_time;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;

type Checked = Result<(), BrokenInvariant>;

const KINDS: [&str; 6] = ["Service", "EndpointSlice", "Pod", "Node", "Namespace", "ServiceCIDR"];

/// All objects of the store.
pub(crate) fn snapshot(engine: &Engine) -> Result<(Snapshot, Vec<Value>), BrokenInvariant> {
    let (mut snapshot, mut interner, mut services) = (Snapshot::default(), Interner::default(), Vec::new());
    for word in KINDS {
        let Some(kind) = kinds::named(word) else { continue };
        let page = engine.list(&ListQuery::all(ResourceId(kind.id)));
        let page = page.map_err(|error| BrokenInvariant::new(18, format!("{word}: {error}")))?;
        for stored in page.items {
            let text = String::from_utf8_lossy(&stored.json);
            if word == "Service" {
                services.push(serde_json::from_str(&text).unwrap_or_default());
            }
            if let (Some(object), _) = parse::text(&kind.api_version(), word, &text, &mut interner) {
                snapshot.apply(object);
            }
        }
    }
    Ok((snapshot, services))
}

/// Checks everything that must hold once nothing changes any more.
pub(crate) fn check(engine: &Engine, machines: &[Machine], truth: &Truth, now: u64) -> Checked {
    let (mut snapshot, services) = snapshot(engine)?;
    check_slices(&snapshot, drains::in_force(engine, now)?)?;
    plan::capacity::advance(&mut snapshot, wall_time(now));
    for machine in machines {
        check_kernel(&snapshot, &services, machine, truth)?;
    }
    spill::check(&snapshot, machines)
}

fn check_slices(snapshot: &Snapshot, drains: ZoneDrains) -> Checked {
    let planner = planner(snapshot, drains);
    for (service, stored) in snapshot.services() {
        let ours: Vec<&Slice> = stored.iter().filter(|slice| is_ours(slice)).collect();
        let memory = |family| Hysteresis::from_slices(family, stored);
        let trigger = TriggerTimes::default();
        let (plan, _) = planner.plan(snapshot, service, stored, &trigger, memory);
        if !plan.creates.is_empty() || !plan.updates.is_empty() || !plan.deletes.is_empty() {
            let text = format!(
                "the slices of Service {} are not as planned: create {:?}, update {:?}, delete {:?}; stored {:?}",
                service.key, plan.creates, plan.updates, plan.deletes, ours
            );
            return Err(BrokenInvariant::new(18, text));
        }
        from_nothing(snapshot, &planner, service, &ours)?;
    }
    for (service, stored) in snapshot.orphaned_slices() {
        if let Some(slice) = orphans(stored, SliceOptions::WITHOUT_FLAGS.mode).next() {
            let text =
                format!("EndpointSlice {} is left of Service {service}, which does not exist", slice.key);
            return Err(BrokenInvariant::new(18, text));
        }
    }
    Ok(())
}

pub(crate) fn is_ours(slice: &Slice) -> bool {
    slice.managed_by().is_some_and(|name| name == annotation::CONTROLLER_NAME)
}

/// By design, what the slices had before keeps the hints of these two mechanisms for longer than they would be set:
/// `HINT_OVERLOAD` in plan/src/hints/spill.rs, and the overload threshold in plan/src/hints/auto.rs.
pub(crate) fn has_memory(service: &Service) -> bool {
    let chosen = PlanningConfig::without_flags().choose(service, None).mechanism;
    matches!(chosen, Mechanism::Spill | Mechanism::Auto)
}

fn from_nothing(snapshot: &Snapshot, planner: &Planner, service: &Service, ours: &[&Slice]) -> Checked {
    let none = |family: Family| Hysteresis::from_slices(family, &[]);
    let (plan, _) = planner.plan(snapshot, service, &[], &TriggerTimes::default(), none);
    // That the slices equal the plan with this memory is checked before.
    let with_hints = !has_memory(service);
    let wanted: Vec<String> = sorted(plan.creates.iter(), with_hints);
    let found: Vec<String> = sorted(ours.iter().map(|slice| &slice.content), with_hints);
    if let Some(twice) = found.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("an endpoint of Service {} is in two slices: {}", service.key, twice[0]);
        return Err(BrokenInvariant::new(5, text));
    }
    if wanted != found {
        let text =
            format!("Service {} planned from nothing has {wanted:?}, stored are {found:?}", service.key);
        return Err(BrokenInvariant::new(18, text));
    }
    Ok(())
}

/// Endpoints with their ports and hints, however they are packed.
pub(crate) fn sorted<'c>(contents: impl Iterator<Item = &'c SliceContent>, with_hints: bool) -> Vec<String> {
    let lines = |content: &SliceContent| {
        let ports: Vec<String> =
            content.ports.iter().map(|port| format!("{:?}/{:?}", port.name, port.port)).collect();
        let one = |endpoint: &model::Endpoint| {
            format!(
                "{} {ports:?} {:?} on {:?} in {:?} hints {:?}",
                endpoint.addresses.first(),
                endpoint.conditions,
                endpoint.node,
                endpoint.zone,
                endpoint.hints.as_ref().filter(|_| with_hints)
            )
        };
        content.endpoints.iter().map(one).collect::<Vec<_>>()
    };
    let mut all: Vec<String> = contents.flat_map(lines).collect();
    all.sort();
    all
}

fn check_kernel(snapshot: &Snapshot, services: &[Value], machine: &Machine, truth: &Truth) -> Checked {
    let settings = node_settings();
    let Some(node) = snapshot.node(&machine.name) else { return Ok(()) };
    let cidrs: Vec<_> = snapshot.service_cidrs().flat_map(|cidr| cidr.cidrs.iter().copied()).collect();
    let (config, _) = NodeConfig::new(&settings.proxy, node, &cidrs, &[machine.address]);
    let (table, _) = table(snapshot, &config);
    let fresh = Arc::new(Mutex::new(FakeKernel::new()));
    let mut backend = NftablesBackend::new(Box::new(fresh.clone()));
    backend.load(&table).map_err(|error| BrokenInvariant::new(18, format!("a new kernel: {error}")))?;
    let fresh = fresh.lock().unwrap_or_else(PoisonError::into_inner);
    let faulty = machine.kernel.lock().unwrap_or_else(PoisonError::into_inner);
    let name = &machine.name;
    let wrong = |number, to: SocketAddr, what: String| {
        Err(BrokenInvariant::new(number, format!("{name}, {to}: {what}")))
    };
    for (ip, port) in truth.frontends.keys() {
        let to = SocketAddr::new(*ip, *port);
        let (Some(found), Some(wanted)) =
            (connect(&faulty.kernel, machine, to), connect(&fresh, machine, to))
        else {
            return wrong(18, to, "too many paths".to_owned());
        };
        let same = found.verdict == wanted.verdict
            && same_shares(&found.endpoints, &wanted.endpoints)
            && found.masquerade == wanted.masquerade
            && found.affinity == wanted.affinity;
        if !same {
            let text = format!(
                "{:?} {:?} affinity {:?}, planned from nothing {:?} {:?} affinity {:?}",
                found.verdict,
                found.endpoints,
                found.affinity,
                wanted.verdict,
                wanted.endpoints,
                wanted.affinity
            );
            return wrong(18, to, text);
        }
        let address = model::forward::FrontendAddress::new(*ip, model::Protocol::Tcp, *port);
        let frontend = table.frontend(&address);
        if !frontend.map_or(found.endpoints.is_empty(), |frontend| agrees(frontend, &found.endpoints)) {
            return wrong(18, to, format!("{:?} is not what the table says", found.endpoints));
        }
        let timeout = services.iter().find(|service| service["spec"]["clusterIP"] == ip.to_string().as_str());
        let timeout = timeout.and_then(|service| {
            service["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_u64()
        });
        if found.verdict == TracedVerdict::Dnat && found.affinity != timeout.map(|seconds| seconds * 1_000) {
            return wrong(
                18,
                to,
                format!("affinity {:?} ms, the Service says {timeout:?} s", found.affinity),
            );
        }
    }
    check_reachable(snapshot, machine, &faulty.kernel)
}

/// Whether two kernels give each endpoint the same share.
fn same_shares(a: &[(SocketAddr, f64)], b: &[(SocketAddr, f64)]) -> bool {
    let same = |(a, b): (&(SocketAddr, f64), &(SocketAddr, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6;
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// Every ready endpoint is reachable from its own node, unless Auto lends it to another zone, and from every node if the
/// Service has no preference.
fn check_reachable(snapshot: &Snapshot, machine: &Machine, kernel: &FakeKernel) -> Checked {
    for (service, slices) in snapshot.services() {
        let Some(ip) = service.cluster_ips.addresses().first().copied() else { continue };
        let Some(port) = service.ports.first() else { continue };
        let to = SocketAddr::new(ip, port.port);
        let Some(evaluation) = connect(kernel, machine, to) else { continue };
        let reached: BTreeSet<SocketAddr> = reached(&evaluation);
        for slice in slices.iter().filter(|slice| is_ours(slice)) {
            let target = slice.content.ports.first().and_then(|port| port.port).unwrap_or_default();
            for endpoint in slice.content.endpoints.iter().filter(|endpoint| endpoint.conditions.is_ready()) {
                // Auto gives endpoints of a zone to others, in proportion to their CPU, by hints for these alone. A drain
                // moves all traffic away from a zone, that of its own nodes as well.
                let of_zone = |hints: &Arc<Hints>| {
                    hints.zones.is_empty()
                        || hints.zones.iter().any(|zone| Some(zone) == endpoint.zone.as_ref())
                };
                if !endpoint.hints.as_ref().is_none_or(of_zone) || slice.drained(endpoint.zone.as_ref()) > 0 {
                    continue;
                }
                let is_here = endpoint.node.as_ref().is_some_and(|node| *node == *machine.name);
                let is_free = endpoint.hints.is_none() && service.annotations.is_empty();
                let address = SocketAddr::new(endpoint.addresses.first(), target);
                if (is_here || is_free) && !reached.contains(&address) {
                    let text = format!(
                        "{address} of Service {} is ready and not reachable from {}",
                        service.key, machine.name
                    );
                    return Err(BrokenInvariant::new(20, text));
                }
            }
        }
    }
    Ok(())
}
