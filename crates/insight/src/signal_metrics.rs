//! Metrics of the status report: shares, cost and honoured conditions of Services. A standby has none of them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::status::{ServiceSignal, StatusSignals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The figures of the last report; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SignalMetrics(Arc<Mutex<StatusSignals>>);

/// The value of a Service, if it has one.
type SignalValue = fn(&ServiceSignal) -> Option<f64>;

const OF_SERVICES: [(&str, &str, SignalValue); 6] = [
    ("zoneward_service_in_zone_ratio", "Measured share of traffic that stays in its zone", |s| {
        s.in_zone.measured
    }),
    ("zoneward_service_planned_in_zone_ratio", "Planned share of traffic that stays in its zone", |s| {
        s.in_zone.planned
    }),
    ("zoneward_service_best_in_zone_ratio", "Largest share in zone that a setting reaches", |s| {
        s.in_zone.best
    }),
    (
        "zoneward_service_planned_overload_ratio",
        "Planned load of the busiest endpoint above its fair share",
        |s| s.overload,
    ),
    ("zoneward_service_cost_usd_per_month", "Cost of traffic across zones", |s| s.cost_per_month),
    ("zoneward_service_honored", "Whether the requested distribution is in effect", |s| {
        Some(f64::from(u8::from(s.honored)))
    }),
];

impl SignalMetrics {
    pub fn set(&self, signals: StatusSignals) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = signals;
    }
}

impl Collector for SignalMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let signals = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, help, value) in OF_SERVICES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for service in &signals.services {
                let labels = [("namespace", service.namespace.as_str()), ("service", service.name.as_str())];
                if let Some(value) = value(service) {
                    ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        let (name, help) = (
            "zoneward_zone_planned_overload_ratio",
            "Planned load of a zone above the share of its endpoints, of the Service with the largest",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (zone, overload) in &signals.overload_by_zone {
            ConstGauge::new(*overload).encode(family.encode_family(&[("zone", zone.as_str())])?)?;
        }
        for (name, help, value) in [
            (
                "zoneward_services_not_honored",
                "Services whose requested distribution is not in effect",
                Some(signals.not_honored as f64),
            ),
            ("zoneward_cost_usd_per_month", "Cost of all traffic across zones", signals.cost_per_month),
            (
                "zoneward_avoidable_cost_usd_per_month",
                "What recommended settings would save of the cost",
                signals.avoidable_per_month,
            ),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            if let Some(value) = value {
                ConstGauge::new(value).encode(gauge)?;
            }
        }
        Ok(())
    }
}
