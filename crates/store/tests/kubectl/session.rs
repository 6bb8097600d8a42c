//! For tests: a server of its own on loopback, and kubectl pointed at it and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use store::engine::EngineOptions;

use super::served::Served;

pub struct Session {
    data: PathBuf,
    kubeconfig: PathBuf,
    /// Kept for as long as the session lasts; a reader's session is over with the admin's.
    _server: Option<Served>,
}

impl Session {
    pub fn new() -> Self {
        let served = Served::new("kubectl", EngineOptions::default());
        let (data, kubeconfig) = (served.data.clone(), served.kubeconfig.clone());
        Self { data, kubeconfig, _server: Some(served) }
    }

    /// The same server for the user who may only look.
    pub fn as_reader(&self) -> Self {
        let data = self.data.join("reader");
        std::fs::create_dir_all(&data).unwrap();
        let kubeconfig = self.data.join("reader.kubeconfig");
        Self { data, kubeconfig, _server: None }
    }

    /// The same server for the holder of a token.
    pub fn with_token(&self, token: &str) -> Self {
        let end = &token[token.len().saturating_sub(16)..];
        let data = self.data.join(format!("token-{end}"));
        std::fs::create_dir_all(&data).unwrap();
        let mut config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&self.kubeconfig).unwrap()).unwrap();
        config["users"][0]["user"] = serde_json::json!({"token": token});
        let kubeconfig = data.join("kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { data, kubeconfig, _server: None }
    }

    /// A folder for files of the test.
    pub fn folder(&self) -> &Path {
        &self.data
    }

    fn command(&self, words: &str) -> Command {
        let mut command = toolbox::command("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(self.data.join("cache"));
        command.args(words.split(' ')).env("HOME", &self.data).env_remove("KUBECONFIG");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Output, error output, and whether it went well.
    pub fn output(&self, words: &str, variables: &[(&str, &str)], input: &str) -> (String, String, bool) {
        let mut child = self.command(words).envs(variables.iter().copied()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status.success())
    }

    pub fn run_with(&self, words: &str, variables: &[(&str, &str)], input: &str) -> String {
        let (out, err, good) = self.output(words, variables, input);
        assert!(good, "kubectl {words}: {out}{err}");
        out
    }

    pub fn run(&self, words: &str) -> String {
        self.run_with(words, &[], "")
    }

    pub fn apply(&self, manifest: &str) -> String {
        self.run_with("apply -f -", &[], manifest)
    }

    pub fn fails_with(&self, words: &str, input: &str) -> String {
        let (out, err, good) = self.output(words, &[], input);
        assert!(!good, "kubectl {words} should fail: {out}");
        err
    }

    pub fn fails(&self, words: &str) -> String {
        self.fails_with(words, "")
    }

    /// A command that goes on.
    pub fn start(&self, words: &str) -> Running {
        let mut child = self.command(words).spawn().unwrap();
        let (sender, lines) = channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let running = Running { child, lines };
        // So that what follows happens while it watches.
        running.settle();
        running
    }
}

/// A kubectl that runs.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn settle(&self) {
        std::thread::sleep(Duration::from_millis(1_000));
    }

    /// All lines up to the first with this word.
    pub fn wait_for(&self, word: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut seen = String::new();
        while !seen.contains(word) {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no {word} in: {seen}"));
            seen.push_str(&line);
            seen.push('\n');
        }
        seen
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
