//! The programs of iptables on the real kernel: which flavour a node uses, and what happens while another program holds
//! their lock.

use std::fs::File;
use std::sync::mpsc;
use std::time::Duration;

use dataplane::iptables::commands::IptablesFlavour::{Legacy, Nft};
use dataplane::iptables::commands::{IptablesCommands, IptablesFlavour, IptablesPrograms};
use dataplane::iptables::names::IptablesTableName;
use model::Family;

use super::iptables_traffic::programs;
use crate::namespace::run;

/// Chains of the kubelet decide, in nft before legacy.
#[test]
fn the_flavour_is_that_of_the_kubelet() {
    toolbox::in_own_namespaces!();
    let detected = || -> IptablesFlavour {
        IptablesPrograms::detect(vec![toolbox::Toolbox::own().bin()]).unwrap().flavour()
    };
    assert_eq!(detected(), Nft, "no chain of the kubelet is there");
    run("iptables-legacy", &["-w", "60", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY"]);
    assert_eq!(detected(), Legacy);
    run("ip6tables-nft", &["-t", "mangle", "-N", "KUBE-IPTABLES-HINT"]);
    assert_eq!(detected(), Nft);
}

/// Each attempt waits 5 s; the lock is free during the second.
#[test]
fn a_held_lock_is_waited_for() {
    toolbox::in_own_namespaces!();
    let mut programs = programs(Legacy);
    // A lock of our own, in the mount namespace of this test.
    let nothing = None::<&str>;
    nix::mount::mount(Some("none"), "/run", Some("tmpfs"), nix::mount::MsFlags::empty(), nothing).unwrap();
    let lock = File::create("/run/xtables.lock").unwrap();
    lock.lock().unwrap();
    let (say, hear) = mpsc::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5500));
        say.send(()).unwrap();
        drop(lock);
    });
    programs.restore(Family::V4, "*nat\n:WAITED-FOR - [0:0]\nCOMMIT\n").unwrap();
    hear.try_recv().expect("it waited");
    assert!(programs.has_chain(Family::V4, IptablesTableName::Nat, "WAITED-FOR").unwrap());
}
