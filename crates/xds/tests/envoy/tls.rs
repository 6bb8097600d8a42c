//! TLS at a gateway of a real Envoy: certificates by server name and by SDS, new ones without a failed request, and
//! connections that are carried on unread.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fixtures::{TestCertificate, tls_client};
use model::ObjectKey;
use model::route::AppProtocol;
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use xds::render::{PemKeyPair, RenderInput, render};
use xds::resource::ResourceType;

use crate::harness::{Control, bootstrap, envoy};
use crate::http::{Connection, Echo, Log, Message};
use crate::protocols::{greeted, greeter, tcp_route};
use crate::world::{Places, gateway_input, snapshot, speaking};
use toolbox::ports::free_port;

/// A certificate for a host, as a Secret has it, and as a client trusts it.
fn certificate(host: &str) -> (Arc<PemKeyPair>, CertificateDer<'static>) {
    let TestCertificate { chain, key, der } = TestCertificate::of(host);
    (Arc::new(PemKeyPair { chain: chain.into_bytes().into(), key: key.into_bytes().into() }), der)
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// A connection whose handshake is done; the error says why there is none.
fn connect(
    at: SocketAddr,
    name: &str,
    trusted: &[&CertificateDer<'static>],
    alpn: &[&str],
) -> std::io::Result<Stream> {
    let config = tls_client(trusted.iter().copied(), alpn);
    let mut client = ClientConnection::new(config, ServerName::try_from(name.to_owned()).unwrap()).unwrap();
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    client.complete_io(&mut stream)?;
    Ok(StreamOwned::new(client, stream))
}

fn ask(
    at: SocketAddr,
    name: &str,
    host: &str,
    trusted: &[&CertificateDer<'static>],
) -> std::io::Result<Message> {
    Connection::over(connect(at, name, trusted, &["http/1.1"])?).send("GET", host, "/", &[])
}

fn secret(name: &str) -> ObjectKey {
    ObjectKey::new(&"ns".into(), &name.into())
}

fn listener(name: &str, protocol: &str, host: &str, with_certificate: bool) -> Value {
    let mut listener = json!({"name": name, "port": 8443, "protocol": protocol, "hostname": host, "tags": {"listener": name}});
    if with_certificate {
        listener["tls"] = json!({"certificateRef": {"name": name}});
    }
    listener
}

fn route(host: &str, backend: &str) -> Value {
    json!({"type": "MeshGatewayHTTPRoute", "name": backend, "spec": {
        "targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": [host],
        "rules": [{"matches": [{"path": {"type": "Prefix", "value": "/"}}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": backend}]}}]}})
}

/// A gateway with two hosts, each with its own certificate and backend.
fn two_hosts(at: SocketAddr, places: &Places, pairs: &[(&str, &Arc<PemKeyPair>)]) -> RenderInput {
    let listeners =
        json!([listener("shop", "HTTPS", "shop.test", true), listener("api", "HTTPS", "*.api.test", true)]);
    let routes = [route("shop.test", "one"), route("*.api.test", "two")];
    let world = snapshot("ns", &routes, &[], &listeners);
    let mut input = gateway_input(&world, "ns", &[(8443, at)], places);
    let certificates: BTreeMap<_, _> =
        pairs.iter().map(|(name, pair)| (secret(name), Arc::clone(pair))).collect();
    input.certificates = Arc::new(certificates);
    input
}

/// Requests to the shop without a pause: on a connection that stays, and on a new one each time.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: JoinHandle<Vec<String>>,
}

impl Load {
    fn start(at: SocketAddr, roots: [CertificateDer<'static>; 2]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (stop.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let (host, mut failures) = ("shop.test", Vec::new());
            let kept = connect(at, host, &[&roots[0], &roots[1]], &["http/1.1"]).unwrap();
            let mut kept = Connection::over(kept);
            while !stopped.load(Ordering::SeqCst) {
                let answers =
                    [kept.send("GET", host, "/", &[]), ask(at, host, host, &[&roots[0], &roots[1]])];
                for answer in answers {
                    match answer {
                        Ok(answer) if answer.status() == 200 => {}
                        Ok(answer) => failures.push(answer.first),
                        Err(error) => failures.push(error.to_string()),
                    }
                }
                counted.fetch_add(1, Ordering::SeqCst);
            }
            failures
        });
        Self { stop, done, thread }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

#[test]
fn two_hosts_have_their_own_certificates_and_a_new_one_costs_no_request() {
    let log = Log::default();
    let (one, two, at) = (Echo::start("one", &log), Echo::start("two", &log), free_port());
    let places: Places = [("one", &one), ("two", &two)]
        .map(|(name, echo)| (name.to_owned(), vec![(echo.address, "a", 1.0)]))
        .into();
    let ((shop, shop_root), (api, api_root)) = (certificate("shop.test"), certificate("v1.api.test"));
    let without = render(two_hosts(at, &places, &[("shop", &shop)]), None);
    let told: Vec<&str> = without.notices.iter().map(|notice| notice.reason).collect();
    assert_eq!(told, ["NoCertificate"], "the other host is served meanwhile");
    let control = Control::start(&without.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let backend = |name: &str, root| ask(at, name, name, &[root]).ok().and_then(|answer| answer.backend());
    assert_eq!(backend("shop.test", &shop_root).as_deref(), Some("one"));
    assert_eq!(backend("v1.api.test", &api_root), None, "its Secret is not there yet");

    let both = render(two_hosts(at, &places, &[("shop", &shop), ("api", &api)]), Some(&without));
    control.publish(&both.resources);
    proxy.wait("the second host", || backend("v1.api.test", &api_root).as_deref() == Some("two"));
    assert_eq!(backend("shop.test", &api_root), None, "each host has its own certificate");
    assert_eq!(backend("other.test", &shop_root), None, "no listener is for that name");
    let other = ask(at, "shop.test", "v1.api.test", &[&shop_root]).unwrap();
    assert_eq!((other.status(), other.backend()), (421, None), "a host of another listener");
    let nobodys = ask(at, "shop.test", "nobody.test", &[&shop_root]).unwrap();
    assert_eq!(nobodys.status(), 404, "a host of no listener");
    let stream = connect(at, "shop.test", &[&shop_root], &["h2", "http/1.1"]).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));

    // A new certificate for the shop, while somebody asks without a pause.
    let (renewed, renewed_root) = certificate("shop.test");
    let before = control.sent();
    let load = Load::start(at, [shop_root.clone(), renewed_root.clone()]);
    proxy.wait("some requests", || load.done() >= 10);
    let next = render(two_hosts(at, &places, &[("shop", &renewed), ("api", &api)]), Some(&both));
    control.publish(&next.resources);
    proxy.wait("the new certificate", || backend("shop.test", &renewed_root).is_some());
    assert_eq!(backend("shop.test", &shop_root), None, "the old one is gone");
    let so_far = load.done();
    proxy.wait("some more", || load.done() >= so_far + 10);
    assert_eq!(load.end(), [""; 0]);
    let mut expected = before;
    *expected.get_mut(&ResourceType::Secret).unwrap() += 1;
    assert_eq!(control.sent(), expected, "one Secret, and nothing else");
    assert_eq!(control.streams.notices(), []);
}

/// A server that ends TLS itself and says who it is.
fn tls_server(name: &'static str, pair: &PemKeyPair) -> SocketAddr {
    let chain = CertificateDer::pem_slice_iter(&pair.chain).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&pair.key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || {
                let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                let _ = std::io::Write::write_all(&mut stream, format!("{name}\n").as_bytes());
                let mut said = [0; 6];
                if std::io::Read::read_exact(&mut stream, &mut said).is_ok() {
                    let _ = std::io::Write::write_all(&mut stream, &said);
                }
            });
        }
    });
    address
}

#[test]
fn tls_without_a_certificate_is_carried_on_unread_by_its_server_name_and_with_one_it_ends_here() {
    let ((one, one_root), (two, two_root)) = (certificate("one.test"), certificate("a.two.test"));
    let (ended, ended_root) = certificate("ended.test");
    let at = free_port();
    let routes =
        [tcp_route("one", &[("one", 1)]), tcp_route("two", &[("two", 1)]), tcp_route("ended", &[("raw", 1)])];
    let listeners = json!([
        listener("one", "TLS", "one.test", false),
        listener("two", "TLS", "*.two.test", false),
        listener("ended", "TLS", "ended.test", true)
    ]);
    let world = snapshot("ns", &routes, &[], &listeners);
    let servers =
        [("one", tls_server("one", &one)), ("two", tls_server("two", &two)), ("raw", greeter("raw"))];
    let places: Places = servers.map(|(name, at)| (name.to_owned(), vec![(at, "a", 1.0)])).into();
    let mut input = speaking(gateway_input(&world, "ns", &[(8443, at)], &places), AppProtocol::Tcp);
    input.certificates = Arc::new([(secret("ended"), ended)].into());
    let rendered = render(input, None);
    assert_eq!(rendered.notices, []);
    let control = Control::start(&rendered.resources);
    let proxy = envoy(&bootstrap(control.address));
    proxy.wait_for(at);
    let who = |name: &str, root| connect(at, name, &[root], &[]).ok().and_then(greeted);
    assert_eq!(who("one.test", &one_root).as_deref(), Some("one"));
    assert_eq!(who("a.two.test", &two_root).as_deref(), Some("two"));
    assert_eq!(who("ended.test", &ended_root).as_deref(), Some("raw"));
    assert_eq!(who("one.test", &two_root), None, "the certificate is that of the server behind");
    assert_eq!(who("three.test", &one_root), None, "no listener is for that name");
    assert_eq!(control.streams.notices(), []);
}
