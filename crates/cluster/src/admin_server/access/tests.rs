//! Access over TCP and TLS, with the embedded API as the reviewer: what an attacker without rights gets.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use clock::ManualTime;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api as EmbeddedApi, ApiLimits, Caller};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::engine::{Engine, EngineOptions};
use store::server::LocalApi;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::ServiceExt;

use super::super::{AdminPost, AdminRoutes, HealthChecks, listen, serve, serve_unix};
use super::*;
use crate::Connection;
use crate::ledger_client::{self, LedgerClient};

/// An embedded API with one account that may read metrics, one that may not, and a count of reviews.
struct World {
    folder: PathBuf,
    api: EmbeddedApi,
    client: Client,
    reviews: Arc<AtomicUsize>,
    manual: ManualTime,
    address: SocketAddr,
    access: Option<Arc<AdminAccess>>,
    posts: Arc<Mutex<Vec<AdminPost>>>,
    _stop: watch::Sender<bool>,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl World {
    async fn new(name: &str, args: AdminAccessArgs) -> Self {
        let folder = std::env::temp_dir().join(format!("zoneward-access-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).unwrap();
        let api = EmbeddedApi::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let listen_at = SocketAddr::from(([127, 0, 0, 1], 6443));
        bootstrap(
            &api,
            BootstrapOptions { service_cidrs: vec!["10.96.0.0/16".parse().unwrap()], listen: listen_at },
        )
        .await
        .unwrap();
        let reviews = Arc::new(AtomicUsize::new(0));
        let counted = reviews.clone();
        let service = LocalApi::new(api.clone(), Caller::own()).map_request(
            move |request: http::Request<kube::client::Body>| {
                if request.uri().path().ends_with("/tokenreviews") {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                request
            },
        );
        let client = Client::new(service, "default");
        let manual = ManualTime::starting_at(SystemTime::now());
        // Any address off loopback decides; the test itself listens on loopback.
        let outside = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let access = args.access(outside, Some(client.clone()), &manual.clock()).unwrap();
        let posts = Arc::new(Mutex::new(Vec::new()));
        let received = posts.clone();
        let routes = AdminRoutes::default()
            .checks("/healthz", HealthChecks::default().check("ping", || Ok(())))
            .metrics(Registry::default())
            .page("/status", |_| AdminPage::text(StatusCode::OK, "secrets of the status"))
            .post("/ledger", move |post| {
                received.lock().unwrap().push(post.clone());
                AdminPage::json(StatusCode::OK, &json!({}))
            })
            .with_access(access.clone());
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "--bind-address").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(serve(listener, routes, stopped));
        let world = Self { folder, api, client, reviews, manual, address, access, posts, _stop: stop };
        world
            .create(
                "/api/v1/namespaces",
                json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "monitoring"}}),
            )
            .await;
        for account in ["prometheus", "tenant"] {
            let object = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": account}});
            world.create("/api/v1/namespaces/monitoring/serviceaccounts", object).await;
        }
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let meta = json!({"name": "metrics"});
        world
            .create(
                &format!("{rbac}/clusterroles"),
                json!({
                    "kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta,
                    "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
                        {"nonResourceURLs": ["/ledger"], "verbs": ["post"]}],
                }),
            )
            .await;
        world.create(&format!("{rbac}/clusterrolebindings"), json!({
            "kind": "ClusterRoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics"},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}],
        })).await;
        world
    }

    async fn create(&self, path: &str, object: Value) -> Value {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap()
    }

    async fn token(&self, account: &str) -> String {
        let path = format!("/api/v1/namespaces/monitoring/serviceaccounts/{account}/token");
        let asked = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
        self.create(&path, asked).await["status"]["token"].as_str().unwrap().to_owned()
    }

    async fn plain(&self, path: &str) -> String {
        exchange(TcpStream::connect(self.address).await.unwrap(), path, None).await
    }

    async fn tls(&self, path: &str, token: Option<&str>) -> String {
        // A scraper that does not verify, as with `insecure_skip_verify`.
        let config = crate::certificate_check::tls_client(|_, _| true).unwrap();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        exchange(TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap(), path, token).await
    }
}

async fn exchange(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    path: &str,
    token: Option<&str>,
) -> String {
    let header = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server may close without close_notify.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> &str {
    answer.get(9..12).unwrap_or(answer)
}

#[tokio::test]
async fn health_is_open_and_other_pages_need_https_a_valid_token_and_the_right() {
    let world = World::new("rights", AdminAccessArgs::default()).await;
    assert_eq!(status(&world.plain("/healthz").await), "200");
    assert_eq!(status(&world.tls("/healthz", None).await), "200");
    for path in
        ["/metrics", "/status", "/other", "/healthz/../metrics", "//healthz", "/healthz%2f..%2fmetrics"]
    {
        let answer = world.plain(path).await;
        assert_eq!(status(&answer), "400", "{path}: {answer}");
        assert!(!answer.contains("secrets"), "{answer}");
        let answer = world.tls(path, None).await;
        assert!(status(&answer) == "401" && answer.contains("www-authenticate: Bearer"), "{path}: {answer}");
        assert_eq!(status(&world.tls(path, Some("forged.token.here")).await), "401", "{path}");
    }
    let (prometheus, tenant) = (world.token("prometheus").await, world.token("tenant").await);
    let answer = world.tls("/metrics", Some(&prometheus)).await;
    assert!(status(&answer) == "200" && answer.contains("text/plain; version=0.0.4"), "{answer}");
    let answer = world.tls("/status", Some(&prometheus)).await;
    let reason = r#"forbidden: User "system:serviceaccount:monitoring:prometheus" cannot get path "/status""#;
    assert!(status(&answer) == "403" && answer.contains(reason), "{answer}");
    assert_eq!(status(&world.tls("/metrics", Some(&tenant)).await), "403");
    // A token in plain HTTP is not even looked at.
    let reviews = world.reviews.load(Ordering::SeqCst);
    let stream = TcpStream::connect(world.address).await.unwrap();
    assert_eq!(status(&exchange(stream, "/metrics", Some(&prometheus)).await), "400");
    assert_eq!(world.reviews.load(Ordering::SeqCst), reviews);
    drop(world.api.clone());
}

#[tokio::test]
async fn decisions_are_cached_briefly_and_wrong_tokens_do_not_displace_right_ones() {
    let world = World::new("cache", AdminAccessArgs::default()).await;
    let token = world.token("prometheus").await;
    for _ in 0..3 {
        assert_eq!(status(&world.tls("/metrics", Some(&token)).await), "200");
    }
    assert_eq!(world.reviews.load(Ordering::SeqCst), 1);
    for number in 0..MAX_DECISIONS + 20 {
        assert_eq!(status(&world.tls("/metrics", Some(&format!("wrong.{number}.x"))).await), "401");
    }
    let before = world.reviews.load(Ordering::SeqCst);
    assert_eq!(status(&world.tls("/metrics", Some(&token)).await), "200");
    assert_eq!(world.reviews.load(Ordering::SeqCst), before, "still cached");
    // The account loses its right: within the time of a cached decision, so does the token.
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/metrics";
    let request = http::Request::delete(path).body(Vec::new()).unwrap();
    world.client.request::<Value>(request).await.unwrap();
    world.manual.advance(DECISION_TTL);
    assert_eq!(status(&world.tls("/metrics", Some(&token)).await), "403");
}

#[tokio::test]
async fn loopback_and_the_flag_need_nothing_and_files_are_reloaded() {
    let (clock, outside) = (Clock::system(), SocketAddr::from(([0, 0, 0, 0], 10270)));
    let args = AdminAccessArgs::default();
    for inside in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(args.access(inside.parse().unwrap(), None, &clock).unwrap().is_none(), "{inside}");
    }
    assert!(args.access(outside, None, &clock).unwrap().is_some());
    let plain = AdminAccessArgs { metrics_plain_http: true, ..args };
    assert!(plain.access(outside, None, &clock).unwrap().is_none());

    let folder = std::env::temp_dir().join(format!("zoneward-access-files-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
    let write = |age: u64| {
        let made = rcgen::KeyPair::generate().unwrap();
        let signed = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&made).unwrap();
        for (path, text) in [(&certificate, signed.pem()), (&key, made.serialize_pem())] {
            fs::write(path, text).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
        signed.der().clone()
    };
    let first = write(100);
    let serving = ServingCertificate::new(Some((certificate.clone(), key.clone())), clock).unwrap();
    assert_eq!(serving.current().cert[0], first);
    let second = write(50);
    assert_eq!(serving.current().cert[0], second);
    fs::write(&certificate, "broken").unwrap();
    assert_eq!(serving.current().cert[0], second, "the previous one stays");
    let third = write(20);
    assert_eq!(serving.current().cert[0], third);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn self_signed_certificate_is_renewed_at_two_thirds_of_a_year() {
    let manual = ManualTime::starting_at(SystemTime::now());
    let serving = ServingCertificate::new(None, manual.clock()).unwrap();
    let first = serving.current().cert[0].clone();
    manual.advance(CERTIFICATE_RENEWAL - Duration::from_secs(1));
    assert_eq!(serving.current().cert[0], first);
    manual.advance(Duration::from_secs(1));
    assert_ne!(serving.current().cert[0], first);
}

/// A client that reports with the token of an account to the address of a Lease.
async fn reporter(world: &World, token: &str, address: &str) -> LedgerClient {
    let file = world.folder.join(format!("kubeconfig-{}", world.reviews.load(Ordering::SeqCst)));
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    fs::write(&file, config.to_string()).unwrap();
    let connection = Connection { kubeconfig: Some(file), ..Connection::default() };
    let name = format!("leader-{}", &ledger_client::certificate_digest(address.as_bytes())[..8]);
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": name, "annotations": {"zoneward.dev/ledger-address": address}},
        "spec": {"holderIdentity": "x"}});
    world.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease).await;
    LedgerClient::new(world.client.clone(), connection, ("kube-system".to_owned(), name))
}

#[tokio::test]
async fn reports_need_the_right_and_go_to_the_pinned_certificate_alone() {
    let world = World::new("reports", AdminAccessArgs::default()).await;
    let (allowed, tenant) = (world.token("prometheus").await, world.token("tenant").await);
    let digest = world.access.as_ref().unwrap().certificate_digest();
    let right = ledger_client::https_address(world.address, &digest);
    let report = json!({"reporter": "node/n1"});
    let mut client = reporter(&world, &allowed, &right).await;
    for _ in 0..3 {
        client.send::<Value>(&report).await.unwrap();
    }
    assert_eq!(world.reviews.load(Ordering::SeqCst), 1, "the decision is cached");
    let posts = std::mem::take(&mut *world.posts.lock().unwrap());
    assert_eq!(posts.len(), 3);
    let user = posts[0].user.clone().unwrap();
    assert_eq!((user.name.as_str(), user.node), ("system:serviceaccount:monitoring:prometheus", None));

    // Another server at the address, as after an attack on the network: the token is not sent.
    let reviews = world.reviews.load(Ordering::SeqCst);
    let wrong = ledger_client::https_address(world.address, &ledger_client::certificate_digest(b"other"));
    let error = reporter(&world, &allowed, &wrong).await.send::<Value>(&report).await.unwrap_err();
    assert!(format!("{error:#}").contains("connecting to"), "{error:#}");
    assert_eq!(world.reviews.load(Ordering::SeqCst), reviews);
    assert_eq!(status(&world.tls("/ledger", Some(&tenant)).await), "403");
    assert!(world.posts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_unix_socket_takes_reports_and_loopback_without_tokens_does_not() {
    let folder = std::env::temp_dir().join(format!("zoneward-unix-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("ledger.sock");
    let _ = fs::remove_file(&path);
    let routes = AdminRoutes::default().post("/ledger", |post| {
        assert!(post.user.is_none() && post.peer.is_none());
        AdminPage::text(StatusCode::OK, "taken")
    });
    let (_stop, stopped) = watch::channel(false);
    let unix = tokio::net::UnixListener::bind(&path).unwrap();
    let tcp = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "--bind-address").await.unwrap();
    let address = tcp.local_addr().unwrap();
    tokio::spawn(serve_unix(unix, routes.clone(), stopped.clone()));
    tokio::spawn(serve(tcp, routes, stopped));
    let post = |length: usize| {
        let body = "x".repeat(length);
        format!(
            "POST /ledger HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    async fn answer(
        mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
        text: String,
    ) -> String {
        let _ = stream.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }
    let connect = || tokio::net::UnixStream::connect(path.clone());
    let taken = answer(connect().await.unwrap(), post(10)).await;
    assert!(taken.ends_with("taken"), "{taken}");
    let large = answer(connect().await.unwrap(), post(600 << 10)).await;
    assert!(!large.contains("taken"), "{large}");
    let refused = answer(TcpStream::connect(address).await.unwrap(), post(10)).await;
    assert_eq!(status(&refused), "403", "{refused}");
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn the_token_of_a_pod_names_its_pod_and_node() {
    let world = World::new("bound", AdminAccessArgs::default()).await;
    let node = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}});
    world.create("/api/v1/nodes", node).await;
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "node-proxy"},
        "spec": {"nodeName": "n1", "serviceAccountName": "prometheus", "containers": [{"name": "c", "image": "i"}]}});
    let pod = world.create("/api/v1/namespaces/monitoring/pods", pod).await;
    let bound = |kind: &str, name: &str, uid: &Value| {
        json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}}})
    };
    let path = "/api/v1/namespaces/monitoring/serviceaccounts/prometheus/token";
    let address =
        ledger_client::https_address(world.address, &world.access.as_ref().unwrap().certificate_digest());
    let made = world.create(path, bound("Pod", "node-proxy", &pod["metadata"]["uid"])).await;
    let mut client = reporter(&world, made["status"]["token"].as_str().unwrap(), &address).await;
    client.send::<Value>(&json!({})).await.unwrap();
    let user = world.posts.lock().unwrap().pop().unwrap().user.unwrap();
    assert_eq!((user.node.as_deref(), user.pod.as_deref()), (Some("n1"), Some("node-proxy")));
    // The token ends with its pod: a copy of it reports no more.
    let gone = http::Request::delete("/api/v1/namespaces/monitoring/pods/node-proxy?gracePeriodSeconds=0");
    world.client.request::<Value>(gone.body(Vec::new()).unwrap()).await.unwrap();
    world.manual.advance(Duration::from_secs(600));
    let refused = client.send::<Value>(&json!({})).await.unwrap_err();
    assert!(format!("{refused:#}").contains("401"), "{refused:#}");
}
