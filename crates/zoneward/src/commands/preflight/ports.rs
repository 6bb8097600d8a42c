//! Ports that daemons listen on by default, if another process has them.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Check, Component};
use crate::commands::cleanup::running;

const AREA: &str = "port";
/// The state LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";

/// Ports by component: those of health and metrics, the dashboard, and the API of `zoneward up`.
const PORTS: [(Component, &[u16]); 4] = [
    (Component::Node, &[10249, 10256]),
    (Component::Controller, &[10270, 10273]),
    (Component::Mesh, &[10271, 10272]),
    (Component::Up, &[6443, 10249, 10256, 10270, 10273]),
];

pub(super) fn check(components: &[Component]) -> Vec<Check> {
    let wanted = PORTS.iter().filter(|(component, _)| components.contains(component));
    let wanted: BTreeSet<u16> = wanted.flat_map(|(_, ports)| *ports).copied().collect();
    let taken: BTreeSet<u16> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .flat_map(|text| listening(&text))
        .collect();
    let ours = running::zoneward_daemons(Path::new("/proc"));
    let one = |port: &u16| match (taken.contains(port), ours) {
        (false, _) => Check::ok(AREA, port.to_string(), "free"),
        (true, true) => Check::ok(AREA, port.to_string(), "in use; Zoneward runs here"),
        (true, false) => Check::warn(AREA, port.to_string(), "another process listens on it")
            .fix(format!("sudo ss -ltnp 'sport = :{port}'")),
    };
    wanted.iter().map(one).collect()
}

/// The ports in /proc/net/tcp on which a process listens.
fn listening(table: &str) -> Vec<u16> {
    let port = |line: &str| {
        let mut words = line.split_whitespace();
        let local = words.nth(1)?;
        let state = words.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok().filter(|_| state == LISTEN)
    };
    table.lines().skip(1).filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_hold_a_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:2809 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:280A 0100007F:1234 01 00000000:00000000\n";
        assert_eq!(listening(table), [10249]);
    }
}
