//! Whether what concurrent clients saw of the objects of a store is linearizable: there is an order of their operations in
//! which each one takes effect at one moment between its call and its answer, and in which a plain object with a
//! resourceVersion gives the same answers.
//!
//! The search is that of Wing and Gong, with the states that were already visited left out (Lowe; Porcupine). Objects are
//! searched one by one: a history is linearizable if that of every object is. Revisions, which all objects share, are
//! checked besides, and put lists in order.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// What a client asks of one object. Each write has a value of its own, so that a read says which write it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectCall {
    Create {
        value: u64,
    },
    /// Alone, or as part of a list.
    Read,
    Update {
        value: u64,
        /// The resourceVersion that it must have.
        only_at: Option<u64>,
    },
    Delete {
        only_at: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectAnswer {
    /// None came: it takes effect at any time after the call, or never.
    Unknown,
    /// The object after a write, or as it was read.
    Object {
        value: u64,
        revision: u64,
    },
    /// A list at a revision, and the value and revision of the object in it.
    Listed {
        found: Option<(u64, u64)>,
        revision: u64,
    },
    Deleted,
    /// 404.
    Absent,
    /// 409 for a create.
    AlreadyExists,
    /// 409 for a precondition.
    Conflict,
}

/// An operation of a client on one object. Times are places in the order of all calls and answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOperation {
    pub client: usize,
    pub call: ObjectCall,
    pub answer: ObjectAnswer,
    pub called: u64,
    /// `u64::MAX` if no answer came.
    pub answered: u64,
}

impl ClientOperation {
    /// The greatest floor before it that its answer allows.
    fn latest_floor(&self) -> u64 {
        match self.answer {
            ObjectAnswer::Object { revision, .. } if self.call != ObjectCall::Read => revision,
            ObjectAnswer::Listed { revision, .. } => revision,
            _ => u64::MAX,
        }
    }
}

impl fmt::Display for ClientOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, call, answer, called, answered } = self;
        match *answered {
            u64::MAX => write!(f, "client {client} [{called}, ...] {call:?}"),
            _ => write!(f, "client {client} [{called}, {answered}] {call:?} -> {answer:?}"),
        }
    }
}

/// The plain object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ObjectState {
    /// Its value and its revision, which is not known before an answer names it.
    object: Option<(u64, Option<u64>)>,
    /// No write up to now has a greater revision than its object, and every later one has.
    floor: u64,
}

impl ObjectState {
    /// Whether the object can be at this revision.
    fn may_be_at(&self, known: Option<u64>, revision: u64) -> bool {
        known.map_or(revision >= self.floor, |known| known == revision)
    }

    fn fulfils(&self, only_at: Option<u64>) -> bool {
        let Some((_, known)) = self.object else { return false };
        only_at.is_none_or(|only_at| self.may_be_at(known, only_at))
    }

    /// The object was seen with this value at this revision.
    fn seen(&self, value: u64, revision: u64) -> Option<Self> {
        let (found, known) = self.object?;
        let is_same = found == value && self.may_be_at(known, revision);
        is_same.then_some(Self { object: Some((value, Some(revision))), floor: self.floor.max(revision) })
    }

    fn written(&self, value: u64, revision: u64) -> Option<Self> {
        let is_later = revision > self.floor;
        is_later.then_some(Self { object: Some((value, Some(revision))), floor: revision })
    }

    fn listed(&self, found: Option<(u64, u64)>, revision: u64) -> Option<Self> {
        let state = match found {
            Some((value, at)) => self.seen(value, at)?,
            None => self.absent()?,
        };
        (revision >= state.floor).then_some(Self { floor: revision, ..state })
    }

    fn absent(&self) -> Option<Self> {
        self.object.is_none().then_some(*self)
    }

    /// After a write whose revision no answer names: it is one that follows.
    fn unnamed(&self, object: Option<u64>) -> Self {
        Self { object: object.map(|value| (value, None)), floor: self.floor + 1 }
    }

    /// The state after an operation, or `None` if it cannot give this answer here, or would have no effect and no answer.
    fn step(&self, call: ObjectCall, answer: ObjectAnswer) -> Option<Self> {
        let is_repeated = |value| self.object.is_some_and(|(found, _)| found == value);
        match (call, answer) {
            (ObjectCall::Read, ObjectAnswer::Object { value, revision }) => self.seen(value, revision),
            (ObjectCall::Read, ObjectAnswer::Listed { found, revision }) => self.listed(found, revision),
            (ObjectCall::Create { value }, ObjectAnswer::Object { value: answered, revision }) => {
                self.absent()?.written(value, revision).filter(|_| value == answered)
            }
            (ObjectCall::Create { value }, ObjectAnswer::Unknown) => {
                self.absent().map(|state| state.unnamed(Some(value)))
            }
            (ObjectCall::Create { .. }, ObjectAnswer::AlreadyExists) => self.object.map(|_| *self),
            (ObjectCall::Update { value, only_at }, ObjectAnswer::Object { value: answered, revision }) => {
                if value != answered || !self.fulfils(only_at) {
                    return None;
                }
                // A request that was delivered twice changes nothing the second time.
                if is_repeated(value) { self.seen(value, revision) } else { self.written(value, revision) }
            }
            (ObjectCall::Update { value, only_at }, ObjectAnswer::Unknown) => {
                (self.fulfils(only_at) && !is_repeated(value)).then(|| self.unnamed(Some(value)))
            }
            (ObjectCall::Delete { only_at }, ObjectAnswer::Deleted | ObjectAnswer::Unknown) => {
                self.fulfils(only_at).then(|| self.unnamed(None))
            }
            (
                ObjectCall::Update { only_at: Some(at), .. } | ObjectCall::Delete { only_at: Some(at) },
                ObjectAnswer::Conflict,
            ) => self.object.filter(|(_, known)| *known != Some(at)).map(|_| *self),
            (
                ObjectCall::Read | ObjectCall::Update { .. } | ObjectCall::Delete { .. },
                ObjectAnswer::Absent,
            ) => self.absent(),
            _ => None,
        }
    }
}

/// States that are visited at most: a history that needs more is not decided.
const MOST_STATES: usize = 500_000;

/// A set of operations, one bit each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OperationSet(Vec<u64>);

impl OperationSet {
    fn has(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    fn with(&self, index: usize) -> Self {
        let mut bits = self.0.clone();
        bits[index / 64] |= 1 << (index % 64);
        Self(bits)
    }

    fn is_part_of(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(bits, others)| bits & !others == 0)
    }
}

/// How far an order has come: the operations with an answer that it took, those without one, and the object.
#[derive(Clone)]
struct SearchState {
    answered: OperationSet,
    unknown: OperationSet,
    object: ObjectState,
    /// The object before the last operation, if that has no answer.
    before_unknown: Option<ObjectState>,
}

type VisitedKey = (OperationSet, Option<(u64, Option<u64>)>);

struct Search<'a> {
    /// In the order of their calls.
    operations: Vec<&'a ClientOperation>,
    /// For the operations with an answer and the object: the sets of those without an answer, with the floor.
    visited: HashMap<VisitedKey, Vec<(OperationSet, u64)>>,
    states: usize,
    order: Vec<usize>,
    longest: Vec<usize>,
}

impl<'a> Search<'a> {
    /// Takes the remaining operations in some order; false if there is none.
    fn finish(&mut self, state: &SearchState) -> bool {
        if self.order.len() > self.longest.len() {
            self.longest.clone_from(&self.order);
        }
        let candidates = self.candidates(state);
        // What is left has no answer, and need not take effect.
        if candidates.iter().all(|index| self.is_unknown(*index)) {
            return true;
        }
        for index in candidates {
            let Some(next) = self.after(state, index).filter(|next| self.visit(next)) else { continue };
            self.order.push(index);
            if self.finish(&next) {
                return true;
            }
            self.order.pop();
        }
        false
    }

    fn is_unknown(&self, index: usize) -> bool {
        self.operations[index].answered == u64::MAX
    }

    fn after(&self, state: &SearchState, index: usize) -> Option<SearchState> {
        let ClientOperation { call, answer, .. } = self.operations[index];
        let object = state.object.step(*call, *answer)?;
        let is_unknown = self.is_unknown(index);
        // The operation before this one has no answer, and made no difference.
        let without =
            state.before_unknown.filter(|_| is_unknown).and_then(|before| before.step(*call, *answer));
        if without.is_some_and(|without| without.object == object.object) {
            return None;
        }
        let before_unknown = is_unknown.then_some(state.object);
        let mut next = SearchState { object, before_unknown, ..state.clone() };
        let set = if is_unknown { &mut next.unknown } else { &mut next.answered };
        *set = set.with(index);
        // Named revisions leave one order of writes and lists: nothing may be skipped.
        let is_skipped = |index: usize| self.operations[index].latest_floor() < object.floor;
        let is_dead = self.remaining(&next).any(is_skipped);
        (!is_dead).then_some(next)
    }

    fn remaining<'b>(&'b self, state: &'b SearchState) -> impl Iterator<Item = usize> + use<'b, 'a> {
        let is_taken = |index: &usize| state.answered.has(*index) || state.unknown.has(*index);
        (0..self.operations.len()).filter(move |index| !is_taken(index))
    }

    /// False if a state was visited from which all that is possible from this one is possible: with the same answers, the
    /// same object, no greater floor, and no operation less for later.
    fn visit(&mut self, state: &SearchState) -> bool {
        let SearchState { answered, unknown, object, .. } = state;
        let others = self.visited.entry((answered.clone(), object.object)).or_default();
        if others.iter().any(|(taken, floor)| *floor <= object.floor && taken.is_part_of(unknown)) {
            return false;
        }
        others.push((unknown.clone(), object.floor));
        self.states += 1;
        self.states <= MOST_STATES
    }

    /// Operations that can be next: called before the first remaining answer. Those without an answer come last.
    fn candidates(&self, state: &SearchState) -> Vec<usize> {
        let first =
            self.remaining(state).map(|index| self.operations[index].answered).min().unwrap_or(u64::MAX);
        let mut candidates: Vec<usize> =
            self.remaining(state).take_while(|index| self.operations[*index].called < first).collect();
        candidates.sort_by_key(|index| self.operations[*index].answered);
        candidates
    }

    /// The operations around the place where no order continues.
    fn explain(&self) -> String {
        let mut text = match self.states > MOST_STATES {
            true => format!("not decided within {MOST_STATES} states; the longest order ends with\n"),
            false => "no order explains these answers; the longest one ends with\n".to_owned(),
        };
        for index in self.longest.iter().skip(self.longest.len().saturating_sub(6)) {
            text.push_str(&format!("  {}\n", self.operations[*index]));
        }
        text.push_str("and cannot continue with any of\n");
        let after = |state: SearchState, index: &usize| self.after(&state, *index).unwrap_or(state);
        let state = self.longest.iter().fold(self.start(), after);
        for index in self.candidates(&state) {
            text.push_str(&format!("  {}\n", self.operations[index]));
        }
        text
    }

    fn start(&self) -> SearchState {
        let none = OperationSet(vec![0; self.operations.len().div_ceil(64)]);
        let object = ObjectState::default();
        SearchState { answered: none.clone(), unknown: none, object, before_unknown: None }
    }
}

/// Checks the history of one object that does not exist at the start.
fn check_object(operations: &[ClientOperation]) -> Result<(), String> {
    let decides = |operation: &&ClientOperation| {
        operation.call != ObjectCall::Read || operation.answer != ObjectAnswer::Unknown
    };
    let mut operations: Vec<&ClientOperation> = operations.iter().filter(decides).collect();
    operations.sort_by_key(|operation| operation.called);
    let (visited, order, longest) = (HashMap::new(), Vec::new(), Vec::new());
    let mut search = Search { operations, visited, states: 0, order, longest };
    if search.finish(&search.start()) { Ok(()) } else { Err(search.explain()) }
}

/// Checks revisions of all objects: each is given to one write, and is greater than all that were seen before its call. A
/// list is at such a revision or at the newest of them.
fn check_revisions<'a>(operations: impl Iterator<Item = &'a ClientOperation>) -> Result<(), String> {
    let (mut calls, mut answers, mut writes) = (Vec::new(), Vec::new(), BTreeMap::new());
    for operation in operations {
        let (least, revision) = match operation.answer {
            ObjectAnswer::Object { revision, .. } if operation.call != ObjectCall::Read => {
                if let Some(other) = writes.insert(revision, operation) {
                    return Err(format!("revision {revision} was given twice: {other} and {operation}"));
                }
                (revision, revision)
            }
            ObjectAnswer::Object { revision, .. } => (u64::MAX, revision),
            ObjectAnswer::Listed { revision, .. } => (revision + 1, revision),
            _ => continue,
        };
        calls.push((operation.called, least, operation));
        answers.push((operation.answered, revision));
    }
    calls.sort_by_key(|(called, ..)| *called);
    answers.sort_unstable();
    let (mut answers, mut newest) = (answers.into_iter().peekable(), 0);
    for (called, least, operation) in calls {
        while let Some((_, revision)) = answers.next_if(|(answered, _)| *answered < called) {
            newest = revision.max(newest);
        }
        if newest >= least {
            return Err(format!("revision {newest} was seen before the call: {operation}"));
        }
    }
    Ok(())
}

/// Checks the histories of objects that do not exist at the start.
pub(crate) fn check(histories: &BTreeMap<String, Vec<ClientOperation>>) -> Result<(), String> {
    for (name, operations) in histories {
        check_object(operations).map_err(|why| format!("{name}: {why}"))?;
    }
    check_revisions(histories.values().flatten())
}

#[cfg(test)]
mod tests {
    use super::ObjectAnswer::*;
    use super::ObjectCall::*;
    use super::*;

    /// Operations as call, answer, and their times.
    fn history(operations: &[(ObjectCall, ObjectAnswer, u64, u64)]) -> Vec<ClientOperation> {
        let operation = |(client, &(call, answer, called, answered))| {
            let answered = if answer == Unknown { u64::MAX } else { answered };
            ClientOperation { client, call, answer, called, answered }
        };
        operations.iter().enumerate().map(operation).collect()
    }

    fn is_linearizable(operations: &[(ObjectCall, ObjectAnswer, u64, u64)]) -> bool {
        check(&BTreeMap::from([("a".to_owned(), history(operations))])).is_ok()
    }

    fn object(value: u64, revision: u64) -> ObjectAnswer {
        Object { value, revision }
    }

    const CREATED: (ObjectCall, ObjectAnswer, u64, u64) =
        (Create { value: 1 }, Object { value: 1, revision: 10 }, 1, 2);

    fn update(value: u64, only_at: Option<u64>) -> ObjectCall {
        Update { value, only_at }
    }

    #[test]
    fn operations_one_after_the_other_are_linearizable() {
        assert!(is_linearizable(&[
            CREATED,
            (Read, object(1, 10), 3, 4),
            (update(2, Some(10)), object(2, 11), 5, 6),
            (Create { value: 3 }, AlreadyExists, 7, 8),
            (update(4, Some(10)), Conflict, 9, 10),
            (Delete { only_at: Some(11) }, Deleted, 11, 12),
            (Read, Absent, 13, 14),
            (Delete { only_at: None }, Absent, 15, 16),
            (Create { value: 5 }, object(5, 20), 17, 18),
        ]));
    }

    #[test]
    fn a_read_during_a_write_sees_either_version() {
        for seen in [object(1, 10), object(2, 11)] {
            assert!(is_linearizable(&[
                CREATED,
                (update(2, None), object(2, 11), 3, 8),
                (Read, seen, 4, 5),
                (Read, object(2, 11), 6, 7)
            ]));
        }
    }

    #[test]
    fn a_stale_read_is_not_linearizable() {
        let stale = (Read, object(1, 10), 5, 6);
        assert!(!is_linearizable(&[CREATED, (update(2, None), object(2, 11), 3, 4), stale]));
        // Two reads during one write: the second must not go back.
        let write = (update(2, None), object(2, 11), 3, 9);
        assert!(!is_linearizable(&[
            CREATED,
            write,
            (Read, object(2, 11), 4, 5),
            (Read, object(1, 10), 6, 7)
        ]));
    }

    #[test]
    fn a_lost_update_is_not_linearizable() {
        let [first, second] =
            [(update(2, Some(10)), object(2, 11), 3, 8), (update(3, Some(10)), object(3, 12), 4, 7)];
        assert!(!is_linearizable(&[CREATED, first, second]));
        assert!(is_linearizable(&[CREATED, first, (second.0, Conflict, 4, 7)]));
        // A conflict needs another write.
        assert!(!is_linearizable(&[CREATED, (second.0, Conflict, 4, 7)]));
    }

    #[test]
    fn an_acknowledged_write_that_is_gone_is_not_linearizable() {
        assert!(!is_linearizable(&[CREATED, (Read, Absent, 3, 4)]));
        let updated = (update(2, Some(10)), object(2, 11), 3, 4);
        assert!(!is_linearizable(&[CREATED, updated, (Create { value: 3 }, object(3, 12), 5, 6)]));
        assert!(!is_linearizable(&[
            CREATED,
            (Delete { only_at: None }, Deleted, 3, 4),
            (Read, object(1, 10), 5, 6)
        ]));
    }

    #[test]
    fn a_write_without_an_answer_takes_effect_late_or_never() {
        let lost = (update(2, None), Unknown, 3, 0);
        assert!(is_linearizable(&[CREATED, lost, (Read, object(1, 10), 4, 5)]));
        let late = [CREATED, lost, (Read, object(1, 10), 4, 5), (Read, object(2, 11), 6, 7)];
        assert!(is_linearizable(&late));
        // But once.
        assert!(!is_linearizable(&[late.as_slice(), &[(Read, object(1, 10), 8, 9)]].concat()));
        assert!(!is_linearizable(&[CREATED, (Read, object(2, 11), 2, 3), (lost.0, Unknown, 4, 0)]));
        // A delete without an answer explains an object that is gone, and one that was created again.
        let deleted = (Delete { only_at: Some(10) }, Unknown, 3, 0);
        assert!(is_linearizable(&[CREATED, deleted, (Create { value: 3 }, object(3, 12), 5, 6)]));
        let changed = (update(2, None), object(2, 11), 4, 5);
        assert!(!is_linearizable(&[CREATED, changed, (deleted.0, Unknown, 6, 0), (Read, Absent, 7, 8)]));
    }

    #[test]
    fn a_request_that_arrives_twice_changes_nothing_the_second_time() {
        let twice = [(update(2, None), object(2, 11), 3, 6), (update(2, None), Unknown, 3, 0)];
        assert!(is_linearizable(&[CREATED, twice[0], twice[1], (Read, object(2, 11), 7, 8)]));
        // Unless another write came between them.
        let between = (update(3, None), object(3, 12), 7, 8);
        assert!(is_linearizable(&[CREATED, twice[0], twice[1], between, (Read, object(2, 13), 9, 10)]));
        assert!(!is_linearizable(&[CREATED, twice[0], between, (Read, object(2, 13), 9, 10)]));
    }

    #[test]
    fn revisions_follow_the_order() {
        assert!(!is_linearizable(&[CREATED, (update(2, None), object(2, 9), 3, 4)]));
        assert!(!is_linearizable(&[CREATED, (Read, object(1, 11), 3, 4)]));
        let lost = (update(2, None), Unknown, 3, 0);
        assert!(!is_linearizable(&[CREATED, lost, (Read, object(2, 10), 4, 5)]));
        let (seen, again) = ((Read, object(2, 12), 4, 5), (Read, object(2, 13), 6, 7));
        assert!(!is_linearizable(&[CREATED, lost, seen, again]));
    }

    #[test]
    fn revisions_of_all_objects_follow_the_time() {
        let both = |first: u64, second: u64, answered: u64| {
            let a = history(&[(Create { value: 1 }, object(1, first), 1, answered)]);
            let b = history(&[(Create { value: 2 }, object(2, second), 3, 4)]);
            check(&BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)])).is_ok()
        };
        assert!(both(10, 11, 2));
        assert!(!both(11, 10, 2));
        assert!(both(11, 10, 5), "they are concurrent");
        assert!(!both(10, 10, 5), "a revision is given once");
    }

    #[test]
    fn a_list_shows_one_revision_of_all_objects() {
        let listed = |found, revision| Listed { found, revision };
        let updated = (update(2, None), object(2, 14), 3, 8);
        for (found, revision, expected) in [
            (Some((1, 10)), 12, true),
            (Some((2, 14)), 14, true),
            // The update is part of revision 14.
            (Some((1, 10)), 14, false),
            (Some((2, 14)), 13, false),
            (None, 14, false),
        ] {
            let list = (Read, listed(found, revision), 4, 7);
            assert_eq!(is_linearizable(&[CREATED, updated, list]), expected, "{found:?} at {revision}");
        }
        let list = (Read, listed(Some((1, 10)), 10), 3, 4);
        assert!(is_linearizable(&[CREATED, list]));
        let a = history(&[CREATED, (Read, listed(Some((1, 10)), 10), 5, 6)]);
        let b = history(&[(Create { value: 2 }, object(2, 11), 3, 4), (Read, listed(None, 10), 5, 6)]);
        let histories = BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        assert!(check(&histories).is_err(), "revision 11 was there before the list");
    }

    #[test]
    fn long_histories_are_decided() {
        // Ten clients at a time, each write overlaps with all others of its round, and one of ten has no answer.
        let mut operations = vec![CREATED];
        for round in 0..40_u64 {
            let start = 10 + 100 * round;
            for client in 0..10_u64 {
                let (value, revision) = (100 + 10 * round + client, 20 + 10 * round + client);
                let answer = if client == 4 { Unknown } else { object(value, revision) };
                operations.push((update(value, None), answer, start + client, start + 50 + client));
            }
        }
        assert!(is_linearizable(&operations));
        operations.push((Read, object(1, 10), 9_000, 9_001));
        let error = check_object(&history(&operations)).expect_err("a stale read");
        assert!(error.contains("cannot continue"), "{error}");
    }
}
