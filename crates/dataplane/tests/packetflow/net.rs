//! Network namespaces around the one that the test is in: this one is the node, clients and servers are next
//! door. Each neighbour is a thread of its own that lives in its namespace and does there what it is asked.

use std::net::IpAddr;
use std::sync::mpsc;

use nix::sched::{CloneFlags, unshare};

use crate::namespace::{run, run_with};

/// A namespace next to the node's, connected by one pair of interfaces.
pub(crate) struct Neighbour {
    number: u8,
    interface: String,
    work: mpsc::Sender<Box<dyn FnOnce() + Send>>,
}

impl Neighbour {
    /// Makes the namespace. `interface` is the node's side; the other side is called `uplink`.
    pub(crate) fn new(number: u8, interface: &str) -> Neighbour {
        Self::entering(number, interface, || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace within our own");
        })
    }

    /// The same in a namespace that `enter` moves its thread to.
    pub(crate) fn entering(number: u8, interface: &str, enter: impl FnOnce() + Send + 'static) -> Neighbour {
        let (work, inbox) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let (say, hear) = mpsc::channel();
        std::thread::spawn(move || {
            enter();
            say.send(nix::unistd::gettid()).expect("the test waits for this");
            inbox.into_iter().for_each(|task| task());
        });
        let thread = hear.recv().expect("the thread lives").to_string();
        run("ip", &["link", "add", interface, "type", "veth", "peer", "name", "uplink", "netns", &thread]);
        join(interface, number, 1);
        let neighbour = Neighbour { number, interface: interface.to_owned(), work };
        neighbour.within(move || {
            join("uplink", number, 2);
            let (v4, v6) = link(number, 1);
            batch(&format!("link set lo up\nroute add 0.0.0.0/0 via {v4}\nroute add ::/0 via {v6}\n"));
        });
        neighbour
    }

    /// The way to everywhere else leads there; a node without one cannot even start to a cluster IP.
    pub(crate) fn be_the_way_out(&self) {
        let (v4, v6) = link(self.number, 2);
        run("ip", &["-4", "route", "add", "default", "via", &v4]);
        run("ip", &["-6", "route", "add", "default", "via", &v6]);
    }

    /// Does something there and waits for it.
    pub(crate) fn within<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, hear) = mpsc::channel();
        let task = Box::new(move || drop(say.send(task())));
        self.work.send(task).expect("the thread lives");
        hear.recv().expect("the task was done without a panic")
    }

    /// Gives it an address, and the node the way there.
    pub(crate) fn add_address(&self, address: IpAddr) {
        let (v4, v6) = link(self.number, 2);
        let (net, via) =
            if address.is_ipv4() { (format!("{address}/32"), v4) } else { (format!("{address}/128"), v6) };
        run("ip", &["route", "replace", &net, "via", &via, "dev", &self.interface]);
        self.within(move || {
            let mut words = vec!["address", "replace", &net, "dev", "uplink"];
            // An IPv6 address could not be used while the kernel asks whether another has it.
            words.extend(address.is_ipv6().then_some("nodad"));
            run("ip", &words);
        });
    }
}

/// The addresses on the way between node (1) and neighbour (2).
fn link(number: u8, side: u8) -> (String, String) {
    (format!("169.254.{number}.{side}"), format!("fd00:ffff:{number}::{side}"))
}

fn join(interface: &str, number: u8, side: u8) {
    set(&format!("net/ipv4/conf/{interface}/rp_filter"), "0");
    // Both have to be off, or a new address cannot be used for a second (duplicate address detection).
    set("net/ipv6/conf/all/accept_dad", "0");
    set(&format!("net/ipv6/conf/{interface}/accept_dad"), "0");
    let (v4, v6) = link(number, side);
    batch(&format!(
        "link set {interface} up\naddress add {v4}/30 dev {interface}\naddress add {v6}/64 dev {interface} nodad\n"
    ));
}

/// Several commands of `ip` in one process: in an emulated machine each takes a while to start.
fn batch(lines: &str) {
    run_with("ip", &["-batch", "-"], lines);
}

/// Lets this namespace forward, and have an address.
pub(crate) fn be_a_router(addresses: &[IpAddr]) {
    set("net/ipv4/ip_forward", "1");
    set("net/ipv6/conf/all/forwarding", "1");
    // Tests are refused more often than the kernel cares to tell one client.
    set("net/ipv4/icmp_ratelimit", "0");
    set("net/ipv6/icmp/ratelimit", "0");
    for address in addresses {
        let (net, more): (_, &[&str]) = match address {
            IpAddr::V4(_) => (format!("{address}/32"), &[]),
            IpAddr::V6(_) => (format!("{address}/128"), &["nodad"]),
        };
        run("ip", &[&["address", "replace", &net, "dev", "lo"], more].concat());
    }
}

/// Sets a kernel variable of this namespace.
pub(crate) fn set(name: &str, value: &str) {
    let path = format!("/proc/sys/{name}");
    std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
}
