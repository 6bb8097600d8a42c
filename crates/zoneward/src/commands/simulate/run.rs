//! `zoneward simulate run`: means over a data set.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use sim::run::{Job, Row, Summary};
use sim::{Rejection, Settings};

use super::inputs::Inputs;
use super::{ReportFormat, SimulateRun, rows};
use output::{align_right, count, print_text, print_value, render, table_within};

/// Runs the command.
pub(super) fn run(args: &SimulateRun) -> Result<bool> {
    let inputs = Inputs::read(&args.input)?;
    let settings = Settings {
        starting_threshold: args.starting_threshold,
        overload_threshold: args.overload_threshold,
        weights: args.weights,
    };
    let threads = args.threads.map(usize::from);
    let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let job = Job { source: inputs.source(), algorithms: &args.algorithm, settings, threads };
    let stop = stop_flag()?;
    let bar = progress_bar(job.source.len(), "inputs");
    // A rejected input is a row of the answer like any other, unless nothing else is left.
    let mut answered = true;
    if args.per_input {
        rows::print(&job, inputs.rejections(), args.format, &stop, &bar)?;
    } else {
        answered = !job.source.is_empty();
        let summary = sim::run::run(&job, &stop, &|more| bar.inc(more));
        bar.finish_and_clear();
        print(args, &summary, inputs.rejections())?;
    }
    let stopped = stop.load(Ordering::Relaxed);
    if stopped {
        eprintln!("zoneward: stopped; the answer covers what was done so far");
    }
    Ok(!stopped && answered)
}

/// Set by the first Ctrl-C; the second one ends the program at once.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    const INTERRUPTED: i32 = 130;
    let stop = Arc::new(AtomicBool::new(false));
    let signal = signal_hook::consts::SIGINT;
    signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone())
        .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
        .context("listening for Ctrl-C")?;
    Ok(stop)
}

/// A bar on standard error with the time left; nothing where that is no terminal.
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

fn print(args: &SimulateRun, summary: &Summary, rejections: &[Rejection]) -> Result<()> {
    match args.format {
        ReportFormat::Json => print_value(&value(args, summary, rejections), crate::cli::Format::Json),
        ReportFormat::Csv => {
            warn(rejections);
            print_text(&csv(summary))
        }
        ReportFormat::Table => print_text(&text(summary, rejections, false)),
        ReportFormat::Wide => print_text(&text(summary, rejections, true)),
        ReportFormat::Html => {
            warn(rejections);
            print_text(&sim::report::scores(&title(args), summary))
        }
    }
}

fn title(args: &SimulateRun) -> String {
    args.input.file_name().unwrap_or(args.input.as_os_str()).to_string_lossy().into_owned()
}

/// Rejections on standard error, where the answer has no place for them.
pub(super) fn warn(rejections: &[Rejection]) {
    for rejection in rejections {
        eprintln!("zoneward: rejected: {rejection}");
    }
}

pub(super) fn rejection_value(rejection: &Rejection) -> Value {
    let (line, column) = rejection.at.unzip();
    json!({"id": rejection.id, "line": line, "column": column, "reason": rejection.reason})
}

fn value(args: &SimulateRun, summary: &Summary, rejections: &[Rejection]) -> Value {
    json!({
        "input": title(args),
        "inputs": summary.inputs,
        "scored": summary.done,
        "rejected": rejections.len(),
        "rejections": rejections.iter().map(rejection_value).collect::<Vec<_>>(),
        "algorithms": summary.rows.iter().map(row_value).collect::<Vec<_>>(),
    })
}

fn row_value(row: &Row) -> Value {
    let means = row.tally.means();
    let extreme = |extreme: f64| means.map(|_| extreme);
    json!({
        "algorithm": row.algorithm.to_string(),
        "valid": row.tally.valid,
        "invalid": row.tally.invalid,
        "total_score": means.map(|m| m.total),
        "in_zone_pct": means.map(|m| m.in_zone),
        "overload_score": means.map(|m| m.overload),
        "slice_score": means.map(|m| m.slice),
        "max_overload_pct": means.map(|m| m.max_overload),
        "mean_overload_pct": means.map(|m| m.mean_overload),
        "min_total_score": extreme(row.tally.extremes.0),
        "max_total_score": extreme(row.tally.extremes.1),
        "worst_overload_pct": extreme(row.tally.worst_overload),
    })
}

fn csv(summary: &Summary) -> String {
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

fn text(summary: &Summary, rejections: &[Rejection], wide: bool) -> String {
    let heads = ["ALGORITHM", "TOTAL", "", "IN-ZONE", "OVERLOAD", "SLICES", "MAX LOAD", "WORST", "INVALID"];
    let mut table = table_within(&shown(&heads.map(str::to_owned), wide), wide);
    for row in &summary.rows {
        let Some(m) = row.tally.means() else {
            let invalid = row.tally.invalid.to_string();
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
            format!("{:.2} %", row.tally.worst_overload),
            row.tally.invalid.to_string(),
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
    if !rejections.is_empty() {
        text += &format!("\n{} rejected:\n", count(rejections.len(), "input"));
        text += &rejections.iter().map(|r| format!("  {r}\n")).collect::<String>();
    }
    text
}

/// The bar is for terminals that are wide enough.
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
