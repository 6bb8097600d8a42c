//! One change, a thousand watchers: how long from the write until the last of them has it.
//! Watchers are polled by a few threads that sleep until woken, as an async runtime would do it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use store::engine::{Engine, Expect, PendingWrite, Revision, StoreKey, TxnError, Watcher};

use super::{PODS, Place, object, percentile};

const WATCHERS: usize = 1_000;
const EVENTS_PER_SECOND: u64 = 1_000;
const SECONDS: u64 = 5;
const THREADS: usize = 2;

/// The watchers of one thread that have something to do.
#[derive(Default)]
struct Ready {
    queue: Mutex<Vec<usize>>,
    bell: Condvar,
}

/// Puts one watcher into its thread's queue.
struct Ring {
    ready: Arc<Ready>,
    watcher: usize,
}

impl Wake for Ring {
    fn wake(self: Arc<Self>) {
        let mut queue = self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(self.watcher);
        self.ready.bell.notify_one();
    }
}

/// When each event was written, and when the last watcher had it.
struct Events {
    start: Instant,
    written: Vec<Mutex<Option<Instant>>>,
    deliveries: Vec<AtomicU32>,
    delays: Mutex<Vec<Duration>>,
    over: AtomicBool,
}

pub fn run() {
    let place = Place::new("fanout");
    let engine = place.open();
    let count = (EVENTS_PER_SECOND * SECONDS) as usize;
    let events = Arc::new(Events {
        start: Instant::now(),
        written: (0..count).map(|_| Mutex::new(None)).collect(),
        deliveries: (0..count).map(|_| AtomicU32::new(0)).collect(),
        delays: Mutex::new(Vec::new()),
        over: AtomicBool::new(false),
    });
    let ready: Vec<_> = (0..THREADS).map(|_| Arc::new(Ready::default())).collect();
    let threads: Vec<_> = ready.iter().map(|ready| start_watchers(&engine, ready, &events)).collect();
    let mut waits = write(&engine, &events);
    await_deliveries(&events);
    events.over.store(true, Ordering::SeqCst);
    ready.iter().for_each(|ready| ready.bell.notify_all());
    for thread in threads {
        let _ = thread.join();
    }
    report(&mut waits, &events);
}

fn start_watchers(engine: &Engine, ready: &Arc<Ready>, events: &Arc<Events>) -> thread::JoinHandle<()> {
    let watch = |_| engine.watch(PODS, None, Revision(0)).unwrap_or_else(|error| panic!("{error}"));
    let watchers: Vec<_> = (0..WATCHERS / THREADS).map(watch).collect();
    let (ready, events) = (ready.clone(), events.clone());
    thread::spawn(move || poll_watchers(watchers, &ready, &events))
}

fn poll_watchers(mut watchers: Vec<Watcher>, ready: &Arc<Ready>, events: &Events) {
    let ring = |watcher| Waker::from(Arc::new(Ring { ready: ready.clone(), watcher }));
    let wakers: Vec<_> = (0..watchers.len()).map(ring).collect();
    let mut due: Vec<usize> = (0..watchers.len()).collect();
    while !events.over.load(Ordering::SeqCst) {
        for watcher in due.drain(..) {
            let mut context = Context::from_waker(&wakers[watcher]);
            while let Poll::Ready(changes) = watchers[watcher].poll_events(&mut context) {
                for change in changes.unwrap_or_else(|error| panic!("{error}")) {
                    deliver(events, change.revision.0 as usize - 1);
                }
            }
        }
        let mut queue = ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.is_empty() && !events.over.load(Ordering::SeqCst) {
            let wait = ready.bell.wait_timeout(queue, Duration::from_millis(100));
            queue = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut due, &mut queue);
    }
}

fn deliver(events: &Events, event: usize) {
    if events.deliveries[event].fetch_add(1, Ordering::Relaxed) + 1 < WATCHERS as u32 {
        return;
    }
    let written = *events.written[event].lock().unwrap_or_else(PoisonError::into_inner);
    let delay = written.map_or(Duration::ZERO, |written| written.elapsed());
    events.delays.lock().unwrap_or_else(PoisonError::into_inner).push(delay);
}

/// Writes at the wanted rate, a few at once as they come due; the result is how long each took to be durable.
fn write(engine: &Engine, events: &Events) -> Vec<Duration> {
    let mut waits = Vec::new();
    let mut pending: Vec<(Instant, PendingWrite<Revision, TxnError>)> = Vec::new();
    for event in 0..events.written.len() as u64 {
        let due = events.start + Duration::from_micros(event * 1_000_000 / EVENTS_PER_SECOND);
        if let Some(left) = due.checked_duration_since(Instant::now()) {
            for (start, pending) in pending.drain(..) {
                pending.wait().unwrap_or_else(|error| panic!("{error}"));
                waits.push(start.elapsed());
            }
            thread::sleep(left.min(due.saturating_duration_since(Instant::now())));
        }
        let name = format!("pod-{}", event % 500);
        let (key, json) = (StoreKey::new(PODS, "default", &name), object(&name, 1_024));
        let start = Instant::now();
        *events.written[event as usize].lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
        let submitted = engine.submit(move |txn| txn.put(key, json, Expect::Anything));
        pending.push((start, submitted.unwrap_or_else(|error| panic!("{error}"))));
    }
    for (start, pending) in pending {
        pending.wait().unwrap_or_else(|error| panic!("{error}"));
        waits.push(start.elapsed());
    }
    waits
}

fn await_deliveries(events: &Events) {
    let end = Instant::now() + Duration::from_secs(30);
    let delivered = || events.delays.lock().unwrap_or_else(PoisonError::into_inner).len();
    while delivered() < events.written.len() && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
}

fn report(waits: &mut [Duration], events: &Events) {
    let mut delays = events.delays.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = events.start.elapsed().as_secs_f64();
    println!(
        "\n{WATCHERS} watchers at {EVENTS_PER_SECOND} events/s, {} of {} events delivered to all in {seconds:.1} s",
        delays.len(),
        events.written.len()
    );
    println!("from write to    | p50 ms | p99 ms | max ms");
    println!("-----------------+--------+--------+-------");
    for (name, times) in [("durable", &mut *waits), ("the last watcher", &mut delays)] {
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(times, share));
        println!("{name:<16} | {p50:>6.2} | {p99:>6.2} | {max:>6.2}");
    }
}
