//! Metric of the endpoints that each zone needs for its own demand.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use model::{Name, ServiceKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// `zoneward_zone_wanted_endpoints`, for autoscalers; clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct WantedEndpoints(Arc<Mutex<Vec<(ServiceKey, Name, u64)>>>);

impl WantedEndpoints {
    pub(crate) fn set(&self, wanted: Vec<(ServiceKey, Name, u64)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    }
}

impl Collector for WantedEndpoints {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let help = "Endpoints that a zone needs for its own demand, at the load that endpoints have proved";
        let mut family =
            encoder.encode_descriptor("zoneward_zone_wanted_endpoints", help, None, MetricType::Gauge)?;
        for (service, zone, wanted) in &wanted {
            let (namespace, name) = (service.namespace.as_str(), service.name.as_str());
            let labels = [("namespace", namespace), ("service", name), ("zone", zone.as_str())];
            ConstGauge::new(*wanted).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
