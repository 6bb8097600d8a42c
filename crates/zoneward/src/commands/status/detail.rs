//! Events and canary routes of one Service, which the controller's report does not have.

use std::time::Duration;

use insight::service_objects::{events, rules};
use insight::status::{CanaryShare, StatusReport};
use kube::Client;

use super::leader::StatusServer;

/// Adds what the API knows of the Service; what cannot be read is said among the limits.
pub(super) async fn complete(
    report: &mut StatusReport,
    client: &Client,
    server: &StatusServer,
    window: Duration,
) {
    let Some(detail) = &mut report.detail else { return };
    let (namespace, name) = (detail.namespace.clone(), detail.name.clone());
    match events(client, &namespace, &name).await {
        Ok(events) => detail.events = events,
        Err(error) => report.limits.push(format!("Events cannot be read: {error}")),
    }
    match rules(client, &namespace, &name).await {
        Ok(rules) if rules.is_empty() => {}
        Ok(rules) => {
            let services = server.report(Some(&namespace), None, window).await;
            let services = services.map(|report| report.services).unwrap_or_default();
            let connections = |namespace: &str, name: &str| {
                let found = services.iter().find(|s| s.namespace == namespace && s.name == name);
                found.and_then(|s| s.connections_per_second)
            };
            for (route, backends) in rules {
                detail.canary.extend(CanaryShare::of_rule(&route, &backends, connections));
            }
        }
        // Clusters without the kinds of zoneward.dev have no such routes.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => report.limits.push(format!("routes cannot be read: {error}")),
    }
}
