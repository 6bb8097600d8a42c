//! The processes under attack: `zoneward up`, or a gateway with a backend.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::good_client::{self, Victim};

/// Objects of the API: 200 ConfigMaps of 100 kB.
const CONFIG_MAPS: usize = 200;
const CONFIG_MAP_BYTES: usize = 100_000;
/// The answer to `/large`.
const LARGE: usize = 1 << 20;

#[derive(Clone)]
pub struct World {
    pub gateway: SocketAddr,
    pub api: SocketAddr,
    health: SocketAddr,
    pub admin_token: String,
    reader_token: String,
    connector: Option<TlsConnector>,
    /// The first message of a handshake with the API.
    pub client_hello: Arc<[u8]>,
    processes: Arc<Processes>,
}

/// Children that end with their world: the attacked one, and a backend.
struct Processes {
    attacked: Child,
    backend: Option<Child>,
    folder: PathBuf,
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in [Some(&mut self.attacked), self.backend.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World {
    pub async fn start(victim: Victim) -> World {
        let folder = std::env::temp_dir().join(format!("zoneward-attack-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let (main, health) = (free_port(), free_port());
        let world = match victim {
            Victim::Gateway | Victim::GatewayHealth => gateway(folder, main, health),
            Victim::Api => api(folder, main, health).await,
        };
        for _ in 0..500 {
            if good_client::ask(&world, victim).await.is_some() {
                return world;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("the process does not answer");
    }

    /// Where `/healthz` of the attacked process is.
    pub fn health(&self, _: Victim) -> SocketAddr {
        self.health
    }

    pub fn memory_mb(&self, _: Victim) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.processes.attacked.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kilobytes.unwrap_or(0) / 1024
    }

    /// A TLS connection to the API.
    pub async fn tls(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        self.connector.as_ref().expect("only the API has TLS").connect(name, stream).await
    }

    /// The head of a request with the credentials of the reader.
    pub fn as_reader(&self, method: &str, path: &str, headers: &str) -> String {
        let token = &self.reader_token;
        format!("{method} {path} HTTP/1.1\r\nhost: api\r\nauthorization: Bearer {token}\r\n{headers}\r\n")
    }
}

fn program() -> Command {
    let built = option_env!("CARGO_BIN_EXE_zoneward").map(Into::into);
    let mut command =
        Command::new(std::env::var_os("ZONEWARD_BINARY").or(built).expect("a program to attack"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn free_port() -> u16 {
    toolbox::ports::free_port().port()
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A process of its own, with descriptors of its own: this program again.
fn start_backend() -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.env(BACKEND, "1").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

fn gateway(folder: PathBuf, port: u16, health: u16) -> World {
    let (backend_process, backend) = start_backend();
    let objects = format!(
        r#"apiVersion: v1
kind: Service
metadata: {{name: shop, namespace: default}}
spec: {{clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{{name: http, port: 80, appProtocol: http}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: shop-1, namespace: default, labels: {{kubernetes.io/service-name: shop}}}}
addressType: IPv4
ports: [{{name: http, protocol: TCP, port: {}}}]
endpoints: [{{addresses: ["{}"], conditions: {{ready: true}}}}]
---
apiVersion: zoneward.dev/v1alpha1
kind: MeshGateway
metadata: {{name: edge, namespace: default}}
spec: {{listeners: [{{name: http, port: {port}, protocol: HTTP}}]}}
---
apiVersion: zoneward.dev/v1alpha1
kind: MeshGatewayHTTPRoute
metadata: {{name: edge, namespace: default}}
spec:
  targetRef: {{kind: MeshGateway, name: edge}}
  rules:
    - matches: [{{path: {{type: Prefix, value: /}}}}]
      default: {{backendRefs: [{{kind: MeshService, name: shop}}]}}
"#,
        backend.port(),
        backend.ip(),
    );
    let file = folder.join("gateway.yaml");
    std::fs::write(&file, objects).unwrap();
    let mut command = program();
    command.args(["mesh", "proxy", "--gateway", "edge", "--bind", "127.0.0.1", "-f"]).arg(&file);
    command.args(["--bind-address", &loopback(health).to_string()]);
    let processes = Processes { attacked: command.spawn().unwrap(), backend: Some(backend_process), folder };
    World {
        gateway: loopback(port),
        api: loopback(0),
        health: loopback(health),
        admin_token: String::new(),
        reader_token: String::new(),
        connector: None,
        client_hello: Arc::default(),
        processes: Arc::new(processes),
    }
}

async fn api(folder: PathBuf, port: u16, health: u16) -> World {
    let data = folder.join("data");
    let mut command = program();
    command.args(["up", "--no-node", "--no-mesh", "--data-dir"]).arg(&data);
    command.args([
        "--listen",
        &loopback(port).to_string(),
        "--metrics-bind-address",
        &loopback(health).to_string(),
    ]);
    let processes = Processes { attacked: command.spawn().unwrap(), backend: None, folder };
    let socket = data.join("api.sock");
    for _ in 0..500 {
        if UnixStream::connect(&socket).await.is_ok() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    fill(&socket).await;
    let token = |name: &str| std::fs::read_to_string(data.join("pki").join(name)).unwrap().trim().to_owned();
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(data.join("pki").join("ca.crt")).unwrap();
    roots.add(authority).unwrap();
    let config = Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    let mut client_hello = Vec::new();
    let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
    let mut client = ClientConnection::new(config.clone(), name).unwrap();
    client.write_tls(&mut client_hello).unwrap();
    World {
        gateway: loopback(0),
        api: loopback(port),
        health: loopback(health),
        admin_token: token("admin.token"),
        reader_token: token("reader.token"),
        connector: Some(TlsConnector::from(config)),
        client_hello: client_hello.into(),
        processes: Arc::new(processes),
    }
}

/// Writes the ConfigMaps over the socket.
async fn fill(socket: &Path) {
    let content = "x".repeat(CONFIG_MAP_BYTES);
    for number in 0..CONFIG_MAPS {
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"large-{number}"}},"data":{{"x":"{content}"}}}}"#
        );
        let request = format!(
            "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: api\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{object}",
            object.len()
        );
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&answer[..200]));
    }
}

/// Set in the process that is the backend.
pub const BACKEND: &str = "ZONEWARD_ATTACK_BACKEND";

/// Serves as the backend and prints its address: `/fast` answers at once, `/large` with a megabyte, `/hang` never.
pub async fn serve_backend() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(answer(stream))),
            // No descriptors are left.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn answer(mut stream: TcpStream) {
    let mut read = Vec::new();
    loop {
        let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") else {
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
            continue;
        };
        let head: Vec<u8> = read.drain(..end + 4).collect();
        if head.starts_with(b"GET /hang") {
            // Until the gateway gives up.
            let _ = stream.read_buf(&mut read).await;
            return;
        }
        // The backend must not be what is slow.
        static BODY: [u8; LARGE] = [b'x'; LARGE];
        let body = if head.starts_with(b"GET /large") { &BODY[..] } else { b"ok" };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(body).await.is_err() {
            return;
        }
    }
}
