//! `zoneward demo scale`: more or fewer pods of an app in the zones of a kept demo.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::default_folder;
use super::kept::{Command, Outcome, ask};
use super::layout::{self, Node, ZONES};
use super::objects::Pod;
use super::world::World;
use output::{Format, Output, print_text, print_value};

/// The apps that can be scaled; the others have one pod for each node, or versions.
const APPS: [&str; 2] = ["web", "shop"];
/// The most pods of an app in a zone: each is a namespace with threads of its own.
const MOST: u8 = 20;
/// The numbers of pods on a node that are free for these.
const NUMBERS: std::ops::RangeInclusive<u8> = 10..=250;

/// `zoneward demo scale`
#[derive(Debug, Args)]
pub struct Scale {
    /// The app: web or shop
    #[arg(value_name = "APP")]
    pub app: String,
    /// How many pods each of the zones should have, 0 to 20
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=i64::from(MOST)))]
    pub replicas: u8,
    /// Only this zone; may be repeated [default: every zone]
    #[arg(long = "zone", value_name = "ZONE")]
    pub zones: Vec<String>,
    /// Where the demo has its data [default: where the demo puts it]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
}

/// What the kept demo is asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    app: String,
    replicas: u8,
    zones: Vec<String>,
}

/// Asks the kept demo, and shows what it did.
pub fn run(args: &Scale) -> Result<bool> {
    let folder = args.data_dir.clone().unwrap_or_else(default_folder);
    let app = ["deploy/", "deployment/", "deployments/"].iter().find_map(|kind| args.app.strip_prefix(kind));
    let app = app.unwrap_or(&args.app).to_owned();
    let service = if app == "web" { "web-spill" } else { &app };
    let look = format!("{} {service}", super::typed("traffic", args.data_dir.as_deref()));
    let order = Order { app: app.clone(), replicas: args.replicas, zones: args.zones.clone() };
    let (text, value, fine) = ask(&folder, &Command::Scale(order))?;
    match args.output.format {
        Format::Table => print_text(&format!("{text}See where traffic goes now:\n  {look}\n"))?,
        format => print_value(&value, format)?,
    }
    Ok(fine)
}

/// Adds and removes pods, and waits until the API is quiet again.
pub async fn serve(world: &mut World, order: &Order) -> Result<Outcome> {
    let app = APPS.into_iter().find(|app| *app == order.app);
    let app =
        app.with_context(|| format!("there is no app {}; there are {}", order.app, APPS.join(" and ")))?;
    let zones = zones(&order.zones)?;
    world.until_quiet().await;
    clear(world).await?;
    let before = by_zone(&world.pods_of(app));
    let plan = plan(app, &world.all_pods(), &zones, order.replicas)?;
    for pod in &plan.added {
        world.add_pod(pod.clone()).await?;
    }
    for pod in &plan.removed {
        world.forget_pod(&pod.name).await?;
    }
    world.until_quiet().await;
    for pod in &plan.removed {
        world.remove_pod(&pod.name).await?;
    }
    world.write_places()?;
    let after = by_zone(&world.pods_of(app));
    Ok(outcome(app, &before, &after, &plan))
}

/// Takes the namespaces of pods away that were deleted by other means, as `kubectl delete pod`.
async fn clear(world: &mut World) -> Result<()> {
    let all = world.all_pods();
    for pod in all.iter().filter(|pod| !world.has_object(&pod.name)).collect::<Vec<_>>() {
        world.remove_pod(&pod.name).await?;
    }
    Ok(())
}

fn zones(named: &[String]) -> Result<Vec<&'static str>> {
    if let Some(unknown) = named.iter().find(|zone| !ZONES.contains(&zone.as_str())) {
        bail!("--zone {unknown}: there is no such zone; there are {}", ZONES.join(", "));
    }
    Ok(ZONES.into_iter().filter(|zone| named.is_empty() || named.iter().any(|named| named == zone)).collect())
}

/// What has to be done.
#[derive(Debug, Default)]
struct Plan {
    added: Vec<Pod>,
    removed: Vec<Pod>,
}

/// Fills the nodes of a zone evenly, and empties the fullest first.
fn plan(app: &'static str, all: &[Pod], zones: &[&'static str], replicas: u8) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut pods = all.to_vec();
    for zone in zones {
        let nodes: Vec<Node> = layout::nodes().into_iter().filter(|node| node.zone == *zone).collect();
        let count =
            |pods: &[Pod], node: &Node| pods.iter().filter(|p| p.app == app && p.node == *node).count();
        let total = |pods: &[Pod]| nodes.iter().map(|node| count(pods, node)).sum::<usize>();
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

/// A pod with the first name and number that are free.
fn new_pod(app: &'static str, node: &Node, pods: &[Pod]) -> Result<Pod> {
    let taken: BTreeSet<u8> = pods.iter().filter(|pod| pod.node == *node).map(|pod| pod.number).collect();
    let number = NUMBERS.into_iter().find(|number| !taken.contains(number));
    let number = number.with_context(|| format!("{} has no address left for a pod", node.name))?;
    let letter = node.name.trim_start_matches("node-");
    let mut names = (0..=usize::from(u8::MAX)).map(|i| format!("{app}-{letter}-{i}"));
    let name = names.find(|name| pods.iter().all(|pod| pod.name != *name));
    let name = name.with_context(|| format!("{} has no name left for a pod", node.name))?;
    Ok(Pod { name, app, version: None, node: node.clone(), number })
}

fn by_zone(pods: &[Pod]) -> BTreeMap<&'static str, usize> {
    ZONES.map(|zone| (zone, pods.iter().filter(|pod| pod.node.zone == zone).count())).into()
}

fn outcome(
    app: &str,
    before: &BTreeMap<&'static str, usize>,
    after: &BTreeMap<&'static str, usize>,
    plan: &Plan,
) -> Outcome {
    let names = |pods: &[Pod]| pods.iter().map(|pod| pod.name.clone()).collect::<Vec<_>>();
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
    Outcome::Done { text, value, fine: true }
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
        let plan = plan("web", &pods, &ZONES, MOST).expect("it can be planned");
        let all: Vec<Pod> = pods.into_iter().chain(plan.added).collect();
        let names: BTreeSet<&str> = all.iter().map(|pod| pod.name.as_str()).collect();
        let places: BTreeSet<(u8, u8)> = all.iter().map(|pod| (pod.node.number, pod.number)).collect();
        assert_eq!((names.len(), places.len()), (all.len(), all.len()));
    }
}
