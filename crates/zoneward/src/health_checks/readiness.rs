//! Health checks of exposed processes: which endpoints a machine checks, when, and when one turns ready or not. Thresholds
//! are those of Kubernetes' readiness probes.
//!
//! ```text
//! EndpointSlice -> CheckedSlice -> CheckSchedule: due -> (probe) -> complete -> EndpointHealth -> with_health -> EndpointSlice
//! ```

mod schedule;
mod slice;

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use schedule::{CheckSchedule, CheckTarget};
pub use slice::{CheckedEndpoint, CheckedSlice, statuses, with_health};

/// Longest reason, in characters.
const MAX_REASON: usize = 160;
/// Longest interval and timeout.
const MAX_SECONDS: u32 = 86_400;

/// What is asked of a process. The port is that of the endpoint unless one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A connection is accepted.
    Tcp { port: Option<u16> },
    /// GET is answered with a status from 200 to 399.
    Http { port: Option<u16>, path: String },
}

impl Probe {
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp { port } | Self::Http { port, .. } => *port,
        }
    }

    /// `tcp` or `http`, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "tcp",
            Self::Http { .. } => "http",
        }
    }
}

impl std::fmt::Display for Probe {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { port: None } => formatter.write_str("tcp"),
            Self::Tcp { port: Some(port) } => write!(formatter, "tcp:{port}"),
            Self::Http { port: None, path } => write!(formatter, "http:{path}"),
            Self::Http { port: Some(port), path } => write!(formatter, "http:{port}{path}"),
        }
    }
}

impl FromStr for Probe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a check: expected tcp, tcp:PORT, http:/PATH or http:PORT/PATH");
        let number = |text: &str| match text.parse::<u16>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text:?} is not a port from 1 to 65535")),
        };
        match text.split_once(':') {
            None if text == "tcp" => Ok(Self::Tcp { port: None }),
            Some(("tcp", port)) => Ok(Self::Tcp { port: Some(number(port)?) }),
            Some(("http", rest)) => {
                let at = rest.find('/').ok_or_else(wrong)?;
                let (port, path) = rest.split_at(at);
                if !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
                    return Err(format!(
                        "{path:?} is not a path: encode blanks, # and other characters with %"
                    ));
                }
                let port = if port.is_empty() { None } else { Some(number(port)?) };
                Ok(Self::Http { port, path: path.to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}

/// How an endpoint is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointCheck {
    pub probe: Probe,
    pub period_seconds: u32,
    pub timeout_seconds: u32,
    /// Consecutive failures until a ready endpoint is not ready.
    pub failure_threshold: u32,
    /// Consecutive successes until it is ready.
    pub success_threshold: u32,
}

impl EndpointCheck {
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_seconds.into())
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.into())
    }

    /// The annotation.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&ProbeJson::from(self)).unwrap_or_default()
    }

    pub fn from_json(text: &str) -> Result<Self, String> {
        let json: ProbeJson = serde_json::from_str(text).map_err(|error| error.to_string())?;
        json.try_into()
    }
}

/// The fields of `Probe` of Kubernetes, with its defaults.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProbeJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<TcpSocketJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http_get: Option<HttpGetJson>,
    #[serde(default = "ten")]
    period_seconds: u32,
    #[serde(default = "one")]
    timeout_seconds: u32,
    #[serde(default = "three")]
    failure_threshold: u32,
    #[serde(default = "one")]
    success_threshold: u32,
}

fn one() -> u32 {
    1
}

fn three() -> u32 {
    3
}

fn ten() -> u32 {
    10
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TcpSocketJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpGetJson {
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
}

impl From<&EndpointCheck> for ProbeJson {
    fn from(check: &EndpointCheck) -> Self {
        let (tcp_socket, http_get) = match &check.probe {
            Probe::Tcp { port } => (Some(TcpSocketJson { port: *port }), None),
            Probe::Http { port, path } => (None, Some(HttpGetJson { path: path.clone(), port: *port })),
        };
        let EndpointCheck { period_seconds, timeout_seconds, failure_threshold, success_threshold, .. } =
            *check;
        Self { tcp_socket, http_get, period_seconds, timeout_seconds, failure_threshold, success_threshold }
    }
}

impl TryFrom<ProbeJson> for EndpointCheck {
    type Error = String;

    fn try_from(json: ProbeJson) -> Result<Self, String> {
        let probe = match (json.tcp_socket, json.http_get) {
            (Some(tcp), None) => Probe::Tcp { port: tcp.port },
            (None, Some(http)) => {
                let port = http.port.map(|port| port.to_string()).unwrap_or_default();
                format!("http:{port}{}", http.path).parse()?
            }
            _ => return Err("expected one of tcpSocket and httpGet".to_owned()),
        };
        for (field, value) in [
            ("periodSeconds", json.period_seconds),
            ("timeoutSeconds", json.timeout_seconds),
            ("failureThreshold", json.failure_threshold),
            ("successThreshold", json.success_threshold),
        ] {
            if !(1..=MAX_SECONDS).contains(&value) {
                return Err(format!("{field} must be from 1 to {MAX_SECONDS}, not {value}"));
            }
        }
        let ProbeJson { period_seconds, timeout_seconds, failure_threshold, success_threshold, .. } = json;
        Ok(Self { probe, period_seconds, timeout_seconds, failure_threshold, success_threshold })
    }
}

/// The readiness of an endpoint, and what counts towards a change of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointHealth {
    pub ready: bool,
    /// Why it is not ready.
    pub reason: Option<String>,
    checked: bool,
    successes: u32,
    failures: u32,
    /// The reason of the last failures, and how many in a row gave it.
    last: Option<(String, u32)>,
}

impl EndpointHealth {
    /// Continues with the stored readiness: a restart of the checks disturbs no traffic.
    pub fn stored(ready: bool, reason: Option<String>) -> Self {
        Self { ready, reason: reason.filter(|_| !ready), ..Self::default() }
    }

    /// Counts the outcome of a check. As in the kubelet, readiness turns after a number of equal outcomes in a row; a
    /// reason is replaced when another one has been given as often.
    pub fn record(&mut self, check: &EndpointCheck, outcome: Result<(), String>) {
        let is_first = !std::mem::replace(&mut self.checked, true);
        match outcome {
            Ok(()) => {
                self.failures = 0;
                self.last = None;
                self.successes = self.successes.saturating_add(1);
                if self.successes >= check.success_threshold {
                    self.ready = true;
                    self.reason = None;
                }
            }
            Err(reason) => {
                let reason: String = reason.chars().take(MAX_REASON).collect();
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                let before =
                    self.last.take().filter(|(last, _)| *last == reason).map_or(0, |(_, count)| count);
                let count = before.saturating_add(1);
                if self.failures >= check.failure_threshold && self.ready {
                    self.ready = false;
                    self.reason = Some(reason.clone());
                }
                if !self.ready && (is_first || count >= check.failure_threshold) {
                    self.reason = Some(reason.clone());
                }
                self.last = Some((reason, count));
            }
        }
    }
}

/// The endpoints that a machine checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckScope {
    pub node: String,
    /// Whether it also checks those that name no node: the machine with the API.
    pub without_node: bool,
}

impl CheckScope {
    pub fn contains(&self, node: Option<&str>) -> bool {
        node.map_or(self.without_node, |node| node == self.node)
    }
}

#[cfg(test)]
mod tests;
