//! Processes in namespaces, and this program as such a process: it obeys lines on its standard input and ends with it, so
//! nothing is left behind, however the bench ends.
//!
//! ```text
//!  serve CAPACITY   off | on                     prints: served SECOND COMPETITOR ZONE COUNT
//!  connect ZONE     targets ADDRESS... | rate N  prints: ready; sent SECOND COMPETITOR ANSWERED FAILED
//!  guard COMMAND    runs it until the input ends
//! ```

use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::client::{self, SentCounts};
use crate::place::Competitor;
use crate::server::{Server, unix_second};

/// A line of the output of an agent.
pub struct AgentLine {
    pub agent: String,
    pub text: String,
}

/// A process that ends with its standard input, and when this is dropped.
pub struct Agent {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
}

impl Agent {
    /// Starts it; its lines go to the channel.
    pub fn start(name: &str, mut command: Command, lines: Sender<AgentLine>) -> Self {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{name}: {error}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        let agent = name.to_owned();
        std::thread::spawn(move || {
            for text in output.lines().map_while(Result::ok) {
                if lines.send(AgentLine { agent: agent.clone(), text }).is_err() {
                    // The process still has to get rid of its lines.
                    continue;
                }
            }
        });
        let input = child.stdin.take();
        Self { name: name.to_owned(), child, input }
    }

    pub fn tell(&mut self, line: &str) {
        let told = self.input.as_mut().map(|input| writeln!(input, "{line}"));
        assert!(matches!(told, Some(Ok(()))), "{} has ended: see its log", self.name);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// Runs as an agent if the command line says so.
pub fn is_agent() -> bool {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", capacity] => block_on(serve(capacity.parse().unwrap())),
        ["connect", zone] => block_on(connect(zone)),
        ["guard", program, words @ ..] => guard(program, words),
        _ => return false,
    }
    true
}

fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}

/// Runs a command until the input ends, or the command does.
fn guard(program: &str, words: &[&str]) {
    let mut child = Command::new(program).args(words).stdin(Stdio::null()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed());
    std::thread::spawn(move || {
        std::io::stdin().lines().map_while(Result::ok).for_each(drop);
        // It may have ended by itself.
        let _ = kill(pid, Signal::SIGTERM);
    });
    let _ = child.wait();
}

/// The lines of the standard input.
fn input() -> mpsc::UnboundedReceiver<String> {
    let (send, receive) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

async fn serve(capacity: f64) {
    let mut input = input();
    let servers = Competitor::ALL.map(|_| Server::new(capacity));
    tokio::spawn(print_served(servers.clone()));
    loop {
        let (turn, is_on) = watch::channel(true);
        for (competitor, server) in Competitor::ALL.into_iter().zip(&servers) {
            let at = (Ipv4Addr::UNSPECIFIED, competitor.server_port());
            let listener = TcpListener::bind(at).await.unwrap_or_else(|error| panic!("{at:?}: {error}"));
            tokio::spawn(server.clone().serve(listener, is_on.clone()));
        }
        // "off", then "on"; the end of the input ends the process.
        if input.recv().await.is_none() {
            return;
        }
        drop(is_on);
        let _ = turn.send(false);
        // Until the listeners are closed.
        turn.closed().await;
        if input.recv().await.is_none() {
            return;
        }
    }
}

async fn print_served(servers: [Arc<Server>; 4]) {
    loop {
        sleep(Duration::from_millis(500)).await;
        for (competitor, server) in servers.iter().enumerate() {
            for ((second, zone), count) in server.take_counts(unix_second()) {
                println!("served {second} {competitor} {zone} {count}");
            }
        }
    }
}

async fn connect(zone: &str) {
    let mut input = input();
    let (rate, per_second) = watch::channel(0.0);
    let counts = SentCounts::default();
    tokio::spawn(print_sent(counts.clone()));
    while let Some(line) = input.recv().await {
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["targets", targets @ ..] => {
                for target in targets {
                    while !client::ask(target, "").await {
                        sleep(Duration::from_millis(50)).await;
                    }
                }
                let targets = targets.iter().map(ToString::to_string).collect();
                tokio::spawn(client::connect(targets, zone.to_owned(), per_second.clone(), counts.clone()));
                println!("ready");
            }
            ["rate", value] => drop(rate.send_replace(value.parse().unwrap())),
            _ => panic!("unknown line {line}"),
        }
    }
}

async fn print_sent(counts: SentCounts) {
    loop {
        sleep(Duration::from_millis(500)).await;
        // Connections that take longer are added to what was printed.
        let counts = std::mem::take(&mut *counts.lock().unwrap());
        for ((second, competitor), sent) in counts {
            println!("sent {second} {competitor} {} {}", sent.answered, sent.failed);
        }
    }
}
