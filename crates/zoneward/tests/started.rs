//! For tests: `zoneward up` without a node proxy as a process of its own, and its API by the unix socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A process that ends with the test.
pub struct Up {
    child: Child,
    pub kubeconfig: String,
    pub data: PathBuf,
}

/// A folder that is not there yet.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("up-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

impl Up {
    /// Starts it and waits until it has said where its kubeconfig is.
    pub fn start(data: &Path, more: &[&str]) -> Up {
        let mut up = Up::spawn(data, more);
        let mut line = String::new();
        BufReader::new(up.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with("kubeconfig\n"), "it did not start: {line:?}");
        line.trim().clone_into(&mut up.kubeconfig);
        up
    }

    /// Starts it and waits for nothing.
    pub fn spawn(data: &Path, more: &[&str]) -> Up {
        Up::spawn_with(data, more, Stdio::null())
    }

    /// Starts it and waits as [`Up::start`] does; the second is what it has logged by then.
    pub fn start_logged(data: &Path) -> (Up, String) {
        Up::start_logged_with(data, &[])
    }

    /// The same with more flags. The log is the file `log` in the folder.
    pub fn start_logged_with(data: &Path, more: &[&str]) -> (Up, String) {
        let log = data.join("log");
        let mut up = Up::spawn_with(data, more, fs::File::create(&log).unwrap().into());
        let mut line = String::new();
        BufReader::new(up.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = fs::read_to_string(log).unwrap();
        assert!(line.ends_with("kubeconfig\n"), "it did not start: {log}");
        (up, log)
    }

    fn spawn_with(data: &Path, more: &[&str], log: Stdio) -> Up {
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["up", "--no-node", "--data-dir"])
            .arg(data)
            .args(if more.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] })
            .args(more)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        Up { child, kubeconfig: String::new(), data: data.to_owned() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        ask(&self.data, method, path, body)
    }

    /// Creates an object.
    pub fn post(&self, path: &str, object: &Value) -> Value {
        let answer = self.ask("POST", path, &object.to_string());
        assert_eq!(answer.code, 201, "{path}: {}", answer.body);
        answer.json()
    }

    /// Sends a signal, as `-TERM`, and waits for the end; the result is the exit code, if it was no signal that ended it.
    pub fn signal(&mut self, name: &str) -> Option<i32> {
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

/// What the API said.
pub struct Answer {
    pub code: u16,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// Asks the API whose data is in a folder.
pub fn ask(data: &Path, method: &str, path: &str, body: &str) -> Answer {
    ask_socket(&data.join("api.sock"), method, path, body)
}

/// Asks the API at a socket.
pub fn ask_socket(socket: &Path, method: &str, path: &str, body: &str) -> Answer {
    let mut stream = UnixStream::connect(socket).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    Answer { code: head.split(' ').nth(1).unwrap().parse().unwrap(), body: body.to_owned() }
}
