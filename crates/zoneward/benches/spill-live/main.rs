//! Spill on measured demand beside the real Envoy, with real connections in the demo's namespaces: three scenarios of three
//! minutes. `cargo xtask bench spill-live` installs Envoy. `ZONEWARD_BENCH_MINUTE=20` has shorter minutes, in seconds.
//!
//! ```text
//!  client pods, two per zone                     server pods: 4, 5 and 3 by zone, each with a port per competitor
//!    client --- cluster IP, PreferSameZone  ---> port 9001    counts by zone of the client and second
//!           --- cluster IP, Spill measured  ---> port 9002
//!           --- Envoy, zone-aware routing   ---> port 9003
//!           --- Envoy, load_aware_locality  ---> port 9004    reports rate / capacity (ORCA)
//! ```
//! All competitors get the same demand at the same time: what disturbs the machine disturbs all.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod agent;
mod api;
mod client;
mod envoy;
mod place;
mod run;
mod score;
mod server;

use run::{Measurement, SCENARIOS};

fn main() {
    if agent::is_agent() {
        return;
    }
    let minute = std::env::var("ZONEWARD_BENCH_MINUTE").ok();
    let minute =
        minute.map_or(60, |text| text.parse().expect("ZONEWARD_BENCH_MINUTE is a number of seconds"));
    let measurement = Measurement { minute, window: 10, connections: 240.0 };
    println!("{}\n", measurement.description());
    let mut world = run::World::start(&measurement);
    for scenario in SCENARIOS {
        println!("{}\n", score::table(scenario.name, &world.record(&scenario)));
    }
}
