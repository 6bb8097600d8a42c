//! A network namespace, held by a thread that lives in it and does there what it is asked.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};

type Task = Box<dyn FnOnce() + Send>;

/// A namespace; it goes away with this, unless a process is in it.
pub struct Place {
    thread: i32,
    work: mpsc::Sender<Task>,
}

impl Place {
    /// A new namespace with nothing in it.
    pub fn new() -> Result<Self> {
        let (work, inbox) = mpsc::channel::<Task>();
        let (say, hear) = mpsc::channel();
        std::thread::Builder::new()
            .spawn(move || {
                let made = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid().as_raw());
                let go_on = made.is_ok();
                let _ = say.send(made);
                if go_on {
                    inbox.into_iter().for_each(|task| task());
                }
            })
            .context("starting a thread")?;
        let thread = hear.recv().context("a thread ended early")?.context("making a network namespace")?;
        Ok(Self { thread, work })
    }

    /// The thread that lives there: `/proc/PID/task/THREAD/ns/net` is the namespace.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Does something there and waits for it.
    pub fn within<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (say, hear) = mpsc::channel();
        self.start(move || drop(say.send(task())));
        hear.recv().context("a task in a namespace ended badly")
    }

    /// Does something there after what was asked before.
    pub fn start(&self, task: impl FnOnce() + Send + 'static) {
        // The thread ends only when this sender is dropped.
        let _ = self.work.send(Box::new(task));
    }
}

/// Lets `ip` of iproute2 work through commands in the namespace of this thread.
pub fn ip(commands: &str) -> Result<()> {
    // Debian keeps it where users without root do not look.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("the program `ip` is needed: install iproute2")?;
    let mut stdin = child.stdin.take().context("it was asked for")?;
    // A command that `ip` refuses ends it before it has read the rest; it then says why.
    let _ = stdin.write_all(commands.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().context("waiting for `ip`")?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Sets a kernel variable of the namespace of this thread.
pub fn set(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
}
