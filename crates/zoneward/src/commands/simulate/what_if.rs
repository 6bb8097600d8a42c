//! `zoneward simulate what-if`: each mechanism on the Services of a snapshot.

mod advice;
mod flags;
mod page;
mod placement;
mod report;
mod scrape;
mod workload;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

use anyhow::{Result, bail};
use model::{Name, Node, Notice, ObjectRef, Service, Slice, SliceContent};
use plan::PlanningConfig;
use plan::slices;
use sim::what_if::{DemandBasis, WhatIfEvaluator, WhatIfQuery, WhatIfResult};

use super::{DemandBy, ReportFormat, SimulateWhatIf};
use crate::commands::planning;
use advice::{Advice, advise};
use cluster::input::LoadedObjects;
use cluster::object_name::ObjectName;
pub(super) use flags::{MechanismOverride, ReplicaChange, TrafficVolume};
use output::{notices_text, print_text};
use scrape::Scrape;

struct EvaluatedService<'w> {
    service: &'w Service,
    result: WhatIfResult,
    advice: Advice,
    /// Traffic in GB per month.
    gb: Option<f64>,
    /// Measured share of in-zone traffic.
    measured_in_zone: Option<f64>,
}

pub(super) fn run(args: &SimulateWhatIf) -> Result<bool> {
    // The process exits afterwards: dropping a large cluster would only take time.
    let loaded = ManuallyDrop::new(LoadedObjects::read(&args.input)?);
    for name in named(args) {
        loaded.check_service(name, args.input.namespace.as_deref())?;
    }
    let scrape = match &args.traffic {
        Some(TrafficVolume::Scrape(path)) => Some(Scrape::read(path, args.traffic_days)?),
        _ => None,
    };
    let demand = demand(args, scrape.as_ref())?;
    let mut notices = loaded.notices.clone();
    let planning = args.hints.planning(planning::base(&args.input, &mut notices));
    let evaluator = WhatIfEvaluator::new(loaded.snapshot.nodes(), demand.clone(), &planning);
    if evaluator.shares().is_empty() {
        let message = no_zones(loaded.snapshot.nodes().values());
        notices.push(Notice::new(ObjectRef::new("Node", "", "*"), "NoZones", message));
    }
    let wanted = loaded.snapshot.services().filter(|(service, _)| is_selected(service, args));
    let services: Vec<(&Service, Cow<'_, [Slice]>)> = wanted
        .map(|(service, slices)| (service, stored_or_planned(service, slices, &loaded, &planning)))
        .collect();
    notices.extend(services.iter().filter_map(|(service, slices)| skip_notice(service, slices)));
    let kept = services.iter().filter(|(service, slices)| skip_notice(service, slices).is_none());
    let kept: Vec<(&Service, &[Slice])> = kept.map(|(service, slices)| (*service, &**slices)).collect();
    let evaluated = evaluate_all(&kept, &loaded, &demand, &planning, scrape.as_ref(), args);
    match args.format {
        ReportFormat::Table | ReportFormat::Wide => {
            print_text(&(report::text(&evaluated, args) + &notices_text(&notices)))?;
        }
        ReportFormat::Json => report::print_json(&evaluated, &evaluator, args, &notices)?,
        ReportFormat::Csv => print_text(&report::csv(&evaluated, args))?,
        ReportFormat::Html => print_text(&page::page(&evaluated, &notices, args))?,
    }
    if matches!(args.format, ReportFormat::Csv | ReportFormat::Html) {
        eprint!("{}", notices_text(&notices).trim_start());
    }
    Ok(!loaded.unreadable)
}

/// Why no zone sends traffic.
fn no_zones<'a>(nodes: impl Iterator<Item = &'a Node>) -> String {
    let (mut all, mut ready, mut with_zone) = (0, 0, 0);
    for node in nodes {
        all += 1;
        ready += usize::from(node.ready);
        with_zone += usize::from(node.zone.is_some());
    }
    let (why, advice) = match (all, ready, with_zone) {
        (0, _, _) => ("the input has no Nodes", "add them to it"),
        (_, 0, _) => (
            "no Node is ready",
            "the input needs condition Ready with status True in the status of its Nodes, as kubectl get nodes -o yaml \
             writes it",
        ),
        (_, _, 0) => ("no Node has the label topology.kubernetes.io/zone", "add it to the Nodes"),
        _ => (
            "no ready Node has the label topology.kubernetes.io/zone",
            "add it to a Node whose condition Ready is True",
        ),
    };
    format!("{why}, so there is no traffic to evaluate: {advice}")
}

fn demand(args: &SimulateWhatIf, scrape: Option<&Scrape>) -> Result<DemandBasis> {
    Ok(match (args.demand, &args.traffic, scrape) {
        (DemandBy::Nodes, _, _) => DemandBasis::Nodes,
        (DemandBy::Cpu, _, _) => DemandBasis::Cpu,
        (DemandBy::Measured, Some(TrafficVolume::PerZone(zones)), _) => {
            DemandBasis::Measured(zones.iter().map(|(zone, gb)| (Name::new(zone), *gb)).collect())
        }
        // Default for Services without measurements of their own.
        (DemandBy::Measured, _, Some(scrape)) => DemandBasis::Measured(scrape.by_zone()),
        (DemandBy::Measured, _, None) => {
            bail!(
                "--demand measured requires --traffic per zone, such as zone-a=500,zone-b=300, or --traffic FILE.prom"
            )
        }
    })
}

fn is_selected(service: &Service, args: &SimulateWhatIf) -> bool {
    let namespace = args.input.namespace.as_deref();
    let mut named = named(args).peekable();
    match named.peek() {
        None => namespace.is_none_or(|namespace| service.key.namespace == namespace),
        Some(_) => named.any(|name| name.matches(&service.key, namespace)),
    }
}

/// Services named by arguments and flags.
fn named(args: &SimulateWhatIf) -> impl Iterator<Item = &ObjectName> {
    let tried = args.set.iter().map(|s| &s.service).chain(args.scale.iter().map(|s| &s.service));
    tried.chain(args.service.as_ref())
}

/// The slices of a Service; if the input has none, those that the controller would create.
fn stored_or_planned<'w>(
    service: &Service,
    slices: &'w [Slice],
    loaded: &LoadedObjects,
    planning: &PlanningConfig,
) -> Cow<'w, [Slice]> {
    let Some(selector) = service.selector.as_ref().filter(|_| slices.is_empty()) else {
        return Cow::Borrowed(slices);
    };
    let pods = loaded.snapshot.pods_selected(&service.key.namespace, selector);
    let trigger = slices::TriggerTimes::default();
    let nodes = loaded.snapshot.nodes();
    let input = slices::SliceInput { service, pods: &pods, nodes, slices, trigger: &trigger };
    let planned = slices::plan(&input, &planning.slices, |_, _| {});
    let slice = |(at, content): (usize, SliceContent)| {
        Slice::owned_by(service, &format!("{}-{at}", service.key.name), content)
    };
    let with_endpoints = planned.creates.into_iter().filter(|content| !content.endpoints.is_empty());
    Cow::Owned(with_endpoints.enumerate().map(slice).collect())
}

fn skip_notice(service: &Service, slices: &[Slice]) -> Option<Notice> {
    let local = service.internal_policy == model::TrafficPolicy::Local;
    let reason = match plan::select::not_proxied(service) {
        Some(reason) => reason,
        None if local => "its internalTrafficPolicy is Local, which overrides every mechanism",
        None if slices.is_empty() => "the input has no EndpointSlices and no ready pods of it",
        None => return None,
    };
    let object = ObjectRef::service(&service.key);
    Some(Notice::new(object, "LeftOut", format!("skipped: {reason}.")))
}

fn evaluate_all<'w>(
    services: &[(&'w Service, &'w [Slice])],
    loaded: &'w LoadedObjects,
    demand: &DemandBasis,
    planning: &PlanningConfig,
    scrape: Option<&Scrape>,
    args: &SimulateWhatIf,
) -> Vec<EvaluatedService<'w>> {
    let one = |evaluator: &WhatIfEvaluator, (service, slices): &(&'w Service, &'w [Slice])| {
        let namespace = args.input.namespace.as_deref();
        let scalings = args.scale.iter().filter(|s| s.service.matches(&service.key, namespace));
        let scale: Vec<(Name, i64)> = scalings.map(|s| (Name::new(&s.zone), s.by)).collect();
        let namespace_default = loaded.snapshot.default_traffic_distribution(&service.key.namespace);
        let seen = scrape.and_then(|scrape| scrape.service(&service.key));
        let from_zones: Option<BTreeMap<Name, f64>> =
            seen.filter(|_| args.demand == DemandBy::Measured).map(|seen| seen.by_zone());
        let measured = from_zones.as_ref();
        let query = WhatIfQuery { service, slices, namespace_default, scale: &scale, measured };
        let mut result = evaluator.evaluate(&query);
        if let Some(set) = args.set.iter().rfind(|s| s.service.matches(&service.key, namespace)) {
            result.current = set.mechanism;
        }
        let advice = advise(service, &result, || workload::workload(service, loaded));
        let gb = match &args.traffic {
            Some(TrafficVolume::Scrape(_)) => seen.map(|seen| seen.total()),
            Some(traffic) => traffic.total(),
            None => None,
        };
        EvaluatedService {
            service,
            result,
            advice,
            gb,
            measured_in_zone: seen.and_then(|seen| seen.in_zone()),
        }
    };
    let evaluator = || WhatIfEvaluator::new(loaded.snapshot.nodes(), demand.clone(), planning);
    in_parallel(services, evaluator, one)
}

/// Maps all items in order, with one thread per CPU and a context per thread.
fn in_parallel<T: Sync, C, R: Send>(
    items: &[T],
    context: impl Fn() -> C + Sync,
    one: impl Fn(&C, &T) -> R + Sync,
) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = items.len().div_ceil(threads).max(1);
    let (context, one) = (&context, &one);
    std::thread::scope(|scope| {
        let work = |part| {
            scope.spawn(move || {
                let context = context();
                <[T]>::iter(part).map(|item| one(&context, item)).collect::<Vec<R>>()
            })
        };
        let workers: Vec<_> = items.chunks(part).map(work).collect();
        workers.into_iter().flat_map(|w| w.join().expect("evaluation does not panic")).collect()
    })
}
