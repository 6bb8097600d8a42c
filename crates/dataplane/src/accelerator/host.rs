//! Facts about this machine that the accelerator needs: the root of cgroup v2, the clock of eBPF programs, the cookie of
//! this network namespace.

use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket};
use nix::time::{ClockId, clock_gettime};
use nix::{getsockopt_impl, sockopt_impl};

use crate::backend::BackendError;

/// `SO_NETNS_COOKIE` of asm-generic/socket.h, from Linux 5.14 on.
const SO_NETNS_COOKIE: libc::c_int = 71;

sockopt_impl!(
    /// The cookie of a socket's network namespace, as `bpf_get_netns_cookie` has it.
    NetnsCookie,
    GetOnly,
    libc::SOL_SOCKET,
    SO_NETNS_COOKIE,
    u64
);

/// The cookie of the network namespace of this thread.
pub(super) fn netns_cookie() -> Result<u64, BackendError> {
    let failed = |errno: nix::Error| {
        let what = "reading the cookie of the node's network namespace (SO_NETNS_COOKIE, from Linux 5.14 on)";
        BackendError::failed(format!("{what}: {errno}"))
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let any = socket(AddressFamily::Unix, SockType::Datagram, flags, None).map_err(failed)?;
    getsockopt(&any, NetnsCookie).map_err(failed)
}

/// The clock of `bpf_ktime_get_ns`.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The root of cgroup v2, which has the sockets of every process: a mount of this mount namespace. The root that a
/// container sees in a cgroup namespace of its own is not.
pub fn cgroup_root() -> Result<PathBuf, BackendError> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| BackendError::failed(format!("/proc/self/mountinfo: {error}")))?;
    let places: Vec<&str> = cgroup2_mounts(&mounts).collect();
    // Only cgroups below the root have this file.
    let root = places.iter().find(|place| !Path::new(place).join("cgroup.events").exists());
    match (root, places.first()) {
        (Some(root), _) => Ok(PathBuf::from(root)),
        (None, Some(place)) => Err(BackendError::failed(format!(
            "{place} is not the root of cgroup v2 but that of a container: mount the host's /sys/fs/cgroup into it"
        ))),
        (None, None) => Err(BackendError::failed("cgroup v2 is not mounted")),
    }
}

fn cgroup2_mounts(mountinfo: &str) -> impl Iterator<Item = &str> {
    mountinfo.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        (filesystem.split(' ').next() == Some("cgroup2")).then(|| mount.split(' ').nth(4))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_cgroup_v2_are_found_among_others() {
        let text = "24 1 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    25 1 0:23 /../.. /host/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mounts(text).collect::<Vec<_>>(), ["/host/cgroup"]);
    }

    #[test]
    fn a_namespace_has_the_same_cookie_each_time() {
        assert_eq!(netns_cookie().expect("a cookie"), netns_cookie().expect("a cookie"));
    }
}
