//! A real Envoy as a process of the test's.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use fixtures::eventually;

/// A running Envoy.
pub struct Envoy {
    child: Child,
    folder: PathBuf,
}

/// A folder below the target directory; benches have no folder of their own for such things.
fn target() -> PathBuf {
    match option_env!("CARGO_TARGET_TMPDIR") {
        Some(folder) => Path::new(folder).parent().map(Path::to_path_buf).unwrap_or_default(),
        None => std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_path_buf(),
    }
}

static STARTED: AtomicU32 = AtomicU32::new(0);

impl Envoy {
    /// Starts one with a bootstrap of JSON or YAML.
    pub fn start(bootstrap: &str, ending: &str) -> Self {
        Self::start_by(Command::new(Self::program()), bootstrap, ending, &["--disable-hot-restart"])
    }

    /// The program.
    pub fn program() -> PathBuf {
        toolbox::path("envoy")
    }

    /// Starts one by a command that ends in Envoy's name, with some more words.
    pub fn start_by(mut command: Command, bootstrap: &str, ending: &str, words: &[&str]) -> Self {
        let target = target();
        let number = STARTED.fetch_add(1, Ordering::SeqCst);
        let folder = target.join("tmp").join(format!("envoy-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join(format!("bootstrap.{ending}"));
        std::fs::write(&file, bootstrap).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = command
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "-l", "warning", "--drain-time-s", "1"])
            .args(words)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("envoy runs");
        Self { child, folder }
    }

    /// Waits until something listens there.
    pub fn wait_for(&self, at: SocketAddr) {
        self.wait(&format!("a listener on {at}"), || TcpStream::connect(at).is_ok());
    }

    pub fn wait(&self, what: &str, mut done: impl FnMut() -> bool) {
        eventually(what, || done().then_some(()).ok_or_else(|| format!("Envoy says: {}", self.log())));
    }

    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let from = text.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
        text[from..].to_owned()
    }

    /// Whether it has ended by itself.
    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
