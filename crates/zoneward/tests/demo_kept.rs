//! A demo that keeps running, used as its closing text says; and the tour that starts with a demo.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use fixtures::eventually_within;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const ZONEWARD: &str = env!("CARGO_BIN_EXE_zoneward");
const DEMO: [&str; 3] = ["demo", "--keep", "--bare"];
/// Why a demo is not in the first of its default folders.
const BESIDE: &str = ", because another demo is running";

/// A demo that keeps running until it is dropped.
struct Kept {
    child: Child,
    folder: PathBuf,
    lines: BufReader<ChildStdout>,
    /// The commands of its closing text.
    commands: Vec<String>,
}

impl Kept {
    fn start(name: &str) -> Self {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let mut command = Command::new(ZONEWARD);
        let mut kept = Self::launch(command.args(DEMO).arg("--data-dir").arg(&folder));
        kept.folder = folder.clone();
        kept.until_ready();
        assert_eq!(kept.folder, folder);
        kept
    }

    /// Starts a demo with its command, without waiting for it.
    fn launch(command: &mut Command) -> Self {
        let command = command.env("PATH", toolbox::search_path()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the demo starts");
        let lines = BufReader::new(child.stdout.take().expect("it was asked for"));
        Self { child, folder: PathBuf::new(), lines, commands: Vec::new() }
    }

    /// Waits until it serves commands, and reads where it is and what can be tried.
    fn until_ready(&mut self) {
        let before = self.read_until("Everything keeps running");
        let said = |start: &str| before.lines().find_map(|line| line.strip_prefix(start));
        let dashboard = said("The dashboard is at http://").expect("it has an address").trim_end_matches('/');
        std::net::TcpStream::connect(dashboard).expect("the dashboard listens");
        let folder = said("Data and logs are in ").expect("it has a folder").trim_end_matches('.');
        self.folder = folder.trim_end_matches(BESIDE).into();
        let text = self.read_until("kubectl --kubeconfig").replace("\\\n    ", "");
        self.commands = text.lines().filter_map(|line| line.strip_prefix("  ").map(str::to_owned)).collect();
    }

    /// Its lines up to one that contains a text.
    fn read_until(&mut self, wanted: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let count = self.lines.read_line(&mut line).expect("the demo speaks UTF-8");
            assert!(count > 0, "the demo ended before it said {wanted:?}: {all}");
            all += &line;
            if line.contains(wanted) {
                return all;
            }
        }
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(ZONEWARD);
        // Before what runs in a namespace.
        let (first, rest) = words.split_first().expect("a command");
        command
            .args(["demo", first, "--data-dir"])
            .arg(&self.folder)
            .args(rest)
            .env("PATH", toolbox::search_path());
        command.output().expect("the program starts")
    }

    /// What a command of the kept demo answers.
    fn answer(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["-o", "json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
    }

    fn text(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn refusal(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn cluster_ip(&self, service: &str) -> String {
        let words =
            ["node-a1", "--", "kubectl", "get", "service", service, "-o", "jsonpath={.spec.clusterIP}"];
        self.text(&[&["exec"], &words[..]].concat())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A folder for temporary files, where demos without `--data-dir` are: other demos of this user are elsewhere.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("TMPDIR", &self.0).env("PATH", toolbox::search_path());
        command
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The planned share of connections that stay in their zone, as the text says it.
fn planned_in_zone(text: &str) -> f64 {
    let line = text.lines().find(|line| line.contains("in-zone traffic")).expect("a share");
    let share = line.rsplit("planned ").next().and_then(|share| share.strip_suffix(" %"));
    share.and_then(|share| share.parse().ok()).unwrap_or_else(|| panic!("no share: {line}"))
}

/// Runs the commands of the closing text, but for the closed loop, which has a test of its own.
fn run_closing_commands(demo: &Kept) -> Vec<String> {
    let is_other = |command: &&String| !command.contains(" closed-loop");
    let commands = demo.commands.iter().filter(is_other);
    let said = commands.map(|command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", toolbox::search_path());
        let output = shell.env("KUBECACHEDIR", demo.folder.join("kubectl-cache")).output();
        let output = output.expect("a shell");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    });
    said.collect()
}

#[test]
fn the_commands_of_the_closing_text_work_and_show_traffic_move_in_one_of_two_demos() {
    let temporary = TemporaryFolder::new("closing");
    let mut first = Kept::launch(temporary.command(ZONEWARD).args(DEMO));
    // It has its folder by then.
    first.read_until("Creating a cluster");
    let mut demo = Kept::launch(temporary.command(ZONEWARD).args(DEMO));
    first.until_ready();
    demo.until_ready();
    let of_user = temporary.0.join(format!("zoneward-demo-{}", nix::unistd::Uid::current()));
    assert_eq!(first.folder, of_user);
    let beside = of_user.with_file_name(format!("zoneward-demo-{}-2", nix::unistd::Uid::current()));
    assert_eq!(demo.folder, beside);

    let said = run_closing_commands(&demo);
    let [before, scaled, after, curl, trace, status, pods] = &said[..] else { panic!("{:?}", demo.commands) };
    assert_eq!(demo.commands.len(), said.len() + 1, "{:?}", demo.commands);
    assert!(scaled.contains("zone-c: 1 pod of web, was 4"), "{scaled}");
    assert!(planned_in_zone(before) > 85.0 && planned_in_zone(after) < 80.0, "{before}{after}");
    assert!(before.contains("busiest pod: "), "{before}");
    assert!(
        curl.starts_with("web-b") && curl.contains(" on node-b") && curl.ends_with(" in zone-b\n"),
        "{curl}"
    );
    assert!(trace.contains(": dnat\n") && trace.contains("Service default/web-spill:http"), "{trace}");
    assert!(status.contains("web-spill"), "{status}");
    let pods: Vec<&str> = pods.lines().skip(1).collect();
    assert_eq!(pods.len(), 27, "{pods:?}");
    assert!(pods.iter().all(|pod| pod.contains(" 1/1 ") && pod.contains(" Running ")), "{pods:?}");

    // Without a folder, the commands are for the only demo; the first one did not change.
    let traffic = || temporary.command("sh").args(["-c", &first.commands[1]]).output().expect("a shell");
    let ambiguous = traffic();
    let said = String::from_utf8_lossy(&ambiguous.stderr).into_owned();
    assert_eq!(ambiguous.status.code(), Some(1), "{said}");
    for (folder, child) in [(&of_user, &first.child), (&beside, &demo.child)] {
        let line = format!("--data-dir {}  process {}, started ", folder.display(), child.id());
        assert!(said.contains(&line), "{said}");
    }
    drop(demo);
    assert!(!beside.exists(), "it removes the folder that it chose");
    let only = traffic();
    let said = String::from_utf8_lossy(&only.stdout).into_owned();
    assert!(only.status.success(), "{said}{}", String::from_utf8_lossy(&only.stderr));
    assert!(planned_in_zone(&said) > 85.0, "{said}");
}

#[test]
fn demand_moves_and_traffic_follows_without_overload() {
    let demo = Kept::start("closed-loop");
    let told = demo.answer(&["closed-loop"]);
    assert_eq!(told["complaints"], json!([]), "{told}");
    let rows = told["rows"].as_array().expect("rows");
    let busiest = |at: usize, kind: &str| rows[at]["busiest"][kind].as_f64().expect("a load");
    let [even, prefer, cpu, first, last] = [0, 1, 2, 3, 4];
    assert_eq!((rows[prefer]["name"].as_str(), rows.len()), (Some("PreferSameZone"), 5), "{told}");
    assert!(busiest(even, "planned") < 1.05 && busiest(even, "measured") < 1.3, "{told}");
    // Zone-c has 4 of 18 pods for 60 % of the traffic: 2.7 times the fair share, or 1.8 if a third is expected.
    assert!((busiest(prefer, "planned") - 2.7).abs() < 0.01 && busiest(prefer, "measured") > 2.5, "{told}");
    assert!((busiest(cpu, "planned") - 1.8).abs() < 0.05, "{told}");
    assert!(busiest(first, "planned") > 1.15, "{told}");
    assert!(busiest(last, "planned") <= 1.15 && busiest(last, "measured") < 1.4, "{told}");
}

#[test]
fn no_node_is_warned_of_and_a_killed_node_proxy_is_started_again_and_that_is_said() {
    let mut demo = Kept::start("quiet");
    let events = demo.text(&["exec", "client-a1", "--", "kubectl", "get", "events", "-A", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let of_nodes = events["items"].as_array().expect("a list").iter();
    let of_nodes: Vec<_> = of_nodes.filter(|event| event["involvedObject"]["kind"] == "Node").collect();
    assert!(of_nodes.is_empty(), "{of_nodes:?}");
    let probe = format!("cat < /dev/tcp/{}/80", demo.cluster_ip("web-requirezone"));
    let said = demo.text(&["exec", "client-c1", "--", "bash", "-c", &probe]);
    assert!(said.starts_with("web-c") && said.ends_with(" in zone-c\n"), "{said}");
    let place = demo.text(&["exec", "client-c1", "--", "sh", "-c", "echo $NODE_NAME $POD_NAME"]);
    assert_eq!(place, "node-c1 client-c1\n");

    let places = || -> Value {
        let text = std::fs::read_to_string(demo.folder.join("namespaces.json")).expect("the demo's places");
        serde_json::from_str(&text).expect("JSON")
    };
    let before = places()["processes"]["node-a1"].as_i64().expect("the node proxy's process");
    kill(Pid::from_raw(i32::try_from(before).expect("a process")), Signal::SIGKILL).expect("it runs");
    demo.read_until("The node proxy of node-a1 exited (signal: 9 (SIGKILL)) and was restarted as process");
    let traffic = demo.answer(&["traffic", "web-prefersamenode", "--from", "node-a1"]);
    assert_eq!(traffic["inZone"]["measured"], 1.0, "{traffic}");
    let text = std::fs::read_to_string(demo.folder.join("namespaces.json")).expect("the demo's places");
    let after: Value = serde_json::from_str(&text).expect("JSON");
    assert_ne!(after["processes"]["node-a1"], json!(before));
}

#[test]
fn a_zone_without_pods_is_served_by_the_others_until_it_has_some_again() {
    let demo = Kept::start("scale");
    let scaled = demo.answer(&["scale", "web", "--zone", "zone-c", "--replicas", "0"]);
    assert_eq!(scaled["zones"]["zone-c"], json!({"before": 4, "after": 0}));
    assert_eq!(scaled["zones"]["zone-a"], json!({"before": 8, "after": 8}));
    let prefer = demo.answer(&["traffic", "svc/web-prefersamezone"]);
    assert_eq!(prefer["connections"]["zone-c"].get("zone-c"), None, "{prefer}");
    assert_eq!((&prefer["failed"], &prefer["complaints"]), (&json!(0), &json!([])));
    let require = demo.answer(&["traffic", "web-requirezone", "--from", "zone-c", "--connections", "50"]);
    assert_eq!((&require["refused"], &require["busiest"]), (&json!({"zone-c": 100}), &Value::Null));
    demo.answer(&["scale", "deployment/web", "--zone", "zone-c", "--replicas", "5"]);
    let back = demo.answer(&["traffic", "web-prefersamezone", "--ip-family", "ipv6"]);
    assert_eq!(back["inZone"], json!({"measured": 1.0, "planned": 1.0}));
    assert_eq!(back["busiest"]["planned"], 1.2667, "19 pods, 5 of them for a third of the traffic: {back}");

    assert!(demo.refusal(&["traffic", "wev"]).contains("there is no Service default/wev; there are"));
    assert!(demo.refusal(&["traffic", "web-requirezone", "--from", "zone-x"]).contains("--from zone-x"));
    assert!(demo.refusal(&["scale", "cart", "--replicas", "1"]).contains("there are web and shop"));
    assert!(demo.refusal(&["scale", "web", "--zone", "zone-x", "--replicas", "1"]).contains("zone-a"));
}

/// A server in a pod that sends this many bytes to each client, and stops with the returned value.
struct Sender(Child);

impl Sender {
    fn start(demo: &Kept, pod: &str, port: u16, bytes: usize) -> Self {
        let program = format!(
            "import socket\ns = socket.create_server(('', {port}), backlog=16)\nprint('up', flush=True)\n\
             while True:\n c, _ = s.accept()\n c.recv(1)\n c.sendall(bytes({bytes}))\n c.close()\n"
        );
        let mut child = Command::new(ZONEWARD)
            .args(["demo", "exec", "--data-dir"])
            .arg(&demo.folder)
            .args([pod, "--", "python3", "-c", &program])
            .env("PATH", toolbox::search_path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line).expect("a line");
        assert_eq!(line, "up\n");
        Self(child)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads everything that a server sends, and returns how much it was; `None` if there is no connection.
fn receive(demo: &Kept, ip: &str, port: u16) -> Option<usize> {
    let program = format!(
        "import socket\nc = socket.create_connection(('{ip}', {port}), 5)\nc.sendall(b'?')\nn = 0\n\
         while True:\n d = c.recv(1 << 20)\n n += len(d)\n if not d: break\nprint(n)\n"
    );
    let output = demo.run(&["exec", "client-a1", "--", "python3", "-c", &program]);
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Connections and bytes from zone-a to zone-b of a row of the ledger.
fn in_ledger(demo: &Kept, is_row: impl Fn(&Value) -> bool) -> (u64, u64) {
    use std::io::{Read, Write};
    let socket = demo.folder.join("data/ledger.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the ledger listens");
    let request = "GET /ledger?window=3600 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    let (head, body) = text.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{text}");
    let page: Value = serde_json::from_str(body).expect("JSON");
    let rows = page["rows"].as_array().expect("rows").iter().filter(|row| is_row(row));
    let pairs = rows.flat_map(|row| row["zonePairs"].as_array().expect("pairs"));
    let across = pairs.filter(|pair| pair["fromZone"] == "zone-a" && pair["toZone"] == "zone-b");
    across.fold((0, 0), |(connections, bytes), pair| {
        let number = |field: &str| pair[field].as_u64().expect("a number");
        (connections + number("connections"), bytes + number("bytes"))
    })
}

/// How long the ledger may take: two rounds of reports, on a busy machine.
const LEDGER: std::time::Duration = std::time::Duration::from_secs(300);

#[test]
fn a_known_transfer_is_in_the_ledger_within_two_percent() {
    let demo = Kept::start("ledger");
    let pods = demo.text(&["exec", "client-a1", "--", "kubectl", "get", "pods", "-o", "json"]);
    let pods: Value = serde_json::from_str(&pods).expect("JSON");
    let pod = pods["items"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("web-b")));
    let pod = pod.expect("a pod in zone-b");
    let (name, ip) = (pod["metadata"]["name"].as_str().unwrap(), pod["status"]["podIP"].as_str().unwrap());
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "known"},
            "spec": {"ports": [{"name": "p", "port": 90, "targetPort": 9090}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "known", "labels": {"kubernetes.io/service-name": "known"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 9090, "protocol": "TCP"}],
            "endpoints": [{"addresses": [ip], "conditions": {"ready": true},
                "nodeName": pod["spec"]["nodeName"], "zone": "zone-b"}]}]});
    let apply = format!("kubectl apply -f - <<'END'\n{objects}\nEND");
    demo.text(&["exec", "client-a1", "--", "sh", "-c", &apply]);
    let size = 60_000_000;
    let _sender = Sender::start(&demo, name, 9090, size);
    let is_known = |row: &Value| row["name"] == "known";
    let is_direct = |row: &Value| row["kind"] == "NotThroughService";

    // Direct connections are counted once the node knows the zones of pods.
    let _small = Sender::start(&demo, name, 9091, 10);
    eventually_within(LEDGER, "a direct connection is in the ledger", || {
        receive(&demo, ip, 9091);
        in_ledger(&demo, is_direct).0 > 0
    });
    let cluster_ip = demo.cluster_ip("known");
    eventually_within(LEDGER, "the Service answers", || receive(&demo, &cluster_ip, 90) == Some(size));
    let before = in_ledger(&demo, is_direct).1;
    for _ in 0..2 {
        assert_eq!(receive(&demo, ip, 9090), Some(size));
    }
    assert_eq!(receive(&demo, &cluster_ip, 90), Some(size));
    let (through, direct) = (2 * size as u64, 2 * size as u64);
    eventually_within(LEDGER, "the transfers are in the ledger", || {
        in_ledger(&demo, is_known).1 >= through && in_ledger(&demo, is_direct).1 >= before + direct
    });
    // Their entries leave the kernel's table: what was counted while they were open is not counted again.
    demo.text(&["exec", "node-a1", "--", "conntrack", "-F"]);
    assert_eq!(receive(&demo, &cluster_ip, 90), Some(size));
    eventually_within(LEDGER, "one more connection is in the ledger", || {
        let (connections, bytes) = in_ledger(&demo, is_known);
        connections >= 3 && bytes >= 3 * size as u64
    });
    let near = |found: u64, expected: u64| (found as f64 / expected as f64 - 1.0).abs() <= 0.02;
    let (connections, bytes) = in_ledger(&demo, is_known);
    assert!(connections == 3 && near(bytes, 3 * size as u64), "{connections} connections, {bytes} bytes");
    let bytes = in_ledger(&demo, is_direct).1 - before;
    assert!(near(bytes, direct), "{bytes} bytes from pod to pod, expected {direct}");
    let said = |name: &str| std::fs::read_to_string(demo.folder.join("logs").join(name)).unwrap_or_default();
    assert!(!said("node-a1.log").contains("not reported"), "{}", said("node-a1.log"));
}

/// The program under another name, as a new version would be.
fn other_program(demo: &Kept, name: &str) -> PathBuf {
    let path = demo.folder.join(name);
    std::fs::hard_link(ZONEWARD, &path)
        .or_else(|_| std::fs::copy(ZONEWARD, &path).map(drop))
        .expect("a copy");
    path.canonicalize().expect("it is there")
}

/// Replaces everything in one order, under load.
fn upgrade(demo: &Kept, order: &str, first: &str, last: &str) {
    let program = other_program(demo, order);
    let name = program.to_str().expect("a plain name");
    let output = demo.run(&["upgrade", "--program", name, "--order", order, "-o", "json"]);
    let steps = String::from_utf8_lossy(&output.stderr).into_owned();
    for step in ["API and controllers", "the node proxy of node-c2", "the gateway on node-a1"] {
        assert!(steps.contains(&format!("Replacing {step}\n")), "{steps}");
    }
    let upgrade: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {steps}"));
    let replaced = upgrade["replaced"].as_array().expect("a list");
    assert_eq!(replaced.len(), 9, "the API, 6 node proxies, 2 gateways: {upgrade}");
    assert_eq!((&replaced[0], &replaced[8]), (&json!(first), &json!(last)), "{upgrade}");
    assert_eq!(upgrade["failed"], 0, "{upgrade}");
    for service in ["web-prefersamezone", "shop", "gateway"] {
        let connections = upgrade["services"][service]["connections"].as_u64();
        assert!(connections.is_some_and(|count| count > 100), "{upgrade}");
    }
    let state = std::fs::read_to_string(demo.folder.join("namespaces.json")).expect("the demo's state");
    let state: Value = serde_json::from_str(&state).expect("JSON");
    let processes = state["processes"].as_object().expect("an object").values();
    let mut count = 0;
    for pid in processes.chain([&state["api"]]) {
        let runs = std::fs::read_link(format!("/proc/{pid}/exe")).expect("it runs");
        assert_eq!(runs, program, "process {pid} is of the older version");
        count += 1;
    }
    assert_eq!(count, 9);
    let traffic = demo.answer(&["traffic", "web-prefersamezone"]);
    assert_eq!((&traffic["failed"], &traffic["complaints"]), (&json!(0), &json!([])), "{traffic}");
}

#[test]
fn rolling_upgrade_with_the_controller_first_fails_no_connection() {
    let demo = Kept::start("upgrade-controller");
    assert!(demo.refusal(&["upgrade", "--program", "/bin/true"]).contains("expected a build of zoneward"));
    upgrade(&demo, "controller-first", "api", "gateway on node-b1");
}

#[test]
fn rolling_upgrade_with_the_nodes_first_fails_no_connection() {
    let demo = Kept::start("upgrade-nodes");
    upgrade(&demo, "nodes-first", "node-a1", "api");
}

#[test]
fn without_a_kept_demo_the_commands_say_how_to_start_one() {
    for words in [&["traffic", "web"][..], &["scale", "web", "--replicas", "1"]] {
        let output = Command::new(ZONEWARD)
            .arg("demo")
            .args(words)
            .args(["--data-dir", "/nonexistent/demo"])
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("start one with zoneward demo --keep"), "{said}");
    }
}

#[test]
fn the_tour_shows_live_traffic_first_then_files_then_commands_to_copy() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let temporary = TemporaryFolder::new("tour");
    let output = temporary
        .command(&cargo)
        .args(["xtask", "demo", "--binary", ZONEWARD])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("NO_COLOR", "1")
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let typed: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("$ zoneward ")).collect();
    assert_eq!(typed.first(), Some(&"demo"), "{said}");
    assert!((2..=5).contains(&typed.len()), "{typed:?}");
    assert_eq!(said.lines().filter(|line| line.starts_with("Notice: ")).count(), typed.len(), "{said}");
    assert!(said.contains("All traffic matches the plan"), "{said}");
    let last: Vec<&str> =
        said.trim_end().lines().rev().take_while(|line| line.contains("zoneward")).collect();
    assert_eq!(last.len(), 3, "{said}");
}
