//! The Lease in which a node reports the newest EndpointSlice revision that its kernel holds.
//!
//! A task of its own writes it: an API that is unreachable or slow never delays a sync.

use std::net::SocketAddr;
use std::time::Duration;

use clock::Clock;
use cluster::api_outage;
use insight::status::PastOutage;
use insight::status::convergence::DurationCounts;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use model::annotation;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Minimum interval between writes.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum interval between writes.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// leaseDurationSeconds.
const DURATION_SECONDS: i64 = 90;

/// Name of the request in log lines.
const WRITE_LEASE: &str = "write the node's Lease";

/// What the kernel holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgrammedState {
    /// The highest resourceVersion of an EndpointSlice; `None` before the first sync.
    pub revision: Option<u64>,
    /// The zone whose slices alone it watches; empty: those of all zones.
    pub watched_zone: String,
    /// Services whose last change the kernel refused.
    pub failed: Vec<String>,
    /// Times from changes to the kernel, since this process started.
    pub delays: DurationCounts,
    /// How often tables were restored that others had modified.
    pub repairs: u64,
    /// Overflows of conntrack events, as of the last sync.
    pub lost_events: u64,
    /// The last time that objects were served without the API.
    pub last_outage: Option<PastOutage>,
}

/// Keeps the Lease up to date until the sender is dropped.
pub async fn keep_lease(
    client: Client,
    namespace: String,
    node: String,
    status_address: Option<SocketAddr>,
    mut programmed: watch::Receiver<ProgrammedState>,
    clock: Clock,
) {
    let api: Api<Lease> = Api::namespaced(client, &namespace);
    loop {
        let now = programmed.borrow_and_update().clone();
        if now.revision.is_some() {
            match write_lease(&api, &node, status_address, &now, clock.timestamp()).await {
                Ok(()) => api_outage::request_succeeded(WRITE_LEASE),
                Err(error) => {
                    log_refusal(&error);
                    programmed.mark_changed();
                }
            }
            tokio::time::sleep(MIN_INTERVAL).await;
        }
        let heartbeat = HEARTBEAT - MIN_INTERVAL;
        if let Ok(Err(_)) = tokio::time::timeout(heartbeat, programmed.changed()).await {
            return;
        }
    }
}

/// Logs a refusal; an unreachable API is logged by its client.
fn log_refusal(error: &Error) {
    if let Error::Api(status) = error
        && !api_outage::is_unreachable_status(status.code)
    {
        api_outage::request_failed(WRITE_LEASE, &status.message);
    }
}

async fn write_lease(
    api: &Api<Lease>,
    node: &str,
    status_address: Option<SocketAddr>,
    state: &ProgrammedState,
    now: jiff::Timestamp,
) -> kube::Result<()> {
    let name = format!("{}{node}", annotation::NODE_LEASE_PREFIX);
    let mut lease = lease(&name, node, state, now);
    if let Some(address) = status_address {
        lease["metadata"]["annotations"][annotation::STATUS_ADDRESS] = json!(address.to_string());
    }
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(&lease)).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) if status.code == 404 => {
            let lease = serde_json::from_value(lease).map_err(Error::SerdeError)?;
            api.create(&PostParams::default(), &lease).await.map(|_| ())
        }
        Err(error) => Err(error),
    }
}

fn lease(name: &str, node: &str, state: &ProgrammedState, now: jiff::Timestamp) -> Value {
    let micros = now.round(jiff::Unit::Microsecond).unwrap_or(now);
    let programmed = state.revision.unwrap_or(0).to_string();
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {
            "name": name,
            "labels": {annotation::COMPONENT: annotation::NODE_PROXY},
            "annotations": {annotation::PROGRAMMED_REVISION: programmed, annotation::FAILED_SERVICES: state.failed.join(","),
                annotation::WATCHED_ZONE: state.watched_zone,
                annotation::CONVERGENCE: state.delays.to_string(), annotation::REPAIRS: state.repairs.to_string(),
                annotation::LOST_EVENTS: state.lost_events.to_string()},
        },
        "spec": {
            "holderIdentity": node, "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": format!("{micros:.6}"),
        },
    });
    if let Some(last) = &state.last_outage {
        lease["metadata"]["annotations"][annotation::LAST_OUTAGE] = last.to_string().into();
    }
    lease
}
