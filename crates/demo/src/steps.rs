//! Steps of the demo: compare all mechanisms, remove the endpoints of a zone, replace pods under load.

use std::time::Duration;

use anyhow::Result;
use model::Family;

use super::demo_cluster::{DemoCluster, key};
use super::measure::{Connections, MeasuredTraffic, measure};
use super::objects::{ComparedMechanism, DemoPod, MECHANISMS};
use super::protocol::NamespaceRequest;

/// Connections per client; more for Spill, whose shares are fractions.
const CONNECTIONS: u32 = 600;
const SPILL_CONNECTIONS: u32 = 4_000;
/// Time for nodes to sync a change, while a deleted pod keeps serving.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Traffic after a zone lost its endpoints.
pub(crate) struct ZoneFailover {
    pub zone: &'static str,
    pub connections: Connections,
    /// Connections that were refused or got no response.
    pub failed: u64,
}

/// Connections during a rolling update.
pub(crate) struct RollingUpdate {
    pub connections: u64,
    pub failed: u64,
    pub replaced: usize,
}

/// Measures the same pods behind one Service per mechanism.
pub(crate) async fn compare(
    cluster: &DemoCluster,
    family: Family,
    mut done: impl FnMut(ComparedMechanism, &MeasuredTraffic),
) -> Result<Vec<(ComparedMechanism, MeasuredTraffic)>> {
    let mut all = Vec::new();
    for mechanism in MECHANISMS {
        let count = if mechanism.name == "Spill" { SPILL_CONNECTIONS } else { CONNECTIONS };
        let service = key(&mechanism.service());
        let mut measured = measure(cluster, &service, family, &cluster.clients(), count).await?;
        measured.name = mechanism.name.to_owned();
        done(mechanism, &measured);
        all.push((mechanism, measured));
    }
    Ok(all)
}

/// Removes all endpoints of a zone and measures PreferSameZone.
pub(crate) async fn fail_over(
    cluster: &mut DemoCluster,
    zone: &'static str,
    family: Family,
) -> Result<ZoneFailover> {
    let lost: Vec<DemoPod> = cluster.pods_of("web").into_iter().filter(|pod| pod.node.zone == zone).collect();
    for pod in &lost {
        cluster.delete_pod_object(&pod.name).await?;
    }
    until_removed_from_slices(cluster, lost.iter().map(|pod| pod.name.clone()).collect()).await?;
    for pod in &lost {
        cluster.remove_pod(&pod.name).await?;
    }
    let measured =
        measure(cluster, &key("web-prefersamezone"), family, &cluster.clients(), CONNECTIONS).await?;
    let failed = measured.failed + measured.refused.values().sum::<u64>();
    let fallback = ZoneFailover { zone, connections: measured.connections, failed };
    for pod in lost {
        cluster.add_pod(pod).await?;
    }
    Ok(fallback)
}

/// Waits until no slice contains these pods, and for the grace period.
pub(crate) async fn until_removed_from_slices(cluster: &mut DemoCluster, deleted: Vec<String>) -> Result<()> {
    let named = move |snapshot: &model::Snapshot| {
        let slices = snapshot.services().flat_map(|(_, slices)| slices);
        let mut targets = slices.flat_map(|s| &s.content.endpoints).filter_map(|e| e.target());
        !targets.any(|target| deleted.iter().any(|name| target.name == name.as_str()))
    };
    cluster.until("slices without deleted pods", named).await?;
    tokio::time::sleep(GRACE_PERIOD).await;
    Ok(())
}

/// Replaces every pod of the shop, one by one, while a client connects in a loop.
pub(crate) async fn rolling_update(
    cluster: &mut DemoCluster,
    family: Family,
    mut done: impl FnMut(usize, usize),
) -> Result<RollingUpdate> {
    let to = cluster.address(&key("shop"), family)?;
    let old = cluster.pods_of("shop");
    let from = cluster.clients().first().map(|client| client.pod.clone()).unwrap_or_default();
    cluster.namespaces.ask(NamespaceRequest::StartLoop { from: from.clone(), to }).await?;
    let replaced = replace(cluster, &old, &mut done).await;
    let counts = cluster.namespaces.count(NamespaceRequest::StopLoop { from }).await?;
    replaced?;
    let failed = counts.failed + counts.refused;
    Ok(RollingUpdate { connections: counts.total(), failed, replaced: old.len() })
}

async fn replace(
    cluster: &mut DemoCluster,
    old: &[DemoPod],
    done: &mut impl FnMut(usize, usize),
) -> Result<()> {
    for (i, pod) in old.iter().enumerate() {
        let new = DemoPod { name: format!("{}-new", pod.name), number: pod.number + 1, ..pod.clone() };
        let name = new.name.clone();
        cluster.add_pod(new).await?;
        let known = move |snapshot: &model::Snapshot| {
            let slices = snapshot.services().flat_map(|(_, slices)| slices);
            let mut targets = slices.flat_map(|s| &s.content.endpoints).filter_map(|e| e.target());
            targets.any(|target| target.name == name.as_str())
        };
        cluster.until("slices with a new pod", known).await?;
        cluster.delete_pod_object(&pod.name).await?;
        until_removed_from_slices(cluster, vec![pod.name.clone()]).await?;
        cluster.remove_pod(&pod.name).await?;
        done(i + 1, old.len());
    }
    Ok(())
}
