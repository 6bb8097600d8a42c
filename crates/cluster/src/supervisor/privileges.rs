//! Privileges of a child process: a user of its own, no capability but binding low ports, and no way to regain any.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

/// Environment variable of children that drop privileges: the id of the user and group to run as, or [`SAME_USER`].
pub(super) const USER_ENV: &str = "ZONEWARD_CHILD_USER";
/// The user of the parent.
pub(super) const SAME_USER: &str = "-";
/// What a proxy may keep: gateways listen on ports such as 80.
const KEPT: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;
/// SETGID, SETUID and SETPCAP, as in `/proc/PID/status`.
const NEEDED: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// Whether this process can start children as another user: as root, with that user in its namespace.
pub fn can_change_user(user: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or_default();
    let is_mapped =
        |file: &str| fs::read_to_string(file).is_ok_and(|map| map.lines().any(|line| has(line, user)));
    Uid::effective().is_root()
        && effective & NEEDED == NEEDED
        && is_mapped("/proc/self/uid_map")
        && is_mapped("/proc/self/gid_map")
        && fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "allow")
}

/// Whether a line of a map of ids has one: its first, that of the parent, and their number.
fn has(line: &str, id: u32) -> bool {
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    match (numbers.next(), numbers.nth(1)) {
        (Some(first), Some(count)) => (first..first.saturating_add(count)).contains(&u64::from(id)),
        _ => false,
    }
}

/// In a child with `USER_ENV`: drops privileges. Called before any thread is started.
pub fn drop_privileges() -> Result<()> {
    let Some(user) = std::env::var(USER_ENV).ok().filter(|_| super::is_child()) else { return Ok(()) };
    prctl::set_no_new_privs().context("no_new_privs")?;
    let kept = capabilities(None).context("reading capabilities")?.permitted & KEPT;
    if user != SAME_USER {
        let user: u32 = user.parse().with_context(|| format!("user of a child: {user}"))?;
        // First, because it takes a capability.
        drop_bounding_set()?;
        prctl::set_keepcaps(true).context("keeping capabilities")?;
        setgroups(&[]).context("dropping groups")?;
        setgid(Gid::from_raw(user)).context("setting the group")?;
        setuid(Uid::from_raw(user)).context("setting the user")?;
        prctl::set_keepcaps(false).context("no longer keeping capabilities")?;
    }
    // What is not permitted is not ambient, either.
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("dropping capabilities")?;
    // Otherwise its own files in /proc, which metrics read, belong to root.
    prctl::set_dumpable(true).context("owning its files in /proc")
}

fn drop_bounding_set() -> Result<()> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if capability == KEPT {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel has no more.
            Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error).context("dropping a capability from the bounding set"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_ids_are_read() {
        assert!(has("         0          0 4294967295", 65_532));
        assert!(has("0 100000 65536", 65_532) && !has("0 100000 65536", 65_536));
        assert!(!has("0 0 1", 65_532) && !has("", 0));
    }
}
