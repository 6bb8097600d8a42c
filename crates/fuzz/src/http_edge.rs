//! The HTTP edge of the embedded proxy: bytes of a client against a gateway, with an endpoint behind it that reads HTTP
//! by itself and strictly. What the endpoint gets must have one meaning, and nothing that a rule keeps from it.
//!
//! ```text
//! input -> TCP -> proxy (rules: /admin answers 403, the rest is forwarded) -> TCP -> strict endpoint
//! ```

mod strict_endpoint;

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::backend::{Backend, BackendEndpoint, BackendTable, ConsumerLocation};
use model::route::{AppProtocol, RouteTable};
use model::{Interner, Locality, ObjectKey, Snapshot, parse};
use proxy::{ListenerKind, Proxy, ProxyOptions, ProxyTables};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Silence after which the client closes its side.
const SILENCE: Duration = Duration::from_millis(4);
/// The proxy closes a connection whose client closed, at the latest after this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Sent after the input: the answer to it ends a connection that is still in order.
const LAST: &[u8] = b"GET /last HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";

struct World {
    runtime: Runtime,
    gateway: SocketAddr,
    /// What the endpoint objects to.
    violations: Arc<Mutex<Vec<String>>>,
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

pub(crate) fn run(input: &[u8]) {
    WORLD.with(|world| {
        let world = world.get_or_init(World::start);
        let answer = world.runtime.block_on(exchange(world.gateway, input));
        check_answer(&answer);
        let violations = std::mem::take(&mut *world.violations.lock().expect("no holder panics"));
        assert!(violations.is_empty(), "{}", violations.join("\n"));
    });
}

/// All that the proxy answers to the input.
async fn exchange(gateway: SocketAddr, input: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(gateway).await.expect("the gateway accepts");
    // A refused request may end the connection while more is written.
    let _ = stream.write_all(&[input, LAST].concat()).await;
    let mut answer = Vec::new();
    while let Ok(read) = timeout(SILENCE, stream.read_buf(&mut answer)).await {
        if !matches!(read, Ok(1..)) {
            return answer;
        }
    }
    let _ = stream.shutdown().await;
    let rest = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    assert!(rest.is_ok(), "the connection stays open after the client closed it");
    answer
}

/// The start of an answer is a status line, or HTTP/2.
fn check_answer(answer: &[u8]) {
    let is_http1 = answer.starts_with(b"HTTP/1.1 ") || answer.starts_with(b"HTTP/1.0 ");
    // An HTTP/2 frame: three bytes of length, the type.
    let is_http2 = answer.get(3).is_some_and(|kind| *kind <= 9) && answer[0] == 0;
    let shown = String::from_utf8_lossy(&answer[..answer.len().min(100)]);
    assert!(answer.is_empty() || is_http1 || is_http2, "no HTTP: {shown}");
}

impl World {
    fn start() -> World {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let violations = Arc::default();
        let gateway = runtime.block_on(start(&violations));
        World { runtime, gateway, violations }
    }
}

async fn start(violations: &Arc<Mutex<Vec<String>>>) -> SocketAddr {
    let endpoint = strict_endpoint::start(violations.clone()).await;
    let routes = routes();
    let mut backends = BackendTable::new(ConsumerLocation { node: "here".into(), zone: None });
    for id in routes.backends() {
        let endpoint = BackendEndpoint {
            address: endpoint,
            priority: 0,
            weight: 1.0,
            zone: None,
            locality: Locality::SameZone,
        };
        let protocol = AppProtocol::of(Some("http"), "");
        backends.put(Arc::new(Backend {
            id,
            protocol,
            endpoints: vec![endpoint].into(),
            mode: "all",
            is_warmed: false,
            proxy_protocol: None,
        }));
    }
    let tables =
        ProxyTables { routes: Arc::new(routes), backends: Arc::new(backends), ..ProxyTables::default() };
    let proxy = Proxy::new(ProxyOptions::default(), tables);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        proxy.serve(listener, ListenerKind::Gateway { port: 80 }, std::future::pending()).await
    });
    address
}

fn routes() -> RouteTable {
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for value in objects() {
        let (object, notices) = parse::object(&value, &mut interner);
        assert_eq!(notices, [], "{value}");
        snapshot.apply(object.expect("a known kind"));
    }
    let edge = ObjectKey::new(&"default".into(), &"edge".into());
    plan::routes::gateway(&snapshot, snapshot.mesh_gateway(&edge).expect("the gateway")).0
}

fn objects() -> [Value; 3] {
    let refuse = json!({"type": "DirectResponse",
        "directResponse": {"status": 403, "body": {"inlineString": "no\n"}}});
    let modify = json!({"type": "RequestHeaderModifier",
        "requestHeaderModifier": {"set": [{"name": "x-gateway", "value": "edge"}], "remove": ["x-internal-user"]}});
    let rules = json!([
        {"matches": [{"path": {"type": "Prefix", "value": "/admin"}}], "default": {"filters": [refuse]}},
        {"matches": [{"path": {"type": "Prefix", "value": "/"}}],
            "default": {"filters": [modify], "backendRefs": [{"kind": "MeshService", "name": "shop"}]}}]);
    let policy = |kind: &str, spec: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "edge", "namespace": "default"}, "spec": spec})
    };
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "shop"},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}}),
        policy("MeshGateway", json!({"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]})),
        policy(
            "MeshGatewayHTTPRoute",
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": rules}),
        ),
    ]
}
