//! HTML reports: self-contained pages with SVG plots, without scripts; for screen and print.

mod churn;
mod page;
mod svg;

use crate::scoring::totals::{BARS, COLUMNS, MeanScores, ROWS};
use crate::scoring::{AlgorithmScores, ScoringSummary};

pub use churn::churn;
pub use page::{HtmlPage, escaped};
pub use svg::{HeatMap, bars, bars_named, heat_map, lines, scatter};

/// The page of `simulate run`.
pub fn scores(input: &str, summary: &ScoringSummary) -> String {
    let mut page = HtmlPage::new(&format!("Scores on {input}"));
    let scored = match summary.done == summary.inputs {
        true => format!("{} inputs.", grouped(summary.done)),
        false => format!("Stopped after {} of {} inputs.", grouped(summary.done), grouped(summary.inputs)),
    };
    page.paragraph(&format!(
        "{scored} The total score combines in-zone traffic, overload and the number of EndpointSlices. Higher is better."
    ));
    let rows: Vec<(&AlgorithmScores, MeanScores)> =
        summary.rows.iter().filter_map(|r| Some((r, r.totals.means()?))).collect();
    page.table(&HEADS, rows.iter().map(|(row, means)| cells(row, means)).collect());
    page.section(
        "In-zone traffic against overload",
        "Mean scores per algorithm. Better is further right and lower.",
    );
    let points: Vec<(String, f64, f64)> =
        rows.iter().map(|(row, m)| (row.algorithm.to_string(), m.in_zone, m.max_overload)).collect();
    page.figure(&scatter(&points, "traffic in its zone, %", "largest overload, %"), "");
    page.section("Distribution of scores", "Share of inputs by total score, one bar per point.");
    for (row, means) in &rows {
        let shares = shares(&row.histogram.totals);
        let caption = format!("{}: mean {:.2}", row.algorithm, means.total);
        page.figure(&bars(&shares[30.min(BARS)..], 30.0, "total score"), &caption);
    }
    page.section(
        "Distribution of inputs",
        "Inputs by in-zone traffic (to the right) and largest overload (upwards).",
    );
    for (row, _) in &rows {
        let density = shares(&row.histogram.density);
        let map = HeatMap {
            columns: COLUMNS,
            rows: ROWS,
            values: &density,
            x: ("0 % in zone", "100 %"),
            y: ("0 % overload", "100 % and more"),
        };
        page.figure(&heat_map(&map), &row.algorithm.to_string());
    }
    page.finish()
}

const HEADS: [&str; 8] = [
    "algorithm",
    "total",
    "in zone",
    "overload",
    "slices",
    "mean of largest overload",
    "worst overload",
    "invalid",
];

fn cells(row: &AlgorithmScores, m: &MeanScores) -> Vec<String> {
    vec![
        row.algorithm.to_string(),
        format!("{:.4}", m.total),
        format!("{:.2}", m.in_zone),
        format!("{:.2}", m.overload),
        format!("{:.2}", m.slice),
        format!("{:.2} %", m.max_overload),
        format!("{:.2} %", row.totals.worst_overload),
        grouped(row.totals.invalid),
    ]
}

fn shares(counts: &[u64]) -> Vec<f64> {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|n| *n as f64 / all).collect()
}

/// Thousands separators, as in `39,273,145`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// As in `12.3 MB`.
pub fn bytes(number: u64) -> String {
    let value = number as f64;
    match number {
        0..1_000 => format!("{number} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.1} GB", value / 1e9),
    }
}
