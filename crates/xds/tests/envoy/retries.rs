//! How many connections a failing backend gets for one request: through a real Envoy and through the embedded proxy, which
//! have to agree.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fixtures::object;
use model::Labels;
use proxy::Proxy;
use serde_json::{Value, json};
use xds::bootstrap::Bootstrap;
use xds::render::{RenderInput, render};

use crate::harness::{Control, bootstrap, envoy};
use crate::http::request;
use crate::load_balancing::embedded;
use crate::world::{Places, sidecar_input, snapshot};
use toolbox::ports::free_port;

/// A backend that never responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// Nothing listens.
    Refusing,
    /// Accepts and says nothing.
    Hanging,
    /// Resets a connection when a request arrives.
    Resetting,
}

struct Backend {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Backend {
    fn start(failing: Failing) -> Self {
        let accepted = Arc::new(AtomicUsize::new(0));
        if failing == Failing::Refusing {
            return Self { address: free_port(), accepted };
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, count) = (listener.local_addr().unwrap(), accepted.clone());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                match failing {
                    Failing::Resetting => {
                        // The kernel resets a connection that is closed with unread bytes.
                        let _ = stream.peek(&mut [0]);
                    }
                    _ => held.push(stream),
                }
            }
        });
        Self { address, accepted }
    }
}

/// A client's way to `web`, with this HTTPRoute rule or none.
fn input(rule: Option<&Value>, at: SocketAddr, backend: SocketAddr) -> RenderInput {
    let mut world = snapshot("ns", &[], &["web", "client"], &json!(null));
    if let Some(rule) = rule {
        let route = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "route", "namespace": "ns"},
            "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": "web"}], "rules": [rule]}});
        world.apply(object(&route));
    }
    let places: Places = [("web".to_owned(), vec![(backend, "a", 1.0)])].into();
    sidecar_input(&world, "ns", ("client", &Labels::EMPTY), "web", at, &places)
}

/// A rule that retries what fails, so many times.
fn rule(attempts: Option<u32>) -> Value {
    let mut rule = json!({"retry": {"backoff": "1ms"}, "timeouts": {"backendRequest": "300ms"},
        "backendRefs": [{"name": "web", "port": 80}]});
    if let Some(attempts) = attempts {
        rule["retry"]["attempts"] = attempts.into();
    }
    rule
}

fn fails(at: SocketAddr) {
    let answer = request(at, "GET", "web", "/", &[]).unwrap();
    assert!((502..=504).contains(&answer.status()), "{}", answer.first);
}

/// The last number of the first line that begins with this.
fn number(text: &str, name: &str) -> usize {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap()
}

fn refused_by_envoy(bootstrap: &Bootstrap) -> usize {
    let answer =
        request(bootstrap.admin.unwrap(), "GET", "admin", "/stats?filter=connect_fail", &[]).unwrap();
    let text = String::from_utf8(answer.body).unwrap();
    let name = text.lines().find(|line| line.starts_with("cluster.ns/web")).expect("a cluster");
    number(name, "cluster")
}

fn refused_by_embedded(proxy: &Proxy) -> usize {
    let (mut registry, mut text) = (prometheus_client::registry::Registry::default(), String::new());
    proxy.register_metrics(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    number(&text, "zoneward_proxy_backend_connect_failures_total")
}

/// The connections for one request, by Envoy and by the embedded proxy.
fn connections(rule: Option<&Value>, failing: Failing) -> [usize; 2] {
    let at = free_port();
    let backend = Backend::start(failing);
    let control = Control::start(&render(input(rule, at, backend.address), None).resources);
    let bootstrap = bootstrap(control.address);
    let running = envoy(&bootstrap);
    running.wait_for(at);
    fails(at);
    let by_envoy = match failing {
        Failing::Refusing => refused_by_envoy(&bootstrap),
        _ => backend.accepted.load(Ordering::SeqCst),
    };
    drop((running, control));

    let backend = Backend::start(failing);
    let (_runtime, proxy, at) = embedded(&input(rule, at, backend.address));
    fails(at);
    let by_embedded = match failing {
        Failing::Refusing => refused_by_embedded(&proxy),
        _ => backend.accepted.load(Ordering::SeqCst),
    };
    [by_envoy, by_embedded]
}

#[test]
fn a_failing_backend_gets_one_connection_per_attempt_of_the_rule_and_no_more_than_the_ceiling() {
    let cases = [(Some(2), 3), (None, 3), (Some(1000), 11), (Some(0), 1)];
    let mut found = Vec::new();
    let mut wanted = Vec::new();
    for failing in [Failing::Refusing, Failing::Hanging, Failing::Resetting] {
        for (attempts, count) in cases {
            found.push((failing, attempts, connections(Some(&rule(attempts)), failing)));
            wanted.push((failing, attempts, [count, count]));
        }
    }
    assert_eq!(found, wanted, "[Envoy, embedded]");
}

#[test]
fn without_a_rule_a_refused_request_is_retried_twice_and_a_request_that_was_sent_is_not() {
    assert_eq!(connections(None, Failing::Refusing), [3, 3]);
    assert_eq!(connections(None, Failing::Resetting), [1, 1]);
}
