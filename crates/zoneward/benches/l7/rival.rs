//! The proxies that are measured: each with its own configuration for the same thing, in processes of its own.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::handshakes::{HOST, Identity};
use super::load::Protocol;

/// What a proxy serves.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    pub routes: usize,
    /// Downstream connections that it must be able to hold.
    pub connections: usize,
    /// With it, TLS is terminated on the port of HTTP/1.1.
    pub identity: Option<&'a Identity>,
}

impl Setup<'_> {
    /// Plain HTTP with so many routes.
    pub fn routes(routes: usize) -> Self {
        Setup { routes, connections: 4_096, identity: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rival {
    Zoneward,
    Envoy,
    Nginx,
    Haproxy,
}

/// A started proxy; dropping it ends it.
pub struct Running {
    pub rival: Rival,
    pub routes: usize,
    ports: [u16; 2],
    child: Child,
    folder: PathBuf,
}

impl Rival {
    /// Ours and Envoy come first: memory is compared between them.
    pub const ALL: [Self; 4] = [Self::Zoneward, Self::Envoy, Self::Nginx, Self::Haproxy];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Zoneward => "zoneward",
            Self::Envoy => "Envoy",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// Starts it; all routes go to the same upstream.
    pub fn start(self, setup: Setup<'_>, upstream: &Running) -> Running {
        let Setup { routes, connections, identity } = setup;
        let kind = if identity.is_some() { "tls" } else { "plain" };
        let folder = folder(&format!("{}-{routes}-{connections}-{kind}", self.as_str()));
        let files = identity.map(|identity| IdentityFiles::write(identity, &folder));
        let files = files.as_ref();
        let ports = match self {
            // One port takes both.
            Self::Zoneward | Self::Envoy => [free_port(); 2],
            Self::Nginx | Self::Haproxy => [free_port(), free_port()],
        };
        let to = upstream.ports[0];
        let (file, text) = match self {
            Self::Zoneward => ("objects.json", zoneward(routes, ports[0], to, identity)),
            Self::Envoy => ("envoy.json", envoy(routes, ports[0], to, files)),
            Self::Nginx => ("nginx.conf", nginx(&folder, connections, ports, to, files)),
            Self::Haproxy => ("haproxy.cfg", haproxy(connections, ports, to, files)),
        };
        let file = folder.join(file);
        fs::write(&file, text).unwrap();
        let mut command = self.command(&file, &folder);
        let child = spawn(&mut command, &folder);
        let running = Running { rival: self, routes, ports, child, folder };
        running.wait();
        running
    }

    fn command(self, file: &Path, folder: &Path) -> Command {
        let mut command = match self {
            Self::Zoneward => Command::new(env!("CARGO_BIN_EXE_zoneward")),
            Self::Envoy => toolbox::command("envoy"),
            Self::Nginx => toolbox::command("nginx"),
            Self::Haproxy => toolbox::command("haproxy"),
        };
        match self {
            Self::Zoneward => {
                let words =
                    "--gateway edge --zone zone-a --threads 1 --bind 127.0.0.1 --bind-address 127.0.0.1:0";
                command.args(["mesh", "proxy"]).args(words.split(' ')).arg("-f")
            }
            Self::Envoy => command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"]),
            Self::Nginx => command.arg("-p").arg(folder).arg("-c"),
            Self::Haproxy => command.args(["-db", "-q", "-f"]),
        };
        command.arg(file);
        command
    }
}

/// What answers: nginx with a short text.
pub fn upstream() -> Running {
    let folder = folder("upstream");
    let port = free_port();
    let server = format!(
        "server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"a short answer of a service\\n\"; }} }}"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, nginx_around(&folder, 4_096, &server)).unwrap();
    let child = spawn(toolbox::command("nginx").arg("-p").arg(&folder).arg("-c").arg(&file), &folder);
    let running = Running { rival: Rival::Nginx, routes: 1, ports: [port; 2], child, folder };
    running.wait();
    running
}

impl Running {
    pub fn port(&self, protocol: Protocol) -> u16 {
        self.ports[usize::from(protocol == Protocol::Http2)]
    }

    /// CPU of the process and of its children, as far as they live: nginx works in a child.
    pub fn cpu(&self) -> Duration {
        let ticks: u64 = self.processes().iter().map(|pid| ticks(*pid)).sum();
        Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
    }

    /// Megabytes of a field of `/proc/PID/status`: `VmRSS`, or `RssAnon` for what no other process can share.
    pub fn memory_mb(&self, field: &str) -> f64 {
        let kib = |pid: &u32| -> u64 {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
        };
        self.processes().iter().map(kib).sum::<u64>() as f64 / 1024.0
    }

    /// Megabytes with shared pages in proportion: `Pss` of `/proc/PID/smaps_rollup`.
    pub fn proportional_mb(&self) -> f64 {
        let kib = |pid: &u32| -> u64 {
            let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
        };
        self.processes().iter().map(kib).sum::<u64>() as f64 / 1024.0
    }

    fn processes(&self) -> Vec<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        [pid].into_iter().chain(children).collect()
    }

    fn wait(&self) {
        let begin = Instant::now();
        for port in self.ports {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
                let said = fs::read_to_string(self.folder.join("said")).unwrap_or_default();
                assert!(
                    begin.elapsed() < Duration::from_secs(60),
                    "{} does not listen: {said}",
                    self.rival.as_str()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // nginx's master would leave its worker behind if it were killed.
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What `/proc/PID/stat` counts in; it has been 100 everywhere for decades.
const TICKS_PER_SECOND: u64 = 100;

fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    field(11) + field(12)
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("l7-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn spawn(command: &mut Command, folder: &Path) -> Child {
    let said = fs::File::create(folder.join("said")).unwrap();
    command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
    command.spawn().unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo xtask bench l7` installs it", command.get_program().display())
    })
}

fn free_port() -> u16 {
    toolbox::ports::free_port().port()
}

/// The certificate and key as files; the third has both.
struct IdentityFiles {
    certificate: PathBuf,
    key: PathBuf,
    both: PathBuf,
}

impl IdentityFiles {
    fn write(identity: &Identity, folder: &Path) -> Self {
        let Identity { certificate, key } = identity;
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Self {
            certificate: file("tls.crt", certificate),
            key: file("tls.key", key),
            both: file("tls.pem", &format!("{certificate}{key}")),
        }
    }
}

fn nginx_around(folder: &Path, connections: usize, inside: &str) -> String {
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {};\n", folder.join(name).display()));
    format!(
        "daemon off; worker_processes 1; pid {pid}; error_log {errors} error;\n\
         events {{ worker_connections {connections}; }}\n\
         http {{ access_log off; keepalive_requests 1000000000;\n{paths}{inside}\n}}\n",
        pid = folder.join("pid").display(),
        errors = folder.join("errors").display(),
        paths = paths.concat()
    )
}

fn nginx(
    folder: &Path,
    connections: usize,
    [http1, http2]: [u16; 2],
    to: u16,
    tls: Option<&IdentityFiles>,
) -> String {
    let (ssl, certificate) = match tls {
        None => ("", String::new()),
        Some(IdentityFiles { certificate, key, .. }) => (
            " ssl",
            format!(
                "ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.3;\n",
                certificate.display(),
                key.display()
            ),
        ),
    };
    let server = format!(
        "upstream web {{ server 127.0.0.1:{to}; keepalive 64; keepalive_requests 1000000000; }}\n\
         server {{ listen 127.0.0.1:{http1}{ssl}; listen 127.0.0.1:{http2} http2;\n{certificate}\
         location / {{ proxy_pass http://web; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}"
    );
    nginx_around(folder, connections, &server)
}

fn haproxy(connections: usize, [http1, http2]: [u16; 2], to: u16, tls: Option<&IdentityFiles>) -> String {
    let ssl = tls.map_or(String::new(), |files| format!(" ssl crt {}", files.both.display()));
    format!(
        "global\n  nbthread 1\n  maxconn {connections}\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 30s\n  \
         timeout server 30s\nfrontend in\n  bind 127.0.0.1:{http1}{ssl}\n  bind 127.0.0.1:{http2} proto h2\n  \
         default_backend web\nbackend web\n  http-reuse always\n  server one 127.0.0.1:{to}\n"
    )
}

/// Each route has a path of its own, by segment as ours has it.
fn envoy(routes: usize, port: u16, to: u16, tls: Option<&IdentityFiles>) -> String {
    let mut rules = String::new();
    for at in 0..routes {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            rules,
            r#"{comma}{{"match":{{"path_separated_prefix":"/r{at}"}},"route":{{"cluster":"web"}}}}"#
        );
    }
    let manager = format!(
        r#"{{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix":"in","codec_type":"AUTO","route_config":{{"virtual_hosts":[{{"name":"all","domains":["*"],"routes":[{rules}]}}]}},
        "http_filters":[{{"name":"router","typed_config":{{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}}}]}}"#
    );
    let socket = tls.map_or(String::new(), |IdentityFiles { certificate, key, .. }| {
        format!(
            r#","transport_socket":{{"name":"tls","typed_config":{{
            "@type":"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context":{{"tls_params":{{"tls_maximum_protocol_version":"TLSv1_3"}},"tls_certificates":[{{
            "certificate_chain":{{"filename":"{}"}},"private_key":{{"filename":"{}"}}}}]}}}}}}"#,
            certificate.display(),
            key.display()
        )
    });
    let at = |port: u16| format!(r#"{{"socket_address":{{"address":"127.0.0.1","port_value":{port}}}}}"#);
    format!(
        r#"{{"static_resources":{{"listeners":[{{"name":"in","address":{},"filter_chains":[{{"filters":[{{
        "name":"http","typed_config":{manager}}}]{socket}}}]}}],
        "clusters":[{{"name":"web","type":"STATIC","load_assignment":{{"cluster_name":"web","endpoints":[{{"lb_endpoints":[
        {{"endpoint":{{"address":{}}}}}]}}]}}}}]}}}}"#,
        at(port),
        at(to)
    )
}

/// The same routes as objects of ours.
fn zoneward(routes: usize, port: u16, to: u16, identity: Option<&Identity>) -> String {
    let mut rules = String::new();
    for at in 0..routes {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            rules,
            r#"{comma}{{"matches":[{{"path":{{"type":"Prefix","value":"/r{at}"}}}}],
            "default":{{"backendRefs":[{{"kind":"MeshService","name":"web"}}]}}}}"#
        );
    }
    let group = r#""apiVersion":"zoneward.dev/v1alpha1""#;
    let (listener, secret) = match identity {
        None => (r#""protocol":"HTTP""#.to_owned(), String::new()),
        Some(Identity { certificate, key }) => (
            format!(r#""protocol":"HTTPS","hostname":"{HOST}","tls":{{"certificateRef":{{"name":"tls"}}}}"#),
            format!(
                r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"name":"tls","namespace":"default"}},
                "type":"kubernetes.io/tls","stringData":{{"tls.crt":"{}","tls.key":"{}"}}}},"#,
                certificate.replace('\n', "\\n"),
                key.replace('\n', "\\n")
            ),
        ),
    };
    format!(
        r#"{{"apiVersion":"v1","kind":"List","items":[{secret}
        {{"apiVersion":"v1","kind":"Service","metadata":{{"name":"web","namespace":"default"}},
          "spec":{{"clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"],"ports":[{{"name":"http","port":80,"appProtocol":"http"}}]}}}},
        {{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"web-1","namespace":"default",
          "labels":{{"kubernetes.io/service-name":"web"}}}},"addressType":"IPv4",
          "ports":[{{"name":"http","protocol":"TCP","port":{to}}}],
          "endpoints":[{{"addresses":["127.0.0.1"],"conditions":{{"ready":true}},"zone":"zone-a"}}]}},
        {{{group},"kind":"MeshGateway","metadata":{{"name":"edge","namespace":"default"}},
          "spec":{{"listeners":[{{"name":"http","port":{port},{listener}}}]}}}},
        {{{group},"kind":"MeshGatewayHTTPRoute","metadata":{{"name":"all","namespace":"default"}},
          "spec":{{"targetRef":{{"kind":"MeshGateway","name":"edge"}},"rules":[{rules}]}}}}]}}"#
    )
}
