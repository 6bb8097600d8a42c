//! Turns of TLS handshakes. A handshake costs a client nothing and the server a signature and a key exchange, so a flood
//! of them would take the processor from all requests.
//!
//! ```text
//! connection -> silent: no turn, no state -> bytes to handle -> waits -> one step of the handshake -> waits for bytes
//!                                                                 |
//!                    sources take turns; within a source, the newest and the oldest do, later steps before first ones
//! ```
//!
//! Half of the processors do handshakes at most; the rest is for requests of connections that are open. A client that is
//! slow holds no turn while it is waited for. The newest: of more handshakes than can be done, some are done in time, also
//! where all clients are behind one address. The oldest: newer ones delay a handshake twofold at most. Later steps: a
//! flood that only begins handshakes does not delay the rest of one. How many wait is bounded by the places for
//! connections.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;

use crate::ConnectionOwner;

/// Lets handshakes proceed in a fair order, a few at a time.
#[derive(Clone, Debug)]
pub struct HandshakeTurns {
    queue: Arc<Mutex<TurnQueue>>,
}

/// The handshakes that wait for a turn.
#[derive(Debug)]
struct TurnQueue {
    /// Turns that none waits for.
    free: usize,
    last: u64,
    waiting: BTreeMap<ConnectionOwner, WaitingSteps>,
    /// The source that had the last turn.
    served: Option<ConnectionOwner>,
}

/// Whether it is the first step of its handshake, and its age.
type StepId = (bool, u64);

/// The steps of one source.
#[derive(Debug, Default)]
struct WaitingSteps {
    steps: BTreeMap<StepId, Arc<Notify>>,
    /// Whether the last turn was that of the newest.
    was_newest: bool,
}

impl WaitingSteps {
    /// The newest and the oldest take turns; first steps wait for later ones.
    fn next(&mut self) -> Option<Arc<Notify>> {
        self.was_newest = !self.was_newest;
        let (is_first, _) = *self.steps.first_key_value()?.0;
        let id = match self.was_newest {
            true => *self.steps.range(..=(is_first, u64::MAX)).next_back()?.0,
            false => *self.steps.first_key_value()?.0,
        };
        self.steps.remove(&id)
    }
}

impl TurnQueue {
    /// Takes a free turn, or waits for one.
    fn enter(&mut self, source: &ConnectionOwner, is_first: bool, granted: &Arc<Notify>) -> Option<StepId> {
        if self.free > 0 {
            self.free -= 1;
            return None;
        }
        self.last += 1;
        let id = (is_first, self.last);
        self.waiting.entry(source.clone()).or_default().steps.insert(id, granted.clone());
        Some(id)
    }

    /// Ends a wait; returns whether it was one still.
    fn leave(&mut self, source: &ConnectionOwner, id: StepId) -> bool {
        let Some(waiting) = self.waiting.get_mut(source) else { return false };
        let was_waiting = waiting.steps.remove(&id).is_some();
        if waiting.steps.is_empty() {
            self.waiting.remove(source);
        }
        was_waiting
    }

    /// The next of the source whose turn it is.
    fn next(&mut self) -> Option<Arc<Notify>> {
        let after = self.served.take().map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.waiting.range((after, Bound::Unbounded)).next();
        let source = later.or_else(|| self.waiting.first_key_value())?.0.clone();
        let waiting = self.waiting.get_mut(&source)?;
        let granted = waiting.next();
        if waiting.steps.is_empty() {
            self.waiting.remove(&source);
        }
        self.served = Some(source);
        granted
    }

    /// Gives a turn back: to the next that waits.
    fn pass_on(&mut self) {
        match self.next() {
            Some(granted) => granted.notify_one(),
            None => self.free += 1,
        }
    }
}

impl HandshakeTurns {
    /// `at_once`: handshakes that are worked on at a time.
    pub fn new(at_once: usize) -> Self {
        let queue = TurnQueue { free: at_once.max(1), last: 0, waiting: BTreeMap::new(), served: None };
        Self { queue: Arc::new(Mutex::new(queue)) }
    }

    /// Those of all servers of this process: half of its processors.
    pub fn of_process() -> &'static Self {
        static TURNS: LazyLock<HandshakeTurns> = LazyLock::new(|| {
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            HandshakeTurns::new(processors / 2)
        });
        &TURNS
    }

    /// Handshakes that wait for a turn.
    pub fn waiting(&self) -> usize {
        self.queue().waiting.values().map(|waiting| waiting.steps.len()).sum()
    }

    fn queue(&self) -> MutexGuard<'_, TurnQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn turn(&self, source: &ConnectionOwner, is_first: bool) -> HandshakeTurn {
        let granted = Arc::new(Notify::new());
        let waiting = self.queue().enter(source, is_first, &granted).map(|id| (source.clone(), id));
        let is_waiting = waiting.is_some();
        let mut turn = HandshakeTurn { turns: self.clone(), waiting };
        if is_waiting {
            granted.notified().await;
            turn.waiting = None;
        }
        turn
    }

    /// Completes a handshake; each of its steps has a turn. Call it when the first bytes of the client are there.
    pub async fn run<F: Future>(&self, source: &ConnectionOwner, handshake: F) -> F::Output {
        let (mut handshake, mut is_first) = (pin!(handshake), true);
        loop {
            let turn = self.turn(source, is_first).await;
            is_first = false;
            let step = poll_fn(|context| Poll::Ready(handshake.as_mut().poll(context))).await;
            drop(turn);
            if let Poll::Ready(done) = step {
                return done;
            }
            // The handshake wakes this task when the client has answered.
            let mut is_woken = false;
            poll_fn(|_| if std::mem::replace(&mut is_woken, true) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        }
    }
}

/// A turn, or the wait for it; passed on when it is dropped.
#[derive(Debug)]
struct HandshakeTurn {
    turns: HandshakeTurns,
    waiting: Option<(ConnectionOwner, StepId)>,
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        let mut queue = self.turns.queue();
        let has_waited_in_vain = self.waiting.take().is_some_and(|(source, id)| queue.leave(&source, id));
        if !has_waited_in_vain {
            queue.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::task::JoinHandle;

    use super::*;

    fn source(last: u8) -> ConnectionOwner {
        ConnectionOwner::source(IpAddr::from([192, 0, 2, last]))
    }

    /// One processor for handshakes, taken until `release`, and the order in which handshakes were done.
    struct Busy {
        turns: HandshakeTurns,
        held: HandshakeTurn,
        done: Arc<Mutex<Vec<String>>>,
    }

    impl Busy {
        async fn new() -> Self {
            let turns = HandshakeTurns::new(1);
            let held = turns.turn(&source(0), true).await;
            Self { turns, held, done: Arc::default() }
        }

        /// A handshake that waits for its turn.
        async fn waits(&self, name: &str, last: u8) -> JoinHandle<()> {
            let (turns, done, name) = (self.turns.clone(), self.done.clone(), name.to_owned());
            let before = self.turns.waiting();
            let task = tokio::spawn(async move {
                turns.run(&source(last), async { done.lock().unwrap().push(name) }).await;
            });
            while self.turns.waiting() == before {
                tokio::task::yield_now().await;
            }
            task
        }

        async fn order(self, tasks: Vec<JoinHandle<()>>) -> String {
            drop(self.held);
            for task in tasks {
                task.await.unwrap();
            }
            self.done.lock().unwrap().join(" ")
        }
    }

    #[tokio::test]
    async fn sources_take_turns_and_so_do_the_newest_and_the_oldest_of_each() {
        let (busy, mut tasks) = (Busy::new().await, Vec::new());
        for (name, last) in
            [("a1", 1), ("a2", 1), ("a3", 1), ("b1", 2), ("a4", 1), ("b2", 2), ("c1", 3), ("a5", 1)]
        {
            tasks.push(busy.waits(name, last).await);
        }
        assert_eq!(busy.order(tasks).await, "a5 b2 c1 a1 b1 a4 a2 a3");
    }

    #[tokio::test]
    async fn flood_of_one_source_delays_another_by_one_handshake() {
        let (busy, mut tasks) = (Busy::new().await, Vec::new());
        for _ in 0..1_000 {
            tasks.push(busy.waits("flood", 9).await);
        }
        tasks.push(busy.waits("client", 2).await);
        let order = busy.order(tasks).await;
        assert!(order.split(' ').position(|name| name == "client").unwrap() <= 1);
    }

    #[tokio::test]
    async fn behind_the_address_of_a_flood_a_new_client_is_next() {
        let (busy, mut tasks) = (Busy::new().await, Vec::new());
        for _ in 0..1_000 {
            tasks.push(busy.waits("flood", 9).await);
        }
        tasks.push(busy.waits("client", 9).await);
        assert!(busy.order(tasks).await.starts_with("client"));
    }

    /// Each handshake that is done makes room for a new one of the flood, before the next is chosen.
    #[test]
    fn flood_behind_the_same_address_delays_a_client_twofold_at_most() {
        let turns = HandshakeTurns::new(1);
        let (mut queue, flood) = (turns.queue(), Arc::new(Notify::new()));
        for _ in 0..257 {
            queue.enter(&source(9), true, &flood);
        }
        let client = Arc::new(Notify::new());
        queue.enter(&source(9), true, &client);
        let mut served = 0;
        loop {
            queue.enter(&source(9), true, &flood);
            served += 1;
            if Arc::ptr_eq(&queue.next().unwrap(), &client) {
                break;
            }
        }
        assert!(served <= 2 * 257, "{served}");
        // Its later steps do not wait for first ones.
        queue.enter(&source(9), false, &client);
        queue.enter(&source(9), true, &flood);
        assert!(Arc::ptr_eq(&queue.next().unwrap(), &client));
    }

    #[tokio::test]
    async fn client_that_does_not_answer_holds_no_turn() {
        let turns = HandshakeTurns::new(1);
        let slow: Vec<_> = (0..100)
            .map(|_| {
                let turns = turns.clone();
                tokio::spawn(async move { turns.run(&source(9), std::future::pending::<()>()).await })
            })
            .collect();
        for _ in 0..100 {
            turns.run(&source(9), tokio::task::yield_now()).await;
        }
        slow.iter().for_each(JoinHandle::abort);
        for task in slow {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        assert_eq!((turns.waiting(), turns.queue().free), (0, 1));
    }

    #[tokio::test]
    async fn closed_connections_leave_the_queue_and_pass_their_turn_on() {
        let (busy, mut tasks) = (Busy::new().await, Vec::new());
        for name in ["a1", "a2", "a3"] {
            tasks.push(busy.waits(name, 1).await);
        }
        // Closed while it waits.
        tasks.remove(1).abort();
        while busy.turns.waiting() == 3 {
            tokio::task::yield_now().await;
        }
        // Closed when its turn has come, but before it runs.
        let turns = busy.turns.clone();
        tasks.push(busy.waits("a4", 1).await);
        drop(busy.held);
        tasks.pop().unwrap().abort();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(busy.done.lock().unwrap().join(" "), "a1 a3");
        assert_eq!((turns.waiting(), turns.queue().free), (0, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_steps_run_at_a_time_than_there_are_turns() {
        let turns = HandshakeTurns::new(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..64u8)
            .map(|number| {
                let (turns, running, most) = (turns.clone(), running.clone(), most.clone());
                tokio::spawn(async move {
                    let handshake = async {
                        for _ in 0..8 {
                            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            running.fetch_sub(1, Ordering::SeqCst);
                            tokio::task::yield_now().await;
                        }
                    };
                    turns.run(&source(number % 4), handshake).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(most.load(Ordering::SeqCst) <= 2);
        assert_eq!((turns.waiting(), turns.queue().free), (0, 2));
    }
}
