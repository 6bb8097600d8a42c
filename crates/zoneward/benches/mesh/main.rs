//! How fast one of 10,000 routes changes: from the write at the embedded API until the proxy answers by it, all in one
//! process. `cargo xtask bench mesh`.
//! With ZONEWARD_BENCH_COUNT=1 only the parts whose instructions are counted run.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "a bench that cannot go on ends here")]

mod phases;
mod world;

use std::time::{Duration, Instant};

use mesh::embedded_proxy::{EmbeddedProxyConfig, TablesHealth, run};
use mesh::object_source::ObjectSource;
use mesh::{ProxyIdentity, ProxyRole};
use proxy::{Proxy, ProxyOptions, ProxyTables};
use serde_json::Value;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use world::Shape;

const CHANGES: usize = 300;
/// The goal of the design.
const GOAL: Duration = Duration::from_millis(50);

fn main() {
    if std::env::var_os("ZONEWARD_BENCH_COUNT").is_some() {
        phases::run();
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let routes = world::routes();
    for shape in [
        Shape { policies: routes, rules: 1, hosts: 1 },
        Shape { policies: 10, rules: routes / 10, hosts: 1 },
        Shape { policies: routes, rules: 1, hosts: routes },
    ] {
        runtime.block_on(measure(shape));
    }
}

async fn measure(shape: Shape) {
    let api = world::store().await;
    let client = cluster::in_process(api.local(), &clock::Clock::system());
    let port = toolbox::ports::free_port().port();
    let start = Instant::now();
    world::fill(&client, shape, port).await;
    println!("{} routes {shape}: written in {:.1} s", shape.routes(), start.elapsed().as_secs_f64());
    let start = Instant::now();
    let namespace = "default".into();
    let plan = EmbeddedProxyConfig {
        identity: ProxyIdentity {
            role: ProxyRole::gateway("edge", &namespace).unwrap(),
            node: "n".into(),
            zone: None,
        },
        bind: vec!["127.0.0.1".parse().unwrap()],
        outbounds: Vec::new(),
        redirect: None,
        drain: Duration::from_secs(1),
        clock: clock::Clock::system(),
    };
    let (stop, mut stopped) = watch::channel(false);
    let proxy = Proxy::new(ProxyOptions::default(), ProxyTables::default());
    let source = ObjectSource::cluster(client.clone(), model::random::Random::seeded(clock::os_seed()));
    let end = async move { drop(stopped.wait_for(|stop| *stop).await) };
    let running = tokio::spawn(run(plan, source, proxy, Arc::new(TablesHealth::new()), end));
    let mut asker = Asker::connect(port).await;
    asker.until(&shape.host(0), &shape.path(0), "0").await;
    println!("  from nothing until it answers: {:.2} s", start.elapsed().as_secs_f64());
    let mut times = Vec::with_capacity(CHANGES);
    for number in 1..=CHANGES {
        let route = (number * 7919) % shape.routes();
        let patch = shape.changed(route, number);
        let start = Instant::now();
        world::patch(&client, &shape.policy_name(route), &patch).await;
        asker.until(&shape.host(route), &shape.path(route), &number.to_string()).await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "  one route changed, from the write until it is live: p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, most {:.1} ms ({})",
        ms(at(0.5)),
        ms(at(0.9)),
        ms(at(0.99)),
        ms(at(1.0)),
        if at(0.99) < GOAL { "within the goal of 50 ms" } else { "the goal is 50 ms" }
    );
    stop.send_replace(true);
    running.await.unwrap().unwrap();
}

/// A client that asks again and again by one connection.
struct Asker(TcpStream);

impl Asker {
    async fn connect(port: u16) -> Self {
        loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) => {
                    stream.set_nodelay(true).unwrap();
                    return Self(stream);
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    async fn until(&mut self, host: &str, path: &str, wanted: &str) {
        while self.ask(host, path).await != wanted {}
    }

    async fn ask(&mut self, host: &str, path: &str) -> String {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let count = self.0.read(&mut piece).await.unwrap();
            assert!(count > 0, "the proxy closed the connection");
            text.extend_from_slice(&piece[..count]);
            if let Some(body) = whole(&text) {
                return body;
            }
        }
    }
}

/// The body, if all of the answer is there.
fn whole(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    (body.len() == length.unwrap_or(0)).then(|| body.to_owned())
}

/// Used by the counted parts, too.
fn watched(object: &Value) -> cluster::WatchedObject {
    serde_json::from_value(object.clone()).unwrap()
}
