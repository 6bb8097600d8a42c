//! Logs: structured lines on standard error. `RUST_LOG` says how much, `--logging-format` says how they look. A line is
//! a constant message with fields.

use clap::{Args, ValueEnum};
use model::Notice;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The level without `RUST_LOG`.
const USUAL: &str = "info";

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
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

/// Sends logs to standard error. A subscriber that this process already has stays.
pub fn start(args: &LogArgs) {
    start_at(args.logging_format, USUAL);
}

/// The same, with the filter that counts without `RUST_LOG`.
pub fn start_at(format: LogFormat, usual: &str) {
    let wish = std::env::var("RUST_LOG").ok();
    let (filter, complaint) = filter(wish.as_deref(), usual);
    let asks_for_client = wish.as_deref().is_some_and(asks_for_client);
    let repeated = filter_fn(move |line| asks_for_client || !is_repeated(line));
    // No colours: the feature `ansi` is not compiled in, and asking for it prints a complaint.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(repeated).with(lines).try_init();
    if let (Ok(()), Some((wish, error))) = (started, complaint) {
        tracing::warn!(
            value = wish,
            error,
            used = usual,
            "RUST_LOG cannot be read: write it as debug or zoneward=debug,kube=info"
        );
    }
}

/// Whether details of the API client are asked for, as `kube=debug` or `kube_client::client=trace`.
fn asks_for_client(wish: &str) -> bool {
    let details = |directive: &str| matches!(directive.split_once('='), Some((target, "debug" | "trace")) if target.trim().starts_with("kube"));
    wish.split(',').any(details)
}

/// Lines of the API client for each failed request and broken watch: [`crate::cluster::outage`] logs those once per
/// change of state.
fn is_repeated(line: &Metadata<'_>) -> bool {
    const TARGETS: [&str; 3] =
        ["kube_client::client", "kube_client::client::builder", "kube_runtime::watcher"];
    *line.level() <= Level::WARN && TARGETS.contains(&line.target())
}

/// The filter, and what is wrong with the one that was asked for. A bad value must not cost the logs.
fn filter(wish: Option<&str>, usual: &str) -> (EnvFilter, Option<(String, String)>) {
    match wish.filter(|wish| !wish.trim().is_empty()) {
        None => (EnvFilter::new(usual), None),
        Some(wish) => match EnvFilter::try_new(wish) {
            Ok(filter) => (filter, None),
            Err(error) => (EnvFilter::new(usual), Some((wish.to_owned(), error.to_string()))),
        },
    }
}

/// One Notice as a line.
pub fn notice(notice: &Notice) {
    tracing::warn!(object = %notice.object, reason = notice.reason, detail = notice.message, "notice");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_that_cannot_be_read_is_named_and_info_is_used() {
        assert_eq!(filter(None, USUAL).0.to_string(), "info");
        assert_eq!(filter(Some(" "), USUAL).0.to_string(), "info");
        assert_eq!(filter(Some("debug"), USUAL).0.to_string(), "debug");
        let (used, complaint) = filter(Some("zoneward=loud=very"), USUAL);
        assert_eq!(used.to_string(), "info");
        assert!(complaint.is_some_and(|(wish, _)| wish == "zoneward=loud=very"));
    }
}
