//! A network namespace, held by a thread that runs tasks in it.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};

type Task = Box<dyn FnOnce() + Send>;

/// The namespace is removed on drop, unless a process runs in it.
pub(super) struct NetworkNamespace {
    thread: i32,
    tasks: mpsc::Sender<Task>,
}

impl NetworkNamespace {
    pub(super) fn new() -> Result<Self> {
        let (tasks, queue) = mpsc::channel::<Task>();
        let (created, thread) = mpsc::channel();
        std::thread::Builder::new()
            .spawn(move || {
                let result = unshare(CloneFlags::CLONE_NEWNET).map(|()| nix::unistd::gettid().as_raw());
                let is_ok = result.is_ok();
                let _ = created.send(result);
                if is_ok {
                    queue.into_iter().for_each(|task| task());
                }
            })
            .context("starting a thread")?;
        let thread =
            thread.recv().context("namespace thread exited")?.context("creating a network namespace")?;
        Ok(Self { thread, tasks })
    }

    /// The thread in the namespace, which is `/proc/PID/task/THREAD/ns/net`.
    pub(super) fn thread(&self) -> i32 {
        self.thread
    }

    /// Runs a task in the namespace and waits for it.
    pub(super) fn within<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (done, result) = mpsc::channel();
        self.start(move || drop(done.send(task())));
        result.recv().context("a task in a namespace panicked")
    }

    /// Queues a task in the namespace.
    pub(super) fn start(&self, task: impl FnOnce() + Send + 'static) {
        // The thread exits only when this sender is dropped.
        let _ = self.tasks.send(Box::new(task));
    }
}

/// Runs a batch of `ip` commands in the namespace of this thread.
pub(super) fn ip(commands: &str) -> Result<()> {
    // Debian has it outside of the PATH of unprivileged users.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("`ip` not found: install iproute2")?;
    let mut stdin = child.stdin.take().context("stdin is piped")?;
    // A failing command ends `ip` before it has read the rest; the error is on stderr.
    let _ = stdin.write_all(commands.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().context("waiting for `ip`")?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Sets a sysctl in the namespace of this thread.
pub(super) fn set_sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
}
