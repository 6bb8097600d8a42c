//! `zoneward simulate what-if`: each mechanism on the Services of a snapshot.

mod advice;
mod placement;
mod report;
mod scrape;
mod wish;
mod workload;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

use anyhow::{Result, bail};
use model::{Name, Notice, ObjectKey, ObjectRef, Service, Slice, SliceContent};
use plan::slices;
use sim::whatif::{Answer, Cluster, Demand, Question};

use super::{DemandBy, ReportFormat, SimulateWhatIf};
use advice::{Advice, advise};
use cluster::input::LoadedObjects;
use cluster::object_name::ObjectName;
use output::{notices_text, print_text};
use scrape::Scrape;
pub use wish::{Scaling, Setting, Traffic};

/// One Service with what is known about it.
struct Asked<'w> {
    service: &'w Service,
    answer: Answer,
    advice: Advice,
    /// Gigabytes per month that it gets.
    gb: Option<f64>,
    /// The share of them that stayed in its zone when it was measured.
    measured_in_zone: Option<f64>,
}

/// Runs the command.
pub(super) fn run(args: &SimulateWhatIf) -> Result<bool> {
    // The process ends after this: taking a large world apart again would only cost time.
    let world = ManuallyDrop::new(LoadedObjects::read(&args.input)?);
    for name in named(args) {
        world.check_service(name, args.input.namespace.as_deref())?;
    }
    let scrape = match &args.traffic {
        Some(Traffic::Scrape(path)) => Some(Scrape::read(path, args.traffic_days)?),
        _ => None,
    };
    let demand = demand(args, scrape.as_ref())?;
    let cluster = Cluster::new(world.snapshot.nodes(), demand.clone());
    let mut notices = world.notices.clone();
    if cluster.shares().is_empty() {
        let message = "no ready Node carries topology.kubernetes.io/zone, so no traffic is expected from anywhere: \
                       add the Nodes to the input, or the label to them";
        notices.push(Notice::new(ObjectRef::new("Node", "", "*"), "NoZones", message.to_owned()));
    }
    let wanted = world.snapshot.services().filter(|(service, _)| is_wanted(service, args));
    let services: Vec<(&Service, Cow<'_, [Slice]>)> =
        wanted.map(|(service, slices)| (service, stored_or_made(service, slices, &world))).collect();
    notices.extend(services.iter().filter_map(|(service, slices)| left_out(service, slices)));
    let kept = services.iter().filter(|(service, slices)| left_out(service, slices).is_none());
    let kept: Vec<(&Service, &[Slice])> = kept.map(|(service, slices)| (*service, &**slices)).collect();
    let asked = ask_all(&kept, &world, &demand, scrape.as_ref(), args);
    match args.format {
        ReportFormat::Table | ReportFormat::Wide => {
            print_text(&(report::text(&asked, args) + &notices_text(&notices)))?;
        }
        ReportFormat::Json => report::print_json(&asked, &cluster, args, &notices)?,
        ReportFormat::Csv => print_text(&report::csv(&asked, args))?,
        ReportFormat::Html => print_text(&report::page(&asked, args))?,
    }
    if matches!(args.format, ReportFormat::Csv | ReportFormat::Html) {
        eprint!("{}", notices_text(&notices).trim_start());
    }
    Ok(!world.unreadable)
}

fn demand(args: &SimulateWhatIf, scrape: Option<&Scrape>) -> Result<Demand> {
    Ok(match (args.demand, &args.traffic, scrape) {
        (DemandBy::Nodes, _, _) => Demand::Nodes,
        (DemandBy::Cpu, _, _) => Demand::Cpu,
        (DemandBy::Measured, Some(Traffic::PerZone(zones)), _) => {
            Demand::Measured(zones.iter().map(|(zone, gb)| (Name::new(zone), *gb)).collect())
        }
        // For Services that the scrape does not know; the others are asked with their own.
        (DemandBy::Measured, _, Some(scrape)) => Demand::Measured(scrape.by_zone()),
        (DemandBy::Measured, _, None) => {
            bail!(
                "--demand measured needs --traffic per zone, as zone-a=500,zone-b=300, or --traffic FILE.prom"
            )
        }
    })
}

fn is_wanted(service: &Service, args: &SimulateWhatIf) -> bool {
    let namespace = args.input.namespace.as_deref();
    let mut named = named(args).peekable();
    match named.peek() {
        None => namespace.is_none_or(|namespace| service.key.namespace == namespace),
        Some(_) => named.any(|name| name.matches(&service.key, namespace)),
    }
}

/// The Services that the command line names.
fn named(args: &SimulateWhatIf) -> impl Iterator<Item = &ObjectName> {
    let tried = args.set.iter().map(|s| &s.service).chain(args.scale.iter().map(|s| &s.service));
    tried.chain(args.service.as_ref())
}

/// The slices of a Service; where the input has none, those that the controller would make of its pods.
fn stored_or_made<'w>(service: &Service, slices: &'w [Slice], world: &LoadedObjects) -> Cow<'w, [Slice]> {
    let Some(selector) = service.selector.as_ref().filter(|_| slices.is_empty()) else {
        return Cow::Borrowed(slices);
    };
    let pods = world.snapshot.pods_selected(&service.key.namespace, selector);
    let trigger = slices::TriggerTimes::default();
    let nodes = world.snapshot.nodes();
    let input = slices::SliceInput { service, pods: &pods, nodes, slices, trigger: &trigger };
    let made = slices::plan(&input, &slices::SliceOptions::default(), |_, _| {});
    let slice = |(at, content): (usize, SliceContent)| Slice {
        key: ObjectKey::new(&service.key.namespace, &Name::new(&format!("{}-{at}", service.key.name))),
        uid: None,
        generation: 0,
        resource_version: None,
        annotated: false,
        written_by: None,
        deleting: false,
        owners: Box::default(),
        content,
    };
    let with_endpoints = made.creates.into_iter().filter(|content| !content.endpoints.is_empty());
    Cow::Owned(with_endpoints.enumerate().map(slice).collect())
}

/// Why a Service has nothing to compare.
fn left_out(service: &Service, slices: &[Slice]) -> Option<Notice> {
    let local = service.internal_policy == model::TrafficPolicy::Local;
    let reason = match plan::select::not_proxied(service) {
        Some(reason) => reason,
        None if local => "its internalTrafficPolicy is Local, which goes before every mechanism",
        None if slices.is_empty() => "it has neither EndpointSlices nor ready pods in the input",
        None => return None,
    };
    let object = ObjectRef::service(&service.key);
    Some(Notice::new(object, "LeftOut", format!("left out: {reason}.")))
}

/// All answers in order.
fn ask_all<'w>(
    services: &[(&'w Service, &'w [Slice])],
    world: &'w LoadedObjects,
    demand: &Demand,
    scrape: Option<&Scrape>,
    args: &SimulateWhatIf,
) -> Vec<Asked<'w>> {
    let one = |cluster: &Cluster, (service, slices): &(&'w Service, &'w [Slice])| {
        let namespace = args.input.namespace.as_deref();
        let scalings = args.scale.iter().filter(|s| s.service.matches(&service.key, namespace));
        let scale: Vec<(Name, i64)> = scalings.map(|s| (Name::new(&s.zone), s.by)).collect();
        let default = world.snapshot.namespace(&service.key.namespace);
        let namespace_default = default.and_then(|n| n.default_traffic_distribution.as_ref());
        let seen = scrape.and_then(|scrape| scrape.service(&service.key));
        let from_zones: Option<BTreeMap<Name, f64>> =
            seen.filter(|_| args.demand == DemandBy::Measured).map(|seen| seen.by_zone());
        let measured = from_zones.as_ref();
        let question = Question { service, slices, namespace_default, scale: &scale, measured };
        let mut answer = cluster.ask(&question);
        if let Some(set) = args.set.iter().rfind(|s| s.service.matches(&service.key, namespace)) {
            answer.current = set.mechanism;
        }
        let advice = advise(service, &answer, || workload::workload(service, world));
        let gb = match &args.traffic {
            Some(Traffic::Scrape(_)) => seen.map(|seen| seen.total()),
            Some(traffic) => traffic.total(),
            None => None,
        };
        Asked { service, answer, advice, gb, measured_in_zone: seen.and_then(|seen| seen.in_zone()) }
    };
    in_parallel(services, || Cluster::new(world.snapshot.nodes(), demand.clone()), one)
}

/// The results for all items in order, by as many threads as there are processors, each with tools of its own.
fn in_parallel<T: Sync, C, R: Send>(
    items: &[T],
    tools: impl Fn() -> C + Sync,
    one: impl Fn(&C, &T) -> R + Sync,
) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = items.len().div_ceil(threads).max(1);
    let (tools, one) = (&tools, &one);
    std::thread::scope(|scope| {
        let work = |part| {
            scope.spawn(move || {
                let tools = tools();
                <[T]>::iter(part).map(|item| one(&tools, item)).collect::<Vec<R>>()
            })
        };
        let workers: Vec<_> = items.chunks(part).map(work).collect();
        workers.into_iter().flat_map(|w| w.join().expect("nothing here panics")).collect()
    })
}
