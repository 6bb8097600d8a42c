//! UDPRoutes, which only the embedded proxy serves.

use serde_json::json;

use super::client::PATIENCE;
use super::features::{NAMESPACE, Running, gateway, object, route, to, workload};

#[tokio::test]
async fn datagrams_of_a_client_follow_the_route() {
    let listeners = json!([{"name": "udp", "port": 53, "protocol": "UDP", "allowedRoutes": {"kinds": [{"kind": "UDPRoute"}]}}]);
    let udp = |name: &str| {
        object(
            "Service",
            name,
            json!({"selector": {"app": name}, "ports": [
            {"name": "tcp", "port": 8080, "targetPort": 3000}, {"name": "udp", "port": 8080, "protocol": "UDP", "targetPort": 3000}]}),
        )
    };
    let of = |name: &str| route("UDPRoute", "r", json!({"rules": [{"backendRefs": [to(name)]}]}));
    let objects = vec![gateway(listeners), udp("one"), udp("two"), of("one")];
    let mut running = Running::plain(objects, vec![workload("one", "udp"), workload("two", "udp")]).await;
    let sent = |name: &str| json!({"gateway": format!("{NAMESPACE}/edge"), "port": 53, "scheme": "udp", "expect": {"backend": name}});
    running.expect(sent("one")).await;
    // A client that keeps its socket is moved, too.
    let (at, _) = running.proxies.address(&running.world, &sent("one")).await;
    let client = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("loopback has ports");
    let mut buffer = [0; 64];
    for name in ["one", "two"] {
        running.world.step(&json!({"replace": of(name)}));
        running.proxies.update(&running.world);
        client.send_to(b"question", at).await.expect("sent");
        let received = tokio::time::timeout(PATIENCE, client.recv(&mut buffer));
        let count = received.await.expect("an answer").expect("an answer");
        assert_eq!(&buffer[..count], name.as_bytes());
    }
}
