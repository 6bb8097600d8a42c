//! `zoneward node` in mode ipvs as a process of its own, on a kernel with IPVS: in the virtual machine of
//! `cargo xtask test --extended --only ipvs`.

use crate::connect;
use crate::namespace;
use crate::node_live::place;
use crate::node_live::world;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use dataplane::iptables::ruleset::{IpvsDestination, IpvsServers};
use dataplane::ipvs::message::encode;
use dataplane::ipvs::{IpvsChange, IpvsKernel, IpvsSocket, RealServer, VirtualServer, VirtualServerKey};
use dataplane::nfnetlink::wire::MessageWriter;
use model::Protocol;
use serde_json::{Value, json};

use namespace::run;
use place::{From, Place, Source, VIPS, here, there};
use world::{Proxy, get, metric};

const IPVS: &str = "mode: ipvs
clusterCIDR: 10.1.0.0/16,fd00:1::/64
ipvs:
  scheduler: wlc
  strictARP: true
  syncPeriod: 2s
  tcpTimeout: 1234s
  tcpFinTimeout: 30s
  udpTimeout: 100s
  excludeCIDRs: [10.96.99.0/24]
";
const NFTABLES: &str = "mode: nftables
clusterCIDR: 10.1.0.0/16,fd00:1::/64
nftables: {syncPeriod: 2s}
";

fn say(step: &str, start: Instant) {
    println!("  {:6.2} s {step}", start.elapsed().as_secs_f64());
}

/// Starts the proxy, and waits until all is programmed.
fn start(place: &Place, lines: &str, more: &[&str]) -> Proxy {
    let path = place.world.folder.join("config.yaml");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    std::fs::write(&path, format!("{head}{lines}")).unwrap();
    let path = path.display().to_string();
    let proxy = place.world.node("n1", &[&["--config", &path], more].concat());
    place.settle();
    proxy
}

/// The exit code, and what a command printed; its errors if it printed nothing.
fn zoneward(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(words)
        .env("PATH", toolbox::search_path())
        .output()
        .unwrap();
    let text = match output.stdout.is_empty() {
        true => output.stderr,
        false => output.stdout,
    };
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn sysctl(name: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/{name}");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim_end().to_owned()
}

/// The virtual servers, as the kernel lists them.
fn servers() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap();
    let lines = text.lines().skip(3).filter(|line| !line.trim_start().starts_with("->"));
    lines.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
}

/// A virtual server of another program.
fn add_foreign(address: &str) {
    let key = VirtualServerKey { address: address.parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
    let server = VirtualServer { scheduler: "rr".into(), flags: 0, persistence: None };
    change(&IpvsChange::NewServer(key, server));
}

fn change(change: &IpvsChange) {
    let mut kernel = IpvsSocket::open().unwrap();
    let mut out = MessageWriter::new();
    encode(&mut out, kernel.family(), 1, change);
    assert_eq!(kernel.send(out.bytes()).unwrap(), [], "{change}");
}

/// Gives this kernel the rules that kube-proxy wrote in mode ipvs, and compares them with ours.
#[test]
fn migrate_check_reads_mode_ipvs_of_the_kernel() {
    namespace::enter_as_root();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/migrate");
    let text = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    namespace::run_with(
        "ip",
        &["-batch", "-"],
        "link add eth0 type dummy\naddress add 192.168.0.2/24 dev eth0\n",
    );
    namespace::run_with("ipset", &["restore"], &text("ipvs-ipset.save"));
    namespace::run_with("iptables-nft-restore", &[], &text("ipvs-iptables.save"));
    let servers = IpvsServers::parse(&text("ipvs-ipvsadm.save")).unwrap();
    let mut interface = "link add kube-ipvs0 type dummy\n".to_owned();
    for ((number, at), server) in &servers.0 {
        let protocol = if *number == 6 { Protocol::Tcp } else { Protocol::Udp };
        let key = VirtualServerKey { address: at.ip(), protocol, port: at.port() };
        let (scheduler, persistence) = (server.scheduler.clone(), server.persistence);
        change(&IpvsChange::NewServer(key, VirtualServer { scheduler, flags: 0, persistence }));
        for IpvsDestination { address, weight } in server.destinations.iter().copied() {
            change(&IpvsChange::NewReal(key, RealServer { address, weight }));
        }
        if at.ip().to_string() != "192.168.0.2" {
            interface += &format!("address replace {}/32 dev kube-ipvs0\n", at.ip());
        }
    }
    namespace::run_with("ip", &["-batch", "-"], &interface);
    let [objects, config] =
        ["objects.yaml", "config.yaml"].map(|file| folder.join(file).display().to_string());
    let words = ["migrate", "check", "--live", "-f", &objects, "--config", &config, "--node", "test-node"];
    let (code, text) = zoneward(&[&words[..], &["-o", "json"]].concat());
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!((code, &report["from"]), (Some(1), &"ipvs".into()), "{report:#}");
    let causes: Vec<&str> = report["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["cause"].as_str().unwrap())
        .collect();
    assert_eq!(causes, ["Verdict", "Endpoints"], "as from the recording: {report:#}");
    assert_eq!(report["unevaluated"], json!([]));
}

fn is_alive(stream: &mut TcpStream) {
    let mut answer = [0; 5];
    stream.write_all(b"hello").and_then(|()| stream.read_exact(&mut answer)).unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
fn the_node_runs_in_mode_ipvs() {
    namespace::enter_as_root();
    let begin = Instant::now();
    let place = Place::new("ipvs");
    add_foreign("10.96.99.1");
    add_foreign("10.96.98.1");
    place.put_web(
        json!({"type": "LoadBalancer", "nodePort": 30_080,
            "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.5"}]}}}),
        &[here(1), there(5)],
    );
    say("namespaces", begin);
    let node = start(&place, IPVS, &[]);
    say("mode ipvs", begin);
    settings_reach_the_kernel();
    for vip in VIPS {
        place.goes(From::Pod(2), (vip, 80), &[1, 5], Source::Kept);
    }
    place.goes(From::Outside, ("198.51.100.1", 30_080), &[1, 5], Source::Masqueraded);
    place.goes(From::Outside, ("198.18.0.5", 80), &[1, 5], Source::Masqueraded);
    place.is_refused(From::Outside, ("198.18.0.5", 81));
    say("connections", begin);
    metrics_tell_of_it(&place);
    commands_read_the_kernel(&place);
    say("commands", begin);

    // Another mode, with a connection open that the old one forwards.
    let (_, mut stream) =
        place.site.others.within(|| connect::open("198.18.0.5:80".parse().unwrap()).unwrap());
    let states = std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn").unwrap();
    let open = states.lines().find(|line| line.contains("ESTABLISHED")).unwrap();
    let left: u32 = open.split_whitespace().last().unwrap().parse().unwrap();
    assert!((1100..=1234).contains(&left), "tcpTimeout: {open}");
    drop(node);
    let node = start(&place, NFTABLES, &[]);
    is_alive(&mut stream);
    let held = servers();
    assert!(
        held.iter().any(|line| line.starts_with("TCP C6120005:0050")),
        "its connection is open: {held:?}"
    );
    place.world.until("no virtual server gets new connections", || {
        let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap();
        let mut reals = text.lines().filter(|line| line.trim_start().starts_with("->")).skip(1);
        reals.all(|line| line.split_whitespace().nth(3) == Some("0"))
    });
    let routes = run("ip", &["route", "show", "table", "local", "proto", "90"]);
    assert!(routes.contains("198.18.0.5 ") && !routes.contains("10.96.0.0/16"), "{routes}");
    is_alive(&mut stream);
    drop(stream);
    place.goes(From::Outside, ("198.18.0.5", 80), &[1, 5], Source::Masqueraded);
    drop(node);
    say("mode nftables", begin);

    let node = start(&place, IPVS, &["--ipvs-dummy-interface"]);
    let addresses = run("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]);
    for address in [VIPS[0], VIPS[1], "198.18.0.5"] {
        assert!(addresses.contains(&format!(" {address}/")), "{address}: {addresses}");
    }
    let route = run("ip", &["route", "get", VIPS[0]]);
    assert!(route.contains("src 198.51.100.1"), "{route}");
    place.goes(From::Node, (VIPS[0], 80), &[1, 5], Source::Masqueraded);
    drop(node);
    let (code, text) = zoneward(&["cleanup", "--only-zoneward"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("removed interface kube-ipvs0"), "{text}");
    assert_eq!(servers(), ["TCP 0A606301:0050 rr"], "only that of another program");
    say("dummy interface, cleanup", begin);
}

/// Sysctls, scheduler, excludeCIDRs, strictARP.
fn settings_reach_the_kernel() {
    let wanted = [
        ("vs/conntrack", "1"),
        ("vs/expire_nodest_conn", "1"),
        ("vs/expire_quiescent_template", "1"),
        ("ip_forward", "1"),
        ("conf/all/arp_ignore", "1"),
        ("conf/all/arp_announce", "2"),
    ];
    for (name, value) in wanted {
        assert_eq!(sysctl(name), value, "{name}");
    }
    let held = servers();
    for line in ["TCP 0A600007:0050 wlc", "TCP C6120005:0050 wlc", "TCP C6336401:7580 wlc"] {
        assert!(held.iter().any(|server| server == line), "{line}: {held:?}");
    }
    assert!(held.contains(&"TCP 0A606301:0050 rr".to_owned()), "excludeCIDRs: {held:?}");
    assert!(!held.iter().any(|line| line.starts_with("TCP 0A606201")), "stale in the ServiceCIDR: {held:?}");
}

fn metrics_tell_of_it(place: &Place) {
    assert_eq!(get("127.0.0.1:10249", "/proxyMode").unwrap().2, "ipvs");
    place.world.until("connections are counted", || {
        get("127.0.0.1:10249", "/metrics").is_some_and(|(_, _, body)| {
            body.lines().any(|line| {
                line.starts_with("zoneward_service_connections_total{")
                    && line.contains("web")
                    && !line.ends_with(" 0")
            })
        })
    });
    assert!(metric("zoneward_node_programmed_revision").is_some());
}

/// `trace packet`, `plan node` and `migrate check` with --live.
fn commands_read_the_kernel(place: &Place) {
    let (code, text) = zoneward(&[
        "trace",
        "packet",
        "--live",
        "-o",
        "json",
        "--packet",
        "tcp 10.1.0.2:40000 -> 10.96.0.7:80",
    ]);
    assert_eq!(code, Some(0), "{text}");
    let trace: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&trace["verdict"], &trace["masquerade"]), (&"dnat".into(), &false.into()), "{trace}");
    place.world.until("the kernel holds everything", || {
        let (code, text) = zoneward(&["plan", "node", "--live"]);
        assert!(code.is_some_and(|code| code < 2), "{text}");
        text.contains("No changes")
    });
}
