//! Programs on PATH that have the names of our tools change nothing: neither what xtask installs nor what tests run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use toolbox::Toolbox;

const PROGRAMS: &[&str] = &[
    "kubectl",
    "envoy",
    "nft",
    "conntrack",
    "ip",
    "iptables-nft",
    "ipset",
    "python3",
    "chromium",
    "curl",
    "openssl",
    "cargo-nextest",
    "promtool",
];

/// A folder for one test, gone at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the target directory can be written");
        Self(folder)
    }

    /// PATH with programs of all our tools' names first, each of which does what the script says.
    fn path_with_namesakes(&self, script: &str) -> String {
        let bin = self.0.join("namesakes");
        fs::create_dir_all(&bin).expect("the target directory can be written");
        for program in PROGRAMS {
            let file = bin.join(program);
            fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("the folder can be written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        }
        format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn xtask_tools(target: &Path, path: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["tools", "--no-install"]).env("CARGO_TARGET_DIR", target).env("PATH", path);
    command.output().expect("xtask starts")
}

fn target() -> PathBuf {
    let tools = Toolbox::own();
    tools.folder().parent().expect("tools are below the target directory").to_path_buf()
}

#[test]
fn a_namesake_on_path_does_not_count_as_installed() {
    let folder = Folder::new("tools-namesakes");
    // The worst of all: it answers to everything, and with the very version that is wanted.
    let path = folder.path_with_namesakes(
        "echo \"$0 v1.37.1 1.40.0\"; case \"$0\" in *envoy) echo 1.40.0;; *python3) echo 37.0.2;; esac",
    );
    let output = xtask_tools(&folder.0, &path);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    for missing in ["kubectl 1.37.1 is missing", "envoy 1.40.0 is missing", "python3 37.0.2 is missing"] {
        assert!(complaint.contains(missing), "{missing}: {complaint}");
    }
    // What this machine has from Debian has its entry now: to the package's own file.
    for entry in fs::read_dir(folder.0.join("tools/bin")).into_iter().flatten().flatten() {
        let leads_to = fs::canonicalize(entry.path()).expect("no entry leads nowhere");
        assert!(!leads_to.starts_with(folder.0.join("namesakes")), "{}", leads_to.display());
    }
}

#[test]
fn our_tools_are_found_and_work_behind_broken_namesakes() {
    let folder = Folder::new("tools-broken");
    let path = folder.path_with_namesakes("echo 'the wrong one' >&2; exit 1");
    let output = xtask_tools(&target(), &path);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for program in PROGRAMS {
        assert!(said.contains(&format!("\n{program} ")), "{program}: {said}");
    }
    let version = toolbox::command("kubectl").args(["version", "--client"]).env("PATH", &path).output();
    let version = String::from_utf8_lossy(&version.expect("kubectl starts").stdout).into_owned();
    assert!(version.contains("v1.37.1"), "{version}");
    let mut client = toolbox::command("python3");
    let version =
        client.args(["-c", "import kubernetes; print(kubernetes.__version__)"]).env("PATH", &path).output();
    let version = String::from_utf8_lossy(&version.expect("python3 starts").stdout).into_owned();
    assert_eq!(version.trim(), "37.0.2");
}

#[test]
fn a_program_under_test_that_searches_path_finds_our_tools_first() {
    let folder = Folder::new("tools-search");
    let path = folder.path_with_namesakes("exit 1");
    let mut places = vec![Toolbox::own().bin()];
    places.extend(std::env::split_paths(&path));
    let mut shell = Command::new("sh");
    shell.args(["-c", "kubectl version --client"]);
    shell.env("PATH", std::env::join_paths(places).expect("no place has a colon in it"));
    assert!(shell.status().expect("sh starts").success());
}
