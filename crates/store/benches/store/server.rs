//! The servers under test, each a process of its own: the API, which is this program started once more, and etcd.
//! Both keep their data below the same folder, and both want a client certificate.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, IsCa, Issuer, KeyPair, SanType};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::server::ApiServer;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::Place;
use super::client::{Access, Identity};

const SERVE: &str = "ZONEWARD_BENCH_SERVE";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A server that ends with this value.
pub struct Running {
    child: Child,
    pub access: Access,
    _place: Place,
}

impl Running {
    /// The embedded API in a process of its own.
    pub fn api() -> Running {
        let place = Place::new("api");
        let mut command = Command::new(std::env::current_exe().expect("the bench knows itself"));
        let mut child =
            command.env(SERVE, &place.0).stdout(Stdio::piped()).spawn().expect("the bench can start itself");
        let mut line = String::new();
        let out = child.stdout.take().expect("the output is a pipe");
        BufReader::new(out).read_line(&mut line).expect("the server says where it is");
        let read = |name: &str| {
            std::fs::read_to_string(place.0.join("pki").join(name)).expect("the server made its credentials")
        };
        let identity =
            Identity { authority: read("ca.crt"), certificate: read("admin.crt"), key: read("admin.key") };
        let access = Access::new(line.trim().parse().expect("an address"), &identity);
        Running { child, access, _place: place }
    }

    /// etcd alone, as Debian ships it. `None` where it is not installed.
    pub fn etcd() -> Option<Running> {
        let program = toolbox::Toolbox::own().find("etcd")?;
        let place = Place::new("etcd");
        std::fs::create_dir_all(&place.0).expect("the build folder can be written");
        let identity = make_certificates(&place.0);
        let [address, peer] = [free_address(), free_address()];
        let file = |name: &str| place.0.join(name);
        let url = format!("https://{address}");
        let peer = format!("http://{peer}");
        let mut command = Command::new(program);
        command.arg("--data-dir").arg(file("data")).args(["--log-level", "error"]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command.arg("--cert-file").arg(file("server.crt")).arg("--key-file").arg(file("server.key"));
        command.arg("--trusted-ca-file").arg(file("ca.crt")).arg("--client-cert-auth");
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd starts");
        await_listener(address);
        Some(Running { child, access: Access::new(address, &identity), _place: place })
    }

    /// Resident memory and its peak, in MiB.
    pub fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1_024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    /// Forgets the peak so far.
    pub fn reset_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
    }

    /// Processor time so far.
    pub fn processor(&self) -> Duration {
        processor_of(&self.child.id().to_string())
    }
}

/// Processor time of this process, which has the clients.
pub fn own_processor() -> Duration {
    processor_of("self")
}

fn processor_of(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 =
        behind_name.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    // A tick is a hundredth of a second on every Linux that we run on.
    Duration::from_millis(ticks * 10)
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind((LOOPBACK, 0)).expect("loopback has free ports");
    listener.local_addr().expect("a bound socket has an address")
}

fn await_listener(address: SocketAddr) {
    for _ in 0..500 {
        if std::net::TcpStream::connect(address).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("etcd does not listen on {address}");
}

/// An authority, a server's and a client's certificate, of the same make as the API's own.
fn make_certificates(folder: &Path) -> Identity {
    let key = || KeyPair::generate().expect("ring makes keys");
    let authority = key();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_pem = params.self_signed(&authority).expect("a good certificate").pem();
    let issuer = Issuer::from_params(&params, &authority);
    let signed = |addresses: Vec<SanType>, key: &KeyPair| {
        let mut params = CertificateParams::default();
        params.subject_alt_names = addresses;
        params.signed_by(key, &issuer).expect("a good certificate").pem()
    };
    let (server, client) = (key(), key());
    let files = [
        ("ca.crt", authority_pem.clone()),
        ("server.crt", signed(vec![SanType::IpAddress(LOOPBACK)], &server)),
        ("server.key", server.serialize_pem()),
    ];
    for (name, content) in files {
        std::fs::write(folder.join(name), content).expect("the build folder can be written");
    }
    let certificate = signed(Vec::new(), &client);
    Identity { authority: authority_pem, certificate, key: client.serialize_pem() }
}

/// Serves if this process was started to; then it never comes back.
pub fn serve_if_asked() {
    let Some(folder) = std::env::var_os(SERVE) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(serve(Path::new(&folder)));
    std::process::exit(0);
}

/// What `zoneward up --no-node` does, without a command line.
async fn serve(data: &Path) {
    std::fs::create_dir_all(data).expect("the build folder can be written");
    let engine = Engine::open(&data.join("store"), EngineOptions::default()).expect("a store opens");
    let credentials = Credentials::open(data).expect("credentials can be made");
    let listener = TcpListener::bind((LOOPBACK, 0)).await.expect("loopback has free ports");
    let listen = listener.local_addr().expect("a bound socket has an address");
    let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let service_cidrs = ["10.96.0.0/12", "fd00:10:96::/112"].map(|cidr| cidr.parse().expect("a prefix"));
    bootstrap(&api, BootstrapOptions { service_cidrs: service_cidrs.to_vec(), listen })
        .await
        .expect("a first start");
    let tls = credentials.server_config(&[listen.ip()]).expect("TLS can be had");
    // Kept: a dropped sender would count as a stop.
    let (_stop, stopped) = watch::channel(false);
    let server = ApiServer::new(api.clone(), Arc::new(credentials), stopped.clone());
    tokio::spawn(store::garbage_collector::run(api, stopped));
    println!("{listen}");
    server.serve_tls(listener, tls).await;
}
