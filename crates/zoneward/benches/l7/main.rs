//! How the embedded proxy does beside Envoy, nginx and haproxy: CPU per request on HTTP/1.1 and HTTP/2, memory, and what
//! 10,000 routes cost. `cargo xtask bench l7` installs the others.
//!
//! Every proxy has one thread, no access log, and the same nginx behind it. They take turns: what disturbs the machine
//! disturbs all. CPU is what the kernel counted for the proxy's processes, so it means something on a busy machine too.
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod load;
mod rival;

use std::time::Duration;

use load::{Protocol, Sample};
use rival::{Rival, Running};

const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_secs(3);
const MANY: usize = 10_000;
const MEMORY: [&str; 2] = ["VmRSS", "RssAnon"];
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn main() {
    let upstream = rival::upstream();
    let one: Vec<Running> = Rival::ALL.iter().map(|rival| rival.start(1, &upstream)).collect();
    let many = [Rival::Zoneward, Rival::Envoy].map(|rival| rival.start(MANY, &upstream));
    for protocol in PROTOCOLS {
        println!("{}, best of {ROUNDS} rounds of {} s", protocol.as_str(), LASTS.as_secs());
        // Envoy's plain table is walked from its beginning, so with many routes it is not asked: it would only burn time.
        let asked: Vec<&Running> = one.iter().chain(&many[..1]).collect();
        let samples = measure(&asked, protocol);
        report(&asked, &samples);
        let ratio = samples[one.len()].cpu_micros() / samples[0].cpu_micros();
        println!(
            "  ours with {MANY} routes, the last one asked for: {ratio:.3} of that with one (goal 1.05)\n"
        );
    }
    report_memory(&one, &many);
}

/// Resident memory, and the private part of it: pages of the program file are shared and can be dropped.
fn report_memory(one: &[Running], many: &[Running; 2]) {
    println!("Memory after the load, MB           resident  private");
    for running in one.iter().chain(many) {
        let [resident, private] = MEMORY.map(|field| running.memory_mb(field));
        let name = running.rival.as_str();
        println!("  {name:<10} {:>6} routes            {resident:>7.1}  {private:>7.1}", running.routes);
    }
    for (routes, pair, goal) in [(1, &one[..2], 0.4), (MANY, &many[..], 1.0)] {
        let [resident, private] = MEMORY.map(|field| pair[0].memory_mb(field) / pair[1].memory_mb(field));
        println!(
            "  ours to Envoy's, {routes:>5} routes       {resident:>7.2}  {private:>7.2}  (goal {goal})"
        );
    }
}

/// The best round of each; they take turns.
fn measure(proxies: &[&Running], protocol: Protocol) -> Vec<Sample> {
    let mut best: Vec<Option<Sample>> = vec![None; proxies.len()];
    for _ in 0..ROUNDS {
        for (running, best) in proxies.iter().zip(&mut best) {
            let sample = load::run(running, protocol, LASTS);
            assert_eq!(sample.failed, 0, "{} failed requests", running.rival.as_str());
            if best.as_ref().is_none_or(|best| sample.cpu_micros() < best.cpu_micros()) {
                *best = Some(sample);
            }
        }
    }
    best.into_iter().flatten().collect()
}

fn report(proxies: &[&Running], samples: &[Sample]) {
    for (running, sample) in proxies.iter().zip(samples) {
        let ratio = |to: Rival| {
            let is_ours = running.rival == Rival::Zoneward && running.routes == 1;
            let peer = proxies.iter().position(|p| p.rival == to && is_ours);
            peer.map(|at| {
                format!("  {:.2} x {}", sample.cpu_micros() / samples[at].cpu_micros(), to.as_str())
            })
        };
        let ratios: String =
            [Rival::Envoy, Rival::Nginx, Rival::Haproxy].into_iter().filter_map(ratio).collect();
        println!(
            "  {:<10} {:>6} routes {:>8.0} requests/s {:>7.1} us CPU per request{ratios}",
            running.rival.as_str(),
            running.routes,
            sample.per_second(),
            sample.cpu_micros()
        );
    }
}
