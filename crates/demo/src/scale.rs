//! `zoneward demo scale`: more or fewer pods of an app in the zones of a running demo.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::RunningDemoArgs;
use super::command_socket::{DemoRequest, DemoResponse};
use super::demo_cluster::DemoCluster;
use super::layout::{self, DemoNode, ZONES};
use super::objects::DemoPod;

/// Apps that can be scaled; the others have one pod per node, or versions.
const APPS: [&str; 2] = ["web", "shop"];
/// Maximum number of pods of an app per zone: each is a namespace with threads.
const MAX_REPLICAS: u8 = 20;
/// Numbers of scaled pods on a node.
const POD_NUMBERS: std::ops::RangeInclusive<u8> = 10..=250;

/// `zoneward demo scale`
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// App: web or shop
    #[arg(value_name = "APP")]
    pub app: String,
    /// Number of pods per zone, 0 to 20
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=i64::from(MAX_REPLICAS)))]
    pub replicas: u8,
    /// Zone to scale; repeatable [default: every zone]
    #[arg(long = "zone", value_name = "ZONE")]
    pub zones: Vec<String>,
    #[command(flatten)]
    pub running: RunningDemoArgs,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ScaleRequest {
    app: String,
    replicas: u8,
    zones: Vec<String>,
}

pub(crate) fn run(args: &ScaleArgs) -> Result<bool> {
    let app = ["deploy/", "deployment/", "deployments/"].iter().find_map(|kind| args.app.strip_prefix(kind));
    let app = app.unwrap_or(&args.app).to_owned();
    let service = if app == "web" { "web-spill" } else { &app };
    let look = format!("{} {service}", super::command_line("traffic", args.running.data_dir.as_deref()));
    let request = ScaleRequest { app: app.clone(), replicas: args.replicas, zones: args.zones.clone() };
    let closing = format!("To see the new distribution:\n  {look}\n");
    args.running.request(&DemoRequest::Scale(request), &closing)
}

/// Adds and removes pods, and waits until the API has no more changes.
pub(crate) async fn serve(cluster: &mut DemoCluster, request: &ScaleRequest) -> Result<DemoResponse> {
    let app = APPS.into_iter().find(|app| *app == request.app);
    let app =
        app.with_context(|| format!("there is no app {}; there are {}", request.app, APPS.join(" and ")))?;
    let zones = zones(&request.zones)?;
    cluster.until_quiet().await;
    remove_deleted_pods(cluster).await?;
    let before = by_zone(&cluster.pods_of(app));
    let plan = plan(app, &cluster.all_pods(), &zones, request.replicas)?;
    for pod in &plan.added {
        cluster.add_pod(pod.clone()).await?;
    }
    for pod in &plan.removed {
        cluster.delete_pod_object(&pod.name).await?;
    }
    cluster.until_quiet().await;
    for pod in &plan.removed {
        cluster.remove_pod(&pod.name).await?;
    }
    cluster.write_state()?;
    let after = by_zone(&cluster.pods_of(app));
    Ok(response(app, &before, &after, &plan))
}

/// Removes the namespaces of pods that were deleted otherwise, such as by `kubectl delete pod`.
async fn remove_deleted_pods(cluster: &mut DemoCluster) -> Result<()> {
    let all = cluster.all_pods();
    for pod in all.iter().filter(|pod| !cluster.has_object(&pod.name)).collect::<Vec<_>>() {
        cluster.remove_pod(&pod.name).await?;
    }
    Ok(())
}

fn zones(named: &[String]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = named.iter().find(|zone| !ZONES.contains(&zone.as_str())) {
        bail!("--zone {unknown}: unknown zone; the zones are {}", ZONES.join(", "));
    }
    Ok(ZONES.into_iter().filter(|zone| named.is_empty() || named.iter().any(|named| named == zone)).collect())
}

#[derive(Debug, Default)]
struct ScalePlan {
    added: Vec<DemoPod>,
    removed: Vec<DemoPod>,
}

/// Adds to the node with the fewest pods, removes from the node with the most.
fn plan(app: &'static str, all: &[DemoPod], zones: &[&'static str], replicas: u8) -> Result<ScalePlan> {
    let mut plan = ScalePlan::default();
    let mut pods = all.to_vec();
    for zone in zones {
        let nodes: Vec<DemoNode> = layout::nodes().into_iter().filter(|node| node.zone == *zone).collect();
        let count = |pods: &[DemoPod], node: &DemoNode| {
            pods.iter().filter(|p| p.app == app && p.node == *node).count()
        };
        let total = |pods: &[DemoPod]| nodes.iter().map(|node| count(pods, node)).sum::<usize>();
        while total(&pods) < replicas.into() {
            let node = nodes.iter().min_by_key(|node| count(&pods, node)).context("every zone has nodes")?;
            let pod = new_pod(app, node, &pods)?;
            pods.push(pod.clone());
            plan.added.push(pod);
        }
        while total(&pods) > replicas.into() {
            let node = nodes.iter().max_by_key(|node| count(&pods, node)).context("every zone has nodes")?;
            let last = pods.iter().rposition(|pod| pod.app == app && pod.node == *node);
            plan.removed.push(pods.remove(last.context("the fullest node has a pod")?));
        }
    }
    Ok(plan)
}

/// A pod with the first free name and number.
fn new_pod(app: &'static str, node: &DemoNode, pods: &[DemoPod]) -> Result<DemoPod> {
    let taken: BTreeSet<u8> = pods.iter().filter(|pod| pod.node == *node).map(|pod| pod.number).collect();
    let number = POD_NUMBERS.into_iter().find(|number| !taken.contains(number));
    let number = number.with_context(|| format!("{} has no address left for a pod", node.name))?;
    let letter = node.name.trim_start_matches("node-");
    let mut names = (0..=usize::from(u8::MAX)).map(|i| format!("{app}-{letter}-{i}"));
    let name = names.find(|name| pods.iter().all(|pod| pod.name != *name));
    let name = name.with_context(|| format!("{} has no name left for a pod", node.name))?;
    Ok(DemoPod { name, app, version: None, node: node.clone(), number })
}

fn by_zone(pods: &[DemoPod]) -> BTreeMap<&'static str, usize> {
    ZONES.map(|zone| (zone, pods.iter().filter(|pod| pod.node.zone == zone).count())).into()
}

fn response(
    app: &str,
    before: &BTreeMap<&'static str, usize>,
    after: &BTreeMap<&'static str, usize>,
    plan: &ScalePlan,
) -> DemoResponse {
    let names = |pods: &[DemoPod]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let mut text = String::new();
    for (zone, count) in after {
        let earlier = before.get(zone).copied().unwrap_or_default();
        let was = if earlier == *count { String::new() } else { format!(", was {earlier}") };
        let pods = if *count == 1 { "pod" } else { "pods" };
        text += &format!("{zone}: {count} {pods} of {app}{was}\n");
    }
    let zone = |(zone, count): (&&'static str, &usize)| {
        (zone.to_string(), json!({"before": before.get(zone).copied().unwrap_or_default(), "after": count}))
    };
    let zones: serde_json::Map<String, serde_json::Value> = after.iter().map(zone).collect();
    let value =
        json!({"app": app, "zones": zones, "added": names(&plan.added), "removed": names(&plan.removed)});
    DemoResponse::Done { text, value, succeeded: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_zone_are_filled_evenly_and_the_fullest_is_emptied_first() {
        let pods = super::super::objects::pods();
        let fewer = plan("web", &pods, &["zone-c"], 1).expect("it can be planned");
        let names: Vec<&str> = fewer.removed.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["web-c2-1", "web-c1-1", "web-c2-0"]);
        let more = plan("web", &pods, &["zone-c"], 7).expect("it can be planned");
        let names: Vec<&str> = more.added.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["web-c1-2", "web-c2-2", "web-c1-3"]);
        assert!(more.removed.is_empty());
    }

    #[test]
    fn no_pod_gets_the_address_or_the_name_of_another() {
        let pods = super::super::objects::pods();
        let plan = plan("web", &pods, &ZONES, MAX_REPLICAS).expect("it can be planned");
        let all: Vec<DemoPod> = pods.into_iter().chain(plan.added).collect();
        let names: BTreeSet<&str> = all.iter().map(|pod| pod.name.as_str()).collect();
        let places: BTreeSet<(u8, u8)> = all.iter().map(|pod| (pod.node.number, pod.number)).collect();
        assert_eq!((names.len(), places.len()), (all.len(), all.len()));
    }
}
