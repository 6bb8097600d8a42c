//! A node for containers: a network namespace with the embedded API in it, which is the program of the image, too.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fixtures::eventually;
use serde_json::Value;

use super::container::Runtime;
use super::{Scratch, run};

/// The address of the node, and of the one pod on it: the health page of the API.
const SETUP: &str = "\
ip link set lo up
ip address add 10.1.0.1/32 dev lo
ip route add 10.96.0.0/16 dev lo src 10.1.0.1
exec \"$@\"
";

pub(crate) struct Node {
    child: Child,
    data: PathBuf,
    pub(crate) account: PathBuf,
}

impl Node {
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let (scratch, data) = (&runtime.scratch, runtime.scratch.path("data"));
        let log = File::create(scratch.path("up.log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-euc", SETUP, "sh"]).arg(runtime.rootfs.join("usr/bin/zoneward"));
        command.args(["up", "--no-node", "--no-controllers", "--no-mesh", "--listen=127.0.0.1:6443"]);
        command.arg("--metrics-bind-address=10.1.0.1:9090").arg("--data-dir").arg(&data);
        command.env("PATH", toolbox::search_path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let account = scratch.folder("account");
        let node = Self { child, data, account };
        eventually("the API", || {
            node.data.join("kubeconfig").is_file()
                && node.kubectl(&["get", "namespace", "default"]).output().unwrap().status.success()
        });
        for (from, to) in [("admin.token", "token"), ("ca.crt", "ca.crt")] {
            fs::copy(node.data.join("pki").join(from), node.account.join(to)).unwrap();
            // As the kubelet has it, for users other than root.
            fs::set_permissions(node.account.join(to), fs::Permissions::from_mode(0o644)).unwrap();
        }
        fs::write(node.account.join("namespace"), "kube-system").unwrap();
        node
    }

    pub(crate) fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.child.id()))
    }

    /// A tool, on this node.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.network().display())).arg("--").arg(toolbox::path(program));
        command
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Command {
        let mut command = self.command("kubectl");
        command.arg("--kubeconfig").arg(self.data.join("kubeconfig")).args(words).env("HOME", &self.data);
        command
    }

    pub(crate) fn apply(&self, object: &Value) {
        let mut command = self.kubectl(&["apply", "--validate=false", "-f", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl apply of {object}");
    }

    /// Objects of a kind.
    pub(crate) fn list(&self, words: &[&str]) -> Vec<Value> {
        let said = run(self.kubectl(&["get", "-o", "json"]).args(words));
        let list: Value = serde_json::from_str(&said).unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// The answer to a GET, or nothing where there is none with status 200.
    pub(crate) fn get(&self, url: &str) -> Option<String> {
        let output = self.command("curl").args(["-sf", "--max-time", "5", url]).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Certificates for `mesh control`, in a folder as a Secret has them.
pub(crate) fn certificates(scratch: &Scratch) -> PathBuf {
    let folder = scratch.folder("certificates");
    let openssl = |words: &[&str]| {
        run(toolbox::command("openssl").args(words).current_dir(&folder));
    };
    let key =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    openssl(&[&key[..], &["-subj", "/CN=control", "-keyout", "tls.key", "-out", "tls.crt"]].concat());
    fs::copy(folder.join("tls.crt"), folder.join("ca.crt")).unwrap();
    readable(&folder);
    folder
}

fn readable(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
}
