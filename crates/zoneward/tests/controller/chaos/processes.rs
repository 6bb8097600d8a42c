//! The same with real processes and a real election: two of `zoneward controller`, of which one is killed or frozen at
//! random. A frozen leader wakes up deposed, and may still have something to say.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fixtures::eventually_async;
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::change::{self, Model};
use super::faulty::{Dice, Faulty};
use super::{at_rest, seed_and_end};
use crate::controller::world::World;

/// Serves a failing API on a socket, as `zoneward up` serves a good one.
fn serve(path: &Path, api: &Faulty) -> JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    let api = api.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let api = api.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let mut api = api.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = kube::client::Body::from(body.collect().await?.to_bytes().to_vec());
                    tower::Service::call(&mut api, Request::from_parts(head, body)).await
                }
            });
            // A client that breaks off, or an answer that is lost, ends a connection.
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    })
}

/// A controller process that ends with the test.
struct Contender {
    child: Child,
    frozen: bool,
}

impl Contender {
    fn start(socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["controller", "--bind-address=127.0.0.1:0", "--max-endpoints-per-slice=4"]);
        command.args(["--leader-elect-lease-duration=1s", "--leader-elect-renew-deadline=600ms"]);
        command.args(["--leader-elect-retry-period=100ms", "--api-socket"]).arg(socket);
        let child = command.env("RUST_LOG", "error").stdout(Stdio::null()).spawn().unwrap();
        Self { child, frozen: false }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn freeze(&mut self) {
        self.signal("-STOP");
        self.frozen = true;
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            self.signal("-CONT");
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Contest {
    contenders: [Contender; 2],
    socket: PathBuf,
    kills: u64,
    freezes: u64,
}

impl Contest {
    fn start(socket: &Path) -> Self {
        let contenders = [Contender::start(socket), Contender::start(socket)];
        Self { contenders, socket: socket.to_owned(), kills: 0, freezes: 0 }
    }

    /// Something happens to one of them.
    fn strike(&mut self, dice: &mut Dice) {
        let one = &mut self.contenders[dice.below(2) as usize];
        match dice.below(3) {
            0 => {
                *one = Contender::start(&self.socket);
                self.kills += 1;
            }
            1 if !one.frozen => {
                one.freeze();
                self.freezes += 1;
            }
            _ => one.thaw(),
        }
    }

    fn check_alive(&mut self) {
        for contender in &mut self.contenders {
            contender.thaw();
            assert_eq!(contender.child.try_wait().unwrap(), None, "a controller ended by itself");
        }
    }
}

async fn holder(world: &World) -> Option<(String, i64)> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/zoneward-controller";
    let lease = world.try_send("GET", path, "application/json", &serde_json::Value::Null).await.ok()?;
    let spec = &lease["spec"];
    Some((spec["holderIdentity"].as_str()?.to_owned(), spec["leaseTransitions"].as_i64()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_processes_that_die_and_freeze_leave_the_slices_as_planned() {
    let (seed, end) = seed_and_end();
    let mut dice = Dice(seed);
    let world = change::world().await;
    world.namespace("kube-system").await;
    let api = Faulty::new(&world.store, seed ^ 0x5eed);
    let socket = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos-{}.sock", std::process::id()));
    let server = serve(&socket, &api);
    let mut contest = Contest::start(&socket);
    let mut model = Model::default();
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        println!("round {rounds} ZONEWARD_SEED={seed}");
        for _ in 0..20 + dice.below(80) {
            model.change(&world, &mut dice).await;
            tokio::time::sleep(Duration::from_millis(dice.below(60))).await;
            if dice.below(12) == 0 {
                contest.strike(&mut dice);
            }
        }
        // At rest: both live, and the API answers.
        api.on.store(false, Ordering::Relaxed);
        contest.check_alive();
        eventually_async("one leads", || async {
            let held = holder(&world).await.is_some_and(|(holder, _)| !holder.is_empty());
            if held { Ok(()) } else { Err("nobody".to_owned()) }
        })
        .await;
        at_rest(&world, &model, rounds, seed).await;
        // It stays so: nobody has a late write to undo.
        tokio::time::sleep(Duration::from_millis(100)).await;
        at_rest(&world, &model, rounds, seed).await;
        api.on.store(true, Ordering::Relaxed);
        rounds += 1;
    }
    contest.check_alive();
    let transitions = holder(&world).await.map_or(0, |(_, transitions)| transitions);
    let Contest { kills, freezes, .. } = &contest;
    println!(
        "{rounds} rounds, {} pods, {kills} killed, {freezes} frozen, {transitions} hand-overs",
        model.made
    );
    server.abort();
    std::fs::remove_file(&socket).unwrap();
}
