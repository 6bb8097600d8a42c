//! `zoneward sysdump`: one archive for a bug report, without secrets.
//!
//! ```text
//! collect (machine, daemons, API) -> parts -> redact (structure, known values, patterns) -> bound -> .tar.gz with an index
//! ```
//!
//! A part that cannot be read is listed in the index, and is not an error.

mod api;
mod archive;
mod daemons;
mod machine;
mod objects;
mod redact;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clock::Clock;
use cluster::{Connection, failure};
use serde_json::{Value, json};

use super::preflight::{self, Preflight};
use archive::Archive;
use output::{Format, OutputArgs};
use redact::Redactor;

/// `zoneward sysdump`
#[derive(Debug, Args)]
pub struct Sysdump {
    /// Archive to write; must not exist [default: zoneward-sysdump-TIME.tar.gz in this directory]
    #[arg(long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Log file to include; repeatable. Logs of systemd units and of pods are found without it
    #[arg(long = "log", value_name = "FILE")]
    pub logs: Vec<PathBuf>,
    /// Limit of the uncompressed content; parts beyond it are left out
    #[arg(long, value_name = "MEBIBYTES", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub max_size: u16,
    /// Do not ask the API server
    #[arg(long)]
    pub no_api: bool,
    #[command(flatten)]
    pub connection: Connection,
}

/// Text that was collected, before redaction.
struct DumpPart {
    /// Path in the archive.
    file: String,
    /// Where it comes from: a file, a command, a URL, a resource.
    source: String,
    text: String,
    /// Whether the end is what matters, as in a log.
    keeps_end: bool,
}

impl DumpPart {
    fn new(file: impl Into<String>, source: impl Into<String>, text: impl Into<String>) -> Self {
        Self { file: file.into(), source: source.into(), text: text.into(), keeps_end: false }
    }

    fn log(file: impl Into<String>, source: impl Into<String>, text: impl Into<String>) -> Self {
        Self { keeps_end: true, ..Self::new(file, source, text) }
    }
}

/// What was collected.
#[derive(Default)]
struct Collected {
    parts: Vec<DumpPart>,
    /// What is missing, and why.
    left_out: Vec<(String, String)>,
}

impl Collected {
    fn add(&mut self, part: DumpPart) {
        self.parts.push(part);
    }

    fn miss(&mut self, what: impl Into<String>, reason: impl std::fmt::Display) {
        self.left_out.push((what.into(), reason.to_string()));
    }

    /// Adds a JSON value.
    fn add_value(&mut self, file: &str, source: &str, value: &Value) {
        let text = serde_json::to_string_pretty(value).unwrap_or_default();
        self.add(DumpPart::new(file, source, text + "\n"));
    }
}

pub fn run(args: &Sysdump) -> Result<bool> {
    let clock = Clock::system();
    let now = clock.timestamp();
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let path = args.output_file.clone().unwrap_or_else(|| {
        PathBuf::from(format!("zoneward-sysdump-{}.tar.gz", now.strftime("%Y%m%d-%H%M%S")))
    });
    let mut redactor = Redactor::default();
    redact::learn_credentials(&args.connection, &mut redactor);
    let mut collected = Collected::default();
    collected.add_value("version.json", "zoneward version", &super::version::client());
    machine::collect(&mut collected);
    machine::logs(&args.logs, &mut collected);
    daemons::collect(&mut collected);
    let asks_api = !args.no_api && args.connection.is_named();
    let checks = Preflight {
        components: Vec::new(),
        no_api: !asks_api,
        connection: args.connection.clone(),
        output: OutputArgs { format: Format::Json },
    };
    match preflight::report(&checks) {
        Ok(report) => collected.add_value("preflight.json", "zoneward preflight", &report),
        Err(error) => collected.miss("preflight.json", failure::text(&error)),
    }
    if asks_api {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
        runtime.block_on(api::collect(&args.connection, &clock, &mut redactor, &mut collected));
    } else {
        let why = if args.no_api { "--no-api" } else { "no cluster configured: use --kubeconfig FILE" };
        collected.miss("objects", why);
    }
    let mut archive = Archive::new(usize::from(args.max_size) << 20);
    for part in &collected.parts {
        archive.add(part, &redactor);
    }
    let left_out = collected.left_out.iter().map(|(what, reason)| (what.clone(), redactor.text(reason)));
    left_out.for_each(|(what, reason)| archive.leave_out(what, reason));
    let created = now.to_string();
    let summary = archive.write(&path, seconds, &created)?;
    output::print_text(&format!(
        "{}: {}, {} left out, {} secrets removed; index.json lists them\n",
        path.display(),
        output::count(summary.parts, "part"),
        summary.left_out,
        summary.removed
    ))?;
    Ok(true)
}

/// What is never in the archive; the index repeats it.
const NEVER: [&str; 7] = [
    "values of Secrets: only their names, types, keys and lengths",
    "environment variables, commands, arguments and volumes of pods",
    "values of annotations other than those of Kubernetes and Zoneward, and kubectl's last-applied-configuration",
    "kubeconfig files, tokens, private keys and certificates",
    "ConfigMaps other than those of Zoneward",
    "the store and the credentials of `zoneward up`",
    "packets and request bodies",
];

fn never() -> Value {
    json!(NEVER)
}
