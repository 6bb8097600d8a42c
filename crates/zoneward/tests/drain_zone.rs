//! `zoneward drain-zone` against a real API and its controllers: checked, refused, moved, rehearsed, ended.

use crate::shop;
use crate::started;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use fixtures::eventually;
use serde_json::{Value, json};
use shop::{cluster, lease, patch, report_traffic};
use started::Up;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
const DRAINS: &str = "/apis/zoneward.dev/v1alpha1/zonedrains";

fn command(up: &Up, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.args(words).args(["--kubeconfig", &up.kubeconfig]).env("NO_COLOR", "1");
    command
}

fn zoneward(up: &Up, words: &[&str]) -> Output {
    command(up, words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The drain of the slices of shop/cart.
fn drain_annotation(up: &Up) -> Option<String> {
    let slices = up.ask("GET", SLICES, "").json();
    let annotations = &slices["items"][0]["metadata"]["annotations"];
    annotations["zoneward.dev/drain"].as_str().map(str::to_owned)
}

/// At once: there is no kubelet that would end it.
fn delete_pod(up: &Up, node: &str) {
    let path = format!("/api/v1/namespaces/shop/pods/cart-{node}?gracePeriodSeconds=0");
    assert_eq!(up.ask("DELETE", &path, "").code, 200);
}

fn drains(up: &Up) -> Vec<Value> {
    up.ask("GET", DRAINS, "").json()["items"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_zone_is_drained_in_steps_and_returns_with_undrain() {
    let up = cluster("drain-moves");
    eventually("slices", || up.ask("GET", SLICES, "").body.contains("10.244.0.10"));
    let check = zoneward(&up, &["drain-zone", "zone-a", "--dry-run"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check));
    for expected in ["shop/cart", "MovesUnproved", "would be accepted", "--dry-run"] {
        assert!(text(&check).contains(expected), "{expected}:\n{}", text(&check));
    }
    assert!(drains(&up).is_empty() && drain_annotation(&up).is_none());
    let drained = zoneward(&up, &["drain-zone", "zone-a", "--over", "1s", "--expires-in", "10m"]);
    assert!(drained.status.success(), "{}", text(&drained));
    assert!(
        text(&drained).contains("100 % moved") && text(&drained).contains("is drained until"),
        "{}",
        text(&drained)
    );
    eventually("the slices", || drain_annotation(&up).is_some_and(|text| text.starts_with("zone-a=100%@")));
    let why = zoneward(&up, &["trace", "select", "cart", "-n", "shop", "--node", "zone-a-0"]);
    assert!(
        text(&why).contains("100 % of the traffic avoids the endpoints of a zone that is drained"),
        "{}",
        text(&why)
    );
    assert!(!text(&why).contains("10.244.0.10:") && text(&why).contains("10.244.1.10:"), "{}", text(&why));
    let again = zoneward(&up, &["drain-zone", "zone-a"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again).contains("`zoneward undrain-zone zone-a` ends it"), "{}", text(&again));
    let ended = zoneward(&up, &["undrain-zone", "zone-a"]);
    assert!(ended.status.success(), "{}", text(&ended));
    eventually("the slices without it", || drain_annotation(&up).is_none());
    let nothing = zoneward(&up, &["undrain-zone", "zone-a"]);
    assert!(text(&nothing).contains("no ZoneDrain is of zone \"zone-a\""), "{}", text(&nothing));
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn a_drain_is_refused_where_no_other_zone_can_take_it() {
    let up = cluster("drain-refused");
    for pod in ["zone-b-0", "zone-b-1", "zone-c-0", "zone-c-1"] {
        delete_pod(&up, pod);
    }
    eventually("slices of one zone", || {
        let body = up.ask("GET", SLICES, "").body;
        body.contains("10.244.0.10") && !body.contains("10.244.1.10")
    });
    let refused = zoneward(&up, &["drain-zone", "zone-a", "--over", "5s"]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("shop/cart: no endpoint is ready in another zone"), "{}", text(&refused));
    assert!(drains(&up).is_empty() && drain_annotation(&up).is_none());
    let unknown = zoneward(&up, &["drain-zone", "zone-x"]);
    assert!(text(&unknown).contains("the zones are: zone-a, zone-b, zone-c"), "{}", text(&unknown));
    let never = zoneward(&up, &["drain-zone", "zone-a", "--expires-in", "1m"]);
    assert!(text(&never).contains("--expires-in must be longer than --over"), "{}", text(&never));
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn progress_is_what_nodes_have_counted() {
    let up = cluster("drain-progress");
    shop::nodes().for_each(|(node, _)| lease(&up, &node, "1", ""));
    let annotations = json!({"zoneward.dev/traffic-distribution": "Spill"});
    patch(&up, "/api/v1/namespaces/shop/services/cart", &json!({"metadata": {"annotations": annotations}}));
    eventually("Spill", || up.ask("GET", SLICES, "").body.contains("zoneward.dev/demand"));
    for sequence in 1..=2 {
        report_traffic(&up, sequence, [100, 100, 100]);
        std::thread::sleep(Duration::from_secs(1));
    }
    let drained = zoneward(&up, &["drain-zone", "zone-a", "--no-wait", "-o", "json"]);
    assert!(drained.status.success(), "{}", text(&drained));
    let status: Value = serde_json::from_slice(&drained.stdout).unwrap();
    let service = &status["services"][0];
    assert_eq!(
        (&service["name"], &service["verdict"]),
        (&json!("cart"), &json!("MovesUnproved")),
        "{status}"
    );
    assert!(
        service["percentInZone"].as_i64().is_some_and(|percent| (30..=36).contains(&percent)),
        "{status}"
    );
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn a_rehearsal_moves_a_small_share_and_reports_what_a_drain_would_break() {
    let up = cluster("drain-rehearsed");
    eventually("slices", || up.ask("GET", SLICES, "").body.contains("10.244.0.10"));
    let rehearse = ["drain-zone", "zone-a", "--rehearse", "--over", "1s"];
    let child = command(&up, &rehearse).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("a small share", || drain_annotation(&up).is_some_and(|text| text.starts_with("zone-a=10%@")));
    let rehearsed = child.wait_with_output().unwrap();
    assert!(rehearsed.status.success(), "{}", text(&rehearsed));
    for expected in [" 10 % moved", "shop/cart", "MovesUnproved", "A drain of zone zone-a would be accepted."]
    {
        assert!(text(&rehearsed).contains(expected), "{expected}:\n{}", text(&rehearsed));
    }
    eventually("the slices without it", || drains(&up).is_empty() && drain_annotation(&up).is_none());

    // Without endpoints elsewhere not even a small share can move.
    for pod in ["zone-b-0", "zone-b-1", "zone-c-0", "zone-c-1"] {
        delete_pod(&up, pod);
    }
    eventually("slices of one zone", || !up.ask("GET", SLICES, "").body.contains("10.244.1.10"));
    let refused = zoneward(&up, &rehearse);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
    assert!(text(&refused).contains("Nothing was moved away from zone zone-a."), "{}", text(&refused));
    std::fs::remove_dir_all(&up.data).unwrap();
}

#[test]
fn an_interrupted_drain_is_ended() {
    let up = cluster("drain-aborted");
    eventually("slices", || up.ask("GET", SLICES, "").body.contains("10.244.0.10"));
    let mut drain = command(&up, &["drain-zone", "zone-a", "--over", "10m"]);
    let drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the first step", || drain_annotation(&up).is_some());
    assert!(Command::new("kill").args(["-INT", &drain.id().to_string()]).status().unwrap().success());
    let aborted = drain.wait_with_output().unwrap();
    assert!(text(&aborted).contains("aborted: the drain of zone zone-a was deleted"), "{}", text(&aborted));
    eventually("the slices without it", || drains(&up).is_empty() && drain_annotation(&up).is_none());
    std::fs::remove_dir_all(&up.data).unwrap();
}
