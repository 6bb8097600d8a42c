//! How the node proxy grows with the cluster: cold start, restart, memory and one change at several numbers of Services,
//! each beside its floor, the same elements sent to the kernel by bare netlink. `cargo xtask bench node-growth`.
//!
//! Numbers of Services may be given: `cargo xtask bench node-growth -- 1000 10000`. Each row is a process of its own, in
//! namespaces of its own.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod floor;
#[path = "../../../dataplane/tests/namespace.rs"]
#[allow(dead_code, reason = "shared with tests, which use more of it")]
mod namespace;
#[path = "../node/proxy.rs"]
#[allow(dead_code, reason = "shared with the bench node")]
mod proxy;
mod row;
#[path = "../node/world.rs"]
#[allow(dead_code, reason = "shared with the bench node")]
mod world;

use std::time::{Duration, Instant};

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::Kernel;

use proxy::Proxy;
use row::{CHANGES, Row};
use world::World;

const SIZES: [usize; 4] = [1_000, 10_000, 50_000, 100_000];
/// Says to a child which row is its own.
const ROW: &str = "ZONEWARD_BENCH_ROW";
/// Until freed memory is returned to the kernel.
const REST: Duration = Duration::from_secs(3);

fn main() {
    if let Some(services) = std::env::var(ROW).ok().and_then(|text| text.parse().ok()) {
        println!("{}", measure(services).line());
        return;
    }
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let sizes = if given.is_empty() { SIZES.to_vec() } else { given };
    let mut rows: Vec<Row> = Vec::new();
    for services in sizes {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.env(ROW, services.to_string()).stderr(std::process::Stdio::inherit());
        let output = child.output().unwrap();
        assert!(output.status.success(), "the row of {services} Services failed");
        rows.push(Row::parse(String::from_utf8_lossy(&output.stdout).trim()));
        eprintln!("{services} Services: measured");
    }
    row::print(&rows);
}

fn measure(services: usize) -> Row {
    namespace::enter();
    let floor = floor::measure(services);
    let world = World::new(services);
    let cold = Proxy::start(&world);
    cold.until_programmed(world.revision());
    let cold_cpu = cold.cpu();
    std::thread::sleep(REST);
    let (resident, private) = (cold.kilobytes("VmRSS:"), cold.kilobytes("RssAnon:"));
    drop(cold);
    let again = Proxy::start(&world);
    again.until_programmed(world.revision());
    let restart_cpu = again.cpu();
    std::thread::sleep(REST);
    let restart_peak = again.kilobytes("VmHWM:");
    let (times, change_cpu) = changes(&world, &again);
    Row {
        services,
        cold_cpu,
        restart_cpu,
        resident,
        private,
        restart_peak,
        rest_after_changes: again.kilobytes("VmRSS:"),
        change_p50: row::percentile(&times, 0.5),
        change_p99: row::percentile(&times, 0.99),
        change_cpu,
        floor,
    }
}

/// Replaces one endpoint of a Service at a time. A time starts with the API's answer and ends when the kernel's
/// generation has advanced.
fn changes(world: &World, proxy: &Proxy) -> (Vec<Duration>, Duration) {
    let mut kernel = NetlinkSocket::open().unwrap();
    let cpu = proxy.cpu();
    let mut times = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let before = kernel.generation().unwrap();
        world.change(number * 7919, number);
        let answered = Instant::now();
        while kernel.generation().unwrap() == before {
            assert!(answered.elapsed() < Duration::from_secs(60), "a change was not programmed");
            std::thread::sleep(Duration::from_micros(50));
        }
        times.push(answered.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    times.sort();
    (times, (proxy.cpu() - cpu) / u32::try_from(CHANGES).unwrap())
}
