//! Backups on a schedule: files that are complete, rotation, what is said when one fails, and a restore on another machine.

use crate::started;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fixtures::eventually;
use serde_json::json;
use started::{Up, folder};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn free_port() -> u16 {
    toolbox::ports::free_port().port()
}

fn metrics(port: u16) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    let mut answer = String::new();
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn metric(port: u16, name: &str) -> f64 {
    let page = metrics(port);
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(-1.0)
}

/// Files that a schedule wrote, oldest first.
fn backups(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("zoneward-2") && name.ends_with(".backup")).collect();
    names.sort();
    names
}

fn store(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward")).arg("store").args(words).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn start(data: &Path, to: &Path, port: u16, every: &str) -> Up {
    let address = format!("127.0.0.1:{port}");
    let words = [
        "--no-controllers",
        "--backup-every",
        every,
        "--backup-to",
        to.to_str().unwrap(),
        "--backup-keep",
        "2",
        "--metrics-bind-address",
        &address,
    ];
    Up::start(data, &words)
}

#[test]
fn backups_come_by_the_clock_rotate_and_are_restored_on_another_machine() {
    let (data, port) = (folder("backups-a"), free_port());
    let to = folder("backups-to");
    std::fs::create_dir_all(&to).unwrap();
    for foreign in ["monday.backup", "zoneward-19990101T000000Z.backup.partial"] {
        std::fs::write(to.join(foreign), "x").unwrap();
    }
    let up = start(&data, &to, port, "1s");
    let object = json!({"metadata": {"name": "kept"}, "data": {"number": "1"}});
    up.post(CONFIG_MAPS, &object);
    eventually("the first backup", || !backups(&to).is_empty());
    let first = backups(&to)[0].clone();
    eventually("it was rotated away", || !backups(&to).contains(&first) && backups(&to).len() == 2);
    assert!(backups(&to).len() <= 3, "two, and one that is about to go");
    assert!(to.join("monday.backup").exists(), "other files are left alone");
    assert!(!to.join("zoneward-19990101T000000Z.backup.partial").exists(), "leftovers are removed");
    eventually("backups are counted", || metric(port, "zoneward_backups_total") >= 3.0);
    assert!(metric(port, "zoneward_backup_last_success_timestamp_seconds") > 1.7e9);
    assert!(metric(port, "zoneward_backup_size_bytes") > 0.0);
    assert_eq!(metric(port, "zoneward_backup_failures_total"), 0.0);
    drop(up);

    // A restart with a longer interval adds none: the newest is young.
    let before = backups(&to);
    let up = start(&data, &to, port, "1h");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(backups(&to), before);
    drop(up);

    let newest = to.join(backups(&to).last().unwrap());
    assert_eq!(std::fs::metadata(&newest).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(store(&["check", "--backup", newest.to_str().unwrap()]).0, Some(0));
    let other = folder("backups-b");
    assert_eq!(
        store(&["restore", "--data-dir", other.to_str().unwrap(), newest.to_str().unwrap()]),
        (Some(0), String::new())
    );
    let found = on_another_machine(&other);
    assert_eq!(found["data"]["number"], "1");
    for folder in [&data, &to, &other] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// Serves the data in network, user and host name spaces of its own; the object that was written.
fn on_another_machine(data: &Path) -> serde_json::Value {
    let script = "\"$0\" link set lo up && echo box-2 > /proc/sys/kernel/hostname && exec \"$@\"";
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--uts", "sh", "-c", script])
        .arg(toolbox::path("ip"))
        .arg(env!("CARGO_BIN_EXE_zoneward"))
        .args(["up", "--no-node", "--no-controllers", "--data-dir"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.ends_with("kubeconfig\n"), "it did not start: {line:?}");
    let found = started::ask(data, "GET", &format!("{CONFIG_MAPS}/kept"), "").json();
    child.kill().unwrap();
    child.wait().unwrap();
    found
}

#[test]
fn a_failure_is_an_event_and_a_metric_and_the_next_backup_succeeds() {
    let (data, port): (PathBuf, u16) = (folder("backups-failing"), free_port());
    let to = folder("backups-gone");
    let up = start(&data, &to, port, "2s");
    // Between two backups: one that is being made while its folder is replaced fails with another text.
    eventually("the first backup", || metric(port, "zoneward_backup_last_success_timestamp_seconds") > 0.0);
    std::fs::remove_dir_all(&to).unwrap();
    std::fs::write(&to, "a file in its place").unwrap();
    eventually("the failures are counted", || metric(port, "zoneward_backup_failures_total") >= 3.0);
    let events = up.ask("GET", "/api/v1/namespaces/default/events", "").json();
    let failed: Vec<_> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["reason"] == "BackupFailed")
        .collect();
    assert_eq!(failed.len(), 1, "repeated failures are one Event: {failed:?}");
    assert_eq!(failed[0]["type"], "Warning");
    let message = failed[0]["message"].as_str().unwrap();
    assert!(message.contains(to.to_str().unwrap()) && message.contains("space and permissions"), "{message}");
    assert_eq!(metric(port, "zoneward_backup_last_success_timestamp_seconds"), 0.0, "there is none");
    std::fs::remove_file(&to).unwrap();
    std::fs::create_dir(&to).unwrap();
    eventually("a backup again", || !backups(&to).is_empty());
    drop(up);
    for folder in [&data, &to] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn wrong_flags_are_refused() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(["up", "--no-node", "--data-dir", "x"])
            .args(words)
            .output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for words in [
        &["--backup-every", "6h"][..],
        &["--backup-to", "y"],
        &["--backup-every", "10ms", "--backup-to", "y"],
        &["--backup-every", "6h", "--backup-to", "y", "--backup-keep", "0"],
    ] {
        let (code, said) = run(words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
    }
}
