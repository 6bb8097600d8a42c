//! Every request of the Gateway API's conformance cases through a real Envoy, with the clients and echo servers of the
//! embedded proxy's tests.

#[path = "../../../proxy/tests/gateway_api/check.rs"]
mod check;
#[path = "../../../proxy/tests/gateway_api/client.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod client;
#[path = "../../../proxy/tests/gateway_api/echo.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod echo;
#[path = "../../../proxy/tests/gateway_api/features.rs"]
mod features;
mod serving;
#[path = "../../../proxy/tests/gateway_api/world.rs"]
mod world;

use std::time::Duration;

use serde_json::Value;

use self::check::check;
use self::client::send;
use self::serving::{Listening, Ports, listening, resources};
use self::world::{World, cases, items};
use crate::harness::{Control, bootstrap, envoy};
use toolbox::ports::free_port;

/// Envoys get no UDP listeners: docs/reference/gateway-api.md.
fn is_different(request: &Value) -> bool {
    request["scheme"] == "udp"
}

/// An Envoy takes over a change at its own time.
const TRIES: usize = 60;
const PAUSE: Duration = Duration::from_millis(100);

#[test]
fn requests_of_the_gateway_apis_cases_through_a_real_envoy_go_where_they_should() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Started with the first case: without a resource Envoy waits for some.
    let mut running = None;
    let (mut count, mut different, mut failures) = (0, 0, Vec::new());
    for case in cases() {
        let steps: Vec<Value> = std::iter::once(case.clone()).chain(items(&case["steps"])).collect();
        let requests = steps.iter().flat_map(|step| items(&step["requests"]));
        let ports: Ports = requests
            .filter(|request| !is_different(request))
            .map(|request| (listening(&request), free_port()))
            .collect();
        let mut world = runtime.block_on(World::new(&case));
        for step in steps {
            world.step(&step);
            let resources = resources(&world, &ports);
            let (control, proxy) = running.get_or_insert_with(|| {
                let control = Control::start(&resources);
                let proxy = envoy(&bootstrap(control.address));
                (control, proxy)
            });
            control.publish(&resources);
            for request in items(&step["requests"]) {
                count += 1;
                if is_different(&request) {
                    different += 1;
                    continue;
                }
                let at = ports[&listening(&request)];
                proxy.wait_for(at);
                let host = match listening(&request) {
                    Listening::Gateway(..) => "192.0.2.1".to_owned(),
                    Listening::Client(_, service, _) => service.name.to_string(),
                };
                let mut last = Ok(());
                for _ in 0..TRIES {
                    world.sightings.prepare(&request);
                    let got = runtime.block_on(send(at, &request, &host, &world.pairs));
                    last = check(&case, &request, &got, &world.sightings.all());
                    if last.is_ok() {
                        break;
                    }
                    std::thread::sleep(PAUSE);
                }
                if let Err(why) = last {
                    failures.push(format!("{}: {request}: {why}", case["id"]));
                }
            }
        }
    }
    let (control, proxy) = running.expect("a case");
    assert!(
        failures.is_empty(),
        "{} of {count} requests:\n{}\nEnvoy says: {}",
        failures.len(),
        failures.join("\n\n"),
        proxy.log()
    );
    assert_eq!(control.streams.notices(), [], "Envoy refuses nothing");
    assert_eq!((count, different), (235, 4));
}
