//! Random changes to the world, and what it should hold after them.

use std::collections::BTreeMap;

use fixtures::node;
use model::Snapshot;
use plan::hints::Hysteresis;
use plan::planner::Planner;
use plan::slices::TriggerTimes;
use serde_json::{Value, json};

use super::faulty::Dice;
use super::limits;
use crate::controller::world::{World, items, pod, pod_status, service, slices_path};

pub const SERVICES: u64 = 8;

/// What the world should hold, by the changes that were made to it.
#[derive(Default)]
pub struct Model {
    /// Pod name -> (Service number, address, ready).
    pods: BTreeMap<String, (u64, String, bool)>,
    pub made: u64,
}

impl Model {
    pub async fn change(&mut self, world: &World, dice: &mut Dice) {
        let pods = "/api/v1/namespaces/default/pods";
        let chosen = self.pods.keys().nth(dice.below(self.pods.len() as u64) as usize).cloned();
        match (dice.below(10), chosen) {
            (0..4, Some(name)) => {
                let (_, address, ready) = self.pods.get_mut(&name).unwrap();
                *ready = !*ready;
                let status = json!({"status": pod_status(address, *ready)});
                world.merge(&format!("{pods}/{name}/status"), &status).await;
            }
            (4..6, Some(name)) => {
                world.send("DELETE", &format!("{pods}/{name}?gracePeriodSeconds=0"), &Value::Null).await;
                self.pods.remove(&name);
            }
            (6..9, _) | (_, None) => {
                self.made += 1;
                let (of, name) = (dice.below(SERVICES), format!("pod-{}", self.made));
                let address = format!("10.2.{}.{}", self.made / 250, self.made % 250 + 1);
                let at = format!("n{}", dice.below(4));
                world.put(&pod("default", &name, &format!("s{of}"), &at, &address)).await;
                self.pods.insert(name, (of, address, true));
            }
            // Somebody meddles with the slices.
            _ => {
                let slices = world.slices("default").await;
                let Some(slice) = slices.get(dice.below(slices.len() as u64) as usize) else { return };
                let path =
                    format!("{}/{}", slices_path("default"), slice["metadata"]["name"].as_str().unwrap());
                let kind = "application/merge-patch+json";
                let _ = match dice.below(2) {
                    0 => world.try_send("DELETE", &path, "application/json", &Value::Null).await,
                    _ => world.try_send("PATCH", &path, kind, &json!({"endpoints": []})).await,
                };
            }
        }
    }

    /// Each pod's endpoint stands in the slices of its Service once, and nothing else does.
    pub async fn check(&self, world: &World) -> Result<(), String> {
        for number in 0..SERVICES {
            let name = format!("s{number}");
            let slices = world.slices_of("default", &name).await;
            let endpoints = slices.iter().flat_map(|s| items(&s["endpoints"]));
            let mut have: Vec<(String, bool)> = endpoints
                .map(|e| (e["addresses"][0].as_str().unwrap().to_owned(), e["conditions"]["ready"] == true))
                .collect();
            let mut want: Vec<(String, bool)> =
                self.pods.values().filter(|p| p.0 == number).map(|p| (p.1.clone(), p.2)).collect();
            have.sort();
            want.sort();
            if have != want {
                return Err(format!("{name}: {have:?} instead of {want:?}"));
            }
        }
        Ok(())
    }
}

/// Nothing is left to do for a controller that starts anew and sees what is stored.
pub async fn check_plan(world: &World) -> Result<(), String> {
    let mut snapshot = Snapshot::default();
    for (path, api_version, kind) in [
        ("/api/v1/services", "v1", "Service"),
        ("/api/v1/pods", "v1", "Pod"),
        ("/api/v1/nodes", "v1", "Node"),
        ("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
    ] {
        for mut object in items(&world.get(path).await["items"]) {
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            snapshot.apply(fixtures::object(&object));
        }
    }
    let settings = limits().settings;
    let planner = Planner::new(&snapshot, settings.planning);
    for (service, slices) in snapshot.services() {
        let memory = |family| Hysteresis::from_slices(family, slices);
        let (plan, _) = planner.plan(&snapshot, service, slices, &TriggerTimes::default(), memory);
        if !plan.is_noop() {
            return Err(format!("{}: {plan:?}", service.key));
        }
    }
    Ok(())
}

/// Four nodes in three zones, and Services without pods, every other one with a wish.
pub async fn world() -> World {
    let world = World::new().await;
    for i in 0..4 {
        world.put(&node(&format!("n{i}"), &format!("z{}", i % 3))).await;
    }
    for number in 0..SERVICES {
        let mut object = service("default", &format!("s{number}"));
        if number % 2 == 1 {
            object["spec"]["trafficDistribution"] = "PreferSameZone".into();
        }
        world.put(&object).await;
    }
    world
}
