//! A shell that runs a page's commands, in namespaces of its own, with `zoneward` and the tools first on its PATH.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::page::{Step, holds};

/// How long a command may need, and how long one is repeated whose claims do not hold yet: servers of the commands before
/// need a moment, and a busy machine makes it a long one.
const PATIENCE: Duration = Duration::from_secs(100);

/// What a page may count on: a network with an address that is not loopback's, and root's rights in it.
const BEFORE: &str = "\
set -u
ip link set lo up
ip link add eth0 type veth peer name eth1
ip address add 10.9.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
sudo() { \"$@\"; }
";

pub struct Session {
    shell: Child,
    input: ChildStdin,
    folder: PathBuf,
    count: usize,
}

impl Session {
    pub fn start(root: &Path, page: &str) -> Self {
        let name = page.replace('/', "-");
        let folder = std::env::temp_dir().join(format!("zoneward-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let bin = folder.join(".bin");
        fs::create_dir_all(&bin).expect("a temporary folder");
        std::os::unix::fs::symlink(program(), bin.join("zoneward")).expect("a link in it");
        for part in ["examples", "deploy"] {
            copy(&root.join(part), &folder.join(part));
        }
        let path = format!("{}:{}", bin.display(), toolbox::search_path().to_string_lossy());
        let log = || File::create(folder.join(".log")).expect("a file in it");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "bash"]).current_dir(&folder);
        command.env("PATH", path).env("HOME", &folder).env("NO_COLOR", "1");
        command.env_remove("KUBECONFIG").env_remove("RUST_LOG");
        let mut shell = command
            .stdin(Stdio::piped())
            .stdout(log())
            .stderr(log())
            .process_group(0)
            .spawn()
            .expect("unshare and bash are there, and user namespaces are allowed");
        let mut input = shell.stdin.take().expect("it was asked for");
        input.write_all(BEFORE.as_bytes()).expect("the shell reads");
        Self { shell, input, folder, count: 0 }
    }

    pub fn write(&self, path: &str, content: &str) {
        fs::write(self.folder.join(path), content).expect("the folder can be written");
    }

    /// Runs a command until it succeeds with what the page says; says what was wrong the last time.
    pub fn run(&mut self, step: &Step) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let (code, output) = self.once(&step.command)?;
            let outcome = match code.as_str() {
                "0" => holds(&output, &step.claims),
                _ => Err(format!("exit code {code}")),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(why) if start.elapsed() > PATIENCE => return Err(format!("{why}\n\n{output}")),
                // Only what depends on something in the background can come right later.
                Err(why) if !self.has_background() => return Err(format!("{why}\n\n{output}")),
                Err(_) => std::thread::sleep(Duration::from_millis(300)),
            }
        }
    }

    fn has_background(&mut self) -> bool {
        let jobs = self.once("jobs").map(|(_, jobs)| jobs).unwrap_or_default();
        !jobs.trim().is_empty()
    }

    /// Exit code and output of one run in the shell itself, so that variables and background jobs stay.
    fn once(&mut self, command: &str) -> Result<(String, String), String> {
        self.count += 1;
        let file = |ending: &str| self.folder.join(format!(".{}.{ending}", self.count));
        let (script, output, code) = (file("sh"), file("out"), file("code"));
        fs::write(&script, format!("{command}\n")).expect("the folder can be written");
        let line = format!(
            ". {script} </dev/null >{output} 2>&1; echo $? >{code}.part; mv {code}.part {code}\n",
            script = script.display(),
            output = output.display(),
            code = code.display()
        );
        self.input.write_all(line.as_bytes()).map_err(|error| format!("the shell has ended: {error}"))?;
        let start = Instant::now();
        while !code.is_file() {
            if start.elapsed() > PATIENCE {
                return Err(format!("it does not end\n{}", fs::read_to_string(output).unwrap_or_default()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        Ok((text(&code).trim().to_string(), text(&output)))
    }

    /// Ends the shell and what it left running, and removes the folder.
    pub fn end(self) {}
}

impl Drop for Session {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.shell.id() as i32);
        // In order first: a supervisor ends its children itself.
        let _ = killpg(group, Signal::SIGTERM);
        let start = Instant::now();
        while killpg(group, None).is_ok() && start.elapsed() < Duration::from_secs(10) {
            let _ = self.shell.try_wait();
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.shell.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The program of this build, or another one: `cargo xtask test --extended` names the release's.
fn program() -> PathBuf {
    std::env::var_os("ZONEWARD_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_zoneward").into(), PathBuf::from)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder can be written");
    for entry in fs::read_dir(from).expect("the repository is there").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("the folder can be written");
        }
    }
}
