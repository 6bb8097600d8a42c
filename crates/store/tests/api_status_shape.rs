//! What refusals look like to a program: code, reason, details, and the reason and field of every cause, as
//! kube-apiserver 1.37 was seen to give them for the same requests.

use crate::world;
use serde_json::{Value, json};
use world::{CONFIG_MAPS, SERVICES, World, service};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// The causes of a refusal as `Required spec.ports, ...`, in the order of the alphabet.
fn causes(status: &Value) -> String {
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    let one = |cause: &Value| {
        let reason = text(cause, "reason");
        format!("{} {}", reason.strip_prefix("FieldValue").unwrap_or(&reason), text(cause, "field"))
    };
    let found = status["details"]["causes"].as_array().into_iter().flatten();
    let mut found: Vec<String> = found.map(one).collect();
    found.sort();
    found.join(", ")
}

/// The causes of an object that is read and refused.
async fn refused(world: &World, path: &str, object: &Value) -> String {
    let (code, status) = world.json("POST", path, object).await;
    assert_eq!((code, status["reason"].as_str()), (422, Some("Invalid")), "{object}: {status:#}");
    assert_eq!(status["details"]["name"], object["metadata"]["name"], "{object}");
    causes(&status)
}

#[tokio::test]
async fn every_fault_of_a_service_has_its_kind() {
    let world = World::new().await;
    let two = |a: Value, b: Value| json!({"ports": [a, b]});
    for (spec, wanted) in [
        (json!({"ports": []}), "Required spec.ports"),
        (json!({"ports": [{"port": 0}]}), "Invalid spec.ports[0].port, Invalid spec.ports[0].targetPort"),
        (
            json!({"ports": [{"port": 70_000}]}),
            "Invalid spec.ports[0].port, Invalid spec.ports[0].targetPort",
        ),
        (
            two(json!({"port": 80}), json!({"port": 81})),
            "Required spec.ports[0].name, Required spec.ports[1].name",
        ),
        (two(json!({"port": 80, "name": "x"}), json!({"port": 80, "name": "y"})), "Duplicate spec.ports[1]"),
        (
            two(json!({"port": 80, "name": "x"}), json!({"port": 81, "name": "x"})),
            "Duplicate spec.ports[1].name",
        ),
        (json!({"ports": [{"port": 80, "protocol": "ICMP"}]}), "NotSupported spec.ports[0].protocol"),
        (json!({"ports": [{"port": 80, "nodePort": 30_001}]}), "Forbidden spec.ports[0].nodePort"),
        (json!({"type": "Weird"}), "NotSupported spec.type"),
        (json!({"sessionAffinity": "Foo"}), "NotSupported spec.sessionAffinity"),
        (json!({"internalTrafficPolicy": "Foo"}), "NotSupported spec.internalTrafficPolicy"),
        (json!({"externalTrafficPolicy": "Local"}), "Invalid spec.externalTrafficPolicy"),
        (json!({"trafficDistribution": "Nope"}), "NotSupported spec.trafficDistribution"),
        (json!({"type": "ExternalName", "ports": []}), "Required spec.externalName"),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.77"}),
            "Forbidden spec.clusterIPs",
        ),
        (json!({"clusterIP": "1.2.3"}), "Invalid spec.clusterIPs[0]"),
        (json!({"clusterIP": "8.8.8.8"}), "Invalid spec.clusterIPs"),
        (json!({"clusterIPs": ["10.96.0.77"]}), "Invalid spec.clusterIPs"),
        (json!({"type": "NodePort", "clusterIP": "None"}), "Invalid spec.clusterIPs[0]"),
        (json!({"ipFamilies": ["IPv7"]}), "NotSupported spec.ipFamilies[0]"),
        (
            json!({"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"}),
            "Duplicate spec.ipFamilies[1]",
        ),
        (json!({"ipFamilyPolicy": "Foo"}), "NotSupported spec.ipFamilyPolicy"),
        (json!({"selector": {"a b": "c"}}), "Invalid spec.selector"),
        (json!({"loadBalancerClass": "a/b"}), "Forbidden spec.loadBalancerClass"),
        (json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}), "Forbidden spec.loadBalancerSourceRanges"),
    ] {
        assert_eq!(refused(&world, SERVICES, &service("b", spec.clone())).await, wanted, "{spec}");
    }
    let (code, digit) = world.json("POST", SERVICES, &service("1a", json!({}))).await;
    assert_eq!(code, 201, "names of Services may begin with a digit: {digit:#}");
}

#[tokio::test]
async fn every_fault_of_a_slice_has_its_kind() {
    let world = World::new().await;
    let zones = |names: &[&str]| {
        let hints: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"endpoints": [{"addresses": ["10.1.1.1"], "hints": {"forZones": hints}}]})
    };
    for (content, wanted) in [
        (json!({"addressType": "Foo"}), "NotSupported addressType"),
        (json!({"addressType": ""}), "Required addressType"),
        (json!({"endpoints": [{"addresses": []}]}), "Required endpoints[0].addresses"),
        (json!({"endpoints": [{"addresses": ["127.0.0.1"]}]}), "Invalid endpoints[0].addresses[0]"),
        (zones(&["a", "a"]), "Duplicate endpoints[0].hints.forZones[1].name"),
        (zones(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]), "TooMany endpoints[0].hints.forZones"),
        (json!({"ports": [{"port": 1}, {"port": 2}]}), "Duplicate ports[1].name"),
        (json!({"ports": [{"name": "a", "port": 1, "protocol": "X"}]}), "NotSupported ports[0].protocol"),
    ] {
        let mut slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
        for (name, value) in content.as_object().unwrap() {
            slice[name] = value.clone();
        }
        assert_eq!(refused(&world, SLICES, &slice).await, wanted, "{content}");
    }
}

#[tokio::test]
async fn metadata_is_called_by_the_name_of_its_map() {
    let world = World::new().await;
    for (metadata, wanted) in [
        (json!({"name": "c", "labels": {"a": "b c"}}), "Invalid metadata.labels"),
        (json!({"name": "c", "labels": {"a b": "c"}}), "Invalid metadata.labels"),
        (json!({"name": "c", "annotations": {"a b": "c"}}), "Invalid metadata.annotations"),
        (json!({"name": "c", "annotations": {"a": "x".repeat(300_000)}}), "TooLong metadata.annotations"),
        (
            json!({"name": "c", "ownerReferences": [{"apiVersion": "v1", "kind": "", "name": "x", "uid": ""}]}),
            "Required metadata.ownerReferences[0].kind, Required metadata.ownerReferences[0].uid",
        ),
    ] {
        let object = json!({"metadata": metadata});
        assert_eq!(refused(&world, CONFIG_MAPS, &object).await, wanted, "{metadata}");
    }
    let (code, status) = world.json("POST", CONFIG_MAPS, &json!({"metadata": {}})).await;
    assert_eq!((code, causes(&status).as_str()), (422, "Required metadata.name"), "{status:#}");
    let message = status["details"]["causes"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("Required value: "), "{message}");
}

#[tokio::test]
async fn leases_config_maps_and_secrets_are_held_to_their_rules() {
    let world = World::new().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let secrets = "/api/v1/namespaces/default/secrets";
    for (path, content, wanted) in [
        (leases, json!({"spec": {"leaseDurationSeconds": 0}}), "Invalid spec.leaseDurationSeconds"),
        (leases, json!({"spec": {"leaseTransitions": -1}}), "Invalid spec.leaseTransitions"),
        (CONFIG_MAPS, json!({"data": {"a b": "x"}}), "Invalid data[a b]"),
        (CONFIG_MAPS, json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}}), "Invalid data[a]"),
        (secrets, json!({"data": {"a b": "eA=="}}), "Invalid data[a b]"),
        (secrets, json!({"stringData": {"a b": "x"}}), "Invalid data[a b]"),
        (secrets, json!({"type": "kubernetes.io/tls"}), "Required data[tls.crt], Required data[tls.key]"),
    ] {
        let mut object = content.clone();
        object["metadata"] = json!({"name": "c"});
        assert_eq!(refused(&world, path, &object).await, wanted, "{content}");
    }
    for (path, list) in [(secrets, "data"), (CONFIG_MAPS, "binaryData")] {
        for bytes in ["%%", "eA"] {
            let (code, status) =
                world.json("POST", path, &json!({"metadata": {"name": "c"}, list: {"a": bytes}})).await;
            assert_eq!((code, status["reason"].as_str()), (400, Some("BadRequest")), "{bytes}: {status:#}");
        }
    }
}

#[tokio::test]
async fn bytes_may_be_written_over_several_lines() {
    let world = World::new().await;
    let secret = json!({"metadata": {"name": "c"}, "data": {"a": "aGVs\nbG8=\n"}});
    let (code, made) = world.json("POST", "/api/v1/namespaces/default/secrets", &secret).await;
    assert_eq!(code, 201, "{made:#}");
}

#[tokio::test]
async fn a_pod_has_containers_and_keeps_what_it_is() {
    let world = World::new().await;
    let pod = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
    let one = json!({"name": "c", "image": "i"});
    for (spec, wanted) in [
        (json!({"containers": []}), "Required spec.containers"),
        (json!({"containers": [{"image": "i"}]}), "Required spec.containers[0].name"),
        (json!({"containers": [{"name": "c"}]}), "Required spec.containers[0].image"),
        (json!({"containers": [one, one]}), "Duplicate spec.containers[1].name"),
        (json!({"containers": [one], "dnsPolicy": "Foo"}), "NotSupported spec.dnsPolicy"),
    ] {
        assert_eq!(refused(&world, PODS, &pod(spec.clone())).await, wanted, "{spec}");
    }
    let (code, made) = world.json("POST", PODS, &pod(json!({"containers": [one]}))).await;
    assert_eq!(code, 201, "{made:#}");
    let path = format!("{PODS}/p");
    for (patch, wanted) in [
        (json!({"spec": {"nodeName": "n"}}), "Forbidden spec"),
        (json!({"spec": {"hostname": "h"}}), "Forbidden spec"),
        (json!({"spec": {"terminationGracePeriodSeconds": 5}}), "Forbidden spec"),
        (json!({"spec": {"activeDeadlineSeconds": 0}}), "Invalid spec.activeDeadlineSeconds"),
        (json!({"spec": {"containers": []}}), "Forbidden spec.containers, Required spec.containers"),
        (json!({"spec": {"containers": [one, {"name": "d", "image": "i"}]}}), "Forbidden spec.containers"),
    ] {
        let (code, status) = world.patch(&path, "merge-patch", &patch).await;
        assert_eq!((code, causes(&status).as_str()), (422, wanted), "{patch}: {status:#}");
    }
    let image = json!({"spec": {"containers": [{"name": "c", "image": "j"}], "activeDeadlineSeconds": 5}});
    let (code, changed) = world.patch(&path, "strategic-merge-patch", &image).await;
    assert_eq!((code, &changed["spec"]["containers"][0]["image"]), (200, &json!("j")), "{changed:#}");
}

#[tokio::test]
async fn options_that_are_wrong_are_invalid_objects_of_their_own() {
    let world = World::new().await;
    world.service("web", json!({})).await;
    let (web, body) = (format!("{SERVICES}/web"), service("web", json!({})));
    for (method, path, body, options, wanted) in [
        (
            "POST",
            format!("{SERVICES}?fieldValidation=Bad"),
            &body,
            "CreateOptions",
            "NotSupported fieldValidation",
        ),
        ("POST", format!("{SERVICES}?dryRun=Foo"), &body, "CreateOptions", "NotSupported dryRun"),
        ("PUT", format!("{web}?fieldValidation=Bad"), &body, "UpdateOptions", "NotSupported fieldValidation"),
        (
            "DELETE",
            format!("{web}?propagationPolicy=Foo"),
            &Value::Null,
            "DeleteOptions",
            "NotSupported propagationPolicy",
        ),
        (
            "DELETE",
            web.clone(),
            &json!({"propagationPolicy": "Foo"}),
            "DeleteOptions",
            "NotSupported propagationPolicy",
        ),
        ("DELETE", web.clone(), &json!({"dryRun": ["All", "Foo"]}), "DeleteOptions", "NotSupported dryRun"),
        (
            "DELETE",
            web.clone(),
            &json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            "DeleteOptions",
            "Invalid propagationPolicy",
        ),
        (
            "GET",
            format!("{SERVICES}?resourceVersionMatch=Exact"),
            &Value::Null,
            "ListOptions",
            "Forbidden resourceVersionMatch",
        ),
        (
            "GET",
            format!("{SERVICES}?resourceVersion=5&resourceVersionMatch=Foo"),
            &Value::Null,
            "ListOptions",
            "NotSupported resourceVersionMatch",
        ),
    ] {
        let (code, status) = world.json(method, &path, body).await;
        assert_eq!((code, causes(&status).as_str()), (422, wanted), "{method} {path}: {status:#}");
        let details = &status["details"];
        assert_eq!((&details["kind"], &details["group"]), (&json!(options), &json!("meta.k8s.io")), "{path}");
        assert_eq!(details.get("name"), None, "{path}");
    }
    let (code, forced) = world.patch(&format!("{web}?force=true"), "merge-patch", &json!({})).await;
    assert_eq!((code, causes(&forced).as_str()), (422, "Forbidden force"), "{forced:#}");
    let (code, all) = world.get(&format!("{SERVICES}?limit=-1")).await;
    assert_eq!((code, all["items"].as_array().map(Vec::len)), (200, Some(2)), "as if there were no limit");
}

#[tokio::test]
async fn what_cannot_be_deleted_is_named() {
    let world = World::new().await;
    world.service("web", json!({})).await;
    let wrong = json!({"preconditions": {"uid": "nope"}});
    let (code, status) = world.delete(&format!("{SERVICES}/web"), &wrong).await;
    assert_eq!((code, &status["details"]), (409, &json!({"name": "web", "kind": "Service"})));
    let (code, status) = world.delete("/api/v1/namespaces/default", &Value::Null).await;
    assert_eq!((code, &status["details"]), (403, &json!({"name": "default", "kind": "namespaces"})));
}
