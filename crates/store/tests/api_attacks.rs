//! Attacks on the API from the network: clients that hold what others need. Each test checks that another client is
//! answered, who is refused or evicted, and how much is held.

use crate::world;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fixtures::{eventually_async, tls_client};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits, FairnessStats};
use store::credentials::Credentials;
use store::server::ApiServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use world::{CONFIG_MAPS, World, folder};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A server with users that are not exempt: service accounts `loud` and `quiet` with all rights.
struct Attacked {
    world: World,
    stop: watch::Sender<bool>,
    address: SocketAddr,
    data: PathBuf,
    connector: TlsConnector,
    admin: String,
    reader: String,
    loud: String,
    quiet: String,
}

impl Drop for Attacked {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

async fn attacked(limits: ApiLimits) -> Attacked {
    let mut world = World::new().await;
    world.api = Api::new(world.api.engine().clone(), ServiceRanges::without_flags(), limits);
    let subject =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"});
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({"metadata": {"name": "accounts"}, "subjects": [subject], "roleRef": role});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    assert_eq!(world.json("POST", bindings, &binding).await.0, 201);
    let (loud, quiet) = (account(&world, "loud").await, account(&world, "quiet").await);
    let data = folder();
    let credentials = Credentials::open(&data).unwrap();
    let token = |user: &str| {
        let text = std::fs::read_to_string(data.join("pki").join(format!("{user}.token"))).unwrap();
        text.trim().to_owned()
    };
    let (admin, reader) = (token("admin"), token("reader"));
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
    let (stop, stopped) = watch::channel(false);
    let config = credentials.server_config(&[address.ip()]).unwrap();
    let server = ApiServer::new(world.api.clone(), Arc::new(credentials), stopped);
    tokio::spawn(server.clone().serve_tls(listener, config));
    tokio::spawn(server.serve_unix(UnixListener::bind(data.join("api.sock")).unwrap()));
    let connector = connector(&data);
    Attacked { world, stop, address, data, connector, admin, reader, loud, quiet }
}

/// The token of a new service account.
async fn account(world: &World, name: &str) -> String {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    assert_eq!(world.json("POST", accounts, &json!({"metadata": {"name": name}})).await.0, 201);
    let (code, issued) = world.json("POST", &format!("{accounts}/{name}/token"), &json!({"spec": {}})).await;
    assert_eq!(code, 201, "{issued:#}");
    issued["status"]["token"].as_str().unwrap().to_owned()
}

fn connector(data: &std::path::Path) -> TlsConnector {
    let authority = CertificateDer::from_pem_file(data.join("pki/ca.crt")).unwrap();
    TlsConnector::from(tls_client([&authority], &[]))
}

/// The head of a response and what was read of its body.
struct Answer {
    code: u16,
    head: String,
}

impl Attacked {
    fn stats(&self) -> FairnessStats {
        self.world.api.fairness_stats()
    }

    /// A connection from an address of 127.0.0.0/8 that has sent nothing.
    async fn silent(&self, source: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    async fn connect(&self, source: u8) -> TlsStream<TcpStream> {
        let name = ServerName::try_from("127.0.0.1").unwrap();
        self.connector.connect(name, self.silent(source).await).await.unwrap()
    }

    /// One request on a new connection.
    async fn ask(&self, source: u8, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        answer(&mut self.connect(source).await, &request(token, method, path, body)).await.expect("an answer")
    }

    async fn code(&self, source: u8, token: &str, path: &str) -> u16 {
        self.ask(source, token, "GET", path, &Value::Null).await.code
    }

    /// Others are answered: the admin, another user and the unix socket, each on new connections.
    async fn others_are_answered(&self, source: u8) {
        for _ in 0..10 {
            assert_eq!(self.code(source, &self.admin, CONFIG_MAPS).await, 200, "admin");
            assert_eq!(self.code(source, &self.quiet, CONFIG_MAPS).await, 200, "another user");
            assert_eq!(self.code(source, &self.quiet, "/healthz").await, 200, "health");
            let mut socket = UnixStream::connect(self.data.join("api.sock")).await.unwrap();
            let get = request("", "GET", CONFIG_MAPS, &Value::Null);
            assert_eq!(answer(&mut socket, &get).await.unwrap().code, 200, "unix socket");
        }
    }

    async fn wait(&self, what: &str, is_so: impl Fn(FairnessStats) -> bool) {
        eventually_async(what, async || {
            is_so(self.stats()).then_some(()).ok_or_else(|| format!("{:?}", self.stats()))
        })
        .await;
    }

    /// Creates ConfigMaps of this many bytes.
    async fn large_objects(&self, count: usize, bytes: usize) {
        for number in 0..count {
            let object =
                json!({"metadata": {"name": format!("large-{number}")}, "data": {"a": "x".repeat(bytes)}});
            assert_eq!(self.world.json("POST", CONFIG_MAPS, &object).await.0, 201);
        }
    }
}

fn request(token: &str, method: &str, path: &str, body: &Value) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let authorization =
        if token.is_empty() { String::new() } else { format!("authorization: Bearer {token}\r\n") };
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\n{authorization}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends a request and reads the head of its response; `None` if the connection was closed.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> Option<Answer> {
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    Some(Answer { code: head.split(' ').nth(1)?.parse().ok()?, head })
}

/// Whether the server closes a connection within the time that is given.
async fn closes(stream: &mut (impl AsyncRead + Unpin), within: Duration) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(within, stream.read_to_end(&mut rest)).await.is_ok()
}

/// Resident bytes of this process.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_lock_nothing_out() {
    let attacked =
        attacked(ApiLimits { connections: 48, reserved_connections: 16, ..ApiLimits::default() }).await;
    let mut kept = attacked.connect(3).await;
    let get = request(&attacked.quiet, "GET", "/version", &Value::Null);
    assert_eq!(answer(&mut kept, &get).await.unwrap().code, 200);
    // Of one source, of sixteen, and of the address of the others.
    for sources in [9..10_u8, 20..36, 3..4] {
        let mut held = Vec::new();
        for source in sources.clone() {
            for _ in 0..240 / sources.len() {
                held.push(attacked.silent(source).await);
            }
        }
        attacked.others_are_answered(3).await;
        assert!(attacked.stats().open_connections <= 48 + 16);
    }
    assert!(attacked.stats().evicted_connections > 0);
    assert!(
        !closes(&mut kept, Duration::from_millis(50)).await,
        "a connection of a known user was below its share"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_user_give_way_to_other_users() {
    let attacked =
        attacked(ApiLimits { connections: 24, reserved_connections: 8, ..ApiLimits::default() }).await;
    let watch = request(&attacked.loud, "GET", &format!("{CONFIG_MAPS}?watch=true"), &Value::Null);
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = attacked.connect(3).await;
        assert_eq!(
            answer(&mut stream, &watch).await.unwrap().code,
            200,
            "it may use everything until others wait"
        );
        held.push(stream);
    }
    attacked.others_are_answered(3).await;
    assert_eq!(attacked.stats().refused_watches, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_an_authenticated_request_ends() {
    let attacked = attacked(ApiLimits::default()).await;
    let mut silent = attacked.silent(3).await;
    let mut handshaken = attacked.connect(3).await;
    let mut refused = attacked.connect(3).await;
    let mut known = attacked.connect(3).await;
    let get = request(&attacked.quiet, "GET", "/version", &Value::Null);
    assert_eq!(answer(&mut known, &get).await.unwrap().code, 200);
    // Requests with wrong credentials do not extend the deadline.
    let wrong = request("wrong", "GET", "/version", &Value::Null);
    let asks = async {
        while answer(&mut refused, &wrong).await.is_some_and(|answer| answer.code == 401) {
            let mut body = vec![0; 4_096];
            if !refused.read(&mut body).await.is_ok_and(|count| count > 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asks).await.expect("closed in the end");
    assert!(closes(&mut silent, Duration::from_secs(60)).await);
    assert!(closes(&mut handshaken, Duration::from_secs(60)).await);
    assert!(!closes(&mut known, Duration::from_millis(500)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_one_user_give_way_to_those_of_others() {
    let attacked = attacked(ApiLimits { watches: 12, ..ApiLimits::default() }).await;
    let path = format!("{CONFIG_MAPS}?watch=true");
    let mut held = Vec::new();
    for _ in 0..12 {
        let mut stream = attacked.connect(9).await;
        assert_eq!(
            answer(&mut stream, &request(&attacked.loud, "GET", &path, &Value::Null)).await.unwrap().code,
            200
        );
        held.push(stream);
    }
    let refused = attacked.ask(9, &attacked.loud, "GET", &path, &Value::Null).await;
    assert_eq!(refused.code, 429);
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    let mut others = Vec::new();
    for _ in 0..5 {
        let mut stream = attacked.connect(3).await;
        assert_eq!(
            answer(&mut stream, &request(&attacked.quiet, "GET", &path, &Value::Null)).await.unwrap().code,
            200
        );
        others.push(stream);
    }
    let stats = attacked.stats();
    assert_eq!((stats.evicted_watches, stats.refused_watches), (5, 1));
    for stream in held.iter_mut().take(5) {
        assert!(closes(stream, Duration::from_secs(20)).await, "the oldest of the largest user");
    }
    for stream in held.iter_mut().skip(5).chain(&mut others) {
        assert!(!closes(stream, Duration::from_millis(5)).await);
    }
    assert_eq!(attacked.code(3, &attacked.admin, &path).await, 200, "the admin needs no share");
    drop((held, others));
    for _ in 0..12 {
        let mut stream = attacked.connect(9).await;
        let watch = request(&attacked.quiet, "GET", &path, &Value::Null);
        let mut codes = 0;
        while answer(&mut stream, &watch).await.is_none_or(|answer| answer.code != 200) {
            codes += 1;
            assert!(codes < 500, "places are given back");
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream = attacked.connect(9).await;
        }
        drop(stream);
    }
}

/// Handshakes that are begun and not continued hold neither a turn nor a place that others need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_are_not_continued_keep_no_client_out() {
    let attacked = attacked(ApiLimits { connections: 64, ..ApiLimits::default() }).await;
    // The record header of a ClientHello, and nothing else.
    let mut held = Vec::new();
    for source in [9, 9, 9, 9, 10, 11, 12, 13] {
        for _ in 0..32 {
            let mut stream = attacked.silent(source).await;
            stream.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
            held.push(stream);
        }
    }
    attacked.others_are_answered(3).await;
    attacked.others_are_answered(9).await;
    assert!(attacked.stats().open_connections <= 64 + 8, "{:?}", attacked.stats());
}

/// Streams of HTTP/2 whose windows stay closed: a small response is complete for the API, and in the buffers of the
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_in_the_buffers_of_closed_streams_are_charged_to_their_user() {
    let limits = ApiLimits { response_bytes: 8 << 20, ..ApiLimits::default() };
    let attacked = attacked(limits).await;
    attacked.large_objects(1, 15_000).await;
    let (mut held, mut opened) = (Vec::new(), 0);
    while attacked.stats().evicted_responses == 0 {
        assert!(opened < 16, "the bound holds: {:?}", attacked.stats());
        let stream = TokioIo::new(attacked.connect(9).await);
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        // One byte: the server hands a frame to the connection, which cannot send it.
        builder.initial_stream_window_size(1).adaptive_window(false);
        let (sender, connection) = builder.handshake::<_, String>(stream).await.unwrap();
        tokio::spawn(connection);
        opened += 1;
        for _ in 0..100 {
            let mut sender = sender.clone();
            let get = http::Request::get(format!("http://x{CONFIG_MAPS}"))
                .header("authorization", format!("Bearer {}", attacked.loud))
                .body(String::new())
                .unwrap();
            if sender.ready().await.is_err() {
                break;
            }
            let Ok(response) = sender.send_request(get).await else { break };
            assert_eq!(response.status(), 200);
            held.push(response);
            assert!(attacked.stats().response_bytes <= 8 << 20);
        }
    }
    assert!(held.len() > 100, "as long as there is room, one user has it: {}", held.len());
    assert_eq!(attacked.code(3, &attacked.quiet, CONFIG_MAPS).await, 200);
    drop(held);
    attacked.wait("what was held is given back", |stats| stats.response_bytes == 0).await;
}

/// Twenty unread watches of large objects took 1.4 GB when pages were counted in objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_bounded_in_bytes() {
    let limits = ApiLimits { response_bytes: 8 << 20, ..ApiLimits::default() };
    let attacked = attacked(limits).await;
    attacked.large_objects(20, 1_000_000).await;
    let before = resident();
    let mut held = Vec::new();
    for path in
        [format!("{CONFIG_MAPS}?watch=true"), CONFIG_MAPS.to_owned(), format!("{CONFIG_MAPS}?limit=500")]
    {
        for _ in 0..20 {
            let mut stream = attacked.connect(9).await;
            // A window that the client never empties.
            let unread = request(&attacked.loud, "GET", &path, &Value::Null);
            stream.write_all(unread.as_bytes()).await.unwrap();
            held.push(stream);
        }
        attacked.wait("the attacker has its responses", |stats| stats.evicted_responses > 0).await;
    }
    for _ in 0..20 {
        assert_eq!(attacked.code(3, &attacked.quiet, "/api/v1/namespaces/default/services").await, 200);
        let stats = attacked.stats();
        assert!(stats.response_bytes <= 8 << 20, "{stats:?}");
    }
    // A reader that takes what it asks for gets everything.
    let mut reads = attacked.connect(3).await;
    let list = request(&attacked.quiet, "GET", CONFIG_MAPS, &Value::Null)
        .replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    reads.write_all(list.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    reads.read_to_end(&mut all).await.unwrap();
    assert!(all.len() > 20_000_000, "{} bytes", all.len());
    drop(all);
    let grown = resident().saturating_sub(before) >> 20;
    assert!(grown < 400, "{grown} MiB more than before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_bounded_in_bytes_and_continues() {
    let attacked = attacked(ApiLimits::default()).await;
    attacked.large_objects(20, 1_000_000).await;
    for selector in ["", "&labelSelector=!missing"] {
        let (mut names, mut pages, mut token) = (Vec::new(), 0, String::new());
        loop {
            let (code, list) =
                attacked.world.get(&format!("{CONFIG_MAPS}?limit=500&continue={token}{selector}")).await;
            assert_eq!(code, 200, "{list:#}");
            let items = list["items"].as_array().unwrap();
            names.extend(items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()));
            pages += 1;
            match list["metadata"]["continue"].as_str() {
                Some(next) => next.clone_into(&mut token),
                None => break,
            }
        }
        let large = names.iter().filter(|name| name.starts_with("large-")).count();
        assert_eq!((pages, large), (2, 20), "{selector}");
    }
}

/// 800 unfinished bodies held 3.0 GB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_bodies_are_bounded_in_bytes() {
    let limits = ApiLimits { body_bytes: 8 << 20, ..ApiLimits::default() };
    let attacked = attacked(limits).await;
    let head = |token: &str| {
        request(token, "POST", CONFIG_MAPS, &Value::Null)
            .replace("content-length: 0", "content-length: 2000000")
    };
    // The body of a request that is not allowed is not read.
    let mut reader = attacked.connect(9).await;
    assert_eq!(answer(&mut reader, &head(&attacked.reader)).await.unwrap().code, 403);
    assert_eq!(attacked.stats().body_bytes, 0);
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut stream = attacked.connect(9).await;
        let unfinished = format!("{}{}", head(&attacked.loud), "x".repeat(1_000_000));
        let _ = stream.write_all(unfinished.as_bytes()).await;
        held.push(stream);
        assert!(attacked.stats().body_bytes <= 8 << 20);
    }
    attacked.wait("the attacker evicts itself", |stats| stats.evicted_bodies >= 50).await;
    for number in 0..50 {
        let object = json!({"metadata": {"name": format!("c{number}")}, "data": {"a": "x".repeat(100_000)}});
        let created = attacked.ask(3, &attacked.quiet, "POST", CONFIG_MAPS, &object).await;
        assert_eq!(created.code, 201);
    }
    drop(held);
    attacked.wait("bodies are given back", |stats| stats.body_bytes == 0).await;
}

/// All places are taken, by clients of which none has more than another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_has_places_of_its_own() {
    let limits = ApiLimits { connections: 8, watches: 2, ..ApiLimits::default() };
    let attacked = attacked(limits).await;
    let mut admin = attacked.connect(3).await;
    let get = request(&attacked.admin, "GET", "/version", &Value::Null);
    assert_eq!(answer(&mut admin, &get).await.unwrap().code, 200);
    let path = format!("{CONFIG_MAPS}?watch=true");
    let mut held = Vec::new();
    for token in [&attacked.loud, &attacked.quiet] {
        let mut stream = attacked.connect(3).await;
        assert_eq!(answer(&mut stream, &request(token, "GET", &path, &Value::Null)).await.unwrap().code, 200);
        held.push(stream);
    }
    assert_eq!(attacked.code(3, &attacked.reader, &path).await, 429, "as many users as watches");
    assert_eq!(attacked.code(3, &attacked.admin, &path).await, 200);
    // One silent connection of each source: the oldest idle one would be the admin's.
    let mut silent = Vec::new();
    for source in 20..52 {
        silent.push(attacked.silent(source).await);
    }
    attacked.wait("connections are evicted", |stats| stats.evicted_connections >= 20).await;
    assert!(!closes(&mut admin, Duration::from_millis(50)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_user_is_refused_and_others_are_not() {
    let limits = ApiLimits {
        reads_at_once: 1,
        writes_at_once: 1,
        full_lists_at_once: 1,
        queue_per_user: 1,
        ..ApiLimits::default()
    };
    let attacked = Arc::new(attacked(limits).await);
    attacked.large_objects(10, 100_000).await;
    let review = json!({"spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let (stop, stopped) = watch::channel(false);
    let mut flood = tokio::task::JoinSet::new();
    for number in 0..15 {
        let (attacked, review, stopped) = (attacked.clone(), review.clone(), stopped.clone());
        flood.spawn(async move {
            let (mut codes, source) = (Vec::new(), 9 + number % 16);
            let (method, path, body) = match number % 3 {
                0 => ("POST", REVIEWS, review),
                1 => ("POST", CONFIG_MAPS, json!({"metadata": {"generateName": "flood-"}})),
                _ => ("GET", "/api/v1/configmaps?limit=5", Value::Null),
            };
            while !*stopped.borrow() {
                let answer = attacked.ask(source, &attacked.loud, method, path, &body).await;
                assert!(answer.code != 429 || answer.head.contains("retry-after: 1"), "{}", answer.head);
                codes.push(answer.code);
            }
            codes
        });
    }
    attacked.wait("the queue is full", |stats| stats.queue.queue_full > 5).await;
    for number in 0..25 {
        let object = json!({"metadata": {"name": format!("quiet-{number}")}});
        assert_eq!(attacked.ask(3, &attacked.quiet, "POST", CONFIG_MAPS, &object).await.code, 201);
        assert_eq!(attacked.ask(3, &attacked.quiet, "POST", REVIEWS, &review).await.code, 201);
        assert_eq!(attacked.code(3, &attacked.quiet, "/healthz").await, 200);
        assert_eq!(attacked.code(3, &attacked.admin, CONFIG_MAPS).await, 200);
    }
    stop.send(true).unwrap();
    let codes: Vec<u16> = flood.join_all().await.into_iter().flatten().collect();
    assert!(codes.iter().all(|code| [200, 201, 429].contains(code)), "{codes:?}");
    let stats = attacked.stats().queue;
    assert!(stats.waited > 0 && stats.wait_seconds > 0.0, "{stats:?}");
    assert_eq!((stats.executing, stats.waiting), (0, 0));
}
