//! `zoneward simulate run --per-input`: one row per input and algorithm, streamed, so that memory use is bounded.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use sim::metrics::measure;
use sim::scoring::{InputSource, ScoringJob};
use sim::{Algorithm, AlgorithmSettings, InputError, ScoreMetrics, SimulationInput, SliceGroup, Zone};

use super::ReportFormat;
use output::{render, table_within};

/// Inputs scored before their rows are written.
const BLOCK: usize = 4096;
/// Maximum number of rows of a table.
const MAX_TABLE_ROWS: u64 = 100_000;

const CSV_HEAD: &str = "id,algorithm,status,total_score,in_zone_pct,overload_score,slice_score,max_overload_pct,\
                        mean_overload_pct,sd_deviation,slices";

pub(super) fn print(
    job: &ScoringJob<'_>,
    errors: &[InputError],
    format: ReportFormat,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> Result<()> {
    let rows = job.source.len() * job.algorithms.len() as u64;
    if format == ReportFormat::Html {
        bail!("--per-input does not support html: use -o json or csv");
    }
    if matches!(format, ReportFormat::Table | ReportFormat::Wide) && rows > MAX_TABLE_ROWS {
        bail!("{rows} rows are too many for a table: use -o csv or json");
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut writer = ScoreWriter { format, first: true, table: Vec::new() };
    writer.start(&mut out).context("writing the output")?;
    for_each_block(job, stop, |block| {
        for rows in score(job, block) {
            rows.into_iter().try_for_each(|row| writer.row(&mut out, row))?;
        }
        bar.inc(block.len() as u64);
        Ok(())
    })?;
    bar.finish_and_clear();
    for error in errors {
        for algorithm in job.algorithms {
            writer.row(&mut out, ScoreRow::rejected(error, *algorithm))?;
        }
    }
    writer.end(&mut out).and_then(|()| out.flush()).context("writing the output")?;
    super::run::warn(errors);
    Ok(())
}

fn for_each_block(
    job: &ScoringJob<'_>,
    stop: &AtomicBool,
    mut each: impl FnMut(&[SimulationInput]) -> Result<()>,
) -> Result<()> {
    let stopped = || stop.load(Ordering::Relaxed);
    match job.source {
        InputSource::List(list) => list.chunks(BLOCK).take_while(|_| !stopped()).try_for_each(each),
        InputSource::Set(set) => {
            let starts = (0..set.len()).step_by(BLOCK);
            for start in starts.take_while(|_| !stopped()) {
                let block = set.inputs(start, BLOCK as u64);
                each(&block)?;
            }
            Ok(())
        }
    }
}

/// The rows of a block, in order, by as many threads as the job has.
fn score(job: &ScoringJob<'_>, block: &[SimulationInput]) -> Vec<Vec<ScoreRow>> {
    let part = block.len().div_ceil(job.threads.max(1)).max(1);
    let of = |inputs: &[SimulationInput]| -> Vec<ScoreRow> {
        let each = |input: &SimulationInput| -> Vec<ScoreRow> {
            job.algorithms.iter().map(|a| ScoreRow::scored(input, *a, &job.settings)).collect()
        };
        inputs.iter().flat_map(each).collect()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = block.chunks(part).map(|inputs| scope.spawn(move || of(inputs))).collect();
        workers.into_iter().map(|worker| worker.join().expect("scoring does not panic")).collect()
    })
}

struct ScoreRow {
    id: String,
    algorithm: String,
    status: &'static str,
    metrics: Option<ScoreMetrics>,
    groups: Vec<Value>,
    reason: Option<String>,
}

impl ScoreRow {
    fn scored(input: &SimulationInput, algorithm: Algorithm, settings: &AlgorithmSettings) -> Self {
        let groups = algorithm.groups(input.zones(), settings);
        let metrics = measure(input.zones(), &groups, &settings.weights);
        Self {
            id: input.id().to_owned(),
            algorithm: algorithm.to_string(),
            status: if metrics.is_some() { "ok" } else { "invalid" },
            metrics,
            groups: groups.iter().map(|group| group_value(group, input.zones())).collect(),
            reason: None,
        }
    }

    fn rejected(error: &InputError, algorithm: Algorithm) -> Self {
        Self {
            id: error.id.clone(),
            algorithm: algorithm.to_string(),
            status: "rejected",
            metrics: None,
            groups: Vec::new(),
            reason: Some(error.to_string()),
        }
    }

    /// The numbers by their names in JSON and CSV.
    fn figures(&self) -> [(&'static str, Option<f64>); 7] {
        let of = |figure: fn(&ScoreMetrics) -> f64| self.metrics.as_ref().map(figure);
        [
            ("total_score", of(|m| m.total)),
            ("in_zone_pct", of(|m| m.in_zone)),
            ("overload_score", of(|m| m.overload_score)),
            ("slice_score", of(|m| m.slice_score)),
            ("max_overload_pct", of(|m| m.max_overload)),
            ("mean_overload_pct", of(|m| m.mean_overload)),
            ("sd_deviation", of(|m| m.deviation)),
        ]
    }

    fn value(&self) -> Value {
        let mut row = Map::new();
        row.insert("id".into(), json!(self.id));
        row.insert("algorithm".into(), json!(self.algorithm));
        row.insert("status".into(), json!(self.status));
        for (name, figure) in self.figures() {
            row.insert(name.into(), json!(figure));
        }
        row.insert("slices".into(), json!(self.metrics.map(|m| m.slices)));
        row.insert("groups".into(), json!(self.groups));
        if let Some(reason) = &self.reason {
            row.insert("reason".into(), json!(reason));
        }
        Value::Object(row)
    }

    fn csv(&self) -> String {
        let number = |figure: Option<f64>| figure.map(|f| f.to_string()).unwrap_or_default();
        let figures: Vec<String> = self.figures().iter().map(|(_, figure)| number(*figure)).collect();
        let slices = self.metrics.map(|m| m.slices.to_string()).unwrap_or_default();
        format!("{},{},{},{},{slices}\n", quoted(&self.id), self.algorithm, self.status, figures.join(","))
    }

    fn cells(&self) -> Vec<String> {
        let shown = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| format!("{f:.4}"));
        let mut cells = vec![self.id.clone(), self.algorithm.clone(), self.status.to_owned()];
        cells.extend(self.figures().iter().take(6).map(|(_, figure)| shown(*figure)));
        cells.push(self.metrics.map_or_else(|| "-".to_owned(), |m| m.slices.to_string()));
        cells
    }
}

fn group_value(group: &SliceGroup, zones: &[Zone]) -> Value {
    let counts = group.composition.iter().zip(zones).filter(|(n, _)| **n > 0);
    let composition: Map<String, Value> = counts.map(|(n, z)| (z.name.to_string(), json!(n))).collect();
    let weights =
        group.weights.iter().zip(zones).filter_map(|(w, z)| Some((z.name.to_string(), json!((*w)?))));
    let weights: Map<String, Value> = weights.collect();
    json!({"label": group.label.as_str(), "composition": composition, "zone_weights": weights})
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

const HEADERS: [&str; 10] = [
    "ID",
    "ALGORITHM",
    "STATUS",
    "TOTAL",
    "IN-ZONE",
    "OVERLOAD",
    "SLICE",
    "MAX OVERLOAD",
    "MEAN OVERLOAD",
    "SLICES",
];
/// Columns of `-o table`; `-o wide` has all.
const NARROW_COLUMNS: [usize; 6] = [0, 1, 3, 4, 7, 9];

struct ScoreWriter {
    format: ReportFormat,
    first: bool,
    table: Vec<Vec<String>>,
}

impl ScoreWriter {
    fn start(&self, out: &mut impl Write) -> std::io::Result<()> {
        match self.format {
            ReportFormat::Json => write!(out, "{{\"rows\": ["),
            ReportFormat::Csv => writeln!(out, "{CSV_HEAD}"),
            ReportFormat::Table | ReportFormat::Wide | ReportFormat::Html => Ok(()),
        }
    }

    fn row(&mut self, out: &mut impl Write, row: ScoreRow) -> Result<()> {
        match self.format {
            ReportFormat::Json => {
                let comma = if self.first { "\n" } else { ",\n" };
                self.first = false;
                write!(out, "{comma}{}", row.value())
            }
            ReportFormat::Csv => out.write_all(row.csv().as_bytes()),
            ReportFormat::Table | ReportFormat::Wide | ReportFormat::Html => {
                self.table.push(row.cells());
                Ok(())
            }
        }
        .context("writing the output")
    }

    fn end(&self, out: &mut impl Write) -> std::io::Result<()> {
        match self.format {
            ReportFormat::Json => writeln!(out, "\n]}}"),
            ReportFormat::Csv => Ok(()),
            ReportFormat::Table | ReportFormat::Wide | ReportFormat::Html => {
                let shown: Vec<usize> = match self.format {
                    ReportFormat::Wide => (0..HEADERS.len()).collect(),
                    _ => NARROW_COLUMNS.to_vec(),
                };
                let heads: Vec<&str> = shown.iter().map(|at| HEADERS[*at]).collect();
                let mut table = table_within(&heads, self.format == ReportFormat::Wide);
                table.add_rows(self.table.iter().map(|row| shown.iter().map(|at| row[*at].clone())));
                out.write_all(render(&table).as_bytes())
            }
        }
    }
}
