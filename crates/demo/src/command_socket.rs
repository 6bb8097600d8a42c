//! The command socket of a demo that keeps running (`--keep`): serves `demo traffic`, `demo scale`, `demo
//! closed-loop` and `demo upgrade` on a unix socket in its data directory: one JSON line for the request, one per step, one for the result. Meanwhile
//! follows the API and reports restarted processes.

use std::io::{BufRead, BufReader as StdReader, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};

use super::demo_cluster::DemoCluster;
use super::protocol::ProcessRestart;
use super::report::Console;
use super::{closed_loop, scale, traffic, upgrade};

/// Limits on the size of a request and on the time that it takes to arrive.
const MAX_REQUEST_BYTES: u64 = 16 << 10;
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to a running demo.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum DemoRequest {
    /// `demo traffic`
    Traffic(traffic::TrafficRequest),
    /// `demo scale`
    Scale(scale::ScaleRequest),
    /// `demo closed-loop`
    ClosedLoop(closed_loop::ClosedLoopRequest),
    /// `demo upgrade`
    Upgrade(upgrade::UpgradeRequest),
}

/// The result of a request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum DemoResponse {
    /// A step of a longer request; others follow.
    Step(String),
    Done {
        text: String,
        value: Value,
        succeeded: bool,
    },
    Failed(String),
}

/// The socket of the demo in a data directory.
pub(crate) fn path(folder: &Path) -> PathBuf {
    folder.join("demo.sock")
}

/// Runs until it is dropped. Prints the closing text once commands are served.
pub(crate) async fn run(cluster: &mut DemoCluster, console: &Console, closing: &str) -> Result<()> {
    let path = path(&cluster.folder);
    let listener = UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    cluster.write_state()?;
    console.print(closing);
    loop {
        tokio::select! {
            // Commands are rare, so that they cannot starve the watch.
            biased;
            accepted = listener.accept() => {
                // Errors of one client do not end the demo.
                if let Ok((stream, _)) = accepted {
                    let _ = serve(cluster, stream).await;
                }
            }
            restarted = cluster.next() => {
                if let Some(restarted) = restarted {
                    cluster.restarted(&restarted)?;
                    console.print(&restart_message(&restarted));
                }
            }
        }
    }
}

fn restart_message(restarted: &ProcessRestart) -> String {
    let ProcessRestart { namespace, status, pid } = restarted;
    let what = if namespace.starts_with("node-") { "node proxy" } else { "L7 proxy" };
    format!("The {what} of {namespace} exited ({status}) and was restarted as process {pid}.")
}

async fn serve(cluster: &mut DemoCluster, stream: UnixStream) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    tokio::time::timeout(READ_TIMEOUT, BufReader::new(read.take(MAX_REQUEST_BYTES)).read_line(&mut line))
        .await??;
    let mut steps = StepWriter(&mut write);
    let done = match serde_json::from_str(&line).context("reading the request") {
        Ok(DemoRequest::Traffic(request)) => traffic::serve(cluster, &request).await,
        Ok(DemoRequest::Scale(request)) => scale::serve(cluster, &request).await,
        Ok(DemoRequest::ClosedLoop(request)) => closed_loop::serve(cluster, &request, &mut steps).await,
        Ok(DemoRequest::Upgrade(request)) => upgrade::serve(cluster, &request, &mut steps).await,
        Err(error) => Err(error),
    };
    let response = done.unwrap_or_else(|error| DemoResponse::Failed(format!("{error:#}")));
    respond(&mut write, &response).await
}

async fn respond(write: &mut OwnedWriteHalf, response: &DemoResponse) -> Result<()> {
    let line = serde_json::to_string(response).context("writing the response")? + "\n";
    Ok(write.write_all(line.as_bytes()).await?)
}

/// Tells the client what a longer request is doing.
pub(crate) struct StepWriter<'w>(&'w mut OwnedWriteHalf);

impl StepWriter<'_> {
    /// A client that is gone does not end the request.
    pub(crate) async fn step(&mut self, text: impl Into<String>) {
        let _ = respond(self.0, &DemoResponse::Step(text.into())).await;
    }
}

/// Sends a request to the demo that runs in a data directory. Steps go to standard error. Returns text, value and
/// whether it succeeded.
pub(crate) fn send(folder: &Path, request: &DemoRequest) -> Result<(String, Value, bool)> {
    let mut stream = StdStream::connect(path(folder))
        .context("the demo is still starting: wait until it prints that it keeps running")?;
    let line = serde_json::to_string(request).context("writing the request")? + "\n";
    stream.write_all(line.as_bytes()).context("sending the request")?;
    for line in StdReader::new(stream).lines() {
        let line = line.context("reading the response")?;
        match serde_json::from_str(&line).context("reading the response")? {
            DemoResponse::Step(text) => eprintln!("{text}"),
            DemoResponse::Done { text, value, succeeded } => return Ok((text, value, succeeded)),
            DemoResponse::Failed(why) => bail!(why),
        }
    }
    bail!("the demo exited meanwhile")
}
