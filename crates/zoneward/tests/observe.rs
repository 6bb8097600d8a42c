//! `zoneward observe` and `zoneward status` in a demo: connections of real nodes, with zones and reasons.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const ZONEWARD: &str = env!("CARGO_BIN_EXE_zoneward");

struct Demo {
    child: Child,
    folder: PathBuf,
}

impl Demo {
    fn start() -> Self {
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("observe-{}", std::process::id()));
        let mut child = Command::new(ZONEWARD)
            .args(["demo", "--keep", "--bare", "--data-dir"])
            .arg(&folder)
            .env("PATH", toolbox::search_path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let is_kept = lines.any(|line| line.unwrap().contains("kubectl --kubeconfig"));
        assert!(is_kept, "the demo ended early");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(ZONEWARD);
        command.args(words).env("PATH", toolbox::search_path()).env("NO_COLOR", "1");
        command
    }

    fn kubeconfig(&self) -> String {
        self.folder.join("data/kubeconfig").display().to_string()
    }

    fn status(&self, words: &[&str]) -> Output {
        self.command(&[&["status"], words, &["--kubeconfig", &self.kubeconfig()]].concat()).output().unwrap()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn connections_of_a_node_are_shown_with_zones_and_reason() {
    let demo = Demo::start();
    let folder = demo.folder.display().to_string();
    let observe =
        ["zoneward", "observe", "-A", "--node", "node-c1", "--server", "127.0.0.1:10249", "--limit", "5"];
    let words =
        [&["demo", "exec", "--data-dir", &folder, "node-c1", "--"][..], &observe, &["-o", "json"]].concat();
    let mut observing = demo.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Traffic until it has seen enough.
    let start = Instant::now();
    while observing.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was observed");
        let sent =
            demo.command(&["demo", "traffic", "--data-dir", &folder, "web-prefersamezone"]).output().unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    }
    let output = observing.wait_with_output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let seen: Vec<Value> =
        output.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(seen.len(), 5, "{text}");
    for connection in &seen {
        assert_eq!(
            (&connection["node"], &connection["clientZone"]),
            (&"node-c1".into(), &"zone-c".into()),
            "{text}"
        );
        assert_eq!(connection["service"], "web-prefersamezone", "{text}");
        assert_eq!(connection["endpointZone"], "zone-c", "{text}");
        assert_eq!(connection["mode"], "same-zone", "{text}");
        assert!(connection["reason"].as_str().unwrap().contains("hint for zone zone-c"), "{text}");
    }
    let scale = ["demo", "scale", "--data-dir", &folder, "web", "--zone", "zone-c", "--replicas", "8"];
    let scaled = demo.command(&scale).output().unwrap();
    assert!(scaled.status.success(), "{}", String::from_utf8_lossy(&scaled.stderr));
    // Leases are renewed every 10 s: six real nodes, and how long changes took to reach their kernels.
    let start = Instant::now();
    loop {
        let output = demo.status(&["-A", "-o", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let kernels = &report["summary"]["convergence"]["kernels"];
        if report["summary"]["nodes"]["current"] == 6 && kernels["p99"].is_f64() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{report}");
        std::thread::sleep(Duration::from_millis(500));
    }
    let unknown = demo.status(&["web-spil"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("did you mean \"default/web-spill\"?"));
}
