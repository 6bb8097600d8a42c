//! The page of `simulate run`.

use output::grouped;
use output::html::{HtmlCell, HtmlMatrix, HtmlPage, MatrixCell, bars, scatter};
use sim::scoring::totals::{BARS, COLUMNS, MeanScores};
use sim::scoring::{AlgorithmScores, ScoringSummary};

pub(super) fn page(input: &str, summary: &ScoringSummary) -> String {
    let mut page = HtmlPage::new(&format!("Scores on {input}"));
    let scored = match summary.done == summary.inputs {
        true => format!("{} inputs.", grouped(summary.done)),
        false => format!("Stopped after {} of {} inputs.", grouped(summary.done), grouped(summary.inputs)),
    };
    let rows: Vec<(&AlgorithmScores, MeanScores)> =
        summary.rows.iter().filter_map(|row| Some((row, row.totals.means()?))).collect();
    page.paragraph(&format!("{scored} {}", best(&rows)));
    page.remark(
        "The total score, from 0 to 100, combines in-zone traffic, overload and the number of EndpointSlices; higher is \
         better. Overload is what the most loaded endpoint gets above its fair share.",
    );
    page.table(&HEADS, rows.iter().map(|(row, means)| cells(row, means)).collect());
    page.section(
        "In-zone traffic against overload",
        "Means per algorithm. Better is further right and lower.",
    );
    let points: Vec<(String, f64, f64)> =
        rows.iter().map(|(row, m)| (row.algorithm.to_string(), m.in_zone, m.max_overload)).collect();
    page.figure(&scatter(&points, "traffic in its zone, %", "largest overload, %"), "");
    page.section(
        "Inputs by total score",
        "Percent of the inputs, one bar per point of the score, from 30 on.",
    );
    for (row, means) in &rows {
        let shares = shares(&row.histogram.totals);
        let caption = format!("{}: mean {:.2}", row.algorithm, means.total);
        page.figure(&bars(&shares[30.min(BARS)..], 30.0, "total score"), &caption);
    }
    page.section(
        "Inputs by in-zone traffic and overload",
        "Percent of the inputs. Columns: traffic in its zone; rows: overload of the most loaded endpoint.",
    );
    for (row, _) in &rows {
        page.matrix(&by_overload(&row.histogram.density), &row.algorithm.to_string());
    }
    page.finish()
}

/// One sentence about the highest score.
fn best(rows: &[(&AlgorithmScores, MeanScores)]) -> String {
    let best = rows.iter().max_by(|(_, a), (_, b)| a.total.total_cmp(&b.total));
    best.map_or_else(String::new, |(row, means)| {
        format!(
            "{} has the highest mean score, {:.2}: {:.1} % of the traffic stays in its zone, and the most loaded endpoint \
             gets {:.1} % above its fair share.",
            row.algorithm, means.total, means.in_zone, means.max_overload
        )
    })
}

const HEADS: [&str; 8] = [
    "Algorithm",
    "Total score",
    "In zone",
    "Overload score",
    "Slice score",
    "Mean of largest overload",
    "Worst overload",
    "Invalid inputs",
];

fn cells(row: &AlgorithmScores, m: &MeanScores) -> Vec<HtmlCell> {
    vec![
        HtmlCell::text(&row.algorithm.to_string()),
        format!("{:.4}", m.total).into(),
        format!("{:.2} %", m.in_zone).into(),
        format!("{:.2}", m.overload).into(),
        format!("{:.2}", m.slice).into(),
        format!("{:.2} %", m.max_overload).into(),
        format!("{:.2} %", row.totals.worst_overload).into(),
        grouped(row.totals.invalid).into(),
    ]
}

fn shares(counts: &[u64]) -> Vec<f64> {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|n| *n as f64 / all).collect()
}

/// Columns of the histogram, 2 % each, by name.
const IN_ZONE: [(&str, std::ops::Range<usize>); 6] = [
    ("0-20", 0..10),
    ("20-40", 10..20),
    ("40-60", 20..30),
    ("60-80", 30..40),
    ("80-100", 40..50),
    ("100 %", 50..51),
];
/// Rows of the histogram, 5 % each, by name.
const OVERLOAD: [(&str, std::ops::Range<usize>); 5] =
    [("0-5 %", 0..1), ("5-20 %", 1..4), ("20-50 %", 4..10), ("50-100 %", 10..20), ("over 100 %", 20..21)];

fn by_overload(density: &[u64]) -> HtmlMatrix {
    let all = density.iter().sum::<u64>().max(1) as f64;
    let cell = |rows: &std::ops::Range<usize>, columns: &std::ops::Range<usize>| {
        let places = rows.clone().flat_map(|row| columns.clone().map(move |column| row * COLUMNS + column));
        let count: u64 = places.filter_map(|place| density.get(place)).sum();
        let share = count as f64 / all;
        let text = if count == 0 { "0".to_owned() } else { format!("{:.1}", 100.0 * share) };
        MatrixCell { text, shade: share, framed: false, marked: false }
    };
    let row = |(name, rows): &(&str, std::ops::Range<usize>)| {
        ((*name).to_owned(), IN_ZONE.iter().map(|(_, columns)| cell(rows, columns)).collect())
    };
    HtmlMatrix {
        corner: "overload \\ in zone".to_owned(),
        columns: IN_ZONE.iter().map(|(name, _)| (*name).to_owned()).collect(),
        rows: OVERLOAD.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_in_one_cell_of_the_matrix() {
        let density: Vec<u64> = (0..51 * 21).map(|n| 1 + n % 7).collect();
        let matrix = by_overload(&density);
        let shade: f64 = matrix.rows.iter().flat_map(|(_, cells)| cells).map(|cell| cell.shade).sum();
        assert!((shade - 1.0).abs() < 1e-9, "{shade}");
    }
}
