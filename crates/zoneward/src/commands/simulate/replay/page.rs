//! The page of `simulate replay`: churn under each mechanism, in total and over time.

use output::grouped;
use output::html::{HtmlCell, HtmlPage, bars_named, lines};
use output::units::size;
use sim::replay::{Churn, ChurnSample, Millis};

/// The page; `title` names the cluster, `description` the events.
pub(super) fn page(title: &str, description: &str, churns: &[Churn], end: Millis) -> String {
    let mut page = HtmlPage::new(&format!("Churn of {title}"));
    page.paragraph(&fewest(churns));
    page.remark(description);
    page.table(&HEADS, churns.iter().map(cells).collect());
    page.section("Churn over time", "EndpointSlices written since the start, by minutes of virtual time.");
    page.figure(&over_time(churns, end, "slices written", |m| m.slices_written as f64), "");
    page.section("Watch traffic", "Megabytes sent by the API to all nodes since the start.");
    page.figure(&over_time(churns, end, "megabytes", |m| m.watch_bytes as f64 / 1e6), "");
    page.section("Hints", "Ready endpoints with changed hints since the start.");
    page.figure(&over_time(churns, end, "hints changed", |m| m.hints_changed as f64), "");
    page.section("Writes of hints only", "Slices written, and writes that changed only hints.");
    let all: Vec<(String, f64, f64)> = churns
        .iter()
        .map(|c| {
            (c.mechanism.as_str().to_owned(), c.total.slices_written as f64, c.total.hint_only_writes as f64)
        })
        .collect();
    page.figure(&bars_named(&all, "slices written; dark: hints only"), "");
    page.finish()
}

/// One sentence about the fewest writes.
fn fewest(churns: &[Churn]) -> String {
    let written = |churn: &&Churn| churn.total.slices_written;
    let (least, most) = (churns.iter().min_by_key(written), churns.iter().max_by_key(written));
    least.zip(most).map_or_else(String::new, |(least, most)| {
        format!(
            "{} writes the fewest EndpointSlices, {}; {} the most, {}.",
            least.mechanism.as_str(),
            grouped(least.total.slices_written),
            most.mechanism.as_str(),
            grouped(most.total.slices_written)
        )
    })
}

const HEADS: [&str; 9] = [
    "Mechanism",
    "Slices written",
    "Hints only",
    "Hints changed",
    "Endpoints reallocated",
    "Switches",
    "Most slices",
    "Largest sync",
    "Watch traffic",
];

fn cells(churn: &Churn) -> Vec<HtmlCell> {
    let total = &churn.total;
    let cells = [
        grouped(total.slices_written),
        grouped(total.hint_only_writes),
        grouped(total.hints_changed),
        grouped(total.endpoints_reallocated),
        grouped(churn.switches),
        grouped(churn.max_slices),
        grouped(churn.largest_sync),
        size(total.watch_bytes as f64),
    ];
    let name = HtmlCell::text(churn.mechanism.as_str());
    std::iter::once(name).chain(cells.into_iter().map(HtmlCell::from)).collect()
}

/// Maximum number of points per line.
const MAX_POINTS: usize = 300;

fn over_time(churns: &[Churn], end: Millis, label: &str, value: impl Fn(&ChurnSample) -> f64) -> String {
    let series: Vec<(String, Vec<(f64, f64)>)> = churns
        .iter()
        .map(|churn| (churn.mechanism.as_str().to_owned(), cumulative(&churn.samples, end, &value)))
        .collect();
    lines(&series, "minutes", label)
}

fn cumulative(samples: &[ChurnSample], end: Millis, value: &impl Fn(&ChurnSample) -> f64) -> Vec<(f64, f64)> {
    let width = (end.0 / MAX_POINTS as u64).max(1);
    let mut points = vec![(0.0, 0.0)];
    let (mut sum, mut bucket) = (0.0, 0);
    for sample in samples {
        sum += value(sample);
        let minutes = sample.at.seconds() / 60.0;
        match points.last_mut().filter(|_| sample.at.0 / width == bucket) {
            Some(last) => *last = (minutes, sum),
            None => points.push((minutes, sum)),
        }
        bucket = sample.at.0 / width;
    }
    points.push((end.seconds() / 60.0, sum));
    points
}
