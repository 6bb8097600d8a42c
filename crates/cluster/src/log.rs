//! Structured logs on standard error. `RUST_LOG` sets the levels, `--logging-format` the format. A line is a constant message
//! with fields.

use clap::{Args, ValueEnum};
use model::Notice;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The filter without `RUST_LOG`.
const DEFAULT_FILTER: &str = "info";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl LogFormat {
    /// The value of `--logging-format`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// `--logging-format`, by kube-proxy's name; `--log-format` is an alias.
#[derive(Clone, Debug, Default, Args)]
pub struct LogArgs {
    /// Log format; RUST_LOG sets the level, such as debug or zoneward=debug,kube=info [default: info]
    #[arg(long, visible_alias = "log-format", value_name = "FORMAT", default_value = "text")]
    pub logging_format: LogFormat,
}

/// Starts logging. An existing subscriber of the process is kept.
pub fn start(args: &LogArgs) {
    start_at(args.logging_format, DEFAULT_FILTER);
}

/// As [`start`], with a default filter.
pub fn start_at(format: LogFormat, default: &str) {
    let variable = std::env::var("RUST_LOG").ok();
    let (filter, invalid) = filter(variable.as_deref(), default);
    let client_details = variable.as_deref().is_some_and(requests_client_details);
    let repeated = filter_fn(move |line| client_details || !is_repeated(line));
    // The feature `ansi` is not compiled in, and enabling it prints a warning.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(repeated).with(lines).try_init();
    if let (Ok(()), Some((value, error))) = (started, invalid) {
        tracing::warn!(
            value,
            error,
            used = default,
            "invalid RUST_LOG: write it as debug or zoneward=debug,kube=info"
        );
    }
}

/// Whether `RUST_LOG` enables details of the API client, as `kube=debug` or `kube_client::client=trace`.
fn requests_client_details(directives: &str) -> bool {
    let details = |directive: &str| matches!(directive.split_once('='), Some((target, "debug" | "trace")) if target.trim().starts_with("kube"));
    directives.split(',').any(details)
}

/// Lines of the API client about each failed request and watch: [`crate::api_outage`] logs failures once.
fn is_repeated(line: &Metadata<'_>) -> bool {
    const TARGETS: [&str; 3] =
        ["kube_client::client", "kube_client::client::builder", "kube_runtime::watcher"];
    *line.level() <= Level::WARN && TARGETS.contains(&line.target())
}

/// The filter, and an invalid value with its error: the default then applies.
fn filter(variable: Option<&str>, default: &str) -> (EnvFilter, Option<(String, String)>) {
    match variable.filter(|value| !value.trim().is_empty()) {
        None => (EnvFilter::new(expand(default)), None),
        Some(value) => match EnvFilter::try_new(expand(value)) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(expand(default)), Some((value.to_owned(), error.to_string()))),
        },
    }
}

/// The crates of this workspace, which are the targets of its log lines.
const CRATES: [&str; 11] = [
    "cluster",
    "controller",
    "dataplane",
    "demo",
    "mesh",
    "node",
    "plan",
    "proxy",
    "store",
    "xds",
    "zoneward",
];

/// Expands `zoneward=LEVEL` to all crates of the workspace.
fn expand(directives: &str) -> String {
    let expanded = directives.split(',').map(|directive| match directive.trim().split_once('=') {
        Some(("zoneward", level)) => CRATES.map(|name| format!("{name}={level}")).join(","),
        _ => directive.to_owned(),
    });
    expanded.collect::<Vec<_>>().join(",")
}

/// Logs a Notice.
pub fn notice(notice: &Notice) {
    tracing::warn!(object = %notice.object, reason = notice.reason, detail = notice.message, "notice");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_filter_is_reported_and_the_default_applies() {
        assert_eq!(filter(None, DEFAULT_FILTER).0.to_string(), "info");
        assert_eq!(filter(Some(" "), DEFAULT_FILTER).0.to_string(), "info");
        assert_eq!(filter(Some("debug"), DEFAULT_FILTER).0.to_string(), "debug");
        let all = filter(Some("zoneward=debug,kube=warn"), DEFAULT_FILTER).0.to_string();
        assert!(
            all.contains("node=debug") && all.contains("zoneward=debug") && all.contains("kube=warn"),
            "{all}"
        );
        let lines_of_node = filter(None, "warn,zoneward=info").0.to_string();
        assert!(lines_of_node.contains("node=info"), "{lines_of_node}");
        let (used, invalid) = filter(Some("zoneward=loud=very"), DEFAULT_FILTER);
        assert_eq!(used.to_string(), "info");
        assert!(invalid.is_some_and(|(value, _)| value == "zoneward=loud=very"));
    }
}
