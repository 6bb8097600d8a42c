//! The history check: a process with many writers and watchers is killed at random moments and started again.
//! Nothing acknowledged is lost, revisions only rise, each watcher sees every change once and in order.
//!
//! ```text
//!  this test --starts--> itself with ZONEWARD_HISTORY_FOLDER set: writers, watchers
//!      ^                       |
//!      |---- a line for each acknowledged write and each change seen ---- then: kill -9, compare, start again
//! ```

use crate::dice;
use crate::folder;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use dice::{Dice, seed};
use folder::TestFolder;
use store::engine::{
    Engine, EngineOptions, Expect, PendingWrite, ResourceId, Revision, StoreKey, Txn, TxnError,
};

const PODS: ResourceId = ResourceId(1);
const WRITERS: u64 = 12;
const WATCHERS: usize = 6;
const KEYS: u64 = 40;

fn options() -> EngineOptions {
    // Small, so that checkpoints, the log on disk and its bounds all have their part.
    EngineOptions {
        journal_bytes: 256 << 10,
        history_events: 64,
        log_revisions: 400_000,
        ..EngineOptions::default()
    }
}

#[test]
fn soak_history_survives_kill_9() {
    match std::env::var_os("ZONEWARD_HISTORY_FOLDER") {
        Some(folder) => run_until_killed(Path::new(&folder)),
        None => kill_and_compare(),
    }
}

// The process that is killed.

fn run_until_killed(folder: &Path) {
    // Whatever fails here is the parent's to report.
    std::panic::set_hook(Box::new(|panic| say(&format!("P {}\n", panic.to_string().replace('\n', " ")))));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let round = number("ZONEWARD_HISTORY_ROUND").expect("the parent gives the round");
    let engine = Arc::new(Engine::open(folder, options()).expect("the store opens after every kill"));
    say(&format!("R {}\n", engine.revision()));
    for watcher in 0..WATCHERS {
        let from =
            number(&format!("ZONEWARD_HISTORY_WATCHER_{watcher}")).expect("the parent gives the start");
        let engine = engine.clone();
        thread::spawn(move || watch(&engine, watcher, from));
    }
    for writer in 0..WRITERS {
        let engine = engine.clone();
        thread::spawn(move || write(&engine, round, writer));
    }
    // Longer than any round; the parent's kill is what ends this.
    thread::sleep(Duration::from_secs(100));
    panic!("this process was not killed");
}

/// One write to the pipe, so that lines of different threads do not mix.
fn say(lines: &str) {
    let mut out = std::io::stdout().lock();
    // The parent may be gone; then this process has no purpose.
    if out.write_all(lines.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn write(engine: &Engine, round: u64, writer: u64) {
    let mut dice = Dice::new(round * WRITERS + writer);
    for number in 0.. {
        let content = format!("{round}/{writer}/{number}/{}", "x".repeat(dice.below(600) as usize));
        let pending = submit(engine, &mut dice, content.clone());
        let revision = pending.wait().expect("writes succeed until the end");
        if let Some(revision) = revision {
            say(&format!("A {revision} {}\n", &content[..content.rfind('/').unwrap_or(0)]));
        }
    }
}

/// Mostly puts; a delete of what is not there is no change.
fn submit(engine: &Engine, dice: &mut Dice, content: String) -> PendingWrite<Option<Revision>, TxnError> {
    let key = StoreKey::new(PODS, "default", &format!("p{}", dice.below(KEYS)));
    let deletes = dice.once_in(5);
    // Some are based on what was seen before their turn, and give up if that is not the newest any more.
    let seen = if dice.once_in(3) { engine.get_cached(&key).expect("the store can be read") } else { None };
    let work = move |txn: &mut Txn<'_>| match (deletes, seen) {
        (false, Some(seen)) => {
            txn.remember(&seen);
            match txn.put(key, content.into(), Expect::At(seen.revision)) {
                Err(TxnError::Conflict { .. }) => Ok(None),
                other => other.map(Some),
            }
        }
        (false, None) => txn.put(key, content.into(), Expect::Anything).map(Some),
        (true, _) if txn.get(&key)?.is_none() => Ok(None),
        (true, _) => txn.delete(&key, Some(content.into()), Expect::Present).map(Some),
    };
    // Some commit on their own thread if no other write is queued.
    let submitted = if dice.once_in(2) { engine.submit_or_commit(work) } else { engine.submit(work) };
    submitted.unwrap_or_else(|error| panic!("{error}"))
}

fn watch(engine: &Engine, number: usize, from: u64) {
    let mut dice = Dice::new(from + number as u64);
    let mut watcher = engine.watch(PODS, None, Revision(from)).expect("the log has what a watcher missed");
    loop {
        let changes = watcher.wait(Duration::from_secs(1)).expect("no watcher falls behind the log");
        let line = |change: &Arc<store::engine::WatchEvent>| {
            let content = std::str::from_utf8(&change.json).expect("what was written is text");
            format!("S {number} {} {}\n", change.revision, &content[..content.rfind('/').unwrap_or(0)])
        };
        say(&changes.iter().map(line).collect::<String>());
        // Some are slow, so that they leave the ring and read the log.
        if dice.once_in(8) {
            thread::sleep(Duration::from_millis(dice.below(120)));
        }
    }
}

// The process that kills and compares.

/// What the killed processes said, as far as it is not compared with the store yet.
#[derive(Default)]
struct History {
    /// What was acknowledged, or seen by a watcher, at each revision.
    known: BTreeMap<u64, String>,
    /// The last revision that each watcher saw.
    watchers: [u64; WATCHERS],
    /// The highest revision that anyone knew of.
    highest: u64,
    acknowledged: u64,
    seen: u64,
}

impl History {
    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["A", revision, content] => {
                self.acknowledged += 1;
                self.note(revision.parse().expect("a number"), content);
            }
            ["S", watcher, revision, content] => {
                let last = &mut self.watchers[watcher.parse::<usize>().expect("a number")];
                let revision = revision.parse().expect("a number");
                assert_eq!(revision, *last + 1, "watcher {watcher} missed a change, or saw one twice");
                *last = revision;
                self.seen += 1;
                self.note(revision, content);
            }
            ["R", revision] => {
                let revision = revision.parse::<u64>().expect("a number");
                assert!(revision >= self.highest, "opened at {revision}, {} was known", self.highest);
            }
            ["P", ..] => panic!("the killed process failed: {line}"),
            // The test harness talks, too.
            _ => {}
        }
    }

    fn note(&mut self, revision: u64, content: &str) {
        self.highest = self.highest.max(revision);
        let known = self.known.entry(revision).or_insert_with(|| content.to_owned());
        assert_eq!(known, content, "revision {revision} had another content before");
    }

    /// Opens the store and finds everything that is known in its log; forgets it then.
    fn compare(&mut self, folder: &Path) {
        let engine = Engine::open(folder, options()).expect("the store opens");
        assert!(engine.revision().0 >= self.highest);
        let Some((first, _)) = self.known.first_key_value() else { return };
        let mut next = *first;
        let mut watcher = engine.watch(PODS, None, Revision(next - 1)).expect("the log has it");
        while next <= self.highest {
            for change in watcher.ready().expect("the log can be read") {
                assert_eq!(change.revision.0, next, "the log has a gap");
                if let Some(known) = self.known.remove(&next) {
                    assert!(change.json.starts_with(format!("{known}/").as_bytes()), "revision {next}");
                }
                next += 1;
            }
        }
        assert!(self.known.is_empty());
    }
}

fn kill_and_compare() {
    let (seed, seconds) = (seed(), std::env::var("ZONEWARD_SOAK_SECONDS").ok());
    let soak = Duration::from_secs(seconds.and_then(|text| text.parse().ok()).unwrap_or(10));
    let (mut dice, folder, end) = (Dice::new(seed), TestFolder::new(), Instant::now() + soak);
    let (mut history, mut round) = (History::default(), 0);
    while Instant::now() < end || history.acknowledged == 0 || history.seen == 0 {
        round += 1;
        one_life(&mut history, folder.path(), round, &mut dice);
        if dice.once_in(3) {
            history.compare(folder.path());
        }
    }
    history.compare(folder.path());
    let History { acknowledged, seen, .. } = history;
    println!("{round} kills, {acknowledged} writes acknowledged, {seen} changes seen by {WATCHERS} watchers");
    assert!(acknowledged > 0 && seen > 0);
}

fn one_life(history: &mut History, folder: &Path, round: u64, dice: &mut Dice) {
    let mut child = start(history, folder, round);
    let out = child.stdout.take().expect("the output is a pipe");
    let (say, acknowledged) = channel();
    let reader = thread::spawn(move || lines(out, &say));
    // Some die while they start, the others after their first write: a slow machine takes its time until then.
    let reach = if dice.once_in(4) {
        60
    } else {
        // It fails if the process has ended, which the lines tell.
        let _ = acknowledged.recv_timeout(Duration::from_secs(60));
        700
    };
    thread::sleep(Duration::from_millis(dice.below(reach)));
    child.kill().expect("our own child can be killed");
    child.wait().expect("our own child can be waited for");
    for line in reader.join().expect("the reader does not fail") {
        history.take(&line);
    }
}

fn start(history: &History, folder: &Path, round: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the test knows itself"));
    command.args(["history::soak_history_survives_kill_9", "--exact", "--nocapture"]);
    command.env("ZONEWARD_HISTORY_FOLDER", folder).env("ZONEWARD_HISTORY_ROUND", round.to_string());
    for (watcher, last) in history.watchers.iter().enumerate() {
        command.env(format!("ZONEWARD_HISTORY_WATCHER_{watcher}"), last.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().expect("the test can start itself")
}

/// All whole lines up to the end; what a kill cut off does not count. Says when a write was acknowledged.
fn lines(out: ChildStdout, acknowledged: &Sender<()>) -> Vec<String> {
    let (mut out, mut lines) = (BufReader::new(out), Vec::new());
    loop {
        let mut line = String::new();
        match out.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => {
                if line.starts_with("A ") {
                    let _ = acknowledged.send(());
                }
                lines.push(line.trim_end().to_owned());
            }
            _ => return lines,
        }
    }
}
