//! `zoneward simulate what-if`: each mechanism on the Services of a snapshot.

mod advice;
mod wish;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result, bail};
use model::{Name, Notice, ObjectKey, ObjectRef, Service, Slice, SliceContent};
use plan::slices;
use serde_json::{Map, Value, json};
use sim::report::{HeatMap, Page, heat_map};
use sim::whatif::{Answer, Cluster, Demand, Figures, Outcome, Question};

use super::{DemandBy, ReportFormat, SimulateWhatIf};
use crate::input::World;
use crate::output::{count, notices_text, notices_value, print_text, render, table};
use advice::{Advice, advise};
pub use wish::{Scaling, Setting, Traffic};

/// Services on an HTML page; a page with more would not be looked at.
const MOST_ON_PAGE: usize = 50;

/// One Service with what is known about it.
struct Asked<'w> {
    service: &'w Service,
    answer: Answer,
    advice: Advice,
}

/// Runs the command.
pub(super) fn run(args: &SimulateWhatIf) -> Result<bool> {
    let world = World::read(&args.input)?;
    let cluster = Cluster::new(world.snapshot.nodes(), demand(args)?);
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
    let asked = ask_all(&kept, &world, &cluster, args);
    notices.extend(unknown_names(args, &asked));
    match args.format {
        ReportFormat::Table => print_text(&(text(&asked, args) + &notices_text(&notices)))?,
        ReportFormat::Json => print_json(&asked, &cluster, args, &notices)?,
        ReportFormat::Csv => print_text(&csv(&asked, args))?,
        ReportFormat::Html => print_text(&page(&asked, args))?,
    }
    if matches!(args.format, ReportFormat::Csv | ReportFormat::Html) {
        eprint!("{}", notices_text(&notices).trim_start());
    }
    Ok(!world.unreadable)
}

fn demand(args: &SimulateWhatIf) -> Result<Demand> {
    Ok(match (args.demand, &args.traffic) {
        (DemandBy::Nodes, _) => Demand::Nodes,
        (DemandBy::Cpu, _) => Demand::Cpu,
        (DemandBy::Measured, Some(Traffic::PerZone(zones))) => {
            Demand::Measured(zones.iter().map(|(zone, gb)| (Name::new(zone), *gb)).collect())
        }
        (DemandBy::Measured, _) => {
            bail!("--demand measured needs --traffic per zone, as zone-a=500,zone-b=300")
        }
    })
}

fn is_wanted(service: &Service, args: &SimulateWhatIf) -> bool {
    let namespace = args.input.namespace.as_deref();
    let in_namespace = namespace.is_none_or(|n| service.key.namespace == n);
    let tried = args.set.iter().map(|s| &s.service).chain(args.scale.iter().map(|s| &s.service));
    let mut named = tried.chain(args.service.as_ref()).peekable();
    in_namespace && (named.peek().is_none() || named.any(|name| wish::names(name, service, namespace)))
}

/// The slices of a Service; where the input has none, those that the controller would make of its pods.
fn stored_or_made<'w>(service: &Service, slices: &'w [Slice], world: &World) -> Cow<'w, [Slice]> {
    let Some(selector) = service.selector.as_ref().filter(|_| slices.is_empty()) else {
        return Cow::Borrowed(slices);
    };
    let pods = world.snapshot.pods_selected(&service.key.namespace, selector);
    let trigger = slices::TriggerTimes::default();
    let nodes = world.snapshot.nodes();
    let input = slices::Input { service, pods: &pods, nodes, slices, trigger: &trigger };
    let made = slices::plan(&input, &slices::Options::default(), |_, _| {});
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

/// What was asked for by a name that no Service has.
fn unknown_names(args: &SimulateWhatIf, asked: &[Asked<'_>]) -> Vec<Notice> {
    let tried = args.set.iter().map(|s| &s.service).chain(args.scale.iter().map(|s| &s.service));
    let namespace = args.input.namespace.as_deref();
    let unknown = tried.chain(args.service.as_ref());
    let unknown = unknown.filter(|name| !asked.iter().any(|a| wish::names(name, a.service, namespace)));
    let notice = |name: &String| {
        let message = "there is no such Service that could be compared: look at its name and namespace";
        Notice::new(ObjectRef::new("Service", "", name), "Unknown", message.to_owned())
    };
    unknown.map(notice).collect()
}

/// All answers in order.
fn ask_all<'w>(
    services: &[(&'w Service, &'w [Slice])],
    world: &'w World,
    cluster: &Cluster,
    args: &SimulateWhatIf,
) -> Vec<Asked<'w>> {
    let one = |(service, slices): &(&'w Service, &'w [Slice])| {
        let namespace = args.input.namespace.as_deref();
        let scalings = args.scale.iter().filter(|s| wish::names(&s.service, service, namespace));
        let scale: Vec<(Name, i64)> = scalings.map(|s| (Name::new(&s.zone), s.by)).collect();
        let default = world.snapshot.namespace(&service.key.namespace);
        let namespace_default = default.and_then(|n| n.default_traffic_distribution.as_ref());
        let question = Question { service, slices, namespace_default, scale: &scale };
        let mut answer = cluster.ask(&question);
        if let Some(set) = args.set.iter().rfind(|s| wish::names(&s.service, service, namespace)) {
            answer.current = set.mechanism;
        }
        let advice = advise(service, &answer, &cluster.shares());
        Asked { service, answer, advice }
    };
    in_parallel(services, one)
}

/// The results for all items in order, by as many threads as there are processors.
fn in_parallel<T: Sync, R: Send>(items: &[T], one: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = items.len().div_ceil(threads).max(1);
    let one = &one;
    std::thread::scope(|scope| {
        let work = |part| scope.spawn(move || <[T]>::iter(part).map(one).collect::<Vec<R>>());
        let workers: Vec<_> = items.chunks(part).map(work).collect();
        workers.into_iter().flat_map(|w| w.join().expect("nothing here panics")).collect()
    })
}

/// Gigabytes per month that cross zones.
fn crossing(figures: &Figures, args: &SimulateWhatIf) -> Option<f64> {
    let total = args.traffic.as_ref()?.total();
    Some(total * (1.0 - figures.in_zone - figures.refused).max(0.0))
}

fn cost(figures: &Figures, args: &SimulateWhatIf) -> Option<f64> {
    Some(crossing(figures, args)? * args.price?)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

const HEADS: [&str; 11] = [
    "MECHANISM",
    "IN ZONE",
    "MAX OVERLOAD",
    "MEAN",
    "IDLE",
    "REFUSED",
    "SLICES",
    "HINTS",
    "GB/MONTH",
    "COST",
    "IF A ZONE FAILS",
];

fn cells(outcome: &Outcome, current: bool, args: &SimulateWhatIf) -> Vec<String> {
    let f = &outcome.figures;
    let failure = outcome.worst_failure.as_ref().map_or_else(
        || "-".to_owned(),
        |(zone, f)| match f.refused > 1e-9 {
            true => format!("{zone}: {} refused", percent(f.refused)),
            false => format!("{zone}: overload {}", percent(f.max_overload)),
        },
    );
    let mark = if current { " *" } else { "" };
    let rest = if outcome.held_back.is_some() { " (held back)" } else { "" };
    vec![
        format!("{}{rest}{mark}", outcome.mechanism.as_str()),
        percent(f.in_zone),
        percent(f.max_overload),
        percent(f.mean_overload),
        f.idle.to_string(),
        percent(f.refused),
        outcome.slices_written.to_string(),
        outcome.hints_changed.to_string(),
        number(crossing(f, args), 1),
        number(cost(f, args), 2),
        failure,
    ]
}

fn heading(asked: &Asked<'_>) -> String {
    let zones = asked.answer.endpoints_by_zone.iter();
    let zones: Vec<String> = zones.map(|(zone, n)| format!("{zone} {n}")).collect();
    format!("{}: ready endpoints: {}", asked.service.key, zones.join(", "))
}

fn text(asked: &[Asked<'_>], args: &SimulateWhatIf) -> String {
    if asked.is_empty() {
        return "No Service to compare.\n".to_owned();
    }
    let mut text = String::new();
    for one in asked {
        text += &format!("{}\n", heading(one));
        let mut table = table(&HEADS);
        let rows = one.answer.outcomes.iter().map(|o| cells(o, o.mechanism == one.answer.current, args));
        table.add_rows(rows);
        text += &render(&table);
        text += &format!("Recommended: {}\n", one.advice.reason);
        let indented = one.advice.yaml.lines().map(|line| format!("    {line}\n"));
        text += &(indented.collect::<String>() + "\n");
    }
    text + &format!("{}. The mechanism with * is the present or tried one.\n", count(asked.len(), "Service"))
}

fn csv(asked: &[Asked<'_>], args: &SimulateWhatIf) -> String {
    let mut text =
        "service,mechanism,current,programmed,in_zone_pct,refused_pct,max_overload_pct,mean_overload_pct,\
                    idle_endpoints,slices_written,hints_changed,cross_zone_gb,cost\n"
            .to_owned();
    for one in asked {
        for o in &one.answer.outcomes {
            let f = &o.figures;
            let optional = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
            text += &format!(
                "{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                one.service.key,
                o.mechanism.as_str(),
                o.mechanism == one.answer.current,
                o.programmed,
                100.0 * f.in_zone,
                100.0 * f.refused,
                100.0 * f.max_overload,
                100.0 * f.mean_overload,
                f.idle,
                o.slices_written,
                o.hints_changed,
                optional(crossing(f, args)),
                optional(cost(f, args))
            );
        }
    }
    text
}

/// A line per Service, each turned into text on its own: one tree of ten thousand would cost more than the answers.
fn print_json(
    asked: &[Asked<'_>],
    cluster: &Cluster,
    args: &SimulateWhatIf,
    notices: &[Notice],
) -> Result<()> {
    let shares: Map<String, Value> =
        cluster.shares().iter().map(|(zone, share)| (zone.to_string(), json!(share))).collect();
    let demand = match args.demand {
        DemandBy::Nodes => "nodes",
        DemandBy::Cpu => "cpu",
        DemandBy::Measured => "measured",
    };
    let lines = in_parallel(asked, |one| service_value(one, args).to_string());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut write = || -> std::io::Result<()> {
        write!(
            out,
            "{{\"demand\": \"{demand}\",\n\"shares\": {},\n\"services\": [",
            Value::Object(shares.clone())
        )?;
        for (at, line) in lines.iter().enumerate() {
            let comma = if at == 0 { "\n" } else { ",\n" };
            write!(out, "{comma}{line}")?;
        }
        writeln!(out, "],\n\"notices\": {}}}", notices_value(notices))?;
        out.flush()
    };
    write().context("writing the answer")
}

fn service_value(one: &Asked<'_>, args: &SimulateWhatIf) -> Value {
    let endpoints: Map<String, Value> =
        one.answer.endpoints_by_zone.iter().map(|(zone, n)| (zone.to_string(), json!(n))).collect();
    let mechanisms: Vec<Value> = one.answer.outcomes.iter().map(|o| outcome_value(o, args)).collect();
    json!({
        "service": one.service.key.to_string(),
        "current": one.answer.current.as_str(),
        "endpoints": endpoints,
        "mechanisms": mechanisms,
        "recommendation": {
            "mechanism": one.advice.mechanism.as_str(),
            "reason": one.advice.reason,
            "yaml": one.advice.yaml,
        },
    })
}

fn outcome_value(o: &Outcome, args: &SimulateWhatIf) -> Value {
    let mut value = figures_value(&o.figures);
    let failure = o.worst_failure.as_ref().map(|(zone, figures)| {
        let mut value = figures_value(figures);
        value["zone"] = json!(zone.as_str());
        // Ten thousand Services are compared at once: the shares by zone are those of the healthy cluster only.
        value.as_object_mut().map(|fields| fields.remove("zones"));
        value
    });
    value["mechanism"] = json!(o.mechanism.as_str());
    value["programmed"] = json!(o.programmed);
    value["held_back"] = json!(o.held_back);
    value["slices_written"] = json!(o.slices_written);
    value["hints_changed"] = json!(o.hints_changed);
    value["cross_zone_gb"] = json!(crossing(&o.figures, args));
    value["cost"] = json!(cost(&o.figures, args));
    value["zone_failure"] = json!(failure);
    value
}

fn figures_value(f: &Figures) -> Value {
    let mut zones: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for ((from, to), share) in &f.zones {
        zones.entry(from).or_default().insert(to.to_string(), json!(share));
    }
    json!({
        "in_zone_pct": 100.0 * f.in_zone,
        "refused_pct": 100.0 * f.refused,
        "max_overload_pct": 100.0 * f.max_overload,
        "mean_overload_pct": 100.0 * f.mean_overload,
        "idle_endpoints": f.idle,
        "zones": zones,
    })
}

fn page(asked: &[Asked<'_>], args: &SimulateWhatIf) -> String {
    let mut page = Page::new("What would each mechanism do?");
    page.paragraph(&format!(
        "{}. A row with * is the present or tried mechanism.",
        count(asked.len(), "Service")
    ));
    if asked.len() > MOST_ON_PAGE {
        page.paragraph(&format!("The first {MOST_ON_PAGE} are shown; -o json has all of them."));
    }
    for one in asked.iter().take(MOST_ON_PAGE) {
        page.section(&one.service.key.to_string(), &heading(one));
        let rows = one.answer.outcomes.iter().map(|o| cells(o, o.mechanism == one.answer.current, args));
        page.table(&HEADS, rows.collect());
        for outcome in &one.answer.outcomes {
            let zones: Vec<&Name> = outcome.figures.zones.keys().map(|(from, _)| from).collect();
            let targets: Vec<&Name> = outcome.figures.zones.keys().map(|(_, to)| to).collect();
            let (zones, targets) = (distinct(zones), distinct(targets));
            let cell = |to: &Name, from: &Name| {
                outcome.figures.zones.get(&(from.clone(), to.clone())).copied().unwrap_or(0.0)
            };
            let values: Vec<f64> =
                targets.iter().flat_map(|to| zones.iter().map(move |from| cell(to, from))).collect();
            let ends = |names: &[&Name]| {
                let name = |n: Option<&&Name>| n.map(|n| n.to_string()).unwrap_or_default();
                (name(names.first()), name(names.last()))
            };
            let (x, y) = (ends(&zones), ends(&targets));
            let map = HeatMap {
                columns: zones.len(),
                rows: targets.len(),
                values: &values,
                x: (&format!("from {}", x.0), &x.1),
                y: (&format!("to {}", y.0), &y.1),
            };
            page.figure(&heat_map(&map), outcome.mechanism.as_str());
        }
        page.paragraph(&format!("Recommended: {}", one.advice.reason));
        if !one.advice.yaml.is_empty() {
            page.verbatim(&one.advice.yaml);
        }
    }
    page.finish()
}

fn distinct(mut names: Vec<&Name>) -> Vec<&Name> {
    names.sort();
    names.dedup();
    names
}
