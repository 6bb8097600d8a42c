//! The network between parties and API: requests, responses and frames of watches on their way, and what goes wrong with
//! them. Frames of one watch stay in order, as on one connection.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use model::random::Random;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::link::{LinkBody, LinkError, LinkResponse, SentRequest};
use crate::options::Faults;
use crate::story::Story;

/// A connection without an answer ends after this long.
const CONNECTION_TIMEOUT: u64 = 15_000;

/// A part of a response.
#[derive(Debug)]
pub(crate) enum ResponsePart {
    Whole(http::response::Parts, Bytes),
    Stream(http::response::Parts),
    Frame(Bytes),
    End,
}

enum Delivery {
    Request(u64, Request<Bytes>),
    Part(u64, ResponsePart),
    Fail(u64, &'static str),
}

/// A request and what came of it.
pub(crate) struct Call {
    pub party: usize,
    pub line: String,
    reply: Option<oneshot::Sender<LinkResponse>>,
    frames: Option<mpsc::UnboundedSender<Result<Bytes, LinkError>>>,
    loses_response: bool,
    /// A part was lost: nothing after it arrives, as on one connection.
    is_broken: bool,
    /// No later part arrives before this.
    not_before: u64,
    /// The API's task, once the request has arrived.
    pub task: Option<AbortHandle>,
}

#[derive(Default)]
struct Partition {
    to_api_until: u64,
    from_api_until: u64,
}

pub(crate) struct SimulatedNetwork {
    random: Random,
    pub faults: Faults,
    pub is_faulty: bool,
    calls: BTreeMap<u64, Call>,
    next_call: u64,
    queue: BTreeMap<(u64, u64), Delivery>,
    next_delivery: u64,
    partitions: BTreeMap<usize, Partition>,
    /// How often each fault happened.
    pub counts: BTreeMap<&'static str, u64>,
}

impl SimulatedNetwork {
    pub(crate) fn new(random: Random, faults: Faults) -> Self {
        Self {
            random,
            faults,
            is_faulty: false,
            calls: BTreeMap::new(),
            next_call: 0,
            queue: BTreeMap::new(),
            next_delivery: 0,
            partitions: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    fn rolls(&mut self, thousandths: usize, name: &'static str) -> bool {
        let hit = self.is_faulty && thousandths > 0 && self.random.below(1_000) < thousandths;
        if hit {
            *self.counts.entry(name).or_default() += 1;
        }
        hit
    }

    fn delay(&mut self) -> u64 {
        let slow = self.faults.slow;
        if self.rolls(slow, "slow message") {
            return 100 + self.random.below(3_000) as u64;
        }
        1 + self.random.below(8) as u64
    }

    fn schedule(&mut self, at: u64, delivery: Delivery) {
        self.next_delivery += 1;
        self.queue.insert((at, self.next_delivery), delivery);
    }

    /// When the next message arrives.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    /// Parties that get a message until this time; the API is number 0.
    pub(crate) fn receivers(&self, now: u64) -> impl Iterator<Item = usize> {
        self.queue.range(..=(now, u64::MAX)).filter_map(|(_, delivery)| match delivery {
            Delivery::Request(..) => Some(0),
            Delivery::Part(id, _) | Delivery::Fail(id, _) => self.calls.get(id).map(|call| call.party),
        })
    }

    pub(crate) fn call(&self, id: u64) -> Option<&Call> {
        self.calls.get(&id)
    }

    pub(crate) fn open_watches(&self) -> impl Iterator<Item = (u64, &Call)> {
        let open = |call: &&Call| call.frames.as_ref().is_some_and(|frames| !frames.is_closed());
        self.calls.iter().filter(move |(_, call)| open(call)).map(|(id, call)| (*id, call))
    }

    /// A party sent a request.
    pub(crate) fn send(&mut self, now: u64, sent: SentRequest, names: &[String], story: &mut Story) -> u64 {
        self.next_call += 1;
        let id = self.next_call;
        let name = &names[sent.party];
        let line = format!("{} {}", sent.request.method(), sent.request.uri());
        let is_watch = sent.request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let is_read = sent.request.method() == http::Method::GET;
        story.note(now, name, format_args!("#{id} {line} {}", String::from_utf8_lossy(sent.request.body())));
        let call = Call {
            party: sent.party,
            line,
            reply: Some(sent.reply),
            frames: None,
            loses_response: false,
            is_broken: false,
            not_before: now,
            task: None,
        };
        self.calls.insert(id, call);
        self.route(now, id, sent.party, sent.request, is_watch, is_read);
        id
    }

    /// Delivers the request, or not.
    fn route(
        &mut self,
        now: u64,
        id: u64,
        party: usize,
        request: Request<Bytes>,
        is_watch: bool,
        is_read: bool,
    ) {
        let faults = self.faults;
        if self.rolls(faults.lost_requests, "request lost") {
            let at = now + 20 + self.random.below(2_000) as u64;
            return self.schedule(at, Delivery::Fail(id, "connection reset"));
        }
        if self.rolls(faults.refused, "request refused") {
            let (code, reason) =
                [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")]
                    [self.random.below(3)];
            return self.refuse(now, id, code, reason);
        }
        if is_read && self.rolls(faults.gone, "410") {
            return self.expire(now, id, is_watch);
        }
        let loses = self.rolls(faults.lost_responses, "response lost");
        if let Some(call) = self.calls.get_mut(&id) {
            call.loses_response = loses && !is_watch;
        }
        let copy = (!is_watch && self.rolls(faults.duplicates, "request twice")).then(|| request.clone());
        let cut = self.partitions.get(&party).map_or(0, |partition| partition.to_api_until);
        match self.arrival(now, cut) {
            Some(at) => self.schedule(at, Delivery::Request(id, request)),
            None => self.schedule(now + CONNECTION_TIMEOUT, Delivery::Fail(id, "connection timed out")),
        }
        if let Some(copy) = copy {
            let at = now + self.delay() + self.random.below(500) as u64;
            self.schedule(at, Delivery::Request(0, copy));
        }
    }

    /// `None` if the message is lost in a partition.
    fn arrival(&mut self, now: u64, cut_until: u64) -> Option<u64> {
        let delay = self.delay();
        match cut_until > now {
            true if cut_until - now > CONNECTION_TIMEOUT / 2 => None,
            true => Some(cut_until + delay),
            false => Some(now + delay),
        }
    }

    fn refuse(&mut self, now: u64, id: u64, code: u16, reason: &'static str) {
        let at = now + self.delay();
        let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "refused on the way", "reason": reason, "code": code});
        let response = Response::builder().status(StatusCode::from_u16(code).unwrap_or_default());
        let response = response.header("content-type", "application/json").body(());
        let Ok((head, ())) = response.map(Response::into_parts) else { return };
        self.schedule(at, Delivery::Part(id, ResponsePart::Whole(head, body.to_string().into())));
    }

    /// As if the resourceVersion had been compacted.
    fn expire(&mut self, now: u64, id: u64, is_watch: bool) {
        if !is_watch {
            return self.refuse(now, id, 410, "Expired");
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "too old resource version", "reason": "Expired", "code": 410});
        let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
        let (head, ()) = Response::new(()).into_parts();
        let at = now + self.delay();
        self.schedule(at, Delivery::Part(id, ResponsePart::Stream(head)));
        self.schedule(at, Delivery::Part(id, ResponsePart::Frame(line.into())));
        self.schedule(at, Delivery::Part(id, ResponsePart::End));
    }

    /// The API sent a part of a response.
    pub(crate) fn respond(&mut self, now: u64, id: u64, part: ResponsePart) {
        let Some(call) = self.calls.get(&id).filter(|call| !call.is_broken) else { return };
        if call.loses_response {
            let at = now + 20 + self.random.below(2_000) as u64;
            return self.schedule(at, Delivery::Fail(id, "connection reset"));
        }
        let (party, not_before) = (call.party, call.not_before);
        let cut = self.partitions.get(&party).map_or(0, |partition| partition.from_api_until);
        let Some(at) = self.arrival(now, cut) else {
            if let Some(call) = self.calls.get_mut(&id) {
                call.is_broken = true;
            }
            return self.schedule(now + CONNECTION_TIMEOUT, Delivery::Fail(id, "connection timed out"));
        };
        let at = at.max(not_before);
        if let Some(call) = self.calls.get_mut(&id) {
            call.not_before = at;
        }
        self.schedule(at, Delivery::Part(id, part));
    }

    /// Delivers what is due: responses to parties; requests to `api`, which returns its task, or `None` while it is down.
    pub(crate) fn deliver(
        &mut self,
        now: u64,
        names: &[String],
        story: &mut Story,
        mut api: impl FnMut(u64, Request<Bytes>) -> Option<AbortHandle>,
    ) {
        while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Delivery::Request(id, request) => {
                    let task = api(id, request);
                    let refused = task.is_none();
                    if let Some(call) = self.calls.get_mut(&id) {
                        call.task = task;
                    }
                    if refused {
                        self.fail(now, id, "connection refused", names, story);
                    }
                }
                Delivery::Part(id, part) => self.hand_over(now, id, part, names, story),
                Delivery::Fail(id, why) => self.fail(now, id, why, names, story),
            }
        }
    }

    fn hand_over(&mut self, now: u64, id: u64, part: ResponsePart, names: &[String], story: &mut Story) {
        let Some(call) = self.calls.get_mut(&id) else { return };
        let name = &names[call.party];
        match part {
            ResponsePart::Whole(head, body) => {
                story.note(now, name, format_args!("#{id} <- {} ({} bytes)", head.status, body.len()));
                if let Some(reply) = call.reply.take() {
                    let _ = reply.send(Ok(Response::from_parts(head, LinkBody::Whole(Some(body)))));
                }
                self.calls.remove(&id);
            }
            ResponsePart::Stream(head) => {
                let (frames, receiver) = mpsc::unbounded_channel();
                call.frames = Some(frames);
                if let Some(reply) = call.reply.take() {
                    let _ = reply.send(Ok(Response::from_parts(head, LinkBody::Stream(receiver))));
                }
            }
            ResponsePart::Frame(bytes) => {
                story.note(now, name, format_args!("#{id} <- frame of {} bytes", bytes.len()));
                if let Some(frames) = &call.frames {
                    let _ = frames.send(Ok(bytes));
                }
            }
            ResponsePart::End => drop(self.calls.remove(&id)),
        }
    }

    /// Ends a connection.
    pub(crate) fn fail(&mut self, now: u64, id: u64, why: &'static str, names: &[String], story: &mut Story) {
        let Some(call) = self.calls.remove(&id) else { return };
        story.note(now, &names[call.party], format_args!("#{id} failed: {why}"));
        if let Some(reply) = call.reply {
            let _ = reply.send(Err(LinkError(why)));
        }
        if let Some(frames) = call.frames {
            let _ = frames.send(Err(LinkError(why)));
        }
        if let Some(task) = call.task {
            task.abort();
        }
    }

    /// Watches whose client has gone end at the API, too.
    pub(crate) fn sweep(&mut self) {
        let gone = |call: &Call| call.frames.as_ref().is_some_and(mpsc::UnboundedSender::is_closed);
        let gone: Vec<u64> = self.calls.iter().filter(|(_, call)| gone(call)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(task) = self.calls.remove(&id).and_then(|call| call.task) {
                task.abort();
            }
        }
    }

    /// The API crashed: its connections end after a while.
    pub(crate) fn api_crashed(&mut self, now: u64) {
        let open: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.task.is_some()).map(|(id, _)| *id).collect();
        for id in open {
            let at = now + 1 + self.random.below(300) as u64;
            self.schedule(at, Delivery::Fail(id, "connection reset"));
        }
    }

    /// Cuts a random watch.
    pub(crate) fn cut_watch(&mut self, now: u64, names: &[String], story: &mut Story) {
        let open: Vec<u64> = self.open_watches().map(|(id, _)| id).collect();
        if let Some(id) = self.random.pick(&open).copied() {
            *self.counts.entry("watch cut").or_default() += 1;
            self.fail(now, id, "connection reset", names, story);
        }
    }

    /// Cuts one or both directions between a party and the API.
    pub(crate) fn partition(&mut self, party: usize, to_api_until: u64, from_api_until: u64) {
        *self.counts.entry("partition").or_default() += 1;
        self.partitions.insert(party, Partition { to_api_until, from_api_until });
    }

    pub(crate) fn heal(&mut self) {
        self.is_faulty = false;
        self.partitions.clear();
    }
}
