//! A cluster of one store and one node proxy: objects are put as they are stored, the proxy is the real program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::read;
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::table_id;
use dataplane::nftables::trace::{Evaluation, NodeAddresses, TracedPacket, evaluate};
use fixtures::eventually;
use model::Family;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::{Api, ApiLimits};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::kinds;
use store::server::ApiServer;
use tokio::net::UnixListener;
use tokio::sync::watch;

pub(crate) struct World {
    runtime: tokio::runtime::Runtime,
    api: Api,
    pub(crate) folder: PathBuf,
    stop: Mutex<Option<(watch::Sender<bool>, tokio::task::JoinHandle<()>)>>,
}

impl World {
    pub(crate) fn new(name: &str) -> World {
        let folder = std::env::temp_dir().join(format!("zoneward-node-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).unwrap();
        let api = Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let world = World { runtime, api, folder, stop: Mutex::default() };
        for name in ["default", "kube-system", "ns"] {
            world.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        }
        world.serve();
        world
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("api.sock")
    }

    /// Lets the API be reached.
    pub(crate) fn serve(&self) {
        let _ = std::fs::remove_file(self.socket());
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(self.socket()).unwrap();
        let credentials = Credentials::open(&self.folder).unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = ApiServer::new(self.api.clone(), Arc::new(credentials), stopped);
        *self.stop.lock().unwrap() = Some((stop, self.runtime.spawn(server.serve_unix(listener))));
    }

    /// Serves the API with TLS on loopback, too, and mounts for this process what a pod's service account has.
    pub(crate) fn serve_pods(&self) -> SocketAddr {
        let _inside = self.runtime.enter();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let credentials = Credentials::open(&self.folder).unwrap();
        let tls = credentials.server_config(&[address.ip()]).unwrap();
        let stopped = self.stop.lock().unwrap().as_ref().map(|(stop, _)| stop.subscribe()).unwrap();
        let server = ApiServer::new(self.api.clone(), Arc::new(credentials), stopped);
        self.runtime.spawn(server.serve_tls(tokio::net::TcpListener::from_std(listener).unwrap(), tls));
        let (nothing, flags) = (None::<&str>, nix::mount::MsFlags::empty());
        nix::mount::mount(Some("none"), "/run", Some("tmpfs"), flags, nothing).unwrap();
        let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount");
        std::fs::create_dir_all(account).unwrap();
        for (from, to) in [("admin.token", "token"), ("ca.crt", "ca.crt")] {
            std::fs::copy(self.folder.join("pki").join(from), account.join(to)).unwrap();
        }
        std::fs::write(account.join("namespace"), "kube-system").unwrap();
        address
    }

    /// The API is away, and every watch with it.
    pub(crate) fn go_away(&self) {
        let (stop, task) = self.stop.lock().unwrap().take().unwrap();
        stop.send_replace(true);
        self.runtime.block_on(task).unwrap();
        std::fs::remove_file(self.socket()).unwrap();
    }

    /// Puts an object as it will be stored; answers with its revision.
    pub(crate) fn put(&self, object: Value) -> u64 {
        self.put_all(vec![object])
    }

    /// Puts several at once; answers with the last one's revision.
    pub(crate) fn put_all(&self, mut all: Vec<Value>) -> u64 {
        let work = move |objects: &mut store::object_txn::ObjectTxn<'_, '_>| {
            for object in &mut all {
                let kind = kinds::named(object["kind"].as_str().unwrap()).unwrap();
                objects.put(kind, object)?;
            }
            Ok(all)
        };
        let all = self.runtime.block_on(self.api.commit(false, work)).unwrap();
        let revisions = all.iter().filter_map(|object| object["metadata"]["resourceVersion"].as_str());
        revisions.map(|version| version.parse().unwrap()).max().unwrap_or(0)
    }

    pub(crate) fn remove(&self, kind: &str, namespace: &str, name: &str) {
        let kind = kinds::named(kind).unwrap();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let work = move |objects: &mut store::object_txn::ObjectTxn<'_, '_>| {
            let mut object = objects.fetch(kind, &namespace, &name)?;
            objects.remove(kind, &mut object)
        };
        self.runtime.block_on(self.api.commit(false, work)).unwrap();
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let kind = kinds::named(kind).unwrap();
        let work = move |objects: &mut store::object_txn::ObjectTxn<'_, '_>| objects.list(kind, None);
        self.runtime.block_on(self.api.commit(false, work)).unwrap()
    }

    /// A node in a zone, with an address of each family.
    pub(crate) fn put_node(&self, name: &str, zone: &str) {
        self.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"addresses": [
                {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "2001:db8::1"}]}}));
    }

    pub(crate) fn put_service_cidr(&self, name: &str, cidrs: &[&str]) {
        self.put(
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "spec": {"cidrs": cidrs}}),
        );
    }

    /// Starts the node proxy in this namespace.
    pub(crate) fn node(&self, name: &str, more: &[&str]) -> Proxy {
        self.part(&[&["node", "--hostname-override", name], more].concat())
    }

    /// Starts any other part of the program on the same API.
    pub(crate) fn part(&self, words: &[&str]) -> Proxy {
        let socket = self.socket().display().to_string();
        self.start(&[words, &["--api-socket", &socket]].concat(), &[])
    }

    /// Starts the program, which has to find its way to the API by what a pod has.
    pub(crate) fn start(&self, words: &[&str], variables: &[(&str, &str)]) -> Proxy {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(words)
            .env_remove("KUBECONFIG")
            .env("HOME", &self.folder)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Proxy { child }
    }

    /// What the proxy said, for whoever has to find out why a test failed.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Waits until something holds.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        eventually(what, || holds().then_some(()).ok_or_else(|| self.log()));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A running node proxy; it ends with the test.
pub(crate) struct Proxy {
    pub(crate) child: Child,
}

impl Proxy {
    pub(crate) fn signal(&mut self, signal: nix::sys::signal::Signal) -> Option<i32> {
        let id = nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap());
        nix::sys::signal::kill(id, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Service with one port `p`, 80 to 8080.
pub(crate) fn service(name: &str, cluster_ips: &[&str]) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips,
            "ports": [{"name": "p", "protocol": "TCP", "port": 80, "targetPort": 8080}]}})
}

/// A slice with endpoints, each an address and the zone that it is in and hinted for.
pub(crate) fn slice(service: &str, endpoints: &[(&str, &str)]) -> Value {
    let v6 = endpoints.first().is_some_and(|(address, _)| address.contains(':'));
    let one = |(address, zone): &(&str, &str)| {
        let mut one = json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "elsewhere"});
        if !zone.is_empty() {
            one["zone"] = (*zone).into();
            one["hints"] = json!({"forZones": [{"name": zone}]});
        }
        one
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"namespace": "ns", "name": format!("{service}-{}", if v6 { 6 } else { 4 }),
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": [{"name": "p", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints.iter().map(one).collect::<Vec<_>>()})
}

/// The kernel's tables of this namespace.
pub(crate) fn held() -> Ruleset {
    let mut kernel = NetlinkSocket::open().unwrap();
    let (program, problems) = read(&mut kernel, &[table_id(Family::V4), table_id(Family::V6)]).unwrap();
    assert_eq!(problems, []);
    program
}

/// What the kernel's rules do with the first packet of a TCP connection.
pub(crate) fn fate(program: &Ruleset, src: &str, dst: &str, local: &[std::net::IpAddr]) -> Evaluation {
    let packet = TracedPacket::new(6, src.parse().unwrap(), dst.parse().unwrap());
    evaluate(program, &packet, &NodeAddresses { addresses: local.to_vec() }).unwrap()
}

/// Where connections to an address would go, sorted.
pub(crate) fn endpoints(dst: &str) -> Vec<String> {
    let src = if dst.starts_with('[') { "[fd00:9::9]:40000" } else { "10.9.9.9:40000" };
    let evaluation = fate(&held(), src, dst, &[]);
    evaluation.endpoints.iter().map(|(address, _)| address.to_string()).collect()
}

/// Asks a server of this namespace; the status, the head and the body.
pub(crate) fn get(at: &str, path: &str) -> Option<(u16, String, String)> {
    let address: SocketAddr = at.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, head.to_lowercase(), body.to_owned()))
}

/// The value of a metric without labels.
pub(crate) fn metric(name: &str) -> Option<f64> {
    let (_, _, body) = get("127.0.0.1:10249", "/metrics")?;
    let line = body.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A configuration file of mode nftables with these further lines.
pub(crate) fn config(folder: &Path, lines: &str) -> String {
    let path = folder.join("config.yaml");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
    std::fs::write(&path, format!("{head}{lines}\n")).unwrap();
    path.display().to_string()
}
