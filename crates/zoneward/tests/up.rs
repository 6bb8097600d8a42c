//! `zoneward up` from the outside: it says where its kubeconfig is, answers, keeps what it acknowledged, and stops.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

#[path = "started/up.rs"]
mod started;

use std::fs;
use std::path::Path;
use std::process::Command;

use started::{Up, folder};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn it_answers_stops_cleanly_and_keeps_what_was_written() {
    let data = folder("clean");
    let mut up = Up::start(&data, &[]);
    assert_eq!(Path::new(&up.kubeconfig), data.join("kubeconfig"));
    assert!(fs::read_to_string(&up.kubeconfig).unwrap().contains("https://127.0.0.1:"));
    assert_eq!(up.ask("GET", "/healthz", "").code, 200);
    let services = up.ask("GET", "/api/v1/services", "").body;
    assert!(services.contains("\"10.96.0.1\""), "{services}");
    assert_eq!(up.ask("POST", CONFIG_MAPS, r#"{"metadata":{"name":"kept"}}"#).code, 201);
    assert_eq!(up.signal("-TERM"), Some(0));
    let mut again = Up::start(&data, &[]);
    assert_eq!(again.ask("GET", &format!("{CONFIG_MAPS}/kept"), "").code, 200);
    assert_eq!(again.signal("-INT"), Some(0));
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn what_it_acknowledged_survives_a_kill() {
    let data = folder("killed");
    let mut up = Up::start(&data, &["--load-balancer-range", "192.0.2.0/28"]);
    let service = r#"{"metadata":{"name":"lb"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}"#;
    let made = up.ask("POST", "/api/v1/namespaces/default/services", service).body;
    assert!(made.contains("192.0.2.1"), "{made}");
    assert_eq!(up.signal("-KILL"), None);
    let again = Up::start(&data, &[]);
    let found = again.ask("GET", "/api/v1/namespaces/default/services/lb", "").body;
    assert!(found.contains("192.0.2.1"), "{found}");
    drop(again);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn wrong_use_is_said_at_once() {
    let data = folder("wrong");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["up", "--data-dir"]).arg(&data).args(words).output().unwrap()
    };
    assert_eq!(run(&["--no-node", "--node-config", "x"]).status.code(), Some(2), "no node to configure");
    let two = run(&["--no-node", "--service-cluster-ip-range", "10.0.0.0/16,10.1.0.0/16"]);
    assert_eq!(two.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&two.stderr).contains("one of each family"));
    assert!(!data.exists(), "nothing was made");
}
