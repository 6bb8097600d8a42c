//! The admin pages of `mesh control`: health, metrics, and the status of connected Envoys.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde_json::{Value, json};
use xds::resource::ResourceType;
use xds::server::{RejectedResource, ResourceCounters, StreamStatus};

use super::Subscriptions;
use cluster::admin_server::{self, AdminPage, AdminRoutes, HealthChecks};
use output::notices_value;

pub fn pages(subscriptions: &Arc<Subscriptions>) -> AdminRoutes {
    let alive = HealthChecks::default().check("ping", || Ok(()));
    let (asked, shown) = (subscriptions.clone(), subscriptions.clone());
    let mut registry = admin_server::registry("mesh-control");
    registry.register_collector(Box::new(StreamCollector(subscriptions.clone())));
    let ready = HealthChecks::default().check("objects", move || asked.check());
    AdminRoutes::default()
        .checks("/healthz", alive.clone())
        .checks("/livez", alive)
        .checks("/readyz", ready)
        .metrics(registry)
        .page("/status", move |_| AdminPage::json(StatusCode::OK, &status(&shown)))
}

fn status(subscriptions: &Subscriptions) -> Value {
    let streams: Vec<Value> = subscriptions.streams.streams().iter().map(stream).collect();
    json!({"streams": streams, "notices": notices_value(&subscriptions.notices())})
}

fn stream(status: &StreamStatus) -> Value {
    let refusal = |((kind, name), refused): (&(ResourceType, Option<Arc<str>>), &RejectedResource)| {
        let version = refused.version.map(|version| version.to_string());
        json!({"kind": kind.as_str(), "name": name.as_deref(), "version": version, "message": refused.message,
            "triedAgain": refused.is_retryable})
    };
    json!({
        "id": status.id,
        "role": status.identity.title(),
        "node": status.identity.node,
        "zone": status.identity.zone,
        "protocol": status.protocol,
        "publication": status.number,
        "refused": status.rejected.iter().map(refusal).collect::<Vec<_>>(),
    })
}

#[derive(Debug)]
struct StreamCollector(Arc<Subscriptions>);

type Reading = fn(&ResourceCounters) -> u64;

const COUNTERS: [(&str, &str, Reading); 6] = [
    ("zoneward_xds_responses", "Responses sent.", |counters| counters.responses),
    ("zoneward_xds_resources_sent", "Resources sent.", |counters| counters.resources),
    ("zoneward_xds_resources_removed", "Resources removed.", |counters| counters.removed),
    ("zoneward_xds_bytes_sent", "Bytes of responses.", |counters| counters.bytes),
    ("zoneward_xds_resources_accepted", "Resources that Envoys acknowledged.", |counters| counters.accepted),
    ("zoneward_xds_responses_refused", "Responses that Envoys rejected.", |counters| counters.refused),
];

impl Collector for StreamCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let streams = self.0.streams.streams();
        let rejected: usize = streams.iter().map(|stream| stream.rejected.len()).sum();
        for (name, help, value) in [
            ("zoneward_xds_streams", "Connected Envoys.", streams.len()),
            ("zoneward_xds_resources_refused", "Resources that connected Envoys reject.", rejected),
            (
                "zoneward_xds_notices",
                "Current Notices, listed by /status and the log.",
                self.0.notices().len(),
            ),
        ] {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value as i64).encode(family)?;
        }
        let (opened, turned_away) = self.0.streams.streams_opened();
        for (name, help, value) in [
            ("zoneward_xds_streams_opened", "Opened streams.", opened),
            ("zoneward_xds_streams_turned_away", "Rejected streams.", turned_away),
        ] {
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(family)?;
        }
        let by_type = self.0.streams.counters();
        for (name, help, reading) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for kind in ResourceType::ALL {
                let value = by_type.get(&kind).map_or(0, reading);
                ConstCounter::new(value).encode(family.encode_family(&[("kind", kind.as_str())])?)?;
            }
        }
        Ok(())
    }
}
