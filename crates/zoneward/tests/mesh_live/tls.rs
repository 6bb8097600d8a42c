//! A gateway with certificates out of Secrets.

use std::net::TcpStream;
use std::time::Duration;

use fixtures::{TestCertificate, eventually, tls_client};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use crate::mesh_live::world::{Answer, Machine, Upstream, ask_over};

const AT: &str = "127.0.0.1:8443";

/// A certificate, as a Secret and as a client trusts it.
fn certificate(secret: &str, host: &str) -> (Value, CertificateDer<'static>) {
    let made = TestCertificate::of(host);
    (made.secret(secret), made.der)
}

/// Asks by TLS, trusting one certificate.
fn ask(trusted: &CertificateDer<'static>, host: &str, path: &str, more: &str) -> Option<Answer> {
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let connection = ClientConnection::new(tls_client([trusted], &[]), name).unwrap();
    let stream = TcpStream::connect_timeout(&AT.parse().unwrap(), Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    ask_over(StreamOwned::new(connection, stream), host, path, more)
}

struct World {
    machine: Machine,
    shop_certificate: CertificateDer<'static>,
    api_certificate: CertificateDer<'static>,
    api: Upstream,
}

fn world(name: &str) -> World {
    let (shop, api) = (Upstream::start("shop", "10.1.0.1"), Upstream::start("api", "10.1.0.2"));
    let machine = Machine::up(name, &["--mesh-bind", "127.0.0.1"]);
    let (shop_secret, shop_certificate) = certificate("shop-example-com", "shop.example.com");
    let (api_secret, api_certificate) = certificate("api-example-com", "v1.api.example.com");
    machine.example("gateway-tls");
    machine.expose("shop", std::slice::from_ref(&shop.address));
    machine.expose("api", std::slice::from_ref(&api.address));
    // After the gateway: it waits for them.
    machine.apply(&shop_secret);
    machine.apply(&api_secret);
    World { machine, shop_certificate, api_certificate, api }
}

#[test]
fn two_hosts_have_their_own_certificates() {
    toolbox::in_own_namespaces!();
    let World { shop_certificate, api_certificate, api, machine: _machine } = world("tls");
    let shop = |path: &str| ask(&shop_certificate, "shop.example.com", path, "");
    eventually("the shop", || shop("/hats").is_some_and(|answer| answer.body == "shop"));
    let host = "v1.api.example.com";
    let with = |more: &str| ask(&api_certificate, host, "/orders", more);
    eventually("the api", || with("authorization: Bearer x\r\n").is_some_and(|answer| answer.body == "api"));
    let denied = with("").unwrap();
    assert_eq!((denied.status, denied.body.as_str()), (401, "say who you are\n"));
    let seen = with("authorization: Bearer x\r\nx-internal-user: root\r\n").map(|_| api.seen()).unwrap();
    let last = &seen.last().unwrap().headers;
    assert_eq!(
        (last.get("x-gateway").map(String::as_str), last.get("x-internal-user")),
        (Some("edge"), None)
    );
    assert!(
        ask(&api_certificate, "shop.example.com", "/", "").is_none(),
        "each host has its own certificate"
    );
    assert!(ask(&shop_certificate, "other.example.com", "/", "").is_none(), "no listener is for that name");
}

#[test]
fn new_certificate_is_used_at_once() {
    toolbox::in_own_namespaces!();
    let World { machine, shop_certificate, .. } = world("tls-new");
    let host = "shop.example.com";
    eventually("the shop", || ask(&shop_certificate, host, "/", "").is_some());
    let (secret, renewed) = certificate("shop-example-com", host);
    let data = json!({"stringData": secret["stringData"]});
    let path = "/api/v1/namespaces/default/secrets/shop-example-com";
    machine.call("PATCH", path, "application/merge-patch+json", &data);
    eventually("the new certificate", || ask(&renewed, host, "/", "").is_some());
    // One that cannot be used is told, and what was there before is not: it is no longer wanted.
    let broken = json!({"stringData": {"tls.key": "no key"}});
    machine.call("PATCH", path, "application/merge-patch+json", &broken);
    eventually("the Notice", || machine.up.log().contains("SecretNotUsable"));
    assert!(!machine.up.log().contains("no key"), "what is in a Secret is in no log");
}
