//! A client: a new connection for every request, at an even rate, one to each competitor at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::server::{ZONE_HEADER, unix_second};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Connections of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub answered: u64,
    pub failed: u64,
}

/// By second and index of the target.
pub type SentCounts = Arc<Mutex<BTreeMap<(u64, usize), Sent>>>;

/// Connects to all targets, as often as the rate says, until the sender of the rate is gone.
pub async fn connect(
    targets: Vec<String>,
    zone: String,
    mut per_second: watch::Receiver<f64>,
    counts: SentCounts,
) {
    let zone_line = format!("{ZONE_HEADER}: {zone}\r\n");
    let mut next = Instant::now();
    loop {
        let rate = *per_second.borrow_and_update();
        if rate <= 0.0 {
            if per_second.changed().await.is_err() {
                return;
            }
            next = Instant::now();
            continue;
        }
        tokio::select! {
            biased;
            changed = per_second.changed() => match changed {
                Ok(()) => { next = Instant::now(); continue }
                Err(_) => return,
            },
            () = sleep_until(next) => {}
        }
        next += Duration::from_secs_f64(1.0 / rate);
        for (at, target) in targets.iter().enumerate() {
            let (target, zone_line, counts) = (target.clone(), zone_line.clone(), counts.clone());
            let second = unix_second();
            tokio::spawn(async move {
                let is_answered = ask(&target, &zone_line).await;
                let mut counts = counts.lock().unwrap();
                let sent = counts.entry((second, at)).or_default();
                if is_answered { sent.answered += 1 } else { sent.failed += 1 }
            });
        }
    }
}

/// Whether a target answers a request on a connection of its own.
pub async fn ask(target: &str, more: &str) -> bool {
    let request = format!("GET / HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n{more}\r\n");
    let answer = async {
        let mut stream = TcpStream::connect(target).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        std::io::Result::Ok(text)
    };
    matches!(timeout(TIMEOUT, answer).await, Ok(Ok(text)) if text.starts_with(b"HTTP/1.1 200 "))
}
