//! Logs: structured lines on standard error. `RUST_LOG` says how much, `--log-format` says how they look.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// What is logged where nobody says.
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

/// `--log-format`.
#[derive(Clone, Debug, Default, Args)]
pub struct LogArgs {
    /// How log lines look; RUST_LOG says how much is logged, as debug or zoneward=debug,kube=info [default: info]
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}

/// Sends logs to standard error. Whoever has set up logs in this process before keeps what is there.
pub fn start(args: &LogArgs) {
    start_at(args.log_format, USUAL);
}

/// The same, with what is logged where `RUST_LOG` does not say.
pub fn start_at(format: LogFormat, usual: &str) {
    let wish = std::env::var("RUST_LOG").ok();
    let (filter, complaint) = filter(wish.as_deref(), usual);
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let is_colourful =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let started = match format {
        LogFormat::Text => logs.with_ansi(is_colourful).try_init(),
        LogFormat::Json => logs.json().flatten_event(true).try_init(),
    };
    if let (Ok(()), Some(complaint)) = (started, complaint) {
        tracing::warn!("{complaint}");
    }
}

/// What is logged. A wish that cannot be read must not cost the logs.
fn filter(wish: Option<&str>, usual: &str) -> (EnvFilter, Option<String>) {
    match wish.filter(|wish| !wish.trim().is_empty()) {
        None => (EnvFilter::new(usual), None),
        Some(wish) => match EnvFilter::try_new(wish) {
            Ok(filter) => (filter, None),
            Err(error) => {
                let advice = format!("write it as debug or zoneward=debug,kube=info; {usual} is used");
                (EnvFilter::new(usual), Some(format!("RUST_LOG is {wish:?}: {error}; {advice}")))
            }
        },
    }
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
        assert!(complaint.is_some_and(|text| text.contains("zoneward=loud=very")));
    }
}
