//! What other clients notice while one attacks: the real `zoneward up` and a gateway as processes, a good client measured
//! in quiet and under each attack. `cargo xtask soak attack` runs it and prints the table of docs/benchmarks/security.md.
//!
//! ```text
//! good client (127.0.0.2) ----------> gateway, API or health port <---------- attack (127.0.0.9, 16 sources, or
//!      answers, p99, /healthz                 memory                           the address of the good client)
//! ```
//!
//! ZONEWARD_BINARY names another build to attack, ZONEWARD_SOAK_SECONDS the length of each attack; an argument runs only
//! attacks whose names contain it.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod attacks;
mod good_client;
mod http2_frames;
mod world;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use attacks::{ATTACKS, Attack};
use good_client::{Measured, Victim};
use tokio::runtime::Handle;
use world::World;

/// Goals of docs/security.md.
const ANSWERS: f64 = 99.9;
const SLOWER: f64 = 10.0;
const HEALTHZ: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(5);
/// A p99 in quiet below this is noise of the machine.
const LEAST_P99: Duration = Duration::from_millis(2);
/// Longest wait for a recovery.
const PATIENCE: Duration = Duration::from_secs(60);
/// Answers in a row after an attack that count as recovered.
const IN_A_ROW: usize = 20;

/// Where the connections of an attack come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sources {
    One,
    Sixteen,
    /// All clients are behind one address.
    Shared,
}

impl Sources {
    const ALL: [Sources; 3] = [Sources::One, Sources::Sixteen, Sources::Shared];

    fn addresses(self) -> Vec<Ipv4Addr> {
        match self {
            Sources::One => vec![Ipv4Addr::new(127, 0, 0, 9)],
            Sources::Sixteen => (0..16).map(|last| Ipv4Addr::new(127, 0, 1, 10 + last)).collect(),
            Sources::Shared => vec![good_client::ADDRESS],
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Sources::One => "1",
            Sources::Sixteen => "16",
            Sources::Shared => "shared",
        }
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let lasts = Duration::from_secs(seconds.unwrap_or(10));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if std::env::var_os(world::BACKEND).is_some() {
        return runtime.block_on(world::serve_backend());
    }
    let client = good_client::runtime();
    runtime.block_on(async {
        println!(
            "| attack | sources | answers % | p99 | x quiet | /healthz max | memory peak | recovery | goals |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
        let chosen = |attack: &&Attack| wanted.iter().all(|word| attack.name.contains(word.as_str()));
        for attack in ATTACKS.iter().filter(chosen) {
            for sources in Sources::ALL {
                println!("{}", row(attack, sources, lasts, &client).await);
            }
        }
    });
}

/// One attack on fresh processes.
async fn row(attack: &Attack, sources: Sources, lasts: Duration, client: &Handle) -> String {
    let (world, victim) = (World::start(attack.victim).await, attack.victim);
    let measure = |lasts| client.spawn(good_client::measure(world.clone(), victim, lasts));
    let quiet = measure(lasts / 2).await.unwrap();
    let running = (attack.start)(&world, &sources.addresses());
    // The attack is up before it is measured.
    tokio::time::sleep(lasts / 4).await;
    let under = measure(lasts).await.unwrap();
    drop(running);
    let recovery = recovery(&world, victim, &quiet).await;
    describe(attack, sources, &quiet, &under, recovery)
}

/// Time from the end of an attack to the first of some good answers in a row.
async fn recovery(world: &World, victim: Victim, quiet: &Measured) -> Option<Duration> {
    let ended = Instant::now();
    let slowest = quiet.p99().max(LEAST_P99).mul_f64(SLOWER);
    let (mut good, mut since) = (0, ended.elapsed());
    while ended.elapsed() < PATIENCE {
        let asked = ended.elapsed();
        match good_client::ask(world, victim).await {
            Some(took) if took <= slowest => {
                if good == 0 {
                    since = asked;
                }
                good += 1;
            }
            _ => good = 0,
        }
        if good == IN_A_ROW {
            return Some(since);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}

fn describe(
    attack: &Attack,
    sources: Sources,
    quiet: &Measured,
    under: &Measured,
    recovery: Option<Duration>,
) -> String {
    let factor = under.p99().as_secs_f64() / quiet.p99().max(LEAST_P99).as_secs_f64();
    let missed = [
        ("answers", under.answered_percent() < ANSWERS),
        ("p99", factor > SLOWER),
        ("healthz", under.slowest_healthz > HEALTHZ),
        ("memory", under.memory_mb > attack.memory_mb),
        ("recovery", recovery.is_none_or(|recovery| recovery > RECOVERY)),
    ];
    let missed: Vec<&str> =
        missed.iter().filter(|(_, is_missed)| *is_missed).map(|(name, _)| *name).collect();
    let goals = if missed.is_empty() { "met".to_owned() } else { format!("missed: {}", missed.join(", ")) };
    format!(
        "| {} | {} | {:.1} | {} | {factor:.1} | {} | {} MB | {} | {goals} |",
        attack.name,
        sources.as_str(),
        under.answered_percent(),
        shown(under.p99()),
        shown(under.slowest_healthz),
        under.memory_mb,
        recovery.map_or_else(|| format!("over {} s", PATIENCE.as_secs()), shown),
    )
}

fn shown(time: Duration) -> String {
    match time {
        time if time < Duration::from_secs(1) => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        time => format!("{:.1} s", time.as_secs_f64()),
    }
}
