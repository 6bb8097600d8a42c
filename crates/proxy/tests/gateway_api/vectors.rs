//! Every request of the conformance cases, by real connections.

use super::check::check;
use super::client::send;
use super::serving::Proxies;
use super::world::{World, cases, items};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_the_conformance_cases_are_served_as_they_should() {
    let (mut count, mut failures) = (0, Vec::new());
    for case in cases() {
        let mut world = World::new(&case).await;
        let mut proxies = Proxies::default();
        for step in std::iter::once(case.clone()).chain(items(&case["steps"])) {
            world.step(&step);
            proxies.update(&world);
            for request in items(&step["requests"]) {
                count += 1;
                let (at, host) = proxies.address(&world, &request).await;
                for _ in 0..request["times"].as_u64().unwrap_or(1) {
                    world.sightings.prepare(&request);
                    let got = send(at, &request, &host, &world.pairs).await;
                    if let Err(why) = check(&case, &request, &got, &world.sightings.all()) {
                        failures.push(format!("{}: {request}: {why}", case["id"]));
                        break;
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} requests:\n{}", failures.len(), failures.join("\n\n"));
    assert_eq!(count, 235);
}
