//! How the embedded proxy does beside Envoy, nginx and haproxy: CPU per request on HTTP/1.1 and HTTP/2, memory, what
//! 10,000 routes cost, p99 latency at 70 % load, memory of 10,000 idle connections, and TLS handshakes.
//! `cargo xtask bench l7` installs the others; `cargo xtask bench l7 -- latency idle tls` runs some of the parts.
//!
//! Every proxy has one thread, no access log, and the same nginx behind it. They take turns: what disturbs the machine
//! disturbs all. CPU is what the kernel counted for the proxy's processes, so it means something on a busy machine too.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod handshakes;
mod idle;
mod latency;
mod load;
mod rival;

use std::time::Duration;

use handshakes::Identity;
use latency::Latencies;
use load::{Protocol, Sample};
use rival::{Rival, Running, Setup};

const ROUNDS: usize = 5;
const LASTS: Duration = Duration::from_secs(3);
const MANY: usize = 10_000;
const IDLE: usize = 10_000;
const MEMORY: [&str; 2] = ["VmRSS", "RssAnon"];
const PROTOCOLS: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
/// The load at which latency is measured, of each proxy's own maximum.
const LOAD: f64 = 0.7;
/// Of the search for the maximum.
const SATURATED: Duration = Duration::from_secs(1);
/// Ours comes first.
const COMPARED: [Rival; 3] = [Rival::Zoneward, Rival::Envoy, Rival::Nginx];

fn main() {
    let (_, descriptors) = proxy::raise_descriptor_limit().unwrap();
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |part: &str| asked.is_empty() || asked.iter().any(|word| word == part);
    let upstream = rival::upstream();
    if is_wanted("cpu") || is_wanted("latency") {
        let one: Vec<Running> =
            Rival::ALL.iter().map(|rival| rival.start(Setup::routes(1), &upstream)).collect();
        if is_wanted("cpu") {
            cpu_and_memory(&one, &upstream);
        }
        if is_wanted("latency") {
            latency(&one);
        }
    }
    if is_wanted("idle") {
        idle_connections(&upstream, idle_count(descriptors));
    }
    if is_wanted("tls") {
        tls_handshakes(&upstream);
    }
}

fn cpu_and_memory(one: &[Running], upstream: &Running) {
    let many = [Rival::Zoneward, Rival::Envoy].map(|rival| rival.start(Setup::routes(MANY), upstream));
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
    report_memory(one, &many);
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
    println!();
}

/// Latency at 70 % of each proxy's own maximum, and at one rate for all: 70 % of the least of these maxima.
fn latency(proxies: &[Running]) {
    let mut maximum = vec![0.0_f64; proxies.len()];
    for _ in 0..ROUNDS {
        for (running, maximum) in proxies.iter().zip(&mut maximum) {
            *maximum = maximum.max(latency::run(running, None, SATURATED).per_second());
        }
    }
    let own: Vec<f64> = maximum.iter().map(|maximum| maximum * LOAD).collect();
    let least = own.iter().copied().fold(f64::INFINITY, f64::min);
    for (what, rates) in
        [("each proxy's own maximum", own), ("the slowest one's maximum", vec![least; proxies.len()])]
    {
        println!(
            "HTTP/1.1 latency at {:.0} % of {what}, best and median of {ROUNDS} rounds of {} s",
            LOAD * 100.0,
            LASTS.as_secs()
        );
        latency_at(proxies, &rates, &maximum);
    }
}

/// Of the rounds, the one with the lowest p99 counts, and the median is shown.
fn latency_at(proxies: &[Running], rates: &[f64], maximum: &[f64]) {
    let mut rounds: Vec<Vec<Latencies>> = vec![Vec::new(); proxies.len()];
    for _ in 0..ROUNDS {
        for ((running, rate), rounds) in proxies.iter().zip(rates).zip(&mut rounds) {
            rounds.push(latency::run(running, Some(*rate), LASTS));
        }
    }
    let p99 = |round: &Latencies| round.percentile_micros(99);
    for rounds in &mut rounds {
        rounds.sort_by(|a, b| p99(a).total_cmp(&p99(b)));
    }
    for ((running, rounds), maximum) in proxies.iter().zip(&rounds).zip(maximum) {
        let (best, median) = (&rounds[0], &rounds[ROUNDS / 2]);
        println!(
            "  {:<10} {:>7.0} of {maximum:>7.0} requests/s  p50 {:>7.0} us  p99 {:>7.0} us  median p99 {:>7.0} us",
            running.rival.as_str(),
            best.per_second(),
            best.percentile_micros(50),
            p99(best),
            p99(median),
        );
    }
    let best: Vec<f64> = rounds.iter().map(|rounds| p99(&rounds[0])).collect();
    println!(
        "  p99 ours to Envoy's {:.2} (goal: below 1), to nginx's {:.2} (goal 1.2)\n",
        best[0] / best[1],
        best[0] / best[2]
    );
}

/// 10,000, or as many thousands as the limit of open files lets our proxy have: half of them is for upstream connections,
/// and from nine tenths of the rest on it closes idle ones.
fn idle_count(descriptors: u64) -> usize {
    let half = usize::try_from(descriptors - descriptors / 16).unwrap() / 2;
    IDLE.min(half * 9 / 10 / 1_000 * 1_000)
}

/// Each proxy by itself, with nothing else connected to it.
fn idle_connections(upstream: &Running, count: usize) {
    println!("Memory of {count} idle connections, MB before -> with, KiB per connection");
    println!("              resident                    proportional                private");
    let setup = Setup { connections: count + 2_000, ..Setup::routes(1) };
    for rival in COMPARED {
        let measured = idle::measure(&rival.start(setup, upstream), count);
        let each = measured.per_connection();
        let column = |at: usize| {
            format!("{:>6.1} -> {:>6.1}  {:>5.2}", measured.before[at], measured.with[at], each[at])
        };
        println!("  {:<10} {}     {}     {}", rival.as_str(), column(0), column(1), column(2));
    }
    println!();
}

fn tls_handshakes(upstream: &Running) {
    println!(
        "Full TLS 1.3 handshakes, ECDSA P-256, X25519, best of {ROUNDS} rounds of {} s",
        LASTS.as_secs()
    );
    let identity = Identity::new();
    let client = identity.client();
    let setup = Setup { identity: Some(&identity), ..Setup::routes(1) };
    let proxies: Vec<Running> = COMPARED.iter().map(|rival| rival.start(setup, upstream)).collect();
    let asked: Vec<&Running> = proxies.iter().collect();
    let samples = best(&asked, |running| handshakes::run(running, &client, LASTS));
    for (running, sample) in proxies.iter().zip(&samples) {
        println!(
            "  {:<10} {:>7.0} handshakes/s {:>7.1} us CPU per handshake",
            running.rival.as_str(),
            sample.per_second(),
            sample.cpu_micros()
        );
    }
    let ratio = |to: usize| samples[0].cpu_micros() / samples[to].cpu_micros();
    println!("  CPU per handshake, ours to Envoy's {:.2}, to nginx's {:.2}", ratio(1), ratio(2));
}

/// The best round of each; they take turns.
fn measure(proxies: &[&Running], protocol: Protocol) -> Vec<Sample> {
    best(proxies, |running| {
        let sample = load::run(running, protocol, LASTS);
        assert_eq!(sample.failed, 0, "{} failed requests", running.rival.as_str());
        sample
    })
}

/// The round with the least CPU of each; they take turns.
fn best(proxies: &[&Running], run: impl Fn(&Running) -> Sample) -> Vec<Sample> {
    let mut best: Vec<Option<Sample>> = vec![None; proxies.len()];
    for _ in 0..ROUNDS {
        for (running, best) in proxies.iter().zip(&mut best) {
            let sample = run(running);
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
