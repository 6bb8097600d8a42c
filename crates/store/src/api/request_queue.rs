//! Fair queues for requests: so many are handled at once, and the others wait.
//!
//! ```text
//! request -> seat free? -> handled
//!              | no
//!            queue of its user and connection -- full --> 429
//!              |
//!            seat free: the next user in turn, and of that user the next connection
//! ```
//!
//! As in API Priority and Fairness of Kubernetes, a user with many requests waits for itself, not others for it. Behind
//! one user, connections take turns. A seat is held while a request is handled, not while its body is sent or received.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clock::Clock;
use tokio::sync::oneshot;

/// A request that waits for longer is refused.
const MAX_WAIT: Duration = Duration::from_secs(15);

/// Why a request was not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatError {
    QueueFull,
    TimedOut,
}

/// Values by key, taken in turns of the keys.
#[derive(Debug)]
struct Turns<K, V> {
    values: BTreeMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Turns<K, V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: Ord + Clone, V: Default> Turns<K, V> {
    fn entry(&mut self, key: &K) -> &mut V {
        if !self.values.contains_key(key) {
            self.order.push_back(key.clone());
        }
        self.values.entry(key.clone()).or_default()
    }

    /// Takes from the next key in turn, which is removed if that leaves it empty.
    fn pop<T>(&mut self, take: impl FnOnce(&mut V) -> (Option<T>, bool)) -> Option<T> {
        let key = self.order.pop_front()?;
        let (taken, is_empty) = self.values.get_mut(&key).map_or((None, true), take);
        match is_empty {
            true => drop(self.values.remove(&key)),
            false => self.order.push_back(key),
        }
        taken
    }
}

/// The waiting requests of a user, by connection.
#[derive(Debug)]
struct UserQueue<T> {
    connections: Turns<u64, VecDeque<T>>,
    len: usize,
}

impl<T> Default for UserQueue<T> {
    fn default() -> Self {
        Self { connections: Turns::default(), len: 0 }
    }
}

/// The waiting requests: users take turns, and so do the connections of a user.
#[derive(Debug)]
struct WaitingRequests<T> {
    users: Turns<Arc<str>, UserQueue<T>>,
    max_per_user: usize,
    len: usize,
}

impl<T> WaitingRequests<T> {
    fn new(max_per_user: usize) -> Self {
        Self { users: Turns::default(), max_per_user, len: 0 }
    }

    /// Adds a request. If the queue of its user is full, the last request of that user's longest connection is refused:
    /// the one that is returned, and which can be the new one.
    fn push(&mut self, user: &Arc<str>, connection: u64, request: T) -> Option<T> {
        let queue = self.users.entry(user);
        queue.connections.entry(&connection).push_back(request);
        queue.len += 1;
        self.len += 1;
        if queue.len <= self.max_per_user {
            return None;
        }
        let own = queue.connections.values.get(&connection).map_or(0, VecDeque::len);
        let longest = queue.connections.values.iter().max_by_key(|(_, waiting)| waiting.len());
        let (longest, most) = longest.map_or((connection, own), |(id, waiting)| (*id, waiting.len()));
        let loser = if most > own { longest } else { connection };
        let refused = queue.connections.values.get_mut(&loser).and_then(VecDeque::pop_back);
        if own == 1 && loser == connection {
            // It came with this request: a connection without requests takes no turn.
            queue.connections.values.remove(&connection);
            queue.connections.order.pop_back();
        }
        queue.len -= 1;
        self.len -= 1;
        refused
    }

    fn pop(&mut self) -> Option<T> {
        while self.len > 0 {
            let taken = self.users.pop(|user| {
                let taken = user.connections.pop(|waiting| (waiting.pop_front(), waiting.is_empty()));
                user.len -= usize::from(taken.is_some());
                (taken, user.connections.values.is_empty())
            });
            if taken.is_some() {
                self.len -= 1;
                return taken;
            }
        }
        None
    }
}

/// Counts since the start, and what waits now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    pub executing: u64,
    pub waiting: u64,
    /// Requests that had to wait.
    pub waited: u64,
    pub wait_seconds: f64,
    pub queue_full: u64,
    pub timed_out: u64,
}

/// Seats for requests, and the queue for them.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    seats: usize,
    clock: Clock,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    taken: usize,
    waiting: WaitingRequests<oneshot::Sender<RequestSeat>>,
    stats: QueueStats,
}

/// Held while a request is handled.
#[derive(Debug)]
pub(crate) struct RequestSeat {
    /// `None` once it was passed on.
    queue: Option<Arc<RequestQueue>>,
}

impl RequestQueue {
    pub(crate) fn new(seats: usize, max_per_user: usize, clock: Clock) -> Self {
        let waiting = WaitingRequests::new(max_per_user);
        let state = Mutex::new(QueueState { taken: 0, waiting, stats: QueueStats::default() });
        Self { seats: seats.max(1), clock, state }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stats(&self) -> QueueStats {
        let state = self.state();
        QueueStats { executing: state.taken as u64, waiting: state.waiting.len as u64, ..state.stats }
    }

    /// Waits for a seat.
    pub(crate) async fn seat(
        self: &Arc<Self>,
        user: &Arc<str>,
        connection: u64,
    ) -> Result<RequestSeat, SeatError> {
        let seat = {
            let mut state = self.state();
            if state.taken < self.seats {
                state.taken += 1;
                return Ok(RequestSeat { queue: Some(self.clone()) });
            }
            let (sender, seat) = oneshot::channel();
            if state.waiting.push(user, connection, sender).is_some() {
                state.stats.queue_full += 1;
            }
            seat
        };
        let start = self.clock.now();
        let result = match tokio::time::timeout(MAX_WAIT, seat).await {
            Ok(Ok(seat)) => Ok(seat),
            Ok(Err(_)) => Err(SeatError::QueueFull),
            Err(_) => Err(SeatError::TimedOut),
        };
        let stats = &mut self.state().stats;
        stats.waited += 1;
        stats.wait_seconds += self.clock.since(start).as_secs_f64();
        stats.timed_out += u64::from(matches!(result, Err(SeatError::TimedOut)));
        result
    }
}

impl Drop for RequestSeat {
    /// Passes the seat on.
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        loop {
            let mut state = queue.state();
            let Some(next) = state.waiting.pop() else {
                state.taken -= 1;
                return;
            };
            drop(state);
            // A client that is gone takes no seat.
            match next.send(RequestSeat { queue: Some(queue.clone()) }) {
                Ok(()) => return,
                Err(mut unused) => unused.queue = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiting(max_per_user: usize) -> WaitingRequests<&'static str> {
        WaitingRequests::new(max_per_user)
    }

    fn all(mut waiting: WaitingRequests<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| waiting.pop()).collect()
    }

    #[test]
    fn users_take_turns_and_so_do_the_connections_of_a_user() {
        let (loud, quiet) = (Arc::from("loud"), Arc::from("quiet"));
        let mut waiting = waiting(10);
        for request in ["a1", "a2", "a3"] {
            assert_eq!(waiting.push(&loud, 1, request), None);
        }
        assert_eq!(waiting.push(&loud, 2, "b1"), None);
        assert_eq!(waiting.push(&quiet, 3, "c1"), None);
        assert_eq!(all(waiting), ["a1", "c1", "b1", "a2", "a3"]);
    }

    #[test]
    fn in_a_full_queue_the_longest_connection_loses() {
        let (user, other) = (Arc::from("a"), Arc::from("b"));
        let mut waiting = waiting(3);
        for request in ["a1", "a2", "a3"] {
            assert_eq!(waiting.push(&user, 1, request), None);
        }
        assert_eq!(waiting.push(&user, 1, "a4"), Some("a4"));
        assert_eq!(waiting.push(&user, 2, "b1"), Some("a3"));
        assert_eq!(waiting.push(&other, 3, "c1"), None, "each user has a queue of its own");
        for connection in 4..100 {
            let _refused = waiting.push(&user, connection, "flood");
        }
        let connections = &waiting.users.values[&user].connections;
        assert_eq!((connections.values.len(), connections.order.len()), (3, 3), "the refused leave nothing");
        assert_eq!(all(waiting), ["a1", "c1", "b1", "flood"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A user waits at most for one request of each other user before each of its own.
        #[test]
        fn a_user_waits_for_one_request_of_each_other(
            pushed in prop::collection::vec((0..4usize, 0..3u64), 1..100),
        ) {
            let users: Vec<Arc<str>> = (0..4).map(|number| format!("u{number}").into()).collect();
            let mut waiting = WaitingRequests::new(1_000);
            for (number, (user, connection)) in pushed.iter().enumerate() {
                prop_assert_eq!(waiting.push(&users[*user], *connection, (*user, *connection, number)), None);
            }
            let popped: Vec<(usize, u64, usize)> = std::iter::from_fn(|| waiting.pop()).collect();
            prop_assert_eq!(popped.len(), pushed.len());
            for user in 0..4 {
                let own: Vec<usize> = (0..popped.len()).filter(|at| popped[*at].0 == user).collect();
                let starts = std::iter::once(0).chain(own.iter().map(|at| at + 1));
                for (start, end) in starts.zip(&own) {
                    for other in (0..4).filter(|other| *other != user) {
                        let before = popped[start..*end].iter().filter(|request| request.0 == other).count();
                        prop_assert!(before <= 1, "{} of {} before one of {}", before, other, user);
                    }
                }
                for connection in 0..3 {
                    let order = popped.iter().filter(|request| (request.0, request.1) == (user, connection));
                    prop_assert!(order.clone().zip(order.skip(1)).all(|(one, next)| one.2 < next.2));
                }
            }
        }
    }

    #[tokio::test]
    async fn seats_pass_to_the_waiting_and_come_back() {
        let queue = Arc::new(RequestQueue::new(1, 2, Clock::system()));
        let user: Arc<str> = "a".into();
        let first = queue.seat(&user, 1).await.unwrap();
        let ask = || {
            tokio::spawn({
                let (queue, user) = (queue.clone(), user.clone());
                async move { queue.seat(&user, 1).await.map(drop) }
            })
        };
        let (gone, waits) = (ask(), ask());
        while queue.stats().waiting < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.seat(&user, 1).await.unwrap_err(), SeatError::QueueFull);
        gone.abort();
        drop(gone.await);
        drop(first);
        assert_eq!(waits.await.unwrap(), Ok(()));
        let stats = queue.stats();
        assert_eq!((stats.executing, stats.waiting, stats.queue_full), (0, 0, 1));
    }
}
