//! Health checks of exposed processes, which their EndpointSlices tell.

use crate::health_checks::readiness::statuses;
use insight::status::HealthCheckStatus;
use insight::status::StatusReport;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use model::annotation;

use super::tables::{columns, paragraph};
use cluster::ObjectKind;

/// Endpoints that are shown without `-o wide`.
const MAX_ENDPOINTS: usize = 10;

/// Adds the checks of a namespace, or of one Service; what cannot be read is said among the limits.
pub(super) async fn complete(
    report: &mut StatusReport,
    client: &Client,
    namespace: Option<&str>,
    service: Option<&str>,
) {
    let resource = ObjectKind::Slice.resource();
    let slices: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let mut labels = format!("{}={}", annotation::MANAGED_BY, annotation::EXPOSE_CONTROLLER_NAME);
    if let Some(service) = service {
        labels += &format!(",{}={service}", annotation::SERVICE_NAME);
    }
    match slices.list(&ListParams::default().labels(&labels)).await {
        Ok(list) => {
            let values = list.items.iter().filter_map(|slice| serde_json::to_value(slice).ok());
            report.health_checks = statuses(&values.collect::<Vec<_>>());
        }
        Err(error) => report.limits.push(format!("health checks cannot be read: {error}")),
    }
}

/// A row for each Service with checks, then the endpoints that are not ready.
pub(super) fn text(checks: &[HealthCheckStatus], wide: bool) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let row = |status: &HealthCheckStatus| {
        let service = format!("{}/{}", status.namespace, status.name);
        vec![service, status.check.clone(), format!("{}/{}", status.ready, status.endpoints)]
    };
    let rows: Vec<Vec<String>> = checks.iter().map(row).collect();
    let mut text = format!("\n{}", columns(&["SERVICE", "CHECK", "READY"], &rows, 2..3, wide));
    let failing = checks.iter().flat_map(|status| status.not_ready.iter().map(move |e| (status, e)));
    let failing: Vec<_> = failing.collect();
    let shown = if wide { failing.len() } else { failing.len().min(MAX_ENDPOINTS) };
    for (status, endpoint) in &failing[..shown] {
        let node = endpoint.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let head = format!("{}/{} {}{node} is not ready:", status.namespace, status.name, endpoint.address);
        text += &paragraph("", &format!("{head} {}", endpoint.reason));
    }
    match failing.len() - shown {
        0 => text,
        hidden => text + &format!("... and {hidden} more that are not ready: -o wide shows all\n"),
    }
}
