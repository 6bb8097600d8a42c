//! Wishes on what an API might have.

use model::Protocol;

use super::*;

fn spec(port: &str, targets: &[&str]) -> ExposeSpec {
    let targets: Vec<ExposeTarget> = targets.iter().map(|t| t.parse().expect("a target")).collect();
    let port = Some(port.parse().expect("a port"));
    ExposeSpec::new("shop", "web", port, Protocol::Tcp, &targets).expect("a spec")
}

fn preferring(mut spec: ExposeSpec, value: &str) -> ExposeSpec {
    spec.traffic_distribution = Some(value.to_owned());
    spec
}

/// What the API has after the writes were written.
fn after(mut existing: ExistingObjects, writes: PlannedWrites) -> ExistingObjects {
    existing.service = writes.service.map(|write| write.object).or(existing.service);
    for write in writes.slices {
        let same = |slice: &Value| slice["metadata"]["name"] == write.object["metadata"]["name"];
        existing.slices.retain(|slice| !same(slice));
        existing.slices.push(write.object);
    }
    for (kind, name) in writes.deletes {
        match kind {
            "Service" => existing.service = None,
            _ => existing.slices.retain(|slice| slice["metadata"]["name"] != json!(name)),
        }
    }
    existing
}

fn names(writes: &PlannedWrites) -> Vec<(&'static str, &str)> {
    writes.slices.iter().map(|write| (write.action.as_str(), write.name())).collect()
}

#[test]
fn endpoints_in_zones_get_hints_by_the_same_function_as_the_controllers() {
    let spec = preferring(spec("80", &["10.0.0.7:8080@a", "10.0.1.7:8080@b"]), "PreferSameZone");
    let writes = put(&spec, &ExistingObjects::default()).expect("a plan");
    assert!(writes.violations.is_empty(), "{:?}", writes.violations);
    assert_eq!(names(&writes), [("create", "web-80-tcp-ipv4-8080")]);
    let slice = &writes.slices[0].object;
    assert!(slice["metadata"]["labels"][annotation::HEADLESS].is_null(), "it will have an address");
    assert_eq!(slice["endpoints"][0]["hints"]["forZones"][0]["name"], "a");
    assert_eq!(slice["endpoints"][1]["hints"]["forZones"][0]["name"], "b");
    assert_eq!(slice["metadata"]["annotations"][annotation::MECHANISM], "PreferSameZone");
    let service = &writes.service.as_ref().expect("a Service").object;
    assert_eq!(service["spec"]["trafficDistribution"], "PreferSameZone");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 8080);
}

#[test]
fn the_same_wish_again_changes_nothing_and_another_list_replaces() {
    let first = preferring(spec("80", &["10.0.0.7:8080@a", "[fd00::7]:8080"]), "PreferSameZone");
    let existing =
        after(ExistingObjects::default(), put(&first, &ExistingObjects::default()).expect("a plan"));
    let again = put(&first, &existing).expect("a plan");
    assert!(!again.changed(), "{again:?}");
    let other = put(&spec("80", &["10.0.0.8:9090@b"]), &existing).expect("a plan");
    assert_eq!(names(&other), [("create", "web-80-tcp-ipv4-9090")]);
    let gone: Vec<&str> = other.deletes.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(gone, ["web-80-tcp-ipv4-8080", "web-80-tcp-ipv6-8080"]);
    assert_eq!(
        other.slices[0].object["endpoints"][0]["hints"]["forZones"][0]["name"], "b",
        "the Service still prefers"
    );
}

#[test]
fn hints_that_the_controller_decided_otherwise_stay_until_the_service_asks_for_another_distribution() {
    let first = preferring(spec("80", &["10.0.0.7:8080@a", "10.0.1.7:8080@b"]), "PreferSameZone");
    let mut existing =
        after(ExistingObjects::default(), put(&first, &ExistingObjects::default()).expect("a plan"));
    let slice = &mut existing.slices[0];
    slice["endpoints"][0]["hints"] = json!({"forZones": [{"name": "c"}]});
    slice["metadata"]["annotations"][annotation::MECHANISM] = json!("Spill");
    slice["metadata"]["annotations"][annotation::MECHANISM_SOURCE] = json!("controller");
    let again = put(&first, &existing).expect("a plan");
    assert!(!again.changed(), "{again:?}");

    let more = ["10.0.0.7:8080@a", "10.0.1.7:8080@b", "10.0.1.8:8080@b"];
    let grown = put(&preferring(spec("80", &more), "PreferSameZone"), &existing).expect("a plan");
    let slice = &grown.slices[0].object;
    assert_eq!(slice["metadata"]["annotations"], existing.slices[0]["metadata"]["annotations"]);
    let zone = |at: usize| &slice["endpoints"][at]["hints"]["forZones"][0]["name"];
    assert_eq!([zone(0), zone(1), zone(2)], ["c", "b", "b"]);

    let none = preferring(spec("80", &["10.0.0.7:8080@a", "10.0.1.7:8080@b"]), "None");
    let none = put(&none, &existing).expect("a plan");
    assert!(none.slices[0].object["endpoints"][0]["hints"].is_null(), "{none:?}");
}

#[test]
fn ports_are_wished_for_one_by_one_and_the_last_takes_the_service_along() {
    let http = spec("80:http", &["10.0.0.7:8080"]);
    let existing =
        after(ExistingObjects::default(), put(&http, &ExistingObjects::default()).expect("a plan"));
    let metrics = spec("9100:metrics", &["10.0.0.7:9100"]);
    let existing =
        after(ExistingObjects { ..existing }, put(&metrics, &ExistingObjects::default()).expect("a plan"));
    let both =
        put(&metrics, &ExistingObjects { service: existing.service.clone(), ..ExistingObjects::default() })
            .expect("a plan");
    assert!(both.violations.is_empty());
    let http_found = put(&http, &existing).expect("a plan");
    let existing = after(existing, http_found);
    let one = remove(&http, &existing).expect("a plan");
    assert_eq!(one.deletes, [("EndpointSlice", "web-80-tcp-ipv4-8080".to_owned())]);
    let existing = after(existing, one);
    let last = remove(&ExposeSpec { port: None, ..metrics }, &existing).expect("a plan");
    assert_eq!(
        last.deletes,
        [("EndpointSlice", "web-9100-tcp-ipv4-9100".to_owned()), ("Service", "web".to_owned())]
    );
}

#[test]
fn a_foreign_service_is_kept_and_one_with_a_selector_is_rejected() {
    let plain = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}], "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
            "ipFamilies": ["IPv4"], "type": "ClusterIP"}});
    let existing = || ExistingObjects { service: Some(plain.clone()), ..ExistingObjects::default() };
    let wish80 = spec("80", &["10.0.0.7:8080"]);
    let put_there = put(&wish80, &existing()).expect("a plan");
    assert_eq!(put_there.service.as_ref().map(|write| write.action), Some(WriteAction::Keep));
    let there = after(existing(), put_there);
    let removed = remove(&wish80, &there).expect("a plan");
    assert!(removed.deletes.iter().all(|(kind, _)| *kind == "EndpointSlice") && removed.service.is_none());
    let v6 = put(&spec("80", &["[fd00::7]:8080"]), &existing()).expect_err("no such family");
    assert!(v6.to_string().contains("PreferDualStack"), "{v6}");
    let mut selecting = plain.clone();
    selecting["spec"]["selector"] = json!({"app": "web"});
    let refused = put(&wish80, &ExistingObjects { service: Some(selecting), ..ExistingObjects::default() })
        .expect_err("refused");
    assert!(refused.to_string().contains("selector"), "{refused}");
}

#[test]
fn our_own_distributions_are_an_annotation_and_unknown_ones_are_refused() {
    let spill = preferring(spec("80", &["10.0.0.7:8080@a"]), "zoneward.dev/Spill");
    let writes = put(&spill, &ExistingObjects::default()).expect("a plan");
    let service = &writes.service.as_ref().expect("a Service").object;
    assert_eq!(service["metadata"]["annotations"][annotation::TRAFFIC_DISTRIBUTION], "Spill");
    assert!(service["spec"]["trafficDistribution"].is_null());
    let existing = after(ExistingObjects::default(), writes);
    let none = put(&preferring(spec("80", &["10.0.0.7:8080@a"]), "None"), &existing).expect("a plan");
    let service = &none.service.as_ref().expect("a Service").object;
    assert!(service["metadata"]["annotations"][annotation::TRAFFIC_DISTRIBUTION].is_null());
    let wrong = preferring(spec("80", &["10.0.0.7:8080@a"]), "Nearby");
    assert!(put(&wrong, &ExistingObjects::default()).expect_err("refused").to_string().contains("Nearby"));
}

#[test]
fn processes_with_other_tags_are_in_other_slices_which_say_so() {
    let spec = spec(
        "80:http",
        &["10.0.0.1:8080,version=v1", "10.0.0.2:8080,version=v1", "10.0.0.3:8080,version=v2"],
    );
    let writes = put(&spec, &ExistingObjects::default()).expect("writes");
    assert_eq!(writes.violations, []);
    let mut versions: Vec<(&Value, usize)> = writes
        .slices
        .iter()
        .map(|c| {
            (&c.object["metadata"]["labels"]["version"], c.object["endpoints"].as_array().unwrap().len())
        })
        .collect();
    versions.sort_by_key(|(version, _)| version.to_string());
    assert_eq!(versions, [(&json!("v1"), 2), (&json!("v2"), 1)]);
    let existing = after(ExistingObjects::default(), writes);
    assert!(!put(&spec, &existing).expect("writes").changed(), "the same again writes nothing");
}

fn checked(spec: ExposeSpec, probe: &str) -> ExposeSpec {
    let check = crate::health_checks::readiness::EndpointCheck {
        probe: probe.parse().expect("a probe"),
        period_seconds: 10,
        timeout_seconds: 1,
        failure_threshold: 3,
        success_threshold: 1,
    };
    ExposeSpec { check: Some(check), ..spec }
}

fn ready(slice: &Value) -> Vec<bool> {
    let endpoints = slice["endpoints"].as_array().expect("endpoints").iter();
    endpoints.map(|endpoint| endpoint["conditions"]["ready"] == true).collect()
}

#[test]
fn checked_endpoints_start_not_ready_and_known_ones_keep_their_readiness() {
    let first = checked(spec("80", &["10.0.0.7:8080"]), "tcp");
    let existing =
        after(ExistingObjects::default(), put(&first, &ExistingObjects::default()).expect("a plan"));
    let slice = &existing.slices[0];
    assert_eq!(ready(slice), [false]);
    let annotations = &slice["metadata"]["annotations"];
    assert_eq!(annotations[annotation::NOT_READY], r#"{"10.0.0.7":"not checked yet"}"#);
    assert!(annotations[annotation::HEALTH_CHECK].as_str().is_some_and(|text| text.contains("tcpSocket")));
    assert!(!put(&first, &existing).expect("a plan").changed());

    // A check says that it is ready; the same flags and further endpoints keep that.
    let mut existing = existing;
    existing.slices[0]["endpoints"][0]["conditions"] =
        json!({"ready": true, "serving": true, "terminating": false});
    existing.slices[0]["metadata"]["annotations"]
        .as_object_mut()
        .expect("annotations")
        .remove(annotation::NOT_READY);
    assert!(!put(&first, &existing).expect("a plan").changed());
    let grown = put(&checked(spec("80", &["10.0.0.7:8080", "10.0.0.8:8080"]), "http:/x"), &existing);
    assert_eq!(ready(&grown.expect("a plan").slices[0].object), [true, false]);

    // Without a check all are ready, and nothing of it is left.
    let without = put(&spec("80", &["10.0.0.7:8080", "10.0.0.8:8080"]), &existing).expect("a plan");
    assert_eq!(ready(&without.slices[0].object), [true, true]);
    assert!(without.slices[0].object["metadata"]["annotations"][annotation::HEALTH_CHECK].is_null());
    // A check on endpoints that are in use does not take their traffic away.
    let existing = after(existing, without);
    let again = put(&checked(spec("80", &["10.0.0.7:8080", "10.0.0.8:8080"]), "tcp"), &existing);
    assert_eq!(ready(&again.expect("a plan").slices[0].object), [true, true]);
}
