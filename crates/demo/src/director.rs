//! Speaks to the stage: requests out by number, answers back to whoever asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

use super::protocol::{Answer, Counts, Numbered, Request, Restarted};

/// Restarts that wait to be told; more are only in the logs.
const RESTARTS: usize = 64;

type Waiting = Arc<Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>>;

/// The stage, from outside.
pub struct Director {
    child: Child,
    input: AsyncMutex<(u64, ChildStdin)>,
    waiting: Waiting,
    restarts: mpsc::Receiver<Restarted>,
}

impl Director {
    /// Starts the stage, whose namespaces reach the API by its socket. Its own output goes to the log.
    pub fn start(api: &Path, log: &Path) -> Result<Self> {
        let log = std::fs::File::create(log).with_context(|| format!("{}", log.display()))?;
        let program = std::env::current_exe().context("finding our own program")?;
        let mut child = Command::new(program)
            .args(["demo", "stage", "--api-socket"])
            .arg(api)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            // Ctrl-C is for us; the stage ends when we close its input.
            .process_group(0)
            .spawn()
            .context("starting the stage")?;
        let input = child.stdin.take().context("the stage's input was asked for")?;
        let output = child.stdout.take().context("the stage's output was asked for")?;
        let waiting = Waiting::default();
        let (restarted, restarts) = mpsc::channel(RESTARTS);
        tokio::spawn(listen(output, waiting.clone(), restarted));
        Ok(Self { child, input: AsyncMutex::new((0, input)), waiting, restarts })
    }

    /// The stage's process.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The next process that was restarted.
    pub async fn restarted(&mut self) -> Restarted {
        match self.restarts.recv().await {
            Some(restarted) => restarted,
            // The stage has ended; requests fail and say so.
            None => std::future::pending().await,
        }
    }

    /// Asks for something, and waits until it is done. The thread of a new namespace, or the new process.
    pub async fn ask(&self, request: Request) -> Result<Option<i32>> {
        match self.answer(request).await? {
            Answer::Done { task } => Ok(task),
            other => bail!("the stage gave an answer to another question: {other:?}"),
        }
    }

    /// Asks for connections, and waits until they are counted.
    pub async fn count(&self, request: Request) -> Result<Counts> {
        match self.answer(request).await? {
            Answer::Counted(counts) => Ok(counts),
            other => bail!("the stage gave an answer to another question: {other:?}"),
        }
    }

    async fn answer(&self, body: Request) -> Result<Answer> {
        let (say, hear) = oneshot::channel();
        {
            let mut input = self.input.lock().await;
            input.0 += 1;
            let id = input.0;
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, say);
            let line = serde_json::to_string(&Numbered { id, body }).context("writing a request")? + "\n";
            input.1.write_all(line.as_bytes()).await.context("the stage has ended")?;
        }
        match hear.await.context("the stage has ended")? {
            Answer::Failed(why) => bail!(why),
            answer => Ok(answer),
        }
    }

    /// Lets the stage end, and everything on it.
    pub async fn end(self) -> Result<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().await.context("waiting for the stage")?;
        Ok(())
    }
}

async fn listen(output: ChildStdout, waiting: Waiting, restarts: mpsc::Sender<Restarted>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(answer) = serde_json::from_str::<Numbered<Answer>>(&line) else { continue };
        if let Answer::Restarted(restarted) = answer.body {
            let _ = restarts.try_send(restarted);
            continue;
        }
        let asked = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&answer.id);
        if let Some(asked) = asked {
            let _ = asked.send(answer.body);
        }
    }
    // Whoever still waits learns that there will be no answer.
    waiting.lock().unwrap_or_else(PoisonError::into_inner).clear();
}
