//! `zoneward version`: the build, what it reads and writes, and the API server, as `kubectl version` has it.

use anyhow::{Context, Result};
use clock::Clock;
use serde_json::{Value, json};
use store::{engine, kubernetes_version};

use crate::cli::{Format, VersionArgs};
use output::{print_text, print_value};

/// The oldest Kubernetes with `discovery.k8s.io/v1`.
const OLDEST_KUBERNETES: &str = "1.21";

pub(super) fn run(args: &VersionArgs) -> Result<bool> {
    let server = match args.client || !args.connection.is_named() {
        true => None,
        false => Some(server(args)),
    };
    let asked = server.as_ref().and_then(|server| server.as_ref().ok());
    match args.output.format {
        Format::Table => print_text(&text(asked))?,
        format => print_value(&json!({"client": client(), "server": asked}), format)?,
    }
    // The client's part is printed in any case.
    server.transpose()?;
    Ok(true)
}

pub(super) fn client() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "storeFormat": engine::FORMAT,
        "kubernetes": {"tested": tested(), "oldest": OLDEST_KUBERNETES},
    })
}

/// Set by the build of packages.
fn commit() -> &'static str {
    option_env!("ZONEWARD_COMMIT").unwrap_or("unknown")
}

/// Major and minor version of the Kubernetes that the tests run.
fn tested() -> String {
    let version = kubernetes_version();
    let part = |name: &str| version[name].as_str().unwrap_or_default().to_owned();
    format!("{}.{}", part("major"), part("minor"))
}

fn server(args: &VersionArgs) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        let client = cluster::connect(&args.connection, &Clock::system()).await?;
        let found = client.apiserver_version().await.context("reading the version of the API server")?;
        Ok(json!({"kubernetes": found.git_version, "platform": found.platform}))
    })
}

fn text(server: Option<&Value>) -> String {
    let mut text = format!(
        "zoneward {}\ncommit: {}\nstore format: {}\nKubernetes: {} tested, {OLDEST_KUBERNETES} or later\n",
        env!("CARGO_PKG_VERSION"),
        commit(),
        engine::FORMAT,
        tested(),
    );
    if let Some(server) = server {
        text += &format!("API server: {}\n", server["kubernetes"].as_str().unwrap_or_default());
    }
    text
}
