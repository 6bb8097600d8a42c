//! `zoneward preflight`: whether this machine and this cluster have what Zoneward needs, each lack with its fix.
//!
//! Nothing is changed: rules are only validated by the kernel, kernel variables, processes and objects are only read.

mod api;
mod cni;
mod kernel;
mod manifest_rights;
mod ports;
mod proxies;
mod sysctls;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use cluster::Connection;
use output::{Format, OutputArgs, count, print_text, print_value, render, table_within};
use serde_json::{Value, json};

/// `zoneward preflight`
#[derive(Debug, Args)]
pub struct Preflight {
    /// What is to run here or in this cluster [default: node and controller if an API is configured, else up]
    #[arg(long = "component", value_name = "NAME,...", value_delimiter = ',')]
    pub components: Vec<Component>,
    /// Do not ask the API server
    #[arg(long)]
    pub no_api: bool,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What is to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Component {
    /// `zoneward node` on this machine
    Node,
    /// `zoneward controller` in the cluster
    Controller,
    /// `zoneward mesh proxy` and `zoneward mesh control`
    Mesh,
    /// `zoneward up` on this machine, without a cluster
    Up,
}

impl Component {
    fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Controller => "controller",
            Self::Mesh => "mesh",
            Self::Up => "up",
        }
    }

    /// Whether it programs the kernel of this machine.
    fn programs_kernel(self) -> bool {
        matches!(self, Self::Node | Self::Up)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckStatus {
    Ok,
    Warn,
    Fail,
}

impl CheckStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One check with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Check {
    area: &'static str,
    name: String,
    status: CheckStatus,
    message: String,
    /// A command.
    fix: Option<String>,
}

impl Check {
    fn ok(area: &'static str, name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { area, name: name.into(), status: CheckStatus::Ok, message: message.into(), fix: None }
    }

    fn warn(area: &'static str, name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: CheckStatus::Warn, ..Self::ok(area, name, message) }
    }

    fn fail(area: &'static str, name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: CheckStatus::Fail, ..Self::ok(area, name, message) }
    }

    fn fix(self, command: impl Into<String>) -> Self {
        Self { fix: Some(command.into()), ..self }
    }

    fn value(&self) -> Value {
        json!({"area": self.area, "name": self.name, "status": self.status.as_str(), "message": self.message,
            "fix": self.fix})
    }
}

pub fn run(args: &Preflight) -> Result<bool> {
    let (components, checks) = checks(args)?;
    match args.output.format {
        Format::Table => print_text(&text(&components, &checks))?,
        format => print_value(&value(&components, &checks), format)?,
    }
    Ok(checks.iter().all(|check| check.status != CheckStatus::Fail))
}

/// The result as JSON, for an archive.
pub(super) fn report(args: &Preflight) -> Result<Value> {
    checks(args).map(|(components, checks)| value(&components, &checks))
}

fn checks(args: &Preflight) -> Result<(Vec<Component>, Vec<Check>)> {
    let asks_api = !args.no_api && args.connection.is_named();
    let mut components = args.components.clone();
    if components.is_empty() {
        components =
            if asks_api { vec![Component::Node, Component::Controller] } else { vec![Component::Up] };
    }
    components.sort_unstable();
    components.dedup();
    let mut checks = vec![version()];
    if components.iter().any(|component| component.programs_kernel()) {
        checks.extend(kernel::check());
        checks.extend(sysctls::check());
        checks.extend(proxies::check());
        checks.extend(cni::check(components.contains(&Component::Node)));
    }
    checks.extend(ports::check(&components));
    let is_needed = components.iter().any(|component| *component != Component::Up);
    if asks_api {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
        checks.extend(runtime.block_on(api::check(&args.connection, &components)));
    } else if is_needed && !args.no_api {
        let message = "no cluster configured, so versions and rights were not checked";
        checks.push(Check::warn("api", "reachable", message).fix("zoneward preflight --kubeconfig FILE"));
    }
    Ok((components, checks))
}

fn version() -> Check {
    Check::ok("version", "zoneward", env!("CARGO_PKG_VERSION"))
}

fn number(checks: &[Check], status: CheckStatus) -> usize {
    checks.iter().filter(|check| check.status == status).count()
}

fn value(components: &[Component], checks: &[Check]) -> Value {
    json!({
        "components": components.iter().map(|component| component.as_str()).collect::<Vec<_>>(),
        "checks": checks.iter().map(Check::value).collect::<Value>(),
        "summary": {
            "ok": number(checks, CheckStatus::Ok),
            "warn": number(checks, CheckStatus::Warn),
            "fail": number(checks, CheckStatus::Fail),
        },
    })
}

/// The table, and below it each fix as a line that can be copied.
fn text(components: &[Component], checks: &[Check]) -> String {
    let mut table = table_within(&["CHECK", "STATUS", "RESULT"], false);
    for check in checks {
        let name = format!("{}: {}", check.area, check.name);
        table.add_row([&name, check.status.as_str(), &check.message]);
    }
    let mut text = render(&table);
    let mut shown = Vec::new();
    for status in [CheckStatus::Fail, CheckStatus::Warn] {
        for check in checks.iter().filter(|check| check.status == status) {
            let Some(fix) = check.fix.as_deref().filter(|fix| !shown.contains(fix)) else { continue };
            text += if shown.is_empty() { "\nFixes:\n" } else { "" };
            text += &format!("  # {}: {} ({})\n  {fix}\n", check.area, check.name, status.as_str());
            shown.push(fix);
        }
    }
    let names: Vec<&str> = components.iter().map(|component| component.as_str()).collect();
    let fails = number(checks, CheckStatus::Fail);
    text + &format!(
        "\n{}: {}, {}, {} for {}.\n",
        if fails == 0 { "Ready" } else { "Not ready" },
        count(fails, "failure"),
        count(number(checks, CheckStatus::Warn), "warning"),
        count(number(checks, CheckStatus::Ok), "passed check"),
        names.join(", ")
    )
}

/// A file of /proc or /sys without white space around it.
fn read_trimmed(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fix_is_shown_once_with_failures_first() {
        let checks = [
            Check::warn("sysctl", "b", "off").fix("sysctl -w b=1"),
            Check::fail("sysctl", "a", "off").fix("sysctl -w a=1"),
            Check::fail("sysctl", "c", "off").fix("sysctl -w a=1"),
            Check::ok("version", "zoneward", "1"),
        ];
        let shown = text(&[Component::Node], &checks);
        let fixes = "\nFixes:\n  # sysctl: a (fail)\n  sysctl -w a=1\n  # sysctl: b (warn)\n  sysctl -w b=1\n\n\
                     Not ready: 2 failures, 1 warning, 1 passed check for node.\n";
        assert!(shown.ends_with(fixes), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    }
}
