//! The cases of vectors/ip-allocation.json through the running system. Times are the API's own, so cases whose `now`
//! decides are waited for; an API that takes only consistent objects is led into each state step by step.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster::ObjectKind;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::world::{World, ip_address};

fn vectors(kinds: &[&str]) -> Vec<Value> {
    let text = include_str!("../../../../vectors/ip-allocation.json");
    let file: Value = serde_json::from_str(text).expect("the vectors are JSON");
    let all = file["vectors"].as_array().expect("a list").iter();
    let wanted: Vec<Value> = all.filter(|v| kinds.iter().any(|kind| v["kind"] == *kind)).cloned().collect();
    assert!(!wanted.is_empty());
    wanted
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn strings(value: &Value) -> BTreeSet<String> {
    items(value).filter_map(Value::as_str).map(str::to_owned).collect()
}

/// `metadata.name` and `spec` only: the rest is the API's.
fn bare(object: &Value) -> Value {
    json!({"metadata": {"name": object["metadata"]["name"]}, "spec": object["spec"]})
}

#[tokio::test]
async fn ranges_go_or_stay_as_in_the_vectors() {
    let cases = vectors(&["servicecidr-can-delete", "servicecidr-sync"]);
    join_all(cases.iter().map(delete_range)).await;
}

async fn delete_range(case: &Value) {
    let (id, input, expect) = (case["id"].as_str().expect("an id"), &case["input"], &case["expect"]);
    let world = World::new(id).await;
    let existing = if input["serviceCIDRs"].is_array() {
        &input["serviceCIDRs"]
    } else {
        &input["existingServiceCIDRs"]
    };
    let name = input["sync"].as_str().or(input["delete"]["metadata"]["name"].as_str()).expect("a name");
    for cidr in items(existing) {
        world.create(ObjectKind::ServiceCidr, bare(cidr)).await;
    }
    for ip in strings(&input["ipAddresses"]) {
        world.create(ObjectKind::IpAddress, ip_address(&ip, "default", "young")).await;
    }
    // The default one lies elsewhere, unless the case has one.
    let own: Vec<String> = match items(existing).find(|cidr| cidr["metadata"]["name"] == "kubernetes") {
        Some(cidr) => items(&cidr["spec"]["cidrs"]).filter_map(Value::as_str).map(str::to_owned).collect(),
        None => vec!["10.200.0.0/24".to_owned()],
    };
    let _keeper = world.keep(&own.iter().map(String::as_str).collect::<Vec<_>>());
    let protected =
        world.until(id, ObjectKind::ServiceCidr, name, |cidr| cidr["metadata"]["finalizers"].is_array());
    let uid = protected.await["metadata"]["uid"].clone();
    world.delete(ObjectKind::ServiceCidr, name).await;
    let goes = expect["canDelete"] == true || strings(&expect["patches"]).contains("spec-object (finalizer)");
    if goes && name == "kubernetes" {
        world.until(id, ObjectKind::ServiceCidr, name, |cidr| cidr["metadata"]["uid"] != uid).await;
    } else if goes {
        world.until_gone(id, ObjectKind::ServiceCidr, name).await;
    } else {
        let waits = |cidr: &Value| cidr["status"]["conditions"][0]["reason"] == "Terminating";
        world.until(id, ObjectKind::ServiceCidr, name, waits).await;
    }
}

#[tokio::test]
async fn addresses_are_repaired_as_in_the_vectors() {
    let cases = vectors(&["repair", "repair-ipaddress"]);
    join_all(cases.iter().map(repair)).await;
}

/// Ranges in which every address of the vectors is usable, so that the API takes their Services.
const WIDE: [&str; 3] = ["8.0.0.0/5", "192.168.0.0/15", "2001:db8::/64"];

async fn repair(case: &Value) {
    let (id, input, expect) = (case["id"].as_str().expect("an id"), &case["input"], &case["expect"]);
    let world = World::new(id).await;
    world.create(ObjectKind::Namespace, json!({"metadata": {"name": "bar"}})).await;
    for (i, range) in WIDE.into_iter().chain(["2001:db8:a:b::/64", "fd00:db8::/64"]).enumerate() {
        let wide = json!({"metadata": {"name": format!("wide-{i}")}, "spec": {"cidrs": [range]}});
        world.create(ObjectKind::ServiceCidr, wide).await;
    }
    for service in items(&input["services"]) {
        world.create(ObjectKind::Service, takeable(service)).await;
        // The next Service may want the same address.
        for ip in world.names(ObjectKind::IpAddress).await {
            world.delete(ObjectKind::IpAddress, &ip).await;
        }
    }
    let own =
        json!([{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.0.0.0/16", "fd00:db8::/64"]}}]);
    let cidrs = if input["serviceCIDRs"].is_array() { &input["serviceCIDRs"] } else { &own };
    // Nobody has protected them yet, so they go at once.
    for name in world.names(ObjectKind::ServiceCidr).await {
        world.delete(ObjectKind::ServiceCidr, &name).await;
    }
    for cidr in items(cidrs) {
        world.create(ObjectKind::ServiceCidr, bare(cidr)).await;
    }
    for ip in items(&input["ipAddresses"]).chain(Some(&input["ipAddress"]).filter(|ip| ip.is_object())) {
        let mut object = bare(ip);
        object["metadata"]["labels"] = ip["metadata"]["labels"].clone();
        world.create(ObjectKind::IpAddress, object).await;
    }
    let before = world.names(ObjectKind::IpAddress).await;
    let configured = items(&cidrs[0]["spec"]["cidrs"]).filter_map(Value::as_str);
    let _keeper = world.keep(&configured.collect::<Vec<_>>());
    let reasons: BTreeSet<String> = strings(&expect["eventReasons"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.reasons_become(&reasons.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let after = world.names(ObjectKind::IpAddress).await;
    let missing: Vec<String> = strings(&expect["ipsPresentAfter"]).difference(&after).cloned().collect();
    assert!(missing.is_empty(), "{id}: {missing:?} are not there");
    let calls = strings(&expect["apiCalls"]);
    assert_eq!(calls.contains("create"), after.difference(&before).next().is_some(), "{id}: creates");
    assert_eq!(calls.contains("delete"), before.difference(&after).next().is_some(), "{id}: deletes");
}

/// A Service that the API takes: it wants ports, and a policy for two families.
fn takeable(service: &Value) -> Value {
    let mut service = service.clone();
    service["spec"]["ports"] = json!([{"port": 80}]);
    if service["spec"]["clusterIPs"].as_array().is_some_and(|ips| ips.len() == 2) {
        service["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
    }
    if let Some(metadata) = service["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    service
}

#[tokio::test]
async fn ranges_are_taken_or_refused_as_in_the_vectors() {
    for case in vectors(&["servicecidr-create-validation"]) {
        let world = World::new(case["id"].as_str().expect("an id")).await;
        let made = world.try_create(ObjectKind::ServiceCidr, named("x", &case["input"]["spec"])).await;
        assert_eq!(made.is_ok(), case["expect"]["valid"] == true, "{}: {made:?}", case["id"]);
    }
    for case in vectors(&["servicecidr-update-validation"]) {
        let world = World::new(case["id"].as_str().expect("an id")).await;
        world.create(ObjectKind::ServiceCidr, named("x", &case["input"]["old"])).await;
        let changed = world.merge(ObjectKind::ServiceCidr, "x", &json!({"spec": case["input"]["new"]})).await;
        assert_eq!(changed.is_ok(), case["expect"]["valid"] == true, "{}: {changed:?}", case["id"]);
    }
}

fn named(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn services_get_addresses_in_the_sequences_of_the_vectors() {
    for case in vectors(&["sequence"]) {
        let world = World::new(case["id"].as_str().expect("an id")).await;
        for (i, cidr) in items(&case["input"]["cidrs"]).enumerate() {
            world
                .create(ObjectKind::ServiceCidr, named(&format!("given-{i}"), &json!({"cidrs": [cidr]})))
                .await;
        }
        let mut services = Services::default();
        for (step, expect) in items(&case["input"]["steps"]).zip(items(&case["expect"]["steps"])) {
            let what = format!("{}: {step}", case["id"]);
            match step["op"].as_str().expect("an operation") {
                "addServiceCIDR" => {
                    let name = step["name"].as_str().expect("a name");
                    world
                        .create(ObjectKind::ServiceCidr, named(name, &json!({"cidrs": step["cidrs"]})))
                        .await;
                }
                "deleteServiceCIDR" => {
                    world.delete(ObjectKind::ServiceCidr, step["name"].as_str().expect("a name")).await
                }
                "allocate" => assert!(services.add(&world, &step["ip"]).await, "{what}"),
                "allocateNext" => {
                    assert_eq!(services.add(&world, &Value::Null).await, expect["error"].is_null(), "{what}");
                }
                "fillDynamic" => {
                    assert_eq!(expect["count"], services.fill(&world).await, "{what}");
                }
                "releaseAll" => services.remove_all(&world).await,
                other => panic!("{other} is none that we know"),
            }
        }
    }
}

/// Services that stand for allocations.
#[derive(Default)]
struct Services {
    names: Vec<String>,
    made: usize,
}

impl Services {
    /// False: there is no address for it.
    async fn add(&mut self, world: &World, ip: &Value) -> bool {
        self.made += 1;
        let name = format!("s{}", self.made);
        let mut service =
            json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [{"port": 80}]}});
        if ip.is_string() {
            service["spec"]["clusterIP"] = ip.clone();
        }
        let made = world.try_create(ObjectKind::Service, service).await.is_ok();
        if made {
            self.names.push(name);
        }
        made
    }

    /// Takes all that there is, many at once, and says how many there were.
    async fn fill(&mut self, world: &World) -> usize {
        let before = self.names.len();
        loop {
            let from = self.names.len();
            let mut parts: Vec<Self> =
                (0..32).map(|i| Self { names: Vec::new(), made: self.made + i }).collect();
            self.made += parts.len();
            join_all(parts.iter_mut().map(|part| part.add(world, &Value::Null))).await;
            self.names.extend(parts.into_iter().flat_map(|part| part.names));
            if self.names.len() == from {
                return from - before;
            }
        }
    }

    async fn remove_all(&mut self, world: &World) {
        let names = std::mem::take(&mut self.names);
        join_all(names.iter().map(|name| world.delete(ObjectKind::Service, name))).await;
    }
}
