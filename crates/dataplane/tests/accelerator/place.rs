//! Where a test runs: network namespaces, a BPF file system and a cgroup of its own. All of it is gone at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::plain_namespace::run;

/// The BPF file system, in this mount namespace alone.
static PINS: OnceLock<PathBuf> = OnceLock::new();

/// Moves this process into namespaces of its own. Unlike other tests, as root: the kernel permits bpf() to no other user.
pub(crate) fn enter() {
    assert!(
        nix::unistd::Uid::effective().is_root(),
        "eBPF programs can be loaded by root alone: run this test as root, or leave it out by -E 'not binary(accelerator_kernel)'"
    );
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("root may have namespaces");
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("mounts become private");
    // Over a folder that exists: nothing is left when the namespace goes. Programs get the folder of this file system.
    mount(Some("tmpfs"), "/mnt", Some("tmpfs"), MsFlags::empty(), none).expect("a file system of this test");
    let place = Path::new("/mnt/bpf");
    fs::create_dir(place).expect("a folder of this test");
    mount(Some("bpf"), place, Some("bpf"), MsFlags::empty(), none).expect("a BPF file system");
    PINS.set(place.join("zoneward")).expect("entered once");
    run("ip", &["link", "set", "lo", "up"]);
}

/// Where this test pins.
pub(crate) fn pins() -> &'static Path {
    PINS.get().expect("the test entered its namespaces")
}

/// A cgroup with this process in it, until it is dropped.
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    before: PathBuf,
}

impl Cgroup {
    pub(crate) fn enter(name: &str) -> Cgroup {
        let root = dataplane::accelerator::cgroup_root().expect("cgroup v2 is mounted");
        let own = fs::read_to_string("/proc/self/cgroup").expect("this process is in cgroups");
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("one of them is of v2");
        let before = root.join(own);
        let path = root.join(format!("zoneward-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        join(&path);
        Cgroup { path, before }
    }

    /// Moves this process here again.
    #[allow(dead_code, reason = "a bench does")]
    pub(crate) fn join(&self) {
        join(&self.path);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        join(&self.before);
        fs::remove_dir(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
    }
}

fn join(cgroup: &Path) {
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, std::process::id().to_string())
        .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}
