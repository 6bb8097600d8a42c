//! SIGTERM and SIGINT as a request for a graceful stop.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers.
    pub fn listen() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
