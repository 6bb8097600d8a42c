//! Client of the namespace host: numbered requests on its standard input, responses on its standard output.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

use super::protocol::{ConnectionCounts, HostMessage, NamespaceRequest, NamespaceResponse, ProcessRestart};

/// Queue of restarts to report; further ones are only in the logs.
const MAX_PENDING_RESTARTS: usize = 64;

type PendingRequests = Arc<Mutex<BTreeMap<u64, oneshot::Sender<NamespaceResponse>>>>;

pub(crate) struct NamespaceHostClient {
    child: Child,
    input: AsyncMutex<(u64, ChildStdin)>,
    pending: PendingRequests,
    restarts: mpsc::Receiver<ProcessRestart>,
}

impl NamespaceHostClient {
    /// Starts the namespace host, whose namespaces reach the API by its socket. Its stderr goes to the log.
    pub(crate) fn start(api: &Path, log: &Path) -> Result<Self> {
        let log = std::fs::File::create(log).with_context(|| format!("{}", log.display()))?;
        let program = std::env::current_exe().context("finding our own program")?;
        let mut child = Command::new(program)
            .args(["demo", "namespace-host", "--api-socket"])
            .arg(api)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            // Not stopped by Ctrl-C: it exits when its input is closed.
            .process_group(0)
            .spawn()
            .context("starting the namespace host")?;
        let input = child.stdin.take().context("stdin is piped")?;
        let output = child.stdout.take().context("stdout is piped")?;
        let pending = PendingRequests::default();
        let (restarted, restarts) = mpsc::channel(MAX_PENDING_RESTARTS);
        tokio::spawn(receive(output, pending.clone(), restarted));
        Ok(Self { child, input: AsyncMutex::new((0, input)), pending, restarts })
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    pub(crate) async fn restarted(&mut self) -> ProcessRestart {
        match self.restarts.recv().await {
            Some(restarted) => restarted,
            // The namespace host exited; requests report it.
            None => std::future::pending().await,
        }
    }

    /// Returns the thread of a new namespace, or the pid of a new process.
    pub(crate) async fn ask(&self, request: NamespaceRequest) -> Result<Option<i32>> {
        match self.send(request).await? {
            NamespaceResponse::Done { task } => Ok(task),
            other => bail!("unexpected response of the namespace host: {other:?}"),
        }
    }

    pub(crate) async fn count(&self, request: NamespaceRequest) -> Result<ConnectionCounts> {
        match self.send(request).await? {
            NamespaceResponse::Counted(counts) => Ok(counts),
            other => bail!("unexpected response of the namespace host: {other:?}"),
        }
    }

    async fn send(&self, body: NamespaceRequest) -> Result<NamespaceResponse> {
        let (sender, response) = oneshot::channel();
        {
            let mut input = self.input.lock().await;
            input.0 += 1;
            let id = input.0;
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
            let line = serde_json::to_string(&HostMessage { id, body }).context("writing a request")? + "\n";
            input.1.write_all(line.as_bytes()).await.context("the namespace host exited")?;
        }
        match response.await.context("the namespace host exited")? {
            NamespaceResponse::Failed(why) => bail!(why),
            response => Ok(response),
        }
    }

    /// Stops the namespace host and removes all namespaces.
    pub(crate) async fn stop(self) -> Result<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().await.context("waiting for the namespace host")?;
        Ok(())
    }
}

async fn receive(output: ChildStdout, pending: PendingRequests, restarts: mpsc::Sender<ProcessRestart>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(response) = serde_json::from_str::<HostMessage<NamespaceResponse>>(&line) else { continue };
        if let NamespaceResponse::Restarted(restarted) = response.body {
            let _ = restarts.try_send(restarted);
            continue;
        }
        let sender = pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&response.id);
        if let Some(sender) = sender {
            let _ = sender.send(response.body);
        }
    }
    // Fails all pending requests.
    pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
