//! The kernel of the virtual machine, and a clock that tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dataplane::ipvs::message::encode;
use dataplane::ipvs::{IpvsBackend, IpvsChange, IpvsKernel, IpvsLeftovers, IpvsSettings, IpvsSocket};
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nfnetlink::wire::MessageWriter;
use dataplane::nftables::NftablesBackend;

use super::net::set;

#[derive(Default)]
pub(crate) struct Machine {
    seconds: Arc<AtomicU64>,
}

impl Machine {
    pub(crate) fn backend(&self) -> IpvsBackend {
        self.backend_with(IpvsSettings::default())
    }

    pub(crate) fn backend_with(&self, settings: IpvsSettings) -> IpvsBackend {
        let seconds = self.seconds.clone();
        let time = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        let nft = NftablesBackend::open().unwrap();
        IpvsBackend::new(nft, Box::new(IpvsSocket::open().unwrap()), settings, time)
    }

    /// What mode ipvs left to another mode.
    pub(crate) fn leftovers(&self) -> IpvsLeftovers {
        let seconds = self.seconds.clone();
        let time = Box::new(move || Duration::from_secs(seconds.load(Ordering::Relaxed)));
        let nft = NetlinkSocket::open().unwrap();
        IpvsLeftovers::new(Box::new(nft), Box::new(IpvsSocket::open().unwrap()), time)
    }

    pub(crate) fn pass(&self, seconds: u64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

/// What the node proxy sets.
pub(crate) fn set_sysctls() {
    // The module is loaded for a namespace when it is asked for.
    drop(IpvsSocket::open().unwrap());
    for name in ["conntrack", "expire_nodest_conn", "expire_quiescent_template"] {
        set(&format!("net/ipv4/vs/{name}"), "1");
    }
}

/// A change by another program.
pub(crate) fn change(change: &IpvsChange) {
    let mut kernel = IpvsSocket::open().unwrap();
    let mut out = MessageWriter::new();
    encode(&mut out, kernel.family(), 1, change);
    assert_eq!(kernel.send(out.bytes()).unwrap(), []);
}

/// The virtual servers as the kernel lists them: a line for each, and one for each real server of it.
pub(crate) fn listing() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap();
    text.lines().skip(3).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}
