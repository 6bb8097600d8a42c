//! The load: wrk for HTTP/1.1, h2load for HTTP/2 without TLS; and what it cost the proxy.

use std::process::Command;
use std::time::Duration;

use super::rival::Running;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// What one round showed.
#[derive(Clone)]
pub struct Sample {
    pub requests: u64,
    pub failed: u64,
    pub cpu: Duration,
    pub lasted: Duration,
}

impl Protocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

impl Sample {
    pub fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }

    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.lasted.as_secs_f64()
    }
}

/// Loads one proxy for a while. The last of the routes is asked for.
pub fn run(running: &Running, protocol: Protocol, lasts: Duration) -> Sample {
    let url = format!("http://127.0.0.1:{}/r{}/x", running.port(protocol), running.routes - 1);
    let before = running.cpu();
    let (requests, failed) = match protocol {
        Protocol::Http1 => wrk(&url, lasts),
        Protocol::Http2 => h2load(&url, lasts),
    };
    Sample { requests, failed, cpu: running.cpu() - before, lasted: lasts }
}

fn wrk(url: &str, lasts: Duration) -> (u64, u64) {
    let seconds = lasts.as_secs().to_string();
    let said = said(toolbox::command("wrk").args(["-t1", "-c32", "-d", &seconds, url]));
    let all = number_before(&said, " requests in ");
    let failed = said.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses: "));
    let sockets = said.lines().find_map(|line| line.trim().strip_prefix("Socket errors: "));
    let dropped = sockets.map_or(0, |line| {
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok()).sum()
    });
    (all, failed.map_or(0, |n| n.parse().unwrap()) + dropped)
}

fn h2load(url: &str, lasts: Duration) -> (u64, u64) {
    let seconds = lasts.as_secs().to_string();
    let said = said(toolbox::command("h2load").args(["-t1", "-c8", "-m8", "-D", &seconds, url]));
    let succeeded = number_before(&said, " succeeded,");
    // What was under way when the time was up is no failure: h2load counts it as neither.
    (succeeded, number_before(&said, " failed,"))
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask bench l7` installs it", command.get_program().display())
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The number that stands before these words.
fn number_before(text: &str, words: &str) -> u64 {
    let (before, _) = text.split_once(words).unwrap_or_else(|| panic!("no `{words}` in: {text}"));
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap()
}
