//! The fullest traffic ledger: a day by the minute of as many Services as have rows, and the last sums of as many nodes as
//! may report, each with as many pairs as a report may have.

use std::time::{Duration, Instant};

use insight::ledger::{
    MAX_REPORT_PAIRS, TrafficLedger, TrafficOwner, TrafficReport, TrafficRow, ZonePairTraffic,
};
use plan::work_queue::MonotonicTime;

use crate::{BUSY, MINUTES, load, process};

/// The argument that asks for this measurement.
pub const WORD: &str = "full-ledger";
const REPORTERS: usize = 10_000;
const SERVICES: usize = 10_000;
const ZONES: usize = 3;

pub fn measure() {
    let before = process::memory();
    let mut ledger = TrafficLedger::new("2026-11-17T00:00:00Z", at(0));
    for minute in 1..=MINUTES {
        // Reports are bounded, so each of two nodes has a part.
        for node in 0..2 {
            let services = (0..BUSY).filter(|number| number % 2 == node);
            let rows = services.map(|number| row(number, 0..ZONES, minute)).collect();
            ledger.record(&report(node, minute, rows), at(minute)).unwrap();
        }
    }
    let day = process::memory();
    for node in 2..REPORTERS {
        let from = node % ZONES..node % ZONES + 1;
        let services = (0..MAX_REPORT_PAIRS / ZONES).map(|at| (node * 7 + at) % SERVICES);
        let rows = services.map(|number| row(number, from.clone(), MINUTES)).collect();
        ledger.record(&report(node, 1, rows), at(MINUTES)).unwrap();
    }
    let full = process::memory();
    println!(
        "full ledger: {} MB, {} MB of it a day of {BUSY} Services between {ZONES} zones, {} MB the sums of {REPORTERS} \
         reporters",
        full.saturating_sub(before),
        day.saturating_sub(before),
        full.saturating_sub(day)
    );
    for hours in [1, 24] {
        let start = Instant::now();
        let rows = ledger.sums(Duration::from_secs(hours * 3600), at(MINUTES)).rows.len();
        println!("  sums of {hours} h: {:.1} ms, {rows} rows", start.elapsed().as_secs_f64() * 1e3);
    }
    let start = Instant::now();
    let minutes = ledger.history(Some(&owner(7))).len();
    println!("  history of a Service: {:.1} ms, {minutes} minutes", start.elapsed().as_secs_f64() * 1e3);
}

fn at(minute: u64) -> MonotonicTime {
    MonotonicTime(Duration::from_secs(minute * 60))
}

fn owner(number: usize) -> TrafficOwner {
    TrafficOwner::Service { namespace: "default".to_owned(), name: load::service_name(number) }
}

/// Sums of a Service after some minutes.
fn row(number: usize, from: std::ops::Range<usize>, minutes: u64) -> TrafficRow {
    let pair = |(from, to): (usize, usize)| ZonePairTraffic {
        from_zone: format!("zone-{from}"),
        to_zone: format!("zone-{to}"),
        connections: minutes * 1_000,
        bytes: minutes * 100_000_000,
    };
    let zone_pairs = from.flat_map(|from| (0..ZONES).map(move |to| (from, to))).map(pair).collect();
    TrafficRow { owner: owner(number), zone_pairs }
}

fn report(node: usize, sequence: u64, rows: Vec<TrafficRow>) -> TrafficReport {
    TrafficReport {
        reporter: format!("node/ip-10-0-{}-{}.eu-central-1.compute.internal", node / 256, node % 256),
        start: format!("{node:016x}"),
        sequence,
        counted_seconds: sequence * 60,
        rows,
        ..TrafficReport::default()
    }
}
