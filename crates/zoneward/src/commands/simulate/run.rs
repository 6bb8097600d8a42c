//! `zoneward simulate run`: mean scores over a data set.

mod page;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use sim::scoring::{AlgorithmScores, ScoringJob, ScoringSummary};
use sim::{AlgorithmSettings, InputError};

use super::inputs::Inputs;
use super::{ReportFormat, SimulateRun, per_input};
use output::{align_right, count, print_text, print_value, render, table_within};

pub(super) fn run(args: &SimulateRun) -> Result<bool> {
    let inputs = Inputs::read(&args.input)?;
    let settings = AlgorithmSettings {
        starting_threshold: args.starting_threshold,
        overload_threshold: args.overload_threshold,
        weights: args.weights,
    };
    let threads = args.threads.map(usize::from);
    let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let job = ScoringJob { source: inputs.source(), algorithms: &args.algorithm, settings, threads };
    let stop = stop_flag()?;
    let bar = progress_bar(job.source.len(), "inputs");
    // Rejected inputs fail the command only if there are no others.
    let mut scored = true;
    if args.per_input {
        per_input::print(&job, inputs.errors(), args.format, &stop, &bar)?;
    } else {
        scored = !job.source.is_empty();
        let summary = sim::scoring::run(&job, &stop, &|more| bar.inc(more));
        bar.finish_and_clear();
        print(args, &summary, inputs.errors())?;
    }
    let stopped = stop.load(Ordering::Relaxed);
    if stopped {
        eprintln!("zoneward: interrupted; the results are partial");
    }
    Ok(!stopped && scored)
}

/// Set by the first Ctrl-C; a second one exits immediately.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    const INTERRUPTED: i32 = 130;
    let stop = Arc::new(AtomicBool::new(false));
    let signal = signal_hook::consts::SIGINT;
    signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone())
        .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
        .context("installing the signal handler")?;
    Ok(stop)
}

/// A progress bar on standard error, hidden unless that is a terminal.
pub(super) fn progress_bar(inputs: u64, noun: &str) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr_with_hz(4),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(inputs), target);
    let style = ProgressStyle::with_template(&format!(
        "{{bar:40}} {{human_pos}} of {{human_len}} {noun}, {{eta}} left"
    ));
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

fn print(args: &SimulateRun, summary: &ScoringSummary, errors: &[InputError]) -> Result<()> {
    match args.format {
        ReportFormat::Json => print_value(&value(args, summary, errors), crate::cli::Format::Json),
        ReportFormat::Csv => {
            warn(errors);
            print_text(&csv(summary))
        }
        ReportFormat::Table => print_text(&text(summary, errors, false)),
        ReportFormat::Wide => print_text(&text(summary, errors, true)),
        ReportFormat::Html => {
            warn(errors);
            print_text(&page::page(&title(args), summary))
        }
    }
}

fn title(args: &SimulateRun) -> String {
    args.input.file_name().unwrap_or(args.input.as_os_str()).to_string_lossy().into_owned()
}

/// Rejected inputs on standard error, for formats without them.
pub(super) fn warn(errors: &[InputError]) {
    for error in errors {
        eprintln!("zoneward: rejected: {error}");
    }
}

pub(super) fn error_value(error: &InputError) -> Value {
    let (line, column) = error.at.unzip();
    json!({"id": error.id, "line": line, "column": column, "reason": error.reason})
}

fn value(args: &SimulateRun, summary: &ScoringSummary, errors: &[InputError]) -> Value {
    json!({
        "input": title(args),
        "inputs": summary.inputs,
        "scored": summary.done,
        "rejected": errors.len(),
        "rejections": errors.iter().map(error_value).collect::<Vec<_>>(),
        "algorithms": summary.rows.iter().map(row_value).collect::<Vec<_>>(),
    })
}

fn row_value(row: &AlgorithmScores) -> Value {
    let means = row.totals.means();
    let extreme = |extreme: f64| means.map(|_| extreme);
    json!({
        "algorithm": row.algorithm.to_string(),
        "valid": row.totals.valid,
        "invalid": row.totals.invalid,
        "total_score": means.map(|m| m.total),
        "in_zone_pct": means.map(|m| m.in_zone),
        "overload_score": means.map(|m| m.overload),
        "slice_score": means.map(|m| m.slice),
        "max_overload_pct": means.map(|m| m.max_overload),
        "mean_overload_pct": means.map(|m| m.mean_overload),
        "min_total_score": extreme(row.totals.extremes.0),
        "max_total_score": extreme(row.totals.extremes.1),
        "worst_overload_pct": extreme(row.totals.worst_overload),
    })
}

fn csv(summary: &ScoringSummary) -> String {
    let mut text =
        "algorithm,valid,invalid,total_score,in_zone_pct,overload_score,slice_score,max_overload_pct,\
                    mean_overload_pct,min_total_score,max_total_score,worst_overload_pct\n"
            .to_owned();
    for row in &summary.rows {
        let cells = row_value(row);
        let cells = cells.as_object().into_iter().flat_map(|cells| cells.values());
        let cells: Vec<String> = cells.map(cell).collect();
        text += &(cells.join(",") + "\n");
    }
    text
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn text(summary: &ScoringSummary, errors: &[InputError], wide: bool) -> String {
    let heads = ["ALGORITHM", "TOTAL", "", "IN-ZONE", "OVERLOAD", "SLICES", "MAX LOAD", "WORST", "INVALID"];
    let mut table = table_within(&shown(&heads.map(str::to_owned), wide), wide);
    for row in &summary.rows {
        let Some(m) = row.totals.means() else {
            let invalid = row.totals.invalid.to_string();
            let none = || "-".to_owned();
            let cells = [
                row.algorithm.to_string(),
                none(),
                String::new(),
                none(),
                none(),
                none(),
                none(),
                none(),
                invalid,
            ];
            table.add_row(shown(&cells, wide));
            continue;
        };
        let cells = [
            row.algorithm.to_string(),
            format!("{:.4}", m.total),
            bar(m.total),
            format!("{:.2}", m.in_zone),
            format!("{:.2}", m.overload),
            format!("{:.2}", m.slice),
            format!("{:.2} %", m.max_overload),
            format!("{:.2} %", row.totals.worst_overload),
            row.totals.invalid.to_string(),
        ];
        table.add_row(shown(&cells, wide));
    }
    let figures = if wide { vec![1, 3, 4, 5, 6, 7, 8] } else { (1..8).collect() };
    align_right(&mut table, &figures);
    let mut text = render(&table);
    let total = summary.inputs as usize;
    text += &match summary.done == summary.inputs {
        true => format!("\n{}. Scores are means of valid ones; higher is better.\n", count(total, "input")),
        false => format!("\nStopped after {} of {}.\n", summary.done, count(total, "input")),
    };
    if !errors.is_empty() {
        text += &format!("\n{} rejected:\n", count(errors.len(), "input"));
        text += &errors.iter().map(|r| format!("  {r}\n")).collect::<String>();
    }
    text
}

/// The bar is shown only with `-o wide`.
fn shown<T: Clone>(cells: &[T; 9], wide: bool) -> Vec<T> {
    const BAR: usize = 2;
    let wanted = cells.iter().enumerate().filter(|(at, _)| wide || *at != BAR);
    wanted.map(|(_, cell)| cell.clone()).collect()
}

/// Ten characters from 50 to 100.
fn bar(score: f64) -> String {
    small_bar((score - 50.0) / 50.0)
}

/// Ten characters for a share, in eighths.
pub(super) fn small_bar(share: f64) -> String {
    const PARTS: [&str; 9] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
    let eighths = (share.clamp(0.0, 1.0) * 80.0).round() as usize;
    format!("{:<10}", "█".repeat(eighths / 8) + PARTS[eighths % 8])
}
