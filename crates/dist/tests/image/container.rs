//! A container by runc, as a node would run it: the specification by containerd for the rights of a role, the root
//! filesystem by umoci, the mounts of the kubelet.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use dist::image::ImageVariant;
use fixtures::eventually;
use serde_json::{Value, json};

use super::containerd::Containerd;
use super::manifests::Role;
use super::{Scratch, run};

/// What every container of a test shares.
pub(crate) struct Runtime {
    pub(crate) scratch: Scratch,
    containerd: Containerd,
    variant: ImageVariant,
    pub(crate) rootfs: PathBuf,
}

/// A container that is removed with its value.
pub(crate) struct Container {
    id: String,
    child: Child,
    state: PathBuf,
    log: PathBuf,
}

impl Runtime {
    pub(crate) fn new(name: &str, variant: ImageVariant) -> Self {
        let scratch = Scratch::new(name);
        let rootfs = super::readers::unpack(&scratch, variant).join("rootfs");
        let containerd = Containerd::start(&scratch);
        containerd.import(variant);
        Self { scratch, containerd, variant, rootfs }
    }

    /// The specification for the rights of a role.
    pub(crate) fn spec(&self, role: &Role) -> Value {
        let mut flags = Vec::new();
        if role.is_privileged() {
            flags.push("--privileged".to_owned());
        } else {
            flags.extend(capability_flags(role));
        }
        if role.has_default_seccomp() {
            flags.push("--seccomp".to_owned());
        }
        if role.has_read_only_root() {
            flags.push("--read-only".to_owned());
        }
        if role.may_escalate() {
            flags.push("--allow-new-privs".to_owned());
        }
        let mut spec = self.containerd.spec(self.variant, &flags);
        let (user, group) = role.user();
        spec["process"]["user"] = json!({"uid": user, "gid": group});
        // Of `ctr` alone: the kubelet gives neither a writable /run nor this limit.
        spec["process"].as_object_mut().unwrap().remove("rlimits");
        spec["mounts"].as_array_mut().unwrap().retain(|mount| mount["destination"] != "/run");
        spec["root"]["path"] = json!(self.rootfs);
        spec
    }

    /// Starts a role with its own command, in a network namespace; `secrets` is what volumes of kind Secret hold, and
    /// `account` the service account.
    pub(crate) fn start(&self, role: &Role, network: &Path, secrets: &Path, account: &Path) -> Container {
        let mut spec = self.spec(role);
        let mut mounts = self.mounts(role, secrets, account);
        spec["mounts"].as_array_mut().unwrap().append(&mut mounts);
        let environment = role.environment();
        let expand = |word: &String| {
            environment
                .iter()
                .fold(word.clone(), |word, (name, value)| word.replace(&format!("$({name})"), value))
        };
        let words: Vec<String> = role.arguments().iter().map(expand).collect();
        let variables = environment.iter().map(|(name, value)| json!(format!("{name}={value}")));
        spec["process"]["env"].as_array_mut().unwrap().extend(variables);
        self.run(spec, &words, Some(network))
    }

    /// Starts the program with these words.
    pub(crate) fn run(&self, mut spec: Value, words: &[String], network: Option<&Path>) -> Container {
        let count = fs::read_dir(self.scratch.folder("containers")).unwrap().count();
        let id = format!("zoneward-test-{}-{count}", std::process::id());
        let bundle = self.scratch.folder(&format!("containers/{id}"));
        let program = [&["zoneward".to_owned()][..], words].concat();
        spec["process"]["args"] = json!(program);
        spec["linux"]["cgroupsPath"] = json!(format!("/{id}"));
        for namespace in spec["linux"]["namespaces"].as_array_mut().unwrap() {
            if let ("network", Some(path)) = (namespace["type"].as_str().unwrap(), network) {
                namespace["path"] = json!(path);
            }
        }
        fs::write(bundle.join("config.json"), serde_json::to_vec_pretty(&spec).unwrap()).unwrap();
        let (state, log) = (self.scratch.path("runc"), bundle.join("log"));
        let file = File::create(&log).unwrap();
        let mut command = toolbox::command("runc");
        command.arg("--root").arg(&state).args(["run", "--bundle"]).arg(&bundle).arg(&id);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Container { id, child: command.spawn().unwrap(), state, log }
    }

    /// The volumes of a role, the service account, and the files of /etc that the kubelet makes.
    fn mounts(&self, role: &Role, secrets: &Path, account: &Path) -> Vec<Value> {
        let etc = self.scratch.folder("etc");
        fs::write(etc.join("hosts"), "127.0.0.1 localhost\n").unwrap();
        fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
        let mut mounts = vec![
            bind(&etc.join("hosts"), "/etc/hosts", true),
            bind(&etc.join("resolv.conf"), "/etc/resolv.conf", true),
        ];
        if role.pod["automountServiceAccountToken"] != false {
            mounts.push(bind(account, "/var/run/secrets/kubernetes.io/serviceaccount", true));
        }
        for mount in role.container["volumeMounts"].as_array().into_iter().flatten() {
            let volume = role.pod["volumes"].as_array().into_iter().flatten();
            let volume = volume.into_iter().find(|volume| volume["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("{}: no volume for {mount}", role.name));
            let folder = self.volume(role, volume, secrets);
            // Joined with nothing, a path would end in `/`, which a file must not.
            let place = mount["subPath"].as_str().map_or(folder.clone(), |below| folder.join(below));
            mounts.push(bind(&place, mount["mountPath"].as_str().unwrap(), mount["readOnly"] == true));
        }
        mounts
    }

    fn volume(&self, role: &Role, volume: &Value, secrets: &Path) -> PathBuf {
        if volume["secret"].is_object() {
            return secrets.to_owned();
        }
        let folder = self.scratch.folder(&format!("volumes/{}", volume["name"].as_str().unwrap()));
        if let Some(name) = volume["configMap"]["name"].as_str() {
            let is_it = |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == name;
            let map = role.objects.iter().find(is_it);
            let map = map.unwrap_or_else(|| panic!("{}: no ConfigMap {name}", role.name));
            for (file, text) in map["data"].as_object().unwrap() {
                fs::write(folder.join(file), text.as_str().unwrap()).unwrap();
            }
        } else if volume["hostPath"]["type"] == "FileOrCreate" {
            // A file of the test instead of the machine's.
            File::create(folder.join("file")).unwrap();
            return folder.join("file");
        } else {
            assert!(volume["emptyDir"].is_object(), "{}: volume {volume} is not known here", role.name);
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        }
        folder
    }
}

fn bind(source: &Path, destination: &str, read_only: bool) -> Value {
    let mode = if read_only { "ro" } else { "rw" };
    json!({"destination": destination, "type": "bind", "source": source.canonicalize().unwrap(), "options": ["rbind", mode]})
}

/// The runtime's default capabilities and the changes of a role, as flags of `ctr`. What this machine's root lacks cannot
/// be given: the container then has less than in a cluster.
fn capability_flags(role: &Role) -> Vec<String> {
    let dropped = role.capabilities("drop");
    let specification: Value =
        serde_json::from_str(&run(toolbox::command("ctr").args(["oci", "spec"]))).unwrap();
    let defaults = specification["process"]["capabilities"]["bounding"].as_array().unwrap().clone();
    let defaults = defaults.iter().map(|name| name.as_str().unwrap().to_owned());
    // `ctr` drops after it adds, Kubernetes the other way round.
    let added = role.capabilities("add");
    let is_dropped = |name: &String| {
        !added.contains(name) && (dropped.contains(name) || dropped.contains(&"CAP_ALL".to_owned()))
    };
    let mut flags: Vec<String> =
        defaults.filter(is_dropped).flat_map(|name| ["--cap-drop".to_owned(), name]).collect();
    for name in added.clone() {
        if is_available(&name) {
            flags.extend(["--cap-add".to_owned(), name]);
        } else {
            println!("{}: this machine cannot give {name}: run without it", role.name);
        }
    }
    flags
}

/// Whether a capability is in the bounding set of this process.
fn is_available(name: &str) -> bool {
    let number = match name {
        "CAP_NET_BIND_SERVICE" => 10,
        "CAP_NET_ADMIN" => 12,
        "CAP_NET_RAW" => 13,
        "CAP_SYS_RESOURCE" => 24,
        _ => panic!("{name}: add its number here"),
    };
    bounding_set(&fs::read_to_string("/proc/self/status").unwrap()) >> number & 1 == 1
}

/// `CapBnd` of /proc/PID/status.
pub(crate) fn bounding_set(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

impl Container {
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; exit code and what it said.
    pub(crate) fn ended(&mut self) -> (Option<i32>, String) {
        eventually(&format!("the end of {}", self.id), || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap().code(), self.log())
    }

    /// /proc/PID/status of its process, as the kernel has it.
    pub(crate) fn status(&self) -> String {
        let mut state = toolbox::command("runc");
        let state = run(state.arg("--root").arg(&self.state).args(["state", &self.id]));
        let state: Value = serde_json::from_str(&state).unwrap();
        fs::read_to_string(format!("/proc/{}/status", state["pid"])).unwrap()
    }

    /// Asks it to stop, as the kubelet does; its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        run(toolbox::command("runc").arg("--root").arg(&self.state).args(["kill", &self.id, "TERM"]));
        self.ended().0
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut delete = toolbox::command("runc");
        let _ = delete.arg("--root").arg(&self.state).args(["delete", "--force", &self.id]).output();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("log of {}:\n{}", self.id, self.log());
        }
    }
}
