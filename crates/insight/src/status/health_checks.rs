//! Health checks of exposed processes, as the report has them.

use serde::{Deserialize, Serialize};

/// The checks of a Service, as `zoneward status` shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheckStatus {
    pub namespace: String,
    pub name: String,
    /// Such as `http:/healthz`.
    pub check: String,
    pub ready: usize,
    pub endpoints: usize,
    /// By address.
    pub not_ready: Vec<NotReadyEndpoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReadyEndpoint {
    /// IP and port.
    pub address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub reason: String,
}
