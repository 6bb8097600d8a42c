//! The API on the network: who is let in, what they may do, and bounds on what they send.

use crate::world;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use store::audit::{AuditLog, AuditOptions};
use store::credentials::Credentials;
use store::server::ApiServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use world::{World, folder};

struct Running {
    _world: World,
    credentials: Arc<Credentials>,
    stop: watch::Sender<bool>,
    address: std::net::SocketAddr,
    data: std::path::PathBuf,
}

async fn serve() -> Running {
    serve_with(World::new().await, false).await
}

async fn serve_with(world: World, anonymous: bool) -> Running {
    serve_in(world, folder(), anonymous).await
}

async fn serve_in(world: World, data: std::path::PathBuf, anonymous: bool) -> Running {
    serve_at(world, data, anonymous, clock::Clock::system()).await
}

async fn serve_at(world: World, data: std::path::PathBuf, anonymous: bool, clock: clock::Clock) -> Running {
    let credentials = Arc::new(Credentials::open_at(&data, clock).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    credentials.write_kubeconfigs(address).unwrap();
    let (stop, stopped) = watch::channel(false);
    let config = credentials.server_config(&[address.ip()]).unwrap();
    let server = ApiServer::new(world.api.clone(), credentials.clone(), stopped).with_anonymous(anonymous);
    tokio::spawn(server.clone().serve_tls(listener, config));
    tokio::spawn(server.serve_unix(UnixListener::bind(data.join("api.sock")).unwrap()));
    Running { _world: world, credentials, stop, address, data }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

fn pem(data: &Path, name: &str) -> Vec<u8> {
    std::fs::read(data.join("pki").join(name)).unwrap()
}

fn client(data: &Path, user: Option<&str>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem(data, "ca.crt")).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match user {
        None => builder.with_no_client_auth(),
        Some(user) => {
            let certificate = CertificateDer::from_pem_slice(&pem(data, &format!("{user}.crt"))).unwrap();
            let key = PrivateKeyDer::from_pem_slice(&pem(data, &format!("{user}.key"))).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    }
}

/// Sends a request as text and returns the status code.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> u16 {
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = vec![0; 64];
    let count = stream.read(&mut answer).await.unwrap_or(0);
    let text = String::from_utf8_lossy(&answer[..count]).into_owned();
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

async fn ask_tls(running: &Running, user: Option<&str>, request: &str) -> u16 {
    ask(connect(running, user).await, request).await
}

async fn connect(running: &Running, user: Option<&str>) -> TlsStream<TcpStream> {
    let connector = TlsConnector::from(Arc::new(client(&running.data, user)));
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// A request on a connection that stays open: code and body.
async fn ask_again(stream: &mut TlsStream<TcpStream>, path: &str, header: &str) -> (u16, serde_json::Value) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "the connection stays open");
        let text = String::from_utf8_lossy(&answer).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let lines = head.lines().map(str::to_ascii_lowercase);
        let length = lines.filter_map(|line| line.strip_prefix("content-length: ").map(str::to_owned)).next();
        if body.len() == length.expect("a length").parse::<usize>().unwrap() {
            let code = head.split(' ').nth(1).unwrap().parse().unwrap();
            return (code, serde_json::from_str(body).unwrap());
        }
    }
}

fn get(path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n")
}

#[tokio::test]
async fn nobody_is_let_in_without_credentials() {
    let running = serve().await;
    for (user, header, code) in [
        (None, "", 401),
        (None, "authorization: Bearer wrong\r\n", 401),
        (None, "authorization: Basic eA==\r\n", 401),
        (Some("admin"), "", 200),
        (Some("admin"), "authorization: Bearer wrong\r\n", 401),
        (Some("reader"), "", 200),
    ] {
        let answer = ask_tls(&running, user, &get("/api/v1/services", header)).await;
        assert_eq!(answer, code, "{user:?} {header}");
    }
    for user in ["admin", "reader"] {
        let token = String::from_utf8(pem(&running.data, &format!("{user}.token"))).unwrap();
        let header = format!("authorization: Bearer {}\r\n", token.trim());
        assert_eq!(ask_tls(&running, None, &get("/api/v1/services", &header)).await, 200, "{user}");
    }
    assert_eq!(ask_tls(&running, None, &get("/version", "")).await, 401, "not even that");
    let token = String::from_utf8(pem(&running.data, "reader.token")).unwrap();
    for (scheme, code) in [("bearer", 200), ("BEARER", 200), ("Token", 401), ("Bearer Bearer", 401)] {
        let header = format!("authorization: {scheme} {}\r\n", token.trim());
        assert_eq!(ask_tls(&running, None, &get("/api/v1/services", &header)).await, code, "{scheme}");
    }
}

/// Kubernetes' Status of 401; its message says what to do.
fn unauthorized() -> (u16, serde_json::Value) {
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized: use the kubeconfig that `zoneward up` wrote", "reason": "Unauthorized", "code": 401});
    (401, status)
}

const A_SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";

#[tokio::test]
async fn a_certificate_that_expires_ends_with_the_next_request_of_an_open_connection() {
    for anonymous in [false, true] {
        let time = clock::ManualTime::starting_at(std::time::SystemTime::now());
        let running = serve_at(World::new().await, folder(), anonymous, time.clock()).await;
        let mut open = connect(&running, Some("admin")).await;
        assert_eq!(ask_again(&mut open, A_SERVICE, "").await.0, 200);
        time.advance(std::time::Duration::from_secs(363 * 86_400));
        assert_eq!(ask_again(&mut open, A_SERVICE, "").await.0, 200, "still valid for a day");
        time.advance(std::time::Duration::from_secs(3 * 86_400));
        assert_eq!(ask_again(&mut open, A_SERVICE, "").await, unauthorized());
        assert_eq!(ask_again(&mut open, "/version", "").await, unauthorized(), "not anonymous either");
        // A token that is valid counts, on the same connection.
        running.credentials.refresh().unwrap();
        let token = String::from_utf8(pem(&running.data, "admin.token")).unwrap();
        let header = format!("authorization: Bearer {}\r\n", token.trim());
        assert_eq!(ask_again(&mut open, A_SERVICE, &header).await.0, 200);
    }
}

#[tokio::test]
async fn a_certificate_that_is_replaced_ends_with_the_next_request_of_an_open_connection() {
    let running = serve().await;
    let (mut admin, mut reader) =
        (connect(&running, Some("admin")).await, connect(&running, Some("reader")).await);
    for open in [&mut admin, &mut reader] {
        assert_eq!(ask_again(open, A_SERVICE, "").await.0, 200);
    }
    for ending in ["crt", "key", "token"] {
        std::fs::remove_file(running.data.join(format!("pki/reader.{ending}"))).unwrap();
    }
    assert!(running.credentials.refresh().unwrap());
    assert_eq!(ask_again(&mut reader, A_SERVICE, "").await, unauthorized());
    assert_eq!(ask_again(&mut admin, A_SERVICE, "").await.0, 200, "that of the admin was not replaced");
    assert_eq!(ask_tls(&running, Some("reader"), &get(A_SERVICE, "")).await, 200, "the new one");
}

#[tokio::test]
async fn an_emptied_token_file_lets_nobody_in() {
    let (world, data) = (World::new().await, folder());
    Credentials::open(&data).unwrap();
    std::fs::write(data.join("pki/admin.token"), "").unwrap();
    let running = serve_in(world, data, false).await;
    for header in
        ["", "authorization: Bearer \r\n", "authorization: Bearer  \t\r\n", "authorization: Bearer\r\n"]
    {
        assert_eq!(ask_tls(&running, None, &get("/api/v1/services", header)).await, 401, "{header:?}");
    }
}

#[tokio::test]
async fn anonymous_requests_see_public_paths_if_they_are_served_at_all() {
    let running = serve_with(World::new().await, true).await;
    for (user, path, header, code) in [
        (None, "/version", "", 200),
        (None, "/healthz", "", 200),
        (None, "/api", "", 403),
        (None, "/api/v1/services", "", 403),
        (None, "/backup", "", 403),
        (None, "/version", "authorization: Bearer wrong\r\n", 401),
        (None, "/version", "authorization: Basic eA==\r\n", 401),
        (None, "/version", "authorization:\r\n", 401),
        (None, "/version", "impersonate-user: kubernetes-admin\r\n", 403),
        (None, "/version", "impersonate-user: x\r\nimpersonate-group: system:masters\r\n", 403),
        (Some("reader"), "/api/v1/services", "", 200),
    ] {
        let answer = ask_tls(&running, user, &get(path, header)).await;
        assert_eq!(answer, code, "{user:?} {path} {header}");
    }
}

#[tokio::test]
async fn requests_without_credentials_are_in_the_audit_log() {
    let log = folder().join("audit.log");
    let policy = serde_json::json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [
        {"level": "None", "nonResourceURLs": ["/healthz"]},
        {"level": "Metadata", "users": ["kubernetes-admin"]},
        {"level": "RequestResponse", "omitStages": ["RequestReceived"]}]});
    let policy = apimachinery::audit_policy::AuditPolicy::parse(&policy).unwrap();
    let options = AuditOptions { policy, path: log.clone(), max_size: 0, max_backups: 0 };
    let audit = AuditLog::open(options, clock::Clock::system()).unwrap();
    let world = World::new().await.map_api(|api| api.with_audit(audit));
    let running = serve_with(world, false).await;
    for (path, header) in [
        ("/api/v1/namespaces/n/secrets/s", "authorization: Bearer hunter2\r\n"),
        ("/version", ""),
        ("/version", "authorization: hunter2\r\n"),
        ("/healthz", ""),
    ] {
        assert_eq!(ask_tls(&running, None, &get(path, header)).await, 401, "{path}");
    }
    let api = running._world.api.clone();
    tokio::task::spawn_blocking(move || api.flush_audit()).await.unwrap();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: Vec<_> =
        events.iter().map(|event| event["responseStatus"]["message"].as_str().unwrap()).collect();
    assert_eq!(
        said,
        [
            "Authentication failed, attempted: bearer",
            "Authentication failed, no credentials provided",
            "Authentication failed, attempted: another scheme",
        ]
    );
    for event in &events {
        assert_eq!((&event["stage"], &event["user"]), (&"ResponseStarted".into(), &serde_json::json!({})));
        assert_eq!(
            (&event["responseStatus"]["code"], &event["sourceIPs"][0]),
            (&401.into(), &"127.0.0.1".into())
        );
    }
    assert_eq!(events[0]["objectRef"]["name"], "s");
    // A flood is counted, and does not displace other events.
    let flood = get("/version", "").replace("connection: close\r\n", "").repeat(1_500);
    let connector = TlsConnector::from(Arc::new(client(&running.data, None)));
    let stream = TcpStream::connect(running.address).await.unwrap();
    let mut stream = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let sent = async { writer.write_all(flood.as_bytes()).await.unwrap() };
    let read = async {
        let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
        while text.matches("HTTP/1.1 401").count() < 1_500 {
            let count = reader.read(&mut buffer).await.unwrap();
            assert!(count > 0);
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    tokio::join!(sent, read);
    let stats = running._world.api.audit_stats().unwrap();
    assert_eq!(stats.events + stats.dropped, 1_503, "{stats:?}");
    assert!(stats.dropped > 0 && stats.events >= 1_000, "{stats:?}");
    let _ = std::fs::remove_dir_all(log.parent().unwrap());
}

#[tokio::test]
async fn a_reader_looks_and_touches_nothing() {
    let running = serve().await;
    let delete = "DELETE /api/v1/namespaces/default/services/kubernetes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert_eq!(ask_tls(&running, Some("reader"), delete).await, 403);
    assert_eq!(ask_tls(&running, Some("reader"), &get("/api/v1/secrets", "")).await, 403);
    assert_eq!(ask_tls(&running, Some("reader"), &get("/api/v1/pods", "")).await, 200);
    assert_eq!(ask_tls(&running, Some("admin"), delete).await, 200);
}

#[tokio::test]
async fn a_huge_body_is_refused_before_it_is_read() {
    let running = serve().await;
    let body = "x".repeat(4 << 20);
    let request = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let stream = UnixStream::connect(running.data.join("api.sock")).await.unwrap();
    assert_eq!(ask(stream, &request).await, 413);
}

#[tokio::test]
async fn secrets_on_disk_are_their_owners_alone_and_stay_the_same() {
    let running = serve().await;
    let pki = running.data.join("pki");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&pki), 0o700);
    let mut seen = 0;
    for entry in std::fs::read_dir(&pki).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
        seen += 1;
    }
    assert_eq!(seen, 8);
    assert_eq!(mode(&running.data.join("kubeconfig")), 0o600);
    let before = pem(&running.data, "admin.crt");
    Credentials::open(&running.data).unwrap();
    assert_eq!(pem(&running.data, "admin.crt"), before);
}

#[tokio::test]
async fn garbage_on_the_wire_ends_one_connection_and_no_more() {
    let running = serve().await;
    for garbage in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET /\u{7f}%%% HTTP/9\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxxxxxxx",
    ] {
        let stream = UnixStream::connect(running.data.join("api.sock")).await.unwrap();
        let answer = ask(stream, garbage).await;
        assert!(answer == 0 || answer >= 400, "{garbage:?}: {answer}");
    }
    let stream = UnixStream::connect(running.data.join("api.sock")).await.unwrap();
    assert_eq!(ask(stream, &get("/healthz", "")).await, 200);
}
