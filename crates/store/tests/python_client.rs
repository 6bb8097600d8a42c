//! The Python client, unmodified, against the API on loopback: a script beside this file, and a store that forgets.
//!
//! `cargo xtask tools` installs the client below the target directory. Without it this test fails and says so.

use crate::served;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use served::Served;
use store::engine::EngineOptions;

fn start(served: &Served) -> Child {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_client/session.py");
    let mut command = toolbox::command("python3");
    command.arg("-B").arg(script).arg(&served.kubeconfig);
    command.env("HOME", &served.data).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("python3 starts")
}

#[test]
fn the_python_client_lists_watches_patches_and_deletes() {
    // With a short ring, so that memory does not remember what the log forgot.
    let served = Served::new("python", EngineOptions { history_events: 1, ..EngineOptions::default() });
    let mut child = start(&served);
    let mut stdin = child.stdin.take().unwrap();
    let mut errors = child.stderr.take().unwrap();
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if line == "compact" {
            let engine = served.api.engine();
            engine.compact(engine.revision()).unwrap();
            stdin.write_all(b"\n").unwrap();
        }
        last = line;
    }
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    assert!(
        !said.contains("No module named 'kubernetes'"),
        "this test needs the Python client: `cargo xtask test` installs it"
    );
    assert!(status.success() && last == "done", "{last}\n{said}");
}
