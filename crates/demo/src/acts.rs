//! The three acts: every mechanism compared, a zone without endpoints, pods replaced under load.

use std::time::Duration;

use anyhow::Result;
use model::Family;

use super::measure::{Connections, Measured, measure};
use super::objects::{MECHANISMS, Mechanism, Pod};
use super::protocol::Request;
use super::world::{World, key};

/// Connections from each client; Spill is measured more often, since its shares are fractions.
const CONNECTIONS: u32 = 600;
const SPILL_CONNECTIONS: u32 = 4_000;
/// How long nodes may need to hear of a change, and a pod may go on serving after it was deleted.
const GRACE: Duration = Duration::from_secs(1);

/// What happened when a zone lost its endpoints.
pub struct Fallback {
    /// The zone.
    pub zone: &'static str,
    /// Where connections went afterwards.
    pub connections: Connections,
    /// Connections that got no answer or were refused.
    pub failed: u64,
}

/// What happened while pods were replaced.
pub struct Rolling {
    /// How many connections there were.
    pub connections: u64,
    /// How many of them failed.
    pub failed: u64,
    /// How many pods were replaced.
    pub replaced: usize,
}

/// Act one: the same pods behind a Service of each mechanism.
pub async fn compare(
    world: &World,
    family: Family,
    mut done: impl FnMut(Mechanism, &Measured),
) -> Result<Vec<(Mechanism, Measured)>> {
    let mut all = Vec::new();
    for mechanism in MECHANISMS {
        let count = if mechanism.name == "Spill" { SPILL_CONNECTIONS } else { CONNECTIONS };
        let service = key(&mechanism.service());
        let mut measured = measure(world, &service, family, &world.clients(), count).await?;
        measured.name = mechanism.name.to_owned();
        done(mechanism, &measured);
        all.push((mechanism, measured));
    }
    Ok(all)
}

/// Act two: a zone loses its endpoints of PreferSameZone, and its clients go elsewhere.
pub async fn fall_back(world: &mut World, zone: &'static str, family: Family) -> Result<Fallback> {
    let lost: Vec<Pod> = world.pods_of("web").into_iter().filter(|pod| pod.node.zone == zone).collect();
    for pod in &lost {
        world.forget_pod(&pod.name).await?;
    }
    settle(world, lost.iter().map(|pod| pod.name.clone()).collect()).await?;
    for pod in &lost {
        world.remove_pod(&pod.name).await?;
    }
    let measured = measure(world, &key("web-prefersamezone"), family, &world.clients(), CONNECTIONS).await?;
    let failed = measured.failed + measured.refused.values().sum::<u64>();
    let fallback = Fallback { zone, connections: measured.connections, failed };
    for pod in lost {
        world.add_pod(pod).await?;
    }
    Ok(fallback)
}

/// Waits until no slice names these pods any more, and then as long as a pod's grace period.
async fn settle(world: &mut World, gone: Vec<String>) -> Result<()> {
    let named = move |snapshot: &model::Snapshot| {
        let slices = snapshot.services().flat_map(|(_, slices)| slices);
        let mut targets = slices.flat_map(|s| &s.content.endpoints).filter_map(|e| e.target.as_ref());
        !targets.any(|target| gone.iter().any(|name| target.name == name.as_str()))
    };
    world.until("slices without pods that are gone", named).await?;
    tokio::time::sleep(GRACE).await;
    Ok(())
}

/// Act three: every pod of the shop is replaced by a new one, one by one, while a client connects in a loop.
pub async fn roll(world: &mut World, family: Family, mut done: impl FnMut(usize, usize)) -> Result<Rolling> {
    let to = world.address(&key("shop"), family)?;
    let old = world.pods_of("shop");
    let from = world.clients().first().map(|client| client.pod.clone()).unwrap_or_default();
    world.stage.ask(Request::StartLoop { from: from.clone(), to }).await?;
    let replaced = replace(world, &old, &mut done).await;
    let counts = world.stage.count(Request::StopLoop { from }).await?;
    replaced?;
    let failed = counts.failed + counts.refused;
    Ok(Rolling { connections: counts.total(), failed, replaced: old.len() })
}

async fn replace(world: &mut World, old: &[Pod], done: &mut impl FnMut(usize, usize)) -> Result<()> {
    for (i, pod) in old.iter().enumerate() {
        let new = Pod { name: format!("{}-new", pod.name), number: pod.number + 1, ..pod.clone() };
        let name = new.name.clone();
        world.add_pod(new).await?;
        let known = move |snapshot: &model::Snapshot| {
            let slices = snapshot.services().flat_map(|(_, slices)| slices);
            let mut targets = slices.flat_map(|s| &s.content.endpoints).filter_map(|e| e.target.as_ref());
            targets.any(|target| target.name == name.as_str())
        };
        world.until("slices with a new pod", known).await?;
        world.forget_pod(&pod.name).await?;
        settle(world, vec![pod.name.clone()]).await?;
        world.remove_pod(&pod.name).await?;
        done(i + 1, old.len());
    }
    Ok(())
}
