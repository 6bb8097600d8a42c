//! `zoneward simulate replay`: replays events under each mechanism, in virtual time.

mod page;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use model::random::Random;
use model::{Notice, ObjectRef};
use serde_json::{Value, json};
use sim::replay::{
    Churn, ChurnSample, ClusterSize, InitialCluster, Millis, PodTimings, ReplayEvent, generated_cluster,
    random_events, replay,
};
use sim::what_if::MECHANISMS;

use super::run::{progress_bar, stop_flag};
use super::{ReportFormat, SimulateReplay, events};
use cluster::input::LoadedObjects;
use output::{
    align_right, count, notices_text, notices_value, print_text, print_value, render, table_within, units,
    wrapped,
};

pub(super) fn run(args: &SimulateReplay) -> Result<bool> {
    let (mut start, mut notices, readable) = initial_cluster(args)?;
    start.subset = args.subset.options();
    let sequence = sequence(args, &start, &mut notices)?;
    if sequence.is_empty() {
        bail!("no events to replay{}", notices_text(&notices).trim_end());
    }
    let stop = stop_flag()?;
    let bar = progress_bar((sequence.len() * MECHANISMS.len()) as u64, "events");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let churns = replay(&start, &sequence, MECHANISMS, threads, &stop, &|more| bar.inc(more));
    bar.finish_and_clear();
    let report = ChurnReport { args, start: &start, sequence: &sequence, churns: &churns, notices: &notices };
    report.print()?;
    Ok(readable && !is_stopped(&stop))
}

fn is_stopped(stop: &AtomicBool) -> bool {
    let stopped = stop.load(Ordering::Relaxed);
    if stopped {
        eprintln!("zoneward: interrupted; the results are partial");
    }
    stopped
}

/// The initial cluster, notices, and whether all of the input could be read.
fn initial_cluster(args: &SimulateReplay) -> Result<(InitialCluster, Vec<Notice>, bool)> {
    let timings = PodTimings { start: args.pod_start, stop: args.pod_stop, eviction: args.eviction };
    if let Some(size) = generated_size(args) {
        return Ok((generated_cluster(size, timings), Vec::new(), true));
    }
    let advice = "use -f FILE, or --zones N for a generated cluster";
    let loaded = match args.input.files.is_empty() {
        true => LoadedObjects::read(&args.input).context(advice)?,
        false => LoadedObjects::read(&args.input)?,
    };
    let (mut start, skipped) = InitialCluster::from_snapshot(&loaded.snapshot, timings);
    if let Some(namespace) = &args.input.namespace {
        start.services.retain(|service| service.key.namespace == namespace.as_str());
    }
    let notices = loaded.notices.into_iter().chain(skipped).collect();
    Ok((start, notices, !loaded.unreadable))
}

/// The size of the generated cluster, if a flag sets it or there is no other cluster.
fn generated_size(args: &SimulateReplay) -> Option<ClusterSize> {
    let requested =
        args.zones.is_some() || args.nodes.is_some() || args.services.is_some() || args.endpoints.is_some();
    let input = &args.input;
    let has_cluster = !input.files.is_empty()
        || input.all_namespaces
        || input.namespace.is_some()
        || input.connection.is_named();
    if !requested && has_cluster {
        return None;
    }
    let number = |flag: Option<u32>, default: usize| flag.map_or(default, |value| value as usize);
    Some(ClusterSize {
        zones: args.zones.map_or(3, usize::from),
        nodes: number(args.nodes, 12),
        services: number(args.services, 10),
        endpoints: number(args.endpoints, 12),
    })
}

/// The events of the file, or random ones; events for unknown objects are skipped with a notice.
fn sequence(
    args: &SimulateReplay,
    start: &InitialCluster,
    notices: &mut Vec<Notice>,
) -> Result<Vec<ReplayEvent>> {
    let Some(path) = &args.event_file else {
        return Ok(random_events(start, &mut Random::seeded(args.seed), args.events as usize));
    };
    let (events, unreadable) = events::read(path, args.input.namespace.as_deref().unwrap_or("default"))?;
    notices.extend(unreadable);
    let (known, unknown): (Vec<ReplayEvent>, Vec<ReplayEvent>) =
        events.into_iter().partition(|e| start.check(e).is_ok());
    let shown = path.display().to_string();
    notices.extend(unknown.iter().filter_map(|event| {
        let why = start.check(event).err()?;
        let message = format!("{}: {why}. The event is skipped.", events::value(event));
        Some(Notice::new(ObjectRef::new("File", "", &shown), "Unknown", message))
    }));
    Ok(known)
}

struct ChurnReport<'r> {
    args: &'r SimulateReplay,
    start: &'r InitialCluster,
    sequence: &'r [ReplayEvent],
    churns: &'r [Churn],
    notices: &'r [Notice],
}

impl ChurnReport<'_> {
    fn print(&self) -> Result<()> {
        match self.args.format {
            ReportFormat::Table => print_text(&(self.text(false) + &notices_text(self.notices))),
            ReportFormat::Wide => print_text(&(self.text(true) + &notices_text(self.notices))),
            ReportFormat::Json => print_value(&self.value(), crate::cli::Format::Json),
            ReportFormat::Csv => self.warn_and_print(&self.csv()),
            ReportFormat::Html => {
                let title = self.cluster();
                self.warn_and_print(&page::page(&title, &self.description(), self.churns, self.end()))
            }
        }
    }

    fn warn_and_print(&self, text: &str) -> Result<()> {
        eprint!("{}", notices_text(self.notices).trim_start());
        print_text(text)
    }

    fn end(&self) -> Millis {
        let written = self.churns.iter().map(|churn| churn.total.at).max();
        let last = self.sequence.last().map(|event| event.at);
        written.max(last).unwrap_or_default()
    }

    fn cluster(&self) -> String {
        format!(
            "{}, {}, {}",
            count(self.start.services.len(), "Service"),
            count(self.start.pods.len(), "pod"),
            count(self.start.nodes.len(), "node")
        )
    }

    fn description(&self) -> String {
        let minutes = self.end().seconds() / 60.0;
        let source = match self.args.event_file {
            Some(_) => String::new(),
            None => format!(" with seed {}", self.args.seed),
        };
        format!("{}{source} in {minutes:.0} minutes of virtual time.", count(self.sequence.len(), "event"))
    }

    /// Slices written relative to those that Balanced writes for the same events (seed 003: minimise churn).
    fn ratio(&self, churn: &Churn) -> Option<f64> {
        let balanced = self.churns.first().filter(|c| c.mechanism == plan::hints::Mechanism::None)?;
        let base = balanced.total.slices_written;
        (base > 0).then(|| churn.total.slices_written as f64 / base as f64)
    }

    fn text(&self, wide: bool) -> String {
        let heads = [
            "MECHANISM",
            "WRITES",
            "",
            "TO BALANCED",
            "HINTS ONLY",
            "FLIPPED",
            "REALLOCATED",
            "SWITCHES",
            "SLICES",
            "WATCH",
        ];
        let mut table = table_within(&shown(&heads, wide), wide);
        let most = self.churns.iter().map(|c| c.total.slices_written).max().unwrap_or(0).max(1);
        for churn in self.churns {
            let t = &churn.total;
            let cells = [
                churn.mechanism.as_str().to_owned(),
                t.slices_written.to_string(),
                super::run::small_bar(t.slices_written as f64 / most as f64),
                self.ratio(churn).map_or_else(|| "-".to_owned(), |r| format!("{r:.2}x")),
                t.hint_only_writes.to_string(),
                t.hints_changed.to_string(),
                t.endpoints_reallocated.to_string(),
                churn.switches.to_string(),
                churn.max_slices.to_string(),
                units::plain(&units::size(t.watch_bytes as f64)),
            ];
            table.add_row(shown(&cells, wide));
        }
        let figures = if wide { vec![1, 3, 4, 5, 6, 7, 8, 9] } else { (1..7).collect() };
        align_right(&mut table, &figures);
        format!("{}\n{}", render(&table), wrapped(&format!("{}: {}", self.cluster(), self.description()), ""))
    }

    fn value(&self) -> Value {
        json!({
            "services": self.start.services.len(),
            "pods": self.start.pods.len(),
            "nodes": self.start.nodes.len(),
            "seconds": self.end().seconds(),
            "events": self.sequence.iter().map(events::value).collect::<Vec<_>>(),
            "mechanisms": self.churns.iter().map(|churn| self.churn_value(churn)).collect::<Vec<_>>(),
            "notices": notices_value(self.notices),
        })
    }

    fn churn_value(&self, churn: &Churn) -> Value {
        let mut value = json!({"mechanism": churn.mechanism.as_str()});
        for (field, figure) in figures(&churn.total) {
            value[field] = figure.into();
        }
        value["writes_to_balanced"] = json!(self.ratio(churn));
        value["syncs"] = churn.syncs.into();
        value["largest_sync"] = churn.largest_sync.into();
        value["switches"] = churn.switches.into();
        value["most_slices"] = churn.max_slices.into();
        value["settled"] = moment_value(&churn.settled);
        let moments = churn.samples.iter().map(|moment| {
            let mut value = moment_value(moment);
            value["at"] = json!(moment.at.seconds());
            value
        });
        value["over_time"] = moments.collect();
        value
    }

    fn csv(&self) -> String {
        let mut text =
            "mechanism,slices_written,hint_only_writes,hints_flipped,endpoints_reallocated,watch_bytes,\
                        syncs,largest_sync,switches,most_slices\n"
                .to_owned();
        for churn in self.churns {
            let more = [churn.syncs, churn.largest_sync, churn.switches, churn.max_slices];
            let figures = figures(&churn.total).map(|(_, figure)| figure).into_iter().chain(more);
            let cells: Vec<String> = figures.map(|figure| figure.to_string()).collect();
            text += &format!("{},{}\n", churn.mechanism.as_str(), cells.join(","));
        }
        text
    }
}

/// The bar, the switches and the most slices are in `-o wide`.
fn shown<T: Clone>(cells: &[T; 10], wide: bool) -> Vec<T> {
    const WIDE: [usize; 3] = [2, 7, 8];
    let wanted = cells.iter().enumerate().filter(|(at, _)| wide || !WIDE.contains(at));
    wanted.map(|(_, cell)| cell.clone()).collect()
}

fn figures(moment: &ChurnSample) -> [(&'static str, u64); 5] {
    [
        ("slices_written", moment.slices_written),
        ("hint_only_writes", moment.hint_only_writes),
        ("hints_flipped", moment.hints_changed),
        ("endpoints_reallocated", moment.endpoints_reallocated),
        ("watch_bytes", moment.watch_bytes),
    ]
}

fn moment_value(moment: &ChurnSample) -> Value {
    figures(moment).into_iter().map(|(field, figure)| (field.to_owned(), Value::from(figure))).collect()
}
