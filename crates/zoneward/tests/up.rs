//! `zoneward up` from the outside: it says where its kubeconfig is, answers, keeps what it acknowledged, and stops.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

struct Up {
    child: Child,
    kubeconfig: String,
    data: PathBuf,
}

fn start(data: &Path, more: &[&str]) -> Up {
    let mut child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["up", "--no-node", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Up { child, kubeconfig: line.trim().to_owned(), data: data.to_owned() }
}

impl Up {
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = UnixStream::connect(self.data.join("api.sock")).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&mut self, name: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("up-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[test]
fn it_answers_stops_cleanly_and_keeps_what_was_written() {
    let data = folder("clean");
    let mut up = start(&data, &[]);
    assert_eq!(Path::new(&up.kubeconfig), data.join("kubeconfig"));
    assert!(fs::read_to_string(&up.kubeconfig).unwrap().contains("https://127.0.0.1:"));
    assert!(up.ask("GET", "/healthz", "").starts_with("HTTP/1.1 200"));
    let services = up.ask("GET", "/api/v1/services", "");
    assert!(services.contains("\"10.96.0.1\""), "{services}");
    assert!(up.ask("POST", CONFIG_MAPS, r#"{"metadata":{"name":"kept"}}"#).starts_with("HTTP/1.1 201"));
    assert_eq!(up.signal("-TERM"), Some(0));
    let mut again = start(&data, &[]);
    assert!(again.ask("GET", &format!("{CONFIG_MAPS}/kept"), "").starts_with("HTTP/1.1 200"));
    assert_eq!(again.signal("-INT"), Some(0));
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn what_it_acknowledged_survives_a_kill() {
    let data = folder("killed");
    let mut up = start(&data, &["--load-balancer-range", "192.0.2.0/28"]);
    let service = r#"{"metadata":{"name":"lb"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}"#;
    let made = up.ask("POST", "/api/v1/namespaces/default/services", service);
    assert!(made.contains("192.0.2.1"), "{made}");
    assert_eq!(up.signal("-KILL"), None);
    let again = start(&data, &[]);
    let found = again.ask("GET", "/api/v1/namespaces/default/services/lb", "");
    assert!(found.contains("192.0.2.1"), "{found}");
    drop(again);
    fs::remove_dir_all(&data).unwrap();
}

#[test]
fn wrong_use_is_said_at_once() {
    let data = folder("wrong");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["up", "--data-dir"]).arg(&data).args(words).output().unwrap()
    };
    assert_eq!(run(&["--no-node", "--node-config", "x"]).status.code(), Some(2), "no node to configure");
    let two = run(&["--no-node", "--service-cluster-ip-range", "10.0.0.0/16,10.1.0.0/16"]);
    assert_eq!(two.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&two.stderr).contains("one of each family"));
    assert!(!data.exists(), "nothing was made");
}
