//! The three acts: every mechanism compared, a zone without endpoints, pods replaced under load.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use model::Family;

use super::objects::{MECHANISMS, Mechanism, Pod};
use super::protocol::{Counts, Request};
use super::world::{Shares, World};

/// Connections from each client; Spill is measured more often, since its shares are fractions.
const CONNECTIONS: u32 = 300;
const SPILL_CONNECTIONS: u32 = 4_000;
/// How long nodes may need to hear of a change, and a pod may go on serving after it was deleted.
const GRACE: Duration = Duration::from_secs(1);

/// How often connections went from a zone to a zone.
pub type Connections = BTreeMap<String, BTreeMap<String, u64>>;

/// What one mechanism did.
pub struct Measured {
    /// Which.
    pub mechanism: Mechanism,
    /// Where connections went.
    pub connections: Connections,
    /// Where they should have gone.
    pub expected: Shares,
    /// Refused connections, by the zone that they came from.
    pub refused: BTreeMap<String, u64>,
    /// Connections that got no answer.
    pub failed: u64,
}

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

/// Connects from every client to a Service.
async fn traffic(
    world: &World,
    service: &str,
    count: u32,
    family: Family,
) -> Result<Vec<(&'static str, Counts)>> {
    let to = world.address(service, family)?;
    let clients = world.clients();
    let counted = clients.iter().map(|(from, zone)| {
        let request = Request::Connect { from: from.clone(), to, count };
        async move { anyhow::Ok((*zone, world.stage.count(request).await?)) }
    });
    try_join_all(counted).await
}

fn by_zone(world: &World, counted: &[(&'static str, Counts)]) -> Connections {
    let mut connections = Connections::new();
    for (from, counts) in counted {
        let row = connections.entry((*from).to_owned()).or_default();
        for (pod, count) in &counts.answers {
            *row.entry(world.zone(pod).unwrap_or("elsewhere").to_owned()).or_default() += count;
        }
    }
    connections
}

/// Act one: the same pods behind a Service of each mechanism.
pub async fn compare(
    world: &World,
    family: Family,
    mut done: impl FnMut(&Measured),
) -> Result<Vec<Measured>> {
    let mut all = Vec::new();
    for mechanism in MECHANISMS {
        let count = if mechanism.name == "Spill" { SPILL_CONNECTIONS } else { CONNECTIONS };
        let expected = world.expected(&mechanism.service(), family);
        let counted = traffic(world, &mechanism.service(), count, family).await?;
        let mut refused = BTreeMap::new();
        for (zone, counts) in &counted {
            *refused.entry((*zone).to_owned()).or_default() += counts.refused;
        }
        refused.retain(|_, count| *count > 0);
        let failed = counted.iter().map(|(_, counts)| counts.failed).sum();
        let connections = by_zone(world, &counted);
        all.push(Measured { mechanism, connections, expected, refused, failed });
        all.last().into_iter().for_each(&mut done);
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
    let counted = traffic(world, "web-prefersamezone", CONNECTIONS, family).await?;
    let failed = counted.iter().map(|(_, counts)| counts.failed + counts.refused).sum();
    let fallback = Fallback { zone, connections: by_zone(world, &counted), failed };
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
    let to = world.address("shop", family)?;
    let old = world.pods_of("shop");
    let from = world.clients().first().map(|(name, _)| name.clone()).unwrap_or_default();
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
