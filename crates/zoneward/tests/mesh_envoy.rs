//! `zoneward mesh control` and `zoneward mesh bootstrap` with a real Envoy: what is printed runs as it is, and files that
//! change reach it.

use crate::http;
use crate::process;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fixtures::eventually;
use http::{Echo, Log, request};
use process::Envoy;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use serde_json::{Value, json};
use toolbox::ports::free_port;

fn zoneward() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
    command.env_remove("NODE_NAME").stdin(Stdio::null());
    command
}

fn said(words: &[&str]) -> String {
    let output = zoneward().args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder of its own that goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("objects")).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> String {
        let file = self.0.join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Control {
    child: Child,
    server: String,
    health: SocketAddr,
}

impl Control {
    fn start(folder: &Folder, words: &[&str]) -> Self {
        let (server, health) = (free_port().to_string(), free_port());
        let log = std::fs::File::create(folder.0.join("control.log")).unwrap();
        let child = zoneward()
            .args([
                "mesh",
                "control",
                "-f",
                &folder.0.join("objects").display().to_string(),
                "--listen",
                &server,
            ])
            .args(["--bind-address", &health.to_string()])
            .args(words)
            .stderr(log)
            .spawn()
            .unwrap();
        let control = Self { child, server, health };
        eventually("mesh control", || {
            let page = control.page("/readyz");
            if page.contains("ok") { Ok(()) } else { Err(page) }
        });
        control
    }

    fn page(&self, path: &str) -> String {
        let answer = request(self.health, "GET", "x", path, &[]);
        answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned()).unwrap_or_default()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn service(name: &str, endpoints: &[(SocketAddr, &str)]) -> Vec<Value> {
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "10.0.0.7", "ports": [{"name": "http", "port": 80}]}})];
    for (i, (at, zone)) in endpoints.iter().enumerate() {
        objects.push(
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{name}-{i}"), "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "http", "port": at.port()}],
            "endpoints": [{"addresses": [at.ip()], "zone": zone, "hints": {"forZones": [{"name": zone}]}}]}),
        );
    }
    objects
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

fn route(name: &str, rule: &Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGatewayHTTPRoute", "metadata": {"name": name},
        "spec": {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [rule]}})
}

#[test]
fn a_printed_bootstrap_runs_as_it_is_and_changed_files_reach_the_envoy() {
    let (folder, log) = (Folder::new("control-gateway"), Log::default());
    let (one, two) = (Echo::start("one", &log), Echo::start("two", &log));
    let mut objects = service("one", &[(one.address, "a")]);
    objects.extend(service("two", &[(two.address, "a")]));
    objects.push(
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
    );
    folder.write("objects/world.json", &list(&objects));
    let to = |name: &str| json!({"matches": [{"path": {"prefix": "/"}}], "default": {"backendRefs": [{"kind": "MeshService", "name": name}]}});
    folder.write("objects/route.json", &route("r", &to("one")).to_string());
    let token = folder.write("token", "a-token-of-many-letters\n");
    let control = Control::start(&folder, &["--token-file", &token]);
    let at = free_port();
    let place = format!("80={at}");
    let words = ["mesh", "bootstrap", "--gateway", "edge", "--server", &control.server, "--listen", &place];
    let refused = said(&words);
    let bootstrap = said(&[&words[..], &["--token-file", &token, "--id", "edge-1"]].concat());
    let stranger = Envoy::start(&refused, "yaml");
    stranger.wait("a stranger turned away", || {
        let turned = "zoneward_xds_streams_turned_away_total ";
        control.page("/metrics").lines().any(|line| line.starts_with(turned) && line != format!("{turned}0"))
    });
    drop(stranger);
    let envoy = Envoy::start(&bootstrap, "yaml");
    envoy.wait_for(at);
    assert_eq!(request(at, "GET", "x", "/", &[]).unwrap().backend().as_deref(), Some("one"));
    assert!(control.page("/readyz").contains("ok"), "{}", control.page("/readyz"));
    let status: Value = serde_json::from_str(&control.page("/status")).unwrap();
    assert_eq!(status["streams"][0]["id"], "edge-1");
    assert_eq!(status["streams"][0]["role"], "default/gateway/edge");
    assert_eq!(status["streams"][0]["refused"], json!([]));
    assert!(control.page("/metrics").contains("zoneward_xds_resources_sent_total{kind=\"routes\"} 1\n"));

    let start = Instant::now();
    folder.write("objects/route.json", &route("r", &to("two")).to_string());
    envoy.wait("the changed route", || {
        request(at, "GET", "x", "/", &[]).unwrap().backend().as_deref() == Some("two")
    });
    assert!(start.elapsed() < Duration::from_secs(10), "a new cluster waits for no timeout");
    assert!(
        control.page("/metrics").contains("zoneward_xds_resources_sent_total{kind=\"listener\"} 1\n"),
        "once"
    );
}

/// An authority, and certificates of it.
fn certificates(folder: &Folder) -> [String; 5] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // Who has the name of its issuer is taken for its own.
    params.distinguished_name.push(DnType::CommonName, "the authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let own = params.self_signed(&authority_key).unwrap();
    let authority = Issuer::from_params(&params, &authority_key);
    let signed = |name: &str, usage: ExtendedKeyUsagePurpose| {
        let mut params = CertificateParams::default();
        let name = name.to_owned();
        params.subject_alt_names = match name.parse() {
            Ok(address) => vec![SanType::IpAddress(address)],
            Err(_) => vec![SanType::URI(name.as_str().try_into().unwrap())],
        };
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let (server, server_key) = signed("127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth);
    let (client, client_key) =
        signed("spiffe://example.com/ns/default/sidecar/frontend", ExtendedKeyUsagePurpose::ClientAuth);
    [
        folder.write("ca.pem", &own.pem()),
        folder.write("server.pem", &server),
        folder.write("server-key.pem", &server_key),
        folder.write("client.pem", &client),
        folder.write("client-key.pem", &client_key),
    ]
}

#[test]
fn a_sidecar_with_a_certificate_stays_in_its_zone_and_without_one_it_hears_nothing() {
    let (folder, log) = (Folder::new("control-sidecar"), Log::default());
    let (near, far) = (Echo::start("near", &log), Echo::start("far", &log));
    let mut objects = service("backend", &[(near.address, "a"), (far.address, "b")]);
    objects.extend(service("frontend", &[]));
    folder.write("objects/world.json", &list(&objects));
    let [authority, server, server_key, client, client_key] = certificates(&folder);
    let control = Control::start(
        &folder,
        &["--tls-cert", &server, "--tls-key", &server_key, "--client-ca", &authority],
    );
    let at = free_port();
    let outbound = format!("{}=backend", at.port());
    let words = ["mesh", "bootstrap", "--from", "frontend,version=v1", "--zone", "a", "-o", "json"];
    let words =
        [&words[..], &["--outbound", &outbound, "--server", &control.server, "--ca", &authority]].concat();
    let stranger = Envoy::start(&said(&words), "json");
    let bootstrap = said(&[&words[..], &["--cert", &client, "--key", &client_key]].concat());
    let envoy = Envoy::start(&bootstrap, "json");
    envoy.wait_for(at);
    let status: Value = serde_json::from_str(&control.page("/status")).unwrap();
    assert_eq!(
        status["streams"].as_array().map(Vec::len),
        Some(1),
        "only the one with a certificate: {status}"
    );
    drop(stranger);
    for _ in 0..50 {
        assert_eq!(request(at, "GET", "backend", "/", &[]).unwrap().backend().as_deref(), Some("near"));
    }
    near.stop();
    envoy.wait("the other zone", || {
        request(at, "GET", "backend", "/", &[]).is_ok_and(|answer| answer.backend().as_deref() == Some("far"))
    });
    for _ in 0..50 {
        assert_eq!(request(at, "GET", "backend", "/", &[]).unwrap().backend().as_deref(), Some("far"));
    }
}

#[test]
fn plan_routes_shows_what_envoy_would_get_and_what_a_changed_policy_would_change() {
    let folder = Folder::new("plan-envoy");
    let policy = |weight: u32| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute", "metadata": {"name": "p"},
            "spec": {"targetRef": {"kind": "Mesh"}, "to": [{"targetRef": {"kind": "MeshService", "name": "backend"},
                "rules": [{"matches": [{"path": {"prefix": "/v1"}}], "default": {"backendRefs": [
                    {"kind": "MeshService", "name": "backend", "weight": 90},
                    {"kind": "MeshService", "name": "frontend", "weight": weight}]}}]}]}})
    };
    let mut objects = service("backend", &[("10.1.0.1:8080".parse().unwrap(), "a")]);
    objects.extend(service("frontend", &[]));
    objects.push(policy(10));
    let world = folder.write("objects/world.json", &list(&objects));
    let other = folder.write("other.json", &policy(30).to_string());
    let words = ["plan", "routes", "--as", "envoy", "-f", &world, "--from", "frontend", "--to", "backend"];
    let shown: Value = serde_json::from_str(&said(&[&words[..], &["-o", "json"]].concat())).unwrap();
    let kinds: Vec<&str> =
        shown["resources"].as_array().unwrap().iter().map(|r| r["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "routes").count(), 1, "{kinds:?}");
    assert!(shown.to_string().contains(r#""path_separated_prefix":"/v1""#));
    let diff = said(&[&words[..], &["--diff", &other]].concat());
    assert!(diff.contains("changed routes default/backend:80\n"), "{diff}");
    assert!(diff.contains("weighted_clusters.clusters[1].weight: 10 -> 30"), "{diff}");
    let changes: Value =
        serde_json::from_str(&said(&[&words[..], &["--diff", &other, "-o", "json"]].concat())).unwrap();
    assert_eq!(changes["changes"].as_array().map(Vec::len), Some(1));
    let mut wrong = zoneward();
    wrong.args(["plan", "routes", "-f", &world, "--from", "frontend", "--to", "backend", "--diff", &other]);
    let wrong = wrong.output().unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--as envoy"));
}

#[test]
fn a_server_for_other_machines_wants_to_be_safe() {
    let folder = Folder::new("control-safe");
    let objects = folder.0.join("objects").display().to_string();
    let output =
        zoneward().args(["mesh", "control", "-f", &objects, "--listen", "0.0.0.0:0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("use --client-ca or --issue"), "{text}");
    let token = folder.write("token", "a-token-of-many-letters\n");
    let words = ["mesh", "control", "-f", &objects, "--listen", "0.0.0.0:0", "--token-file", &token];
    let output = zoneward().args(words).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "a token is the same for all Envoys");
}

/// The attack: an Envoy with a valid certificate of a sidecar declares that it is the gateway with the private keys.
#[test]
fn an_envoy_gets_what_its_certificate_names_and_not_what_it_declares() {
    let (folder, log) = (Folder::new("control-issue"), Log::default());
    let backend = Echo::start("one", &log);
    let mut objects = service("one", &[(backend.address, "a")]);
    objects.extend(service("frontend", &[]));
    let at = free_port();
    objects.push(
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway", "metadata": {"name": "edge"},
        "spec": {"listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}}),
    );
    let to_one = json!({"matches": [{"path": {"prefix": "/"}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "one"}]}});
    objects.push(route("r", &to_one));
    folder.write("objects/world.json", &list(&objects));
    let data = folder.0.join("data");
    std::fs::create_dir_all(&data).unwrap();
    drop(store::credentials::Credentials::open(&data).unwrap());
    let data = data.display().to_string();
    let control = Control::start(&folder, &["--issue", &data]);
    let common = ["--server", &control.server, "--issue", &data, "-o", "json"];
    let listen = format!("80={at}");
    let gateway = ["mesh", "bootstrap", "--gateway", "edge", "--listen", &listen];
    let honest = said(&[&gateway[..], &common].concat());
    let sidecar = said(&[&["mesh", "bootstrap", "--from", "frontend"], &common[..]].concat());
    // The gateway's declaration with the sidecar's certificate.
    let hostile = honest.replace("default.gateway.edge.", "default.sidecar.frontend.");
    assert!(hostile != honest && sidecar.contains("default.sidecar.frontend.key"));
    let stranger = Envoy::start(&hostile, "json");
    eventually("the refusal", || {
        let text = std::fs::read_to_string(folder.0.join("control.log")).unwrap_or_default();
        text.contains("Envoy declares a role that its certificate does not have")
    });
    let status: Value = serde_json::from_str(&control.page("/status")).unwrap();
    assert_eq!(status["streams"].as_array().map(Vec::len), Some(0), "{status}");
    assert!(control.page("/metrics").contains("zoneward_xds_resources_sent_total{kind=\"listener\"} 0\n"));
    drop(stranger);
    let envoy = Envoy::start(&honest, "json");
    envoy.wait_for(at);
    assert_eq!(request(at, "GET", "shop", "/", &[]).unwrap().backend().as_deref(), Some("one"));
    let files = folder.0.join("data/pki/envoy");
    let mode = std::fs::metadata(files.join("default.gateway.edge.key")).unwrap().permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
}
