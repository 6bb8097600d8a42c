//! Three machines under load: each is killed and started again, and the API is away, dead or silent, for a while.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fixtures::eventually;
use serde_json::{Value, json};

use super::boxes::{Machine, machines};
use super::joined::{SERVICES, SLICES, create_web, expose, until_reached};
use super::namespace;

/// Services that change beside the one that clients use.
const OTHERS: u64 = 20;
/// Ports of the echo servers: endpoints move from one to the other.
const PORTS: [u16; 2] = [9000, 9001];

fn create_service(api: &Machine, name: &str) -> SocketAddr {
    let service =
        json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "ipFamilies": ["IPv4"]}});
    let (code, service) = api.admin("POST", SERVICES, &service.to_string());
    assert_eq!(code, 201, "{service}");
    format!("{}:80", service["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap()
}

/// Moves the endpoints of one machine to the other port, if the API is there.
fn move_endpoints(api: &Machine, machine: &Machine) -> Option<()> {
    let slice = format!("{SLICES}/echo-80-tcp-ipv4-{}-{}", PORTS[0], machine.name());
    let (_, mut stored) = api.try_admin("GET", &slice, "")?;
    let port = &mut stored["ports"][0]["port"];
    *port = if *port == PORTS[0] { PORTS[1].into() } else { PORTS[0].into() };
    let (code, answer) = api.try_admin("PATCH", &slice, &json!({"ports": stored["ports"]}).to_string())?;
    assert_eq!(code, 200, "{answer}");
    Some(())
}

/// Changes objects until told to stop; how many changes the API took.
fn change(api: &Machine, exposed: [&Machine; 2], stop: &AtomicBool) -> u64 {
    let mut made = 0;
    for turn in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let slice = format!("{SLICES}/other-{}", turn % OTHERS);
        let address = format!("10.0.0.{}", 2 + turn % 2);
        let patch = json!({"endpoints": [{"addresses": [address]}]}).to_string();
        let changed = match turn % 5 {
            0 => move_endpoints(api, exposed[usize::from(turn % 10 == 0)]),
            _ => {
                api.try_admin("PATCH", &slice, &patch).map(|(code, answer)| assert_eq!(code, 200, "{answer}"))
            }
        };
        made += u64::from(changed.is_some());
        std::thread::sleep(Duration::from_millis(20));
    }
    made
}

/// Drops packets of the API on their way between machines: it is silent as after a loss of power, and closes and refuses
/// nothing.
fn silence(is_silent: bool) {
    match is_silent {
        true => namespace::run_with(
            "nft",
            &["-f", "-"],
            "table ip silence {\nchain way {\ntype filter hook forward priority 0\ntcp dport 6443 drop\ntcp sport 6443 drop\n}\n}\n",
        ),
        false => namespace::run("nft", &["delete", "table", "ip", "silence"]),
    };
}

/// The thread that changes objects ends with the one that started it.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn others(api: &Machine) {
    for number in 0..OTHERS {
        let name = format!("other-{number}");
        create_service(api, &name);
        let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.2"]}]});
        assert_eq!(api.admin("POST", SLICES, &slice.to_string()).0, 201);
    }
}

#[test]
fn soak_machines_are_killed_and_the_api_is_away_no_connection_fails() {
    toolbox::in_own_namespaces!();
    let seconds: u64 =
        std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let [first, second, third] = machines("soak");
    let mut up = first.up();
    let server = ["--server", "https://10.0.0.1:6443"];
    let mut joined =
        [second.join(&first.token("box-2", &server)), third.join(&first.token("box-3", &server))];
    let echo = create_service(&first, "echo");
    others(&first);
    for machine in [&second, &third] {
        PORTS.iter().for_each(|port| machine.serve_echo(*port));
        let to = format!("{}:{}", machine.address(), PORTS[0]);
        let kubeconfig = machine.kubeconfig().display().to_string();
        machine.run_json(&["expose", "echo", "--port", "80", "--to", &to, "--kubeconfig", &kubeconfig]);
    }
    let all = [&first, &second, &third];
    for machine in all {
        eventually("the Service", || machine.exchange_echo(echo));
    }

    let away = Duration::from_secs((seconds / 3).min(60));
    let (stop, mut rounds) = (AtomicBool::new(false), 0);
    let load = all.map(|machine| machine.load(echo));
    let made = std::thread::scope(|scope| {
        let changing = scope.spawn(|| change(&first, [&second, &third], &stop));
        let (began, stopping) = (Instant::now(), StopAtEnd(&stop));
        while rounds == 0 || began.elapsed() < Duration::from_secs(seconds) {
            for (machine, running) in [&second, &third].into_iter().zip(&mut joined) {
                running.kill_all();
                std::thread::sleep(Duration::from_millis(500));
                *running = machine.start(&["join"]);
            }
            // The API goes without a word to its clients. One machine is killed at that time, too, the other has to notice.
            silence(true);
            up.kill_all();
            std::thread::sleep(away / 4);
            joined[rounds % 2].kill_all();
            joined[rounds % 2] = all[1 + rounds % 2].start(&["join"]);
            std::thread::sleep(away * 3 / 4);
            up = first.up();
            silence(false);
            std::thread::sleep(Duration::from_secs(1));
            rounds += 1;
        }
        drop(stopping);
        changing.join().unwrap()
    });
    let mut failures = Vec::new();
    for (machine, load) in all.iter().zip(load) {
        let (opened, failed) = load.end();
        eprintln!("{}: {opened} connections, {} failed", machine.name(), failed.len());
        assert!(opened > 100, "{}: {opened} connections", machine.name());
        failures.extend(failed);
    }
    eprintln!("{rounds} rounds, {made} changes, the API was away for {away:?} in each");
    let logs = || all.map(|machine| std::fs::read_to_string(machine.log()).unwrap()).join("\n");
    assert!(failures.is_empty(), "{} failed:\n{}\n{}", failures.len(), failures.join("\n"), logs());
    assert!(made > 0, "no change");

    // All of them follow the API again.
    let last = create_service(&first, "last");
    second.serve(8080);
    let kubeconfig = second.kubeconfig().display().to_string();
    second.run_json(&[
        "expose",
        "last",
        "--port",
        "80",
        "--to",
        "10.0.0.2:8080",
        "--kubeconfig",
        &kubeconfig,
    ]);
    for machine in all {
        eventually("the last Service", || machine.connect(last).as_deref() == Some("box-2:8080"));
    }
    assert_eq!(first.admin("GET", "/api/v1/nodes/box-1", "").1["metadata"]["name"], Value::from("box-1"));
    drop((joined, up));
    [first, second, third].iter().for_each(Machine::remove);
}

/// Its kernel is gone with it: nothing is closed, and the next one knows no connection of before.
#[test]
fn machine_notices_that_the_api_lost_its_power() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("power");
    let mut up = first.up();
    let joined = second.join(&first.token("box-2", &["--server", "https://10.0.0.1:6443"]));
    let web = create_web(&first);
    expose(&second);
    until_reached(&second, web, &["box-2:8080"]);
    first.forget_closed_connections();
    silence(true);
    up.kill_all();
    std::thread::sleep(Duration::from_secs(5));
    let up = first.up();
    silence(false);
    let began = Instant::now();
    second.serve(8081);
    let kubeconfig = second.kubeconfig().display().to_string();
    second.run_json(&["expose", "web", "--port", "80", "--to", "10.0.0.2:8081", "--kubeconfig", &kubeconfig]);
    until_reached(&second, web, &["box-2:8081"]);
    eprintln!("noticed after {:?}", began.elapsed());
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}
