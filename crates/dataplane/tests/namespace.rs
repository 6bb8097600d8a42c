//! Namespaces for tests, made without root.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};

/// Moves this thread, and those that it starts, into a network namespace of its own, and no user namespace: IPVS is for
/// root alone. `/proc/thread-self/net` is its, `/proc/net` the process's.
#[allow(dead_code, reason = "only tests of IPVS use it")]
pub(crate) fn enter_as_root() {
    unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network namespace");
    run("ip", &["link", "set", "lo", "up"]);
}

/// Moves this process into a user and a network namespace of its own, as root there, with the loopback interface up.
/// It must not have a second thread yet.
#[allow(dead_code, reason = "programs with a main function of their own use it")]
pub(crate) fn enter() {
    let (user, group) = (Uid::current(), Gid::current());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect(
        "user namespaces are needed for these tests; on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    );
    fs::write("/proc/self/setgroups", "deny").expect("setgroups can be denied");
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).expect("the user can be mapped");
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).expect("the group can be mapped");
    run("ip", &["link", "set", "lo", "up"]);
}

/// Runs one of the tools to its end and returns what it printed.
pub(crate) fn run(program: &str, words: &[&str]) -> String {
    run_with(program, words, "")
}

/// The same, with something to read.
pub(crate) fn run_with(program: &str, words: &[&str], input: &str) -> String {
    let mut child = toolbox::command(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(input.as_bytes()).expect("the program reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {stderr}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
