//! Metrics for Prometheus: `zoneward_proxy_*`, listed in docs/reference/metrics.md.

use std::fmt;
use std::sync::Arc;

use model::Locality;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::proxy::ProxyShared;
use crate::registry::Registry;
use crate::spans::exporter::SpanExporter;
use crate::stats::{BackendStats, StatusCounters};
use crate::upstream::endpoint::ProxyTime;

/// Reads the counters at each scrape, so that the request path adds to plain atomics.
pub(crate) struct ProxyCollector(pub(crate) Arc<ProxyShared>);

impl fmt::Debug for ProxyCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProxyCollector")
    }
}

impl Collector for ProxyCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let registry = self.0.registry();
        encode_proxy(&mut encoder, &self.0)?;
        encode_routes(&mut encoder, &registry)?;
        encode_backends(&mut encoder, &registry, self.0.now())
    }
}

fn encode_proxy(encoder: &mut DescriptorEncoder<'_>, proxy: &ProxyShared) -> fmt::Result {
    for (name, help, value) in [
        ("zoneward_proxy_open_connections", "Open downstream connections.", proxy.open_connections()),
        ("zoneward_proxy_open_requests", "Requests in flight.", proxy.requests.in_use()),
        ("zoneward_proxy_upstream_sockets", "Connections to endpoints.", proxy.sockets.open()),
        ("zoneward_proxy_held_body_bytes", "Upper bound of buffered body bytes.", proxy.budget.held()),
    ] {
        let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value as i64).encode(family)?;
    }
    encode_limits(encoder, proxy)?;
    encode_spans(encoder, proxy)?;
    encode_events(encoder, proxy)
}

fn encode_limits(encoder: &mut DescriptorEncoder<'_>, proxy: &ProxyShared) -> fmt::Result {
    let stats = &proxy.stats;
    let help = "Requests answered with 503 because of a limit.";
    let name = "zoneward_proxy_refused_requests";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (limit, counter) in [
        ("requests", &proxy.requests.refused),
        ("bodies", &stats.bodies_over_limit),
        ("descriptors", &proxy.sockets.refused),
    ] {
        sample(&mut family, [("limit", limit)], counter.value())?;
    }
    let help = "Requests answered with 503, and connections closed, to make room for other clients.";
    let mut family =
        encoder.encode_descriptor("zoneward_proxy_evictions", help, None, MetricType::Counter)?;
    for (limit, counter) in [
        ("requests", &proxy.requests.evicted),
        ("bodies", &proxy.budget.evicted),
        ("descriptors", &stats.evicted_sockets),
        ("connections", &stats.evicted_idle),
    ] {
        sample(&mut family, [("limit", limit)], counter.value())?;
    }
    Ok(())
}

fn encode_spans(encoder: &mut DescriptorEncoder<'_>, proxy: &ProxyShared) -> fmt::Result {
    let spans = proxy.settings.span_exporter.as_ref().map(SpanExporter::stats);
    let help =
        "OpenTelemetry spans, exported, dropped because the queue was full, or not taken by the collector.";
    let mut family = encoder.encode_descriptor("zoneward_proxy_spans", help, None, MetricType::Counter)?;
    for (result, value) in [
        ("exported", spans.map(|spans| spans.exported.value())),
        ("dropped", spans.map(|spans| spans.dropped.value())),
        ("failed", spans.map(|spans| spans.failed.value())),
    ] {
        sample(&mut family, [("result", result)], value.unwrap_or_default())?;
    }
    Ok(())
}

fn encode_events(encoder: &mut DescriptorEncoder<'_>, proxy: &ProxyShared) -> fmt::Result {
    let stats = &proxy.stats;
    let lost = proxy.settings.access_log.as_ref().map_or(0, |log| log.lost());
    for (name, help, value) in [
        ("zoneward_proxy_connections", "Downstream connections.", stats.connections.value()),
        (
            "zoneward_proxy_refused_connections",
            "Connections closed because no route matches.",
            stats.refused_connections.value(),
        ),
        (
            "zoneward_proxy_passed_connections",
            "Connections passed through to destinations that are not Services.",
            stats.passed_through.value(),
        ),
        ("zoneward_proxy_failed_handshakes", "Failed TLS handshakes.", stats.failed_handshakes.value()),
        (
            "zoneward_proxy_mirrors_left_out",
            "Mirrored requests dropped at the limit.",
            stats.dropped_mirrors.value(),
        ),
        (
            "zoneward_proxy_stalled_connections",
            "Connections closed because the client stalled.",
            proxy.budget.stalled.value(),
        ),
        ("zoneward_proxy_tables", "Tables swapped in.", stats.table_swaps.value()),
        ("zoneward_proxy_lost_log_lines", "Access log lines dropped because the buffer was full.", lost),
    ] {
        let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(family)?;
    }
    Ok(())
}

fn encode_routes(encoder: &mut DescriptorEncoder<'_>, registry: &Registry) -> fmt::Result {
    let (name, help) = ("zoneward_proxy_route_requests", "Requests by rule and class of status.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for route in registry.routes() {
        encode_statuses(&mut family, ("route", &route.label), &route.statuses)?;
    }
    let name = "zoneward_proxy_route_duration_seconds";
    let help = "From the headers of a request to the end of its response.";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for route in registry.routes() {
        let buckets = route.durations.buckets();
        let count: u64 = buckets.iter().map(|(_, count)| count).sum();
        if count > 0 {
            let labels = [("route", &*route.label)];
            let sum = route.durations.sum_seconds();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
    }
    Ok(())
}

type BackendCounter = fn(&BackendStats) -> u64;

fn encode_backends(encoder: &mut DescriptorEncoder<'_>, registry: &Registry, now: ProxyTime) -> fmt::Result {
    let (name, help) = ("zoneward_proxy_backend_requests", "Requests by backend and class of status.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for backend in registry.backends() {
        encode_statuses(&mut family, ("backend", &backend.label), &backend.stats.statuses)?;
    }
    let help = "Requests and connections by locality of the endpoint.";
    let name = "zoneward_proxy_backend_zone";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for backend in registry.backends() {
        for locality in Locality::ALL {
            let labels = [("backend", &*backend.label), ("locality", locality.as_str())];
            sample(&mut family, labels, backend.stats.localities[locality as usize].value())?;
        }
    }
    let families: [(&str, &str, BackendCounter); 5] = [
        ("zoneward_proxy_backend_connections", "TCP connections to a backend.", |s| s.connections.value()),
        ("zoneward_proxy_backend_connect_failures", "Failed connection attempts.", |s| {
            s.connect_failures.value()
        }),
        ("zoneward_proxy_backend_retries", "Retried requests and connections.", |s| s.retries.value()),
        ("zoneward_proxy_backend_ejections", "Ejections of endpoints.", |s| s.ejections.value()),
        ("zoneward_proxy_backend_mirrored", "Mirrored requests.", |s| s.mirrored.value()),
    ];
    for (name, help, value) in families {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for backend in registry.backends() {
            sample(&mut family, [("backend", &*backend.label)], value(&backend.stats))?;
        }
    }
    let help = "Requests answered with 503, or not retried, because of a circuit breaker.";
    let name = "zoneward_proxy_backend_overflows";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for backend in registry.backends() {
        let (breaker, stats) = (&backend.breaker, &backend.stats);
        for (limit, counter) in [
            ("requests", &breaker.requests.refused),
            ("pending", &stats.pending_overflow),
            ("retries", &stats.retry_overflow),
        ] {
            sample(&mut family, [("backend", &*backend.label), ("limit", limit)], counter.value())?;
        }
    }
    let help = "Requests answered with 503, or closed, for other clients of the backend.";
    let name = "zoneward_proxy_backend_evictions";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for backend in registry.backends() {
        sample(&mut family, [("backend", &*backend.label)], backend.breaker.requests.evicted.value())?;
    }
    let (name, help) = ("zoneward_proxy_backend_endpoints", "Endpoints of a backend, used or ejected.");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for backend in registry.backends() {
        let balancer = backend.load_balancer();
        let ejected =
            balancer.endpoints().iter().filter(|weighted| weighted.endpoint.is_ejected(now)).count();
        for (state, count) in [("used", balancer.endpoints().len() - ejected), ("ejected", ejected)] {
            let labels = [("backend", &*backend.label), ("state", state)];
            ConstGauge::new(count as i64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Series of 2xx and 5xx exist from the start, so that a rate sees the first request; there may be ten thousand rules,
/// so the other classes appear with their first request.
fn encode_statuses(
    family: &mut MetricEncoder<'_>,
    label: (&str, &str),
    statuses: &StatusCounters,
) -> fmt::Result {
    for (class, count) in statuses.values() {
        if count > 0 || matches!(class, "2xx" | "5xx") {
            sample(family, [label, ("code", class)], count)?;
        }
    }
    Ok(())
}

fn sample<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: [(&str, &str); N],
    value: u64,
) -> fmt::Result {
    ConstCounter::new(value).encode(family.encode_family(&labels)?)
}
