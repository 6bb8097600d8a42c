//! A demo that keeps running: follows the API, tells of restarted processes, and serves `demo traffic` and
//! `demo scale` by a unix socket in its folder, one JSON line each way.

use std::io::{BufRead, BufReader as StdReader, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::protocol::Restarted;
use super::report::Teller;
use super::world::World;
use super::{exec, scale, traffic};

/// The longest request, and how long it may take to arrive.
const LONGEST_REQUEST: u64 = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to a kept demo.
#[derive(Debug, Serialize, Deserialize)]
pub enum Command {
    /// `demo traffic`
    Traffic(traffic::Order),
    /// `demo scale`
    Scale(scale::Order),
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Done, as a text for people and a value for programs; and whether all is as planned.
    Done {
        /// For people.
        text: String,
        /// For programs.
        value: Value,
        /// Whether the exit code is 0.
        fine: bool,
    },
    /// It could not be done.
    Failed(String),
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("demo.sock")
}

/// Runs until it is dropped. Commands are served by the time that the closing text is said.
pub async fn run(world: &mut World, teller: &Teller, closing: &str) -> Result<()> {
    let path = socket(&world.folder);
    let listener = UnixListener::bind(&path).with_context(|| format!("listening on {}", path.display()))?;
    world.write_places()?;
    teller.say(closing);
    loop {
        tokio::select! {
            restarted = world.next() => {
                if let Some(restarted) = restarted {
                    world.restarted(&restarted)?;
                    teller.say(&told(&restarted));
                }
            }
            accepted = listener.accept() => {
                // A client that went away is no reason to end.
                if let Ok((stream, _)) = accepted {
                    let _ = serve(world, stream).await;
                }
            }
        }
    }
}

fn told(restarted: &Restarted) -> String {
    let Restarted { place, how, pid } = restarted;
    let what = if place.starts_with("node-") { "node proxy" } else { "L7 proxy" };
    format!("The {what} of {place} ended ({how}) and was started again as process {pid}.")
}

async fn serve(world: &mut World, stream: UnixStream) -> Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    tokio::time::timeout(PATIENCE, BufReader::new(read.take(LONGEST_REQUEST)).read_line(&mut line)).await??;
    let done = match serde_json::from_str(&line).context("reading the request") {
        Ok(Command::Traffic(order)) => traffic::serve(world, &order).await,
        Ok(Command::Scale(order)) => scale::serve(world, &order).await,
        Err(error) => Err(error),
    };
    let outcome = done.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
    let line = serde_json::to_string(&outcome).context("writing the outcome")? + "\n";
    Ok(write.write_all(line.as_bytes()).await?)
}

/// Asks the demo that keeps running with its data in a folder.
pub fn ask(folder: &Path, command: &Command) -> Result<(String, Value, bool)> {
    exec::check_owner(folder)?;
    if !exec::is_running(folder) {
        bail!(exec::not_running(folder));
    }
    let mut stream = StdStream::connect(socket(folder))
        .context("the demo is still being made: wait until it says that it keeps running")?;
    let line = serde_json::to_string(command).context("writing the request")? + "\n";
    stream.write_all(line.as_bytes()).context("sending the request")?;
    let mut answer = String::new();
    StdReader::new(stream).read_line(&mut answer).context("reading the outcome")?;
    match serde_json::from_str(&answer).context("the demo ended meanwhile")? {
        Outcome::Done { text, value, fine } => Ok((text, value, fine)),
        Outcome::Failed(why) => bail!(why),
    }
}
