//! A containerd of the test's own: its folders, its socket, no plugin that looks outside of them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use dist::image::ImageVariant;
use fixtures::eventually;
use serde_json::Value;

use super::{Scratch, image, run};

/// What the import names an image.
pub(crate) fn name(variant: ImageVariant) -> String {
    format!("docker.io/library/zoneward:{}", variant.tag(env!("CARGO_PKG_VERSION")))
}

pub(crate) struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Containerd {
    pub(crate) fn start(scratch: &Scratch) -> Self {
        let folder = scratch.folder("containerd");
        let socket = folder.join("grpc.sock");
        let place = folder.display();
        // The native snapshotter copies instead of mounting, so that it works on every file system.
        let config = format!(
            "version = 2\nroot = \"{place}/root\"\nstate = \"{place}/state\"\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{}\"\n[ttrpc]\naddress = \"{place}/ttrpc.sock\"\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{place}/opt\"\n",
            socket.display()
        );
        let file = folder.join("config.toml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut command = toolbox::command("containerd");
        command.arg("--config").arg(&file).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let server = Self { child: command.spawn().unwrap(), socket };
        eventually("containerd", || server.command(&["version"]).output().unwrap().status.success());
        server
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = toolbox::command("ctr");
        command.arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]).args(words);
        command
    }

    pub(crate) fn ctr(&self, words: &[&str]) -> String {
        run(&mut self.command(words))
    }

    /// Loads an image as `kind load image-archive` does.
    pub(crate) fn import(&self, variant: ImageVariant) -> String {
        let mut command = self.command(&["images", "import", "--all-platforms", "--digests"]);
        run(command.args(["--snapshotter", "native"]).arg(image(variant)))
    }

    /// The OCI runtime specification of a container of the image with these flags: users, capabilities, seccomp and masked
    /// paths as containerd sets them.
    pub(crate) fn spec(&self, variant: ImageVariant, flags: &[String]) -> Value {
        let mut command = self.command(&["containers", "create", "--snapshotter", "native"]);
        run(command.args(flags).args([&name(variant), "spec"]));
        let info: Value = serde_json::from_str(&self.ctr(&["containers", "info", "spec"])).unwrap();
        self.ctr(&["containers", "delete", "spec"]);
        info["Spec"].clone()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
