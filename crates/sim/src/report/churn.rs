//! The page of `simulate replay`: churn under each mechanism, in total and over time.

use super::page::HtmlPage;
use super::svg::{bars_named, lines};
use super::{bytes, grouped};
use crate::replay::{Churn, ChurnSample, Millis};

/// The page; `title` names the cluster, `description` the events.
pub fn churn(title: &str, description: &str, churns: &[Churn], end: Millis) -> String {
    let mut page = HtmlPage::new(&format!("Churn of {title}"));
    page.paragraph(description);
    page.table(&HEADS, churns.iter().map(cells).collect());
    page.section("Churn over time", "EndpointSlices written since the start, by minutes of virtual time.");
    page.figure(&over_time(churns, end, "slices written", |m| m.slices_written as f64), "");
    page.section("Watch traffic", "Megabytes sent by the API to all nodes since the start.");
    page.figure(&over_time(churns, end, "megabytes", |m| m.watch_bytes as f64 / 1e6), "");
    page.section("Hints", "Ready endpoints with changed hints since the start.");
    page.figure(&over_time(churns, end, "hints flipped", |m| m.hints_changed as f64), "");
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

const HEADS: [&str; 9] = [
    "mechanism",
    "slices written",
    "hints only",
    "hints flipped",
    "reallocated",
    "switches",
    "max slices",
    "largest sync",
    "watch traffic",
];

fn cells(churn: &Churn) -> Vec<String> {
    let total = &churn.total;
    vec![
        churn.mechanism.as_str().to_owned(),
        grouped(total.slices_written),
        grouped(total.hint_only_writes),
        grouped(total.hints_changed),
        grouped(total.endpoints_reallocated),
        grouped(churn.switches),
        grouped(churn.max_slices),
        grouped(churn.largest_sync),
        bytes(total.watch_bytes),
    ]
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
