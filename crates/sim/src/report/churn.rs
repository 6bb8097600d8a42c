//! The page of `simulate replay`: what events cost under each mechanism, in all and over time.

use super::page::Page;
use super::svg::{bars_named, lines};
use super::{bytes, grouped};
use crate::replay::{Churn, Millis, Moment};

/// The page; `title` says which cluster, `says` which events.
pub fn churn(title: &str, says: &str, churns: &[Churn], end: Millis) -> String {
    let mut page = Page::new(&format!("Churn of {title}"));
    page.paragraph(says);
    page.table(&HEADS, churns.iter().map(cells).collect());
    page.section("Churn over time", "EndpointSlices written since the start, by minutes of virtual time.");
    page.figure(&over_time(churns, end, "slices written", |m| m.slices_written as f64), "");
    page.section("On the watch", "Megabytes that the API sent to all nodes since the start.");
    page.figure(&over_time(churns, end, "megabytes", |m| m.watch_bytes as f64 / 1e6), "");
    page.section("Hints", "Ready endpoints whose hints changed since the start.");
    page.figure(&over_time(churns, end, "hints flipped", |m| m.hints_flipped as f64), "");
    page.section(
        "What was for hints alone",
        "Slices written, and those of them whose endpoints stayed as they were.",
    );
    let all: Vec<(String, f64, f64)> = churns
        .iter()
        .map(|c| {
            (c.mechanism.as_str().to_owned(), c.total.slices_written as f64, c.total.hint_only_writes as f64)
        })
        .collect();
    page.figure(&bars_named(&all, "slices written; dark: for hints alone"), "");
    page.finish()
}

const HEADS: [&str; 9] = [
    "mechanism",
    "slices written",
    "for hints alone",
    "hints flipped",
    "reallocated",
    "switches",
    "most slices",
    "largest sync",
    "on the watch",
];

fn cells(churn: &Churn) -> Vec<String> {
    let total = &churn.total;
    vec![
        churn.mechanism.as_str().to_owned(),
        grouped(total.slices_written),
        grouped(total.hint_only_writes),
        grouped(total.hints_flipped),
        grouped(total.endpoints_reallocated),
        grouped(churn.switches),
        grouped(churn.most_slices),
        grouped(churn.largest_sync),
        bytes(total.watch_bytes),
    ]
}

/// Sums over time, one line per mechanism, with at most so many points.
const POINTS: usize = 300;

fn over_time(churns: &[Churn], end: Millis, label: &str, value: impl Fn(&Moment) -> f64) -> String {
    let series: Vec<(String, Vec<(f64, f64)>)> = churns
        .iter()
        .map(|churn| (churn.mechanism.as_str().to_owned(), sums(&churn.moments, end, &value)))
        .collect();
    lines(&series, "minutes", label)
}

fn sums(moments: &[Moment], end: Millis, value: &impl Fn(&Moment) -> f64) -> Vec<(f64, f64)> {
    let width = (end.0 / POINTS as u64).max(1);
    let mut points = vec![(0.0, 0.0)];
    let (mut sum, mut bucket) = (0.0, 0);
    for moment in moments {
        sum += value(moment);
        let minutes = moment.at.seconds() / 60.0;
        match points.last_mut().filter(|_| moment.at.0 / width == bucket) {
            Some(last) => *last = (minutes, sum),
            None => points.push((minutes, sum)),
        }
        bucket = moment.at.0 / width;
    }
    points.push((end.seconds() / 60.0, sum));
    points
}
