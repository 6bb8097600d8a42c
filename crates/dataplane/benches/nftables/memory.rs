//! What a process holds that keeps a node's table and renderer and has loaded them.

use dataplane::nfnetlink::NetlinkSocket;

use crate::allocation;
use crate::load::phase_load;
use crate::world::World;

/// Bytes, by what holds them.
pub(crate) struct Held {
    /// Resident now, as the kernel counts it.
    pub(crate) resident: usize,
    /// The most that was ever resident.
    pub(crate) most: usize,
    /// Resident before there was a world.
    pub(crate) before: usize,
    pub(crate) table: usize,
    pub(crate) renderer: usize,
}

/// Loads a node with this many Services and looks at this process.
pub(crate) fn run(services: usize) -> Held {
    let before = status("VmRSS");
    let start = allocation::held();
    let world = World::new(services);
    let table = allocation::held() - start;
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    let start = allocation::held();
    let (renderer, _) = phase_load(&mut kernel, &world);
    let held = allocation::held() - start;
    let found = Held { resident: status("VmRSS"), most: status("VmHWM"), before, table, renderer: held };
    drop((world, renderer, kernel));
    found
}

/// A row of this process's status, in bytes.
pub(crate) fn status(row: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs is there");
    let value = text.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(':'));
    let number = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    number.expect("the kernel counts it") * 1024
}
