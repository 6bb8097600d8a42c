//! Controllers that die, freeze and lead in turn, over an API that fails one time in ten: at rest the slices equal the
//! plan, none lost and none double.

mod change;
mod faulty;
mod processes;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fixtures::eventually_async;
use kube::Client;

use crate::controller::world::{self, Running, World, config};
use change::{Model, check_plan};
use faulty::{Dice, Faulty};

fn limits() -> controller::ControllerConfig {
    let mut config = config();
    config.settings.planning.slices.max_endpoints = 4;
    config
}

/// The seed of this run and when it is to end.
fn seed_and_end() -> (u64, Instant) {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("ZONEWARD_SEED").unwrap_or(clock.as_nanos() as u64);
    (seed, Instant::now() + Duration::from_secs(number("ZONEWARD_SOAK_SECONDS").unwrap_or(10)))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

async fn at_rest(world: &World, model: &Model, round: u64, seed: u64) {
    eventually_async(&format!("the slices equal the plan (round {round}, ZONEWARD_SEED={seed})"), || async {
        model.check(world).await?;
        check_plan(world).await
    })
    .await;
}

/// Worse than any failed hand-over: both lead and write all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_at_rest_the_slices_equal_the_plan_whatever_failed() {
    let (seed, end) = seed_and_end();
    let mut dice = Dice(seed);
    let world = change::world().await;
    let api = Faulty::new(&world.store, seed ^ 0x5eed);
    let client = Client::new(api.clone(), "default");
    let begin = || world::start(&client, limits(), &world.metrics);
    let mut controllers: Vec<Running> = vec![begin(), begin()];
    let mut model = Model::default();
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        println!("round {rounds} ZONEWARD_SEED={seed}");
        for _ in 0..dice.below(60) {
            model.change(&world, &mut dice).await;
            if dice.below(12) == 0 {
                let killed = dice.below(2) as usize;
                controllers[killed].task.abort();
                controllers[killed] = begin();
            }
        }
        // At rest: one controller, and an API that answers.
        api.on.store(false, Ordering::Relaxed);
        controllers[1].task.abort();
        at_rest(&world, &model, rounds, seed).await;
        api.on.store(true, Ordering::Relaxed);
        controllers[1] = begin();
        rounds += 1;
    }
    println!("{rounds} rounds, {} pods made", model.made);
}
