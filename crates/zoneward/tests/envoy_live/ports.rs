//! Ports that a real Envoy cannot bind, and what the status of its Gateway says about them.

use std::net::TcpListener;

use fixtures::eventually;
use serde_json::{Value, json};

use crate::envoy_live::control::{Control, apply, envoy};
use crate::mesh_live::world::{Machine, Upstream, ask};

fn gateway(name: &str, listeners: &Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": name},
        "spec": {"gatewayClassName": "zoneward", "listeners": listeners}})
}

/// Status, reason and message of condition Programmed: of a listener, or of the Gateway without one.
fn programmed(machine: &Machine, gateway: &str, listener: &str) -> (String, String) {
    let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways/{gateway}");
    let status = machine.read(&path)["status"].clone();
    let listeners = status["listeners"].as_array().cloned().unwrap_or_default();
    let own = match listener {
        "" => status,
        name => listeners.into_iter().find(|own| own["name"] == name).unwrap_or_default(),
    };
    let all = own["conditions"].as_array().cloned().unwrap_or_default();
    let found = all.into_iter().find(|own| own["type"] == "Programmed").unwrap_or_default();
    let field = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (format!("{} {}", field("status"), field("reason")), field("message"))
}

#[test]
fn a_port_that_an_envoy_cannot_bind_is_in_the_status_of_its_gateway_alone() {
    toolbox::in_own_namespaces!();
    let one = Upstream::start("one", "10.1.0.1");
    let machine = Machine::up(
        "envoy-ports",
        &["--no-mesh", "--gateway-address", "127.0.7.1", "--gateway-address", "127.0.7.2"],
    );
    machine.expose("backend", std::slice::from_ref(&one.address));
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "HTTP"});
    let kubeconfig = machine.folder.join("data/kubeconfig");
    let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "zoneward"}, "spec": {"controllerName": "zoneward.dev/gateway"}});
    let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "all"},
        "spec": {"parentRefs": [{"name": "edge"}, {"name": "other"}],
            "rules": [{"backendRefs": [{"name": "backend", "port": 80}]}]}});
    let edge =
        gateway("edge", &json!([listener("free", 8080), listener("taken", 8081), listener("moved", 8082)]));
    let other = gateway("other", &json!([listener("free", 8080), listener("taken", 8081)]));
    apply(&machine.folder, &kubeconfig, &[class, edge, other, route]);

    let taken = ["127.0.7.1:8081", "127.0.7.1:9082"].map(|at| TcpListener::bind(at).unwrap());
    let control = Control::start(&machine, &[]);
    // One speaks incremental xDS, one gets everything at once.
    let words = |gateway, bind, id, protocol| {
        envoy(&[
            "--gateway",
            gateway,
            "--bind",
            bind,
            "--id",
            id,
            "--node",
            "n1",
            "--protocol",
            protocol,
            "--listen",
            if gateway == "edge" { "8082=127.0.7.1:9082" } else { "8080=127.0.7.2:8080" },
        ])
    };
    let _edge = words("edge", "127.0.7.1", "edge-1", "delta");
    let _other = words("other", "127.0.7.2", "other-1", "whole");
    let (pending, good) = ("False Pending", "True Programmed");
    for listener in ["taken", "moved", ""] {
        eventually(&format!("edge {listener:?}"), || programmed(&machine, "edge", listener).0 == pending);
    }
    assert_eq!(programmed(&machine, "edge", "free").0, good);
    let message = programmed(&machine, "edge", "taken").1;
    let wanted = "port 8081 cannot be bound: 127.0.7.1:8081 by Envoy edge-1 on node n1: Address already in use: free it, or change the listener";
    assert_eq!(message, wanted);
    let message = programmed(&machine, "edge", "moved").1;
    assert!(message.starts_with("port 8082 cannot be bound: 127.0.7.1:9082 by Envoy edge-1"), "{message}");
    let served = |at: &str| ask(at, "x", "/", "").is_some_and(|answer| answer.status == 200);
    eventually("the free port is served", || served("127.0.7.1:8080"));
    eventually("the other Envoy serves its ports", || served("127.0.7.2:8081"));
    for listener in ["free", "taken", ""] {
        assert_eq!(programmed(&machine, "other", listener).0, good, "the other Gateway's {listener:?}");
    }
    assert_eq!(control.streams(), 2);

    drop(taken);
    for listener in ["taken", "moved", ""] {
        eventually(&format!("edge {listener:?} is bound"), || {
            programmed(&machine, "edge", listener).0 == good
        });
    }
    assert!(served("127.0.7.1:8081") && served("127.0.7.1:9082"));

    // In a response that is rejected as a whole, each listener has its line. Reports of an Envoy that left do not count.
    let second = TcpListener::bind("127.0.7.1:8083").unwrap();
    let third = gateway("third", &json!([listener("taken", 8083)]));
    apply(&machine.folder, &kubeconfig, &[third]);
    let whole =
        envoy(&["--gateway", "third", "--bind", "127.0.7.1", "--id", "third-1", "--protocol", "whole"]);
    eventually("everything at once", || programmed(&machine, "third", "taken").0 == pending);
    let message = programmed(&machine, "third", "taken").1;
    assert!(
        message.starts_with("port 8083 cannot be bound: 127.0.7.1:8083 by Envoy third-1: Address"),
        "{message}"
    );
    drop(whole);
    eventually("its Envoy left", || programmed(&machine, "third", "taken").0 == good);
    drop(second);
}
