//! `cargo xtask bench spill -- plots`: the plots of the concept page, from seed 0.
//!
//! ```text
//! DemandTrace -> run_observed -> means of some minutes -> output::html::lines -> docs/images/closed-loop-*.svg
//! ```

use std::path::Path;

use sim::closed_loop::{
    DAY, DemandTrace, LoopSecond, LoopStrategy, MeasuredOptions, SCENARIOS, TraceKind, run_observed,
};

const SEED: u64 = 0;
/// Demand 60/30/10 and equal endpoints.
const SCENARIO: usize = 1;
/// Seconds of a point, over a day and around a burst.
const DAY_STEP: usize = 900;
const BURST_STEP: usize = 5;
/// Seconds before and after the start of a burst.
const BEFORE: usize = 120;
const AFTER: usize = 480;

/// Pages have their own style, and a picture has not.
const STYLE: &str = "<style>svg{background:#fff}text{font:11px sans-serif;fill:#555}.name{fill:#111;font-size:12px;paint-order:stroke;stroke:#fff;stroke-width:4px}\
    .frame{fill:none;stroke:#bbb}.path{fill:none;stroke-width:1.6}.c0{stroke:#c0392b}.c1{stroke:#e08e0b}\
    .c2{stroke:#1a7f37}.c3{stroke:#3467c2}.c4{stroke:#777}</style>";

type Course = (&'static str, Vec<LoopSecond>);

pub fn write() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    std::fs::create_dir_all(&folder).expect("docs can be written");
    let measured = LoopStrategy::SpillMeasured(MeasuredOptions::default());
    let day = DemandTrace::new(TraceKind::Diurnal, SCENARIOS[SCENARIO], SEED);
    let strategies =
        [LoopStrategy::PreferSameZone, LoopStrategy::SpillByCpu, measured, LoopStrategy::KnownCapacity];
    let courses = strategies.map(|strategy| course(&day, strategy));
    let hour = |second: usize| (second - DAY) as f64 / 3_600.0;
    let load = |seconds: &[LoopSecond]| seconds.iter().map(|s| 100.0 * s.highest_load).fold(0.0, f64::max);
    let in_zone = |seconds: &[LoopSecond]| {
        let sum = |value: fn(&LoopSecond) -> f64| seconds.iter().map(value).sum::<f64>();
        100.0 * sum(|s| s.in_zone) / sum(|s| s.demand)
    };
    let plot = |name: &str, what: &str, value: &dyn Fn(&[LoopSecond]) -> f64| {
        let series = courses.iter().map(|(strategy, seconds)| {
            let points = seconds.chunks(DAY_STEP).map(|part| (hour(part[0].second), value(part)));
            ((*strategy).to_owned(), points.collect::<Vec<_>>())
        });
        save(&folder, name, &series.collect::<Vec<_>>(), "hour of the day", what);
    };
    plot("closed-loop-load", "% of capacity, busiest endpoint", &load);
    plot("closed-loop-in-zone", "% in zone", &in_zone);

    let bursts = DemandTrace::new(TraceKind::Bursts, SCENARIOS[SCENARIO], SEED);
    let strategies =
        [LoopStrategy::PreferSameZone, LoopStrategy::SpillByCpu, measured, LoopStrategy::KnownCapacity];
    let start = steepest_rise(&course(&bursts, LoopStrategy::KnownCapacity).1);
    let series = strategies.map(|strategy| {
        let (name, seconds) = course(&bursts, strategy);
        let around = &seconds[start - BEFORE..(start + AFTER).min(seconds.len())];
        let minute = |at: usize| ((at * BURST_STEP) as f64 - BEFORE as f64) / 60.0;
        let points = around.chunks(BURST_STEP).enumerate().map(|(at, part)| (minute(at), load(part)));
        (name.to_owned(), points.collect::<Vec<_>>())
    });
    save(
        &folder,
        "closed-loop-burst",
        &series,
        "minutes after a burst began",
        "% of capacity, busiest endpoint",
    );
}

fn course(trace: &DemandTrace, strategy: LoopStrategy) -> Course {
    let mut seconds = Vec::with_capacity(DAY);
    run_observed(trace, strategy, SEED, |second| seconds.push(second));
    (strategy.name(), seconds)
}

/// Where demand grows most within ten seconds, of the bursts that all endpoints together can carry.
fn steepest_rise(best: &[LoopSecond]) -> usize {
    let rise = |at: &usize| best[at + 10].demand - best[*at].demand;
    let is_carried = |at: &usize| best[*at..at + AFTER].iter().all(|second| second.highest_load <= 1.0);
    let bursts = (BEFORE..best.len() - AFTER).filter(is_carried);
    bursts.max_by(|a, b| rise(a).total_cmp(&rise(b))).expect("some bursts are at night")
}

fn save(folder: &Path, name: &str, series: &[(String, Vec<(f64, f64)>)], x: &str, y: &str) {
    let svg = output::html::lines(series, x, y);
    let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" ", 1);
    let svg = svg.replacen('>', &format!(">{STYLE}"), 1);
    let path = folder.join(format!("{name}.svg"));
    std::fs::write(&path, svg + "\n").expect("docs can be written");
    println!("wrote docs/images/{name}.svg");
}
