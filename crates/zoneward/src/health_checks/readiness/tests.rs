//! Thresholds, schedule and what is written.

use std::time::Duration;

use model::annotation::{HEALTH_CHECK, NOT_READY};
use serde_json::{Value, json};

use super::*;

fn check(probe: &str, failures: u32, successes: u32) -> EndpointCheck {
    EndpointCheck {
        probe: probe.parse().expect("a probe"),
        period_seconds: 10,
        timeout_seconds: 1,
        failure_threshold: failures,
        success_threshold: successes,
    }
}

fn failed(why: &str) -> Result<(), String> {
    Err(why.to_owned())
}

#[test]
fn probes_are_read_and_written() {
    for text in ["tcp", "tcp:9000", "http:/healthz", "http:8081/ready?full=1"] {
        assert_eq!(text.parse::<Probe>().expect("a probe").to_string(), text);
    }
    for wrong in
        ["", "udp", "tcp:", "tcp:0", "http:", "http:8080", "http:x/", "http:/a b", "https:/x", "http:/a#b"]
    {
        assert!(wrong.parse::<Probe>().is_err(), "{wrong}");
    }
    for one in [check("tcp:9000", 3, 1), check("http:8081/x", 2, 4)] {
        assert_eq!(EndpointCheck::from_json(&one.to_json()), Ok(one));
    }
    let defaults = EndpointCheck::from_json(r#"{"httpGet":{"path":"/healthz"}}"#);
    assert_eq!(defaults, Ok(check("http:/healthz", 3, 1)), "the defaults of Kubernetes");
    for wrong in [
        "{}",
        "x",
        r#"{"tcpSocket":{},"httpGet":{"path":"/"}}"#,
        r#"{"exec":{"command":["true"]}}"#,
        r#"{"tcpSocket":{},"periodSeconds":0}"#,
        r#"{"httpGet":{"path":"no slash"}}"#,
    ] {
        assert!(EndpointCheck::from_json(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn readiness_turns_after_as_many_outcomes_in_a_row_as_the_thresholds_say() {
    let check = check("tcp", 3, 2);
    let mut health = EndpointHealth::default();
    assert!(!health.ready, "an endpoint that was never checked is not ready");
    health.record(&check, Ok(()));
    health.record(&check, failed("refused"));
    health.record(&check, Ok(()));
    assert!(!health.ready, "not in a row");
    health.record(&check, Ok(()));
    assert_eq!((health.ready, &health.reason), (true, &None));
    for _ in 0..2 {
        health.record(&check, failed("refused"));
        assert!(health.ready);
    }
    health.record(&check, failed("timed out"));
    assert_eq!((health.ready, health.reason.as_deref()), (false, Some("timed out")));
    health.record(&check, Ok(()));
    assert_eq!((health.ready, health.reason.as_deref()), (false, Some("timed out")));
    health.record(&check, Ok(()));
    assert_eq!((health.ready, health.reason.as_deref()), (true, None));
}

#[test]
fn a_reason_is_told_at_the_first_failure_and_replaced_only_by_one_that_lasts() {
    let check = check("tcp", 3, 1);
    let mut health = EndpointHealth::stored(false, Some("not checked yet".to_owned()));
    health.record(&check, failed("refused"));
    assert_eq!(health.reason.as_deref(), Some("refused"));
    for _ in 0..5 {
        health.record(&check, failed("timed out"));
        health.record(&check, failed("status 500"));
        assert_eq!(health.reason.as_deref(), Some("refused"), "alternating reasons are not written");
    }
    for _ in 0..3 {
        health.record(&check, failed("timed out"));
    }
    assert_eq!(health.reason.as_deref(), Some("timed out"));
    health.record(&check, failed(&"x".repeat(1_000)));
    health.record(&check, failed(&"x".repeat(1_000)));
    health.record(&check, failed(&"x".repeat(1_000)));
    assert_eq!(health.reason.map(|reason| reason.len()), Some(MAX_REASON));
}

fn slice(endpoints: &[(&str, bool, Option<&str>)], check: &EndpointCheck) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(address, ready, node)| {
            let mut endpoint = json!({"addresses": [address], "hints": {"forZones": [{"name": "a"}]},
                "conditions": {"ready": ready, "serving": ready, "terminating": false}});
            if let Some(node) = node {
                endpoint["nodeName"] = json!(node);
            }
            endpoint
        })
        .collect();
    json!({"metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {HEALTH_CHECK: check.to_json(), "example.com/other": "stays"}},
        "ports": [{"port": 8080}], "endpoints": endpoints})
}

fn scope(node: &str, without_node: bool) -> CheckScope {
    CheckScope { node: node.to_owned(), without_node }
}

fn parsed(slice: &Value) -> CheckedSlice {
    CheckedSlice::parse(slice).expect("readable").expect("checked")
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_machine_checks_its_own_endpoints_and_the_api_machine_those_without_a_node() {
    let check = check("tcp", 3, 1);
    let endpoints =
        [("10.0.0.1", false, Some("box-1")), ("10.0.0.2", false, Some("box-2")), ("10.0.0.3", false, None)];
    let slice = parsed(&slice(&endpoints, &check));
    let due = |scope: CheckScope| -> Vec<String> {
        let mut schedule = CheckSchedule::new(scope, 100);
        schedule.sync("shop", "web-1", Some(&slice), at(0));
        schedule.due(at(0)).iter().map(|(_, socket, _)| socket.to_string()).collect()
    };
    assert_eq!(due(scope("box-1", true)), ["10.0.0.1:8080", "10.0.0.3:8080"]);
    assert_eq!(due(scope("box-2", false)), ["10.0.0.2:8080"]);
}

#[test]
fn checks_under_way_are_bounded_and_the_longest_overdue_go_first() {
    let check = check("http:9000/x", 3, 1);
    let addresses: Vec<String> = (0..10).map(|last| format!("10.0.0.{last}")).collect();
    let endpoints: Vec<_> = addresses.iter().map(|address| (address.as_str(), false, None)).collect();
    let mut schedule = CheckSchedule::new(scope("x", true), 3);
    schedule.sync("shop", "web-1", Some(&parsed(&slice(&endpoints, &check))), at(0));
    let first = schedule.due(at(0));
    assert_eq!((first.len(), schedule.next_due(), schedule.overdue(at(0))), (3, None, 7));
    assert!(schedule.due(at(0)).is_empty());
    let (target, socket, _) = &first[0];
    assert_eq!(socket.port(), 9000, "the port of the check");
    assert!(schedule.complete(target, *socket, failed("x"), at(1)), "the first reason");
    assert!(schedule.complete(&first[1].0, first[1].1, failed("x"), at(1)));
    let next = schedule.due(at(1));
    assert_eq!(next.len(), 2);
    assert!(next.iter().all(|(target, ..)| first.iter().all(|(done, ..)| done != target)));
}

#[test]
fn an_endpoint_is_checked_once_a_period_and_never_twice_at_once() {
    let check = check("tcp", 3, 1);
    let slice = parsed(&slice(&[("10.0.0.1", false, None)], &check));
    let mut schedule = CheckSchedule::new(scope("x", true), 3);
    schedule.sync("shop", "web-1", Some(&slice), at(0));
    let (target, socket, _) = schedule.due(at(0)).remove(0);
    assert!(schedule.due(at(30)).is_empty(), "it is under way");
    assert!(schedule.complete(&target, socket, Ok(()), at(31)));
    assert_eq!(schedule.next_due(), Some(at(31)), "it took longer than its period");
    assert_eq!(schedule.due(at(31)).len(), 1);
    assert!(!schedule.complete(&target, socket, Ok(()), at(32)), "nothing changed");
    assert_eq!(schedule.next_due(), Some(at(41)));
    // It goes and comes back while it is checked: the old outcome does not count.
    schedule.due(at(41));
    schedule.sync("shop", "web-1", None, at(41));
    schedule.sync("shop", "web-1", Some(&slice), at(41));
    assert!(!schedule.complete(&target, socket, Ok(()), at(42)));
    assert_eq!((schedule.running(), schedule.counts()), (0, (0, 1)));
    assert_eq!(schedule.due(at(42)).len(), 1);
}

#[test]
fn a_restart_keeps_readiness_and_another_check_starts_at_once() {
    let stored = slice(&[("10.0.0.1", true, None)], &check("tcp", 2, 1));
    let mut schedule = CheckSchedule::new(scope("x", true), 3);
    schedule.sync("shop", "web-1", Some(&parsed(&stored)), at(0));
    assert_eq!(schedule.counts(), (1, 0));
    assert_eq!(with_health(&stored, &schedule.health_of("shop", "web-1")), None, "no write");
    assert!(schedule.next_due().is_some_and(|next| next < at(10)));
    let changed = slice(&[("10.0.0.1", true, None)], &check("http:/x", 2, 1));
    schedule.sync("shop", "web-1", Some(&parsed(&changed)), at(0));
    assert_eq!(schedule.next_due(), Some(at(0)));
    assert_eq!(schedule.counts(), (1, 0));
}

#[test]
fn readiness_and_reasons_are_written_and_nothing_else_is_touched() {
    let check = check("tcp", 1, 1);
    let stored = slice(&[("10.0.0.1", true, None), ("10.0.0.2", true, Some("other"))], &check);
    let mut health = EndpointHealth::stored(true, None);
    health.record(&check, failed("refused"));
    let by_address = |health: &EndpointHealth| [("10.0.0.1".parse().expect("an IP"), health.clone())].into();
    let written = with_health(&stored, &by_address(&health)).expect("a change");
    let mut wanted = stored.clone();
    wanted["endpoints"][0]["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    wanted["metadata"]["annotations"][NOT_READY] = json!(r#"{"10.0.0.1":"refused"}"#);
    assert_eq!(written, wanted);
    assert_eq!(with_health(&written, &by_address(&health)), None);
    let status = statuses(std::slice::from_ref(&written)).remove(0);
    assert_eq!((status.ready, status.endpoints, status.check.as_str()), (1, 2, "tcp"));
    assert_eq!(status.not_ready[0].address, "10.0.0.1:8080");
    assert_eq!(status.not_ready[0].reason, "refused");
    health.record(&check, Ok(()));
    assert_eq!(with_health(&written, &by_address(&health)), Some(stored));
}
