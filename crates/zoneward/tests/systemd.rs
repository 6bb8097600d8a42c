//! `Type=notify`: the daemons report their readiness to a socket as systemd's, at the time when it is true.

use crate::started;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fixtures::eventually;
use serde_json::json;
use started::{Up, folder};

const ZONEWARD: &str = env!("CARGO_BIN_EXE_zoneward");
/// A machine under load is slow, not wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The side of systemd.
struct NotifySocket {
    path: PathBuf,
    socket: UnixDatagram,
}

impl NotifySocket {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("zoneward-{name}-{}.sock", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { path, socket }
    }

    /// The next datagram.
    fn next(&self, patience: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Killed with the test.
struct Daemon(Child);

impl Daemon {
    fn start(command: &mut Command, systemd: &NotifySocket) -> Self {
        command.env("NOTIFY_SOCKET", &systemd.path).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command in user and network namespaces of its own, as root there, with loopback.
fn in_namespaces() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--user",
        "--map-root-user",
        "--net",
        "sh",
        "-euc",
        "ip link set lo up; exec \"$@\"",
        "sh",
        ZONEWARD,
    ]);
    command.env("PATH", toolbox::search_path());
    command
}

#[test]
fn first_kubectl_works_once_up_is_ready() {
    let (systemd, data) = (NotifySocket::new("notify-up"), folder("notify-up"));
    let mut up = Command::new(ZONEWARD);
    up.args([
        "up",
        "--no-node",
        "--no-mesh",
        "--listen",
        "127.0.0.1:0",
        "--metrics-bind-address",
        "127.0.0.1:0",
    ]);
    let up = Daemon::start(up.arg("--data-dir").arg(&data), &systemd);
    assert_eq!(systemd.next(PATIENCE).as_deref(), Some("READY=1\n"));
    let kubectl = toolbox::command("kubectl")
        .args(["get", "services", "-A", "-o", "name", "--kubeconfig"])
        .arg(data.join("kubeconfig"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&kubectl.stdout), "service/kubernetes\n", "{kubectl:?}");
    drop(up);
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn up_alone_reports_and_not_its_node_proxy() {
    let (systemd, data) = (NotifySocket::new("notify-once"), folder("notify-once"));
    let mut up = in_namespaces();
    let up = Daemon::start(up.args(["up", "--no-mesh", "--data-dir"]).arg(&data), &systemd);
    assert_eq!(systemd.next(PATIENCE).as_deref(), Some("READY=1\n"));
    // The proxy renews its Lease after its first sync, which is when it would report.
    let lease = || {
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        started::ask(&data, "GET", path, "").body
    };
    eventually("the first sync", || lease().contains("zoneward.dev/programmed-revision"));
    assert_eq!(systemd.next(Duration::from_millis(500)), None);
    drop(up);
    std::fs::remove_dir_all(data).unwrap();
}

#[test]
fn controller_is_ready_when_the_api_answers_and_the_node_proxy_after_its_first_sync() {
    let data = folder("notify-roles");
    let socket = data.join("api.sock");
    let systemd = NotifySocket::new("notify-controller");
    let mut controller = Command::new(ZONEWARD);
    controller.args(["controller", "--bind-address", "127.0.0.1:0", "--api-socket"]).arg(&socket);
    let controller = Daemon::start(&mut controller, &systemd);
    assert_eq!(systemd.next(Duration::from_secs(2)), None, "there is no API yet");
    let up = Up::start(&data, &["--no-mesh", "--no-controllers", "--metrics-bind-address", "127.0.0.1:0"]);
    assert_eq!(systemd.next(PATIENCE).as_deref(), Some("READY=1\n"));
    drop(controller);

    let systemd = NotifySocket::new("notify-node");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}});
    up.post("/api/v1/nodes", &node);
    let mut node = in_namespaces();
    node.args(["node", "--proxy-mode", "nftables", "--hostname-override", "node-a", "--api-socket"])
        .arg(&socket);
    let node = Daemon::start(&mut node, &systemd);
    assert_eq!(systemd.next(PATIENCE).as_deref(), Some("READY=1\n"));
    drop((node, up));
    std::fs::remove_dir_all(data).unwrap();
}
