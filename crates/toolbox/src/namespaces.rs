//! Tests in namespaces of their own, without root: a test runs its own program once more below `unshare`, with only itself
//! to run. So a test of kernel tables or fixed ports is an ordinary `#[test]`, and has no neighbours.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Set in the process that has its own namespaces.
const INSIDE: &str = "ZONEWARD_TEST_IN_NAMESPACES";

/// The first line of a test that needs users, network and mounts of its own. Outside of them it runs the test there and
/// returns from it.
#[macro_export]
macro_rules! in_own_namespaces {
    () => {
        if !$crate::namespaces::entered($crate::this_test!()) {
            return;
        }
    };
}

/// The name of the test that contains this, as its program lists it.
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::namespaces::name_around(here)
    }};
}

/// The path of the function that contains another one, without the crate.
pub fn name_around<Inner>(_: Inner) -> &'static str {
    let name = std::any::type_name::<Inner>();
    let name = name.strip_suffix("::here").unwrap_or(name);
    name.split_once("::").map_or(name, |(_, path)| path)
}

/// Whether this process has its own namespaces, with loopback up. If not, the test of this name has run in some, and passed.
///
/// # Panics
/// If the test failed there.
pub fn entered(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        let status = crate::command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(status.is_ok_and(|status| status.success()), "loopback cannot be set up");
        return true;
    }
    let mut child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--mount", "--"])
        .arg(std::env::current_exe().expect("a running program knows its file"))
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("unshare (package util-linux): {error}"));
    let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let mut result = String::new();
    for line in said.map_while(Result::ok) {
        println!("{line}");
        // What outlives the test may hold the pipe.
        if line.starts_with("test result: ") {
            result = line;
            break;
        }
    }
    let status = child.wait().expect("our own child can be waited for");
    assert!(
        status.success() && result.contains(" 1 passed"),
        "{test} failed in namespaces of its own ({status}); where they are refused: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    );
    false
}

#[cfg(test)]
mod tests {
    #[test]
    fn name_is_that_of_the_list() {
        assert_eq!(this_test!(), "namespaces::tests::name_is_that_of_the_list");
    }
}
