//! The two ways to ask a running command for a clean stop.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, caught from the moment that this exists.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From here on a signal means a clean stop.
    pub fn listen() -> Result<Self> {
        let terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
