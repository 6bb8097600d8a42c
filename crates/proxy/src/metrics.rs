//! What was counted, as text for Prometheus. Ours are `zoneward_proxy_*`; docs/reference/proxy.md explains each.

use std::fmt::Write;

use model::Locality;

use crate::counts::{BackendCounts, Durations, Statuses};
use crate::peer::Moment;
use crate::proxy::Inner;
use crate::registry::Registry;

/// All metrics.
pub(crate) fn text(proxy: &Inner, registry: &Registry) -> String {
    let mut text = Text(String::with_capacity(4096));
    of_proxy(&mut text, proxy);
    of_routes(&mut text, registry);
    of_backends(&mut text, registry, proxy.now());
    text.0
}

struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP zoneward_proxy_{name} {help}\n# TYPE zoneward_proxy_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let _ = write!(self.0, "zoneward_proxy_{name}");
        for (at, (key, value)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{key}=\"", if at == 0 { '{' } else { ',' });
            for letter in value.chars() {
                match letter {
                    '\\' | '"' => self.0.extend(['\\', letter]),
                    '\n' => self.0.push_str("\\n"),
                    plain => self.0.push(plain),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

fn of_proxy(text: &mut Text, proxy: &Inner) {
    let counts = &proxy.counts;
    text.single("open_connections", "gauge", "Connections of clients that are open.", proxy.open() as u64);
    text.single("open_requests", "gauge", "Requests in flight.", proxy.requests() as u64);
    let held = proxy.budget.held() as u64;
    text.single("held_body_bytes", "gauge", "Bytes of bodies that are held, at most.", held);
    text.family(
        "refused_requests_total",
        "counter",
        "Requests answered with 503 because a limit was reached.",
    );
    for (limit, count) in [("requests", &counts.requests_refused), ("bodies", &counts.bodies_refused)] {
        text.sample("refused_requests_total", &[("limit", limit)], count.value());
    }
    for (name, help, count) in [
        ("connections_total", "Connections of clients.", &counts.connections),
        ("refused_connections_total", "Connections closed because no route is for them.", &counts.refused),
        (
            "passed_connections_total",
            "Connections to destinations that are no Service.",
            &counts.passed_through,
        ),
        ("failed_handshakes_total", "TLS handshakes that failed.", &counts.handshakes_failed),
        (
            "mirrors_left_out_total",
            "Copies that were not sent because too many were.",
            &counts.mirrors_left_out,
        ),
        (
            "stalled_connections_total",
            "Connections closed because the client stalled.",
            &proxy.budget.stalled,
        ),
        ("tables_total", "Tables taken in.", &counts.swaps),
    ] {
        text.single(name, "counter", help, count.value());
    }
    let lost = proxy.settings.access_log.as_ref().map_or(0, |log| log.lost());
    text.single("lost_log_lines_total", "counter", "Lines that the access log had no room for.", lost);
}

fn of_routes(text: &mut Text, registry: &Registry) {
    text.family("route_requests_total", "counter", "Requests by rule and class of status.");
    for account in registry.accounts() {
        statuses(text, "route_requests_total", ("route", &account.label), &account.counts.statuses);
    }
    text.family("route_duration_seconds", "histogram", "From a request's head to the end of its answer.");
    for account in registry.accounts() {
        let (buckets, sum) = account.counts.durations.values();
        let total: u64 = buckets.iter().sum();
        if total == 0 {
            continue;
        }
        let mut below = 0;
        for (bound, count) in Durations::BOUNDS.iter().zip(buckets) {
            below += count;
            let bound = (*bound as f64 / 1e3).to_string();
            text.sample("route_duration_seconds_bucket", &[("route", &account.label), ("le", &bound)], below);
        }
        text.sample("route_duration_seconds_bucket", &[("route", &account.label), ("le", "+Inf")], total);
        text.sample("route_duration_seconds_sum", &[("route", &account.label)], sum as f64 / 1e6);
        text.sample("route_duration_seconds_count", &[("route", &account.label)], total);
    }
}

/// Successes and failures are there from the beginning, so that a rate sees the first one; other classes come with
/// their first request, since there may be ten thousand rules.
fn statuses(text: &mut Text, name: &str, label: (&str, &str), statuses: &Statuses) {
    for (class, count) in Statuses::NAMES.iter().zip(statuses.values()) {
        if count > 0 || matches!(*class, "2xx" | "5xx") {
            text.sample(name, &[label, ("code", class)], count);
        }
    }
}

type Read = fn(&BackendCounts) -> u64;

fn of_backends(text: &mut Text, registry: &Registry, now: Moment) {
    text.family("backend_requests_total", "counter", "Requests by backend and class of status.");
    for slot in registry.slots() {
        statuses(text, "backend_requests_total", ("backend", &slot.label), &slot.counts.statuses);
    }
    text.family("backend_zone_total", "counter", "Requests and connections by where their endpoint was.");
    for slot in registry.slots() {
        for locality in Locality::ALL {
            let count = slot.counts.localities[locality as usize].value();
            let labels = [("backend", &*slot.label), ("locality", locality.as_str())];
            text.sample("backend_zone_total", &labels, count);
        }
    }
    let families: [(&str, &str, Read); 5] = [
        ("backend_connections_total", "TCP connections carried to a backend.", |c| c.connections.value()),
        ("backend_connect_failures_total", "Endpoints that could not be reached.", |c| {
            c.connect_failures.value()
        }),
        ("backend_retries_total", "Requests sent again.", |c| c.retries.value()),
        ("backend_ejections_total", "Endpoints left out because they failed.", |c| c.ejections.value()),
        ("backend_mirrored_total", "Copies of requests.", |c| c.mirrored.value()),
    ];
    for (name, help, value) in families {
        text.family(name, "counter", help);
        for slot in registry.slots() {
            text.sample(name, &[("backend", &*slot.label)], value(&slot.counts));
        }
    }
    text.family("backend_endpoints", "gauge", "Endpoints of a backend: in use, and left out for a while.");
    for slot in registry.slots() {
        let cluster = slot.cluster();
        let out = cluster.choices().iter().filter(|choice| choice.peer.is_ejected(now)).count();
        for (state, count) in [("used", cluster.choices().len() - out), ("ejected", out)] {
            text.sample("backend_endpoints", &[("backend", &*slot.label), ("state", state)], count);
        }
    }
}
