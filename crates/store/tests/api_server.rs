//! The API on the network: who is let in, what they may do, and bounds on what they send.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

#[path = "api/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use store::credentials::Credentials;
use store::server::ApiServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use world::{World, folder};

struct Running {
    _world: World,
    stop: watch::Sender<bool>,
    address: std::net::SocketAddr,
    data: std::path::PathBuf,
}

async fn serve() -> Running {
    let world = World::new().await;
    let data = folder();
    let credentials = Credentials::open(&data).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    credentials.write_kubeconfigs(address).unwrap();
    let (stop, stopped) = watch::channel(false);
    let config = credentials.server_config(&[address.ip()]).unwrap();
    let server = ApiServer::new(world.api.clone(), Arc::new(credentials), stopped);
    tokio::spawn(server.clone().serve_tls(listener, config));
    tokio::spawn(server.serve_unix(UnixListener::bind(data.join("api.sock")).unwrap()));
    Running { _world: world, stop, address, data }
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
    let connector = TlsConnector::from(Arc::new(client(&running.data, user)));
    let stream = TcpStream::connect(running.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    ask(connector.connect(name, stream).await.unwrap(), request).await
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
