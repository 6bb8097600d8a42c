//! KEP-4444, version skew: annotation, field or both, with a controller and a node of which one is older. The older
//! controller knows the annotation alone; the older node knows hints alone, and so does ours: it reads no more than
//! the slices say.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::world::{World, endpoints, service};

const ANNOTATION: &str = "service.kubernetes.io/topology-mode";

/// A cluster of three zones with a pod in each, and a node for it.
fn cluster(world: &World, has_annotation: bool, has_field: bool) -> Vec<Value> {
    let mut objects = Vec::new();
    for (i, zone) in ["za", "zb", "zc"].iter().enumerate() {
        let (node, name) = (format!("n{}", i + 1), format!("web-{i}"));
        let own = json!([{"type": "InternalIP", "address": format!("192.0.2.{}", i + 1)}]);
        objects.push(fixtures::with(fixtures::node(&node, zone), &json!({"status": {"addresses": own}})));
        objects.push(fixtures::pod("ns", &name, "web", &node, &[&format!("10.1.0.{}", i + 1)]));
    }
    let mut web = service("web", &["10.96.0.7"]);
    web["metadata"]["uid"] = "web".into();
    web["spec"]["selector"] = json!({"app": "web"});
    if has_annotation {
        web["metadata"]["annotations"] = json!({ANNOTATION: "Auto"});
    }
    if has_field {
        web["spec"]["trafficDistribution"] = "PreferClose".into();
    }
    objects.push(web);
    for object in &objects {
        world.put(object.clone());
    }
    objects
}

/// The slices that a controller writes; an older one does not see the field.
fn slices(mut objects: Vec<Value>, is_old: bool) -> Vec<Value> {
    if is_old {
        for object in &mut objects {
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("trafficDistribution");
            }
        }
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "slices", "-f", "-", "-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut made = answer["creates"].as_array().unwrap().clone();
    for (i, slice) in made.iter_mut().enumerate() {
        slice["metadata"]["name"] = format!("web-{i}").into();
        slice["apiVersion"] = "discovery.k8s.io/v1".into();
        slice["kind"] = "EndpointSlice".into();
        if is_old {
            // Only ours writes how it decided.
            if let Some(annotations) = slice["metadata"]["annotations"].as_object_mut() {
                annotations.retain(|key, _| !key.starts_with("zoneward.dev/"));
            }
        }
    }
    made
}

#[test]
fn skew_has_the_six_outcomes() {
    toolbox::in_own_namespaces!();
    let (near, all) = (&["10.1.0.1:8080"][..], &["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"][..]);
    for (is_old_controller, has_annotation, has_field, expected) in [
        // A new controller. Both: the annotation counts, and the hints say so.
        (false, true, true, near),
        // The field alone: hints, which a node that goes by hints obeys.
        (false, false, true, near),
        (false, true, false, near),
        // An old controller. Both: hints by the annotation.
        (true, true, true, near),
        // The field alone: no hints, so every endpoint.
        (true, false, true, all),
        (true, true, false, near),
    ] {
        let about =
            format!("old controller {is_old_controller}, annotation {has_annotation}, field {has_field}");
        let world = World::new("skew");
        world.put_service_cidr("kubernetes", &["10.96.0.0/16"]);
        let objects = cluster(&world, has_annotation, has_field);
        let made = slices(objects, is_old_controller);
        assert!(!made.is_empty(), "{about}");
        for slice in made {
            world.put(slice);
        }
        let _node = world.node("n1", &["--proxy-mode=nftables"]);
        world.until(&format!("{about}: {expected:?}"), || endpoints("10.96.0.7:80") == expected);
    }
}
