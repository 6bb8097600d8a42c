//! Concurrent clients of the embedded API behind the faults of the simulated network and disk; what they asked and what
//! they were answered is their history. Nothing else of the fleet runs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use fixtures::{DiskImage, FaultyDisk};
use http::{Method, Request, Response};
use model::random::Random;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::linearizability::{self, ClientOperation, ObjectAnswer, ObjectCall};
use crate::link::{Link, LinkBody, LinkResponse, Outbox};
use crate::network::{ResponsePart, SimulatedNetwork};
use crate::options::Faults;
use crate::parties::ApiProcess;
use crate::story::Story;
use crate::time::PausedRuntime;

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
/// The number of its operation, on every request.
const OPERATION_HEADER: &str = "x-operation";
/// Simulated time after which a run that has not ended counts as stuck.
const LIMIT: u64 = 3_600_000;

/// A fault of the store itself, which the checker has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSabotage {
    /// One of eight reads of an object is answered from an old snapshot.
    StaleReads,
    /// One of eight lists is, too.
    StaleLists,
    /// One of eight updates does not compare its resourceVersion.
    IgnoredPreconditions,
    /// A power loss also loses what was synced in the last seconds.
    LostSyncs,
}

impl StoreSabotage {
    pub const ALL: [Self; 4] =
        [Self::StaleReads, Self::StaleLists, Self::IgnoredPreconditions, Self::LostSyncs];
}

/// What a seed expands into.
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    pub seed: u64,
    pub clients: usize,
    pub objects: usize,
    /// Operations of each client.
    pub operations: usize,
    /// The longest pause of a client between two operations.
    pub pause_ms: usize,
    pub faults: Faults,
    pub sabotage: Option<StoreSabotage>,
}

impl HistoryOptions {
    /// Each kind of fault is off in half of all seeds.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::seeded(seed ^ 0x0068_6973_746f_7279);
        let mut some = |most: usize| if random.below(2) == 0 { 0 } else { 1 + random.below(most) };
        let faults = Faults {
            lost_requests: some(100),
            lost_responses: some(100),
            duplicates: some(100),
            refused: some(80),
            slow: some(200),
            partition_ms: some(3_000),
            api_crash_ms: some(3_000),
            ..Faults::default()
        };
        Self {
            seed,
            clients: 2 + random.below(7),
            objects: 1 + random.below(4),
            operations: 20 + random.below(40),
            pause_ms: 1 + random.below(60),
            faults,
            sabotage: None,
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct HistoryReport {
    pub options: HistoryOptions,
    /// By the name of the object.
    pub histories: BTreeMap<String, Vec<ClientOperation>>,
    /// Why the histories are not linearizable, or why there are none.
    pub broken: Option<String>,
    /// How often faults and answers happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// The last events.
    pub story: Vec<String>,
}

/// What a client asks: one object, or all of them.
#[derive(Clone, Debug)]
enum Question {
    One { name: String, call: ObjectCall, is_patch: bool },
    List,
}

struct OpenOperation {
    question: Question,
    called: u64,
    reply: oneshot::Receiver<LinkResponse>,
}

struct HistoryClient {
    link: Link,
    open: Option<OpenOperation>,
    left: usize,
    next_at: u64,
    /// The last revision of each object that it saw.
    seen: BTreeMap<String, u64>,
}

/// The store's answers from some time ago, by path.
type OldAnswers = BTreeMap<String, Vec<(http::response::Parts, Bytes)>>;

struct HistoryRun {
    options: HistoryOptions,
    random: Random,
    now: u64,
    /// The number of calls and answers until now.
    events: u64,
    story: Story,
    names: Vec<String>,
    clients: Vec<HistoryClient>,
    outbox: Outbox,
    network: SimulatedNetwork,
    disk: FaultyDisk,
    old_disk: Option<(u64, DiskImage)>,
    old_answers: OldAnswers,
    api: Option<(ApiProcess, PausedRuntime)>,
    restart_at: u64,
    /// Calls by their number, for requests that arrive twice.
    questions: Vec<(usize, Question)>,
    histories: BTreeMap<String, Vec<ClientOperation>>,
    counts: BTreeMap<&'static str, u64>,
}

/// Runs the clients, with faults until they are done and a look at every object afterwards, and checks their histories.
pub fn run(options: HistoryOptions) -> HistoryReport {
    let mut run = HistoryRun::new(options);
    let result = run.phases().and_then(|()| linearizability::check(&run.histories));
    run.counts.extend(std::mem::take(&mut run.network.counts));
    HistoryReport {
        options: run.options,
        histories: run.histories,
        broken: result.err(),
        counts: run.counts,
        story: run.story.last(80),
    }
}

impl HistoryRun {
    fn new(options: HistoryOptions) -> Self {
        let mut random = Random::seeded(options.seed);
        let outbox = Outbox::default();
        let clients: Vec<HistoryClient> = (0..options.clients)
            .map(|number| HistoryClient {
                link: Link::new(number, &outbox),
                open: None,
                left: options.operations,
                next_at: random.below(options.pause_ms) as u64,
                seen: BTreeMap::new(),
            })
            .collect();
        let mut network = SimulatedNetwork::new(random.split(), options.faults);
        network.is_faulty = true;
        Self {
            now: 0,
            events: 0,
            story: Story::default(),
            names: (0..options.clients).map(|number| format!("client-{number}")).collect(),
            clients,
            outbox,
            network,
            disk: FaultyDisk::new(random.split()),
            old_disk: None,
            old_answers: BTreeMap::new(),
            api: None,
            restart_at: 0,
            questions: Vec::new(),
            histories: (0..options.objects).map(|number| (format!("object-{number}"), Vec::new())).collect(),
            counts: BTreeMap::new(),
            options,
            random,
        }
    }

    fn phases(&mut self) -> Result<(), String> {
        while !self.is_done() {
            self.step()?;
            self.crash_now_and_then();
        }
        self.network.heal();
        self.disk.stop_after(u64::MAX);
        // A crash at the end, so that what was acknowledged last is read from the disk.
        self.crash(true);
        self.restart_at = self.now;
        let names: Vec<String> = self.histories.keys().cloned().collect();
        for name in names {
            let read = Question::One { name, call: ObjectCall::Read, is_patch: false };
            self.ask_at_the_end(read)?;
        }
        self.ask_at_the_end(Question::List)
    }

    fn ask_at_the_end(&mut self, question: Question) -> Result<(), String> {
        self.ask(0, question);
        while !self.is_done() {
            self.step()?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.clients.iter().all(|client| client.left == 0 && client.open.is_none())
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    fn note(&mut self, party: &str, text: std::fmt::Arguments<'_>) {
        self.story.note(self.now, party, text);
    }

    /// One step, until something is due.
    fn step(&mut self) -> Result<(), String> {
        let waits = self.clients.iter().filter(|client| client.left > 0 && client.open.is_none());
        let clients = waits.map(|client| client.next_at).min().unwrap_or(u64::MAX);
        let next = self.network.next_at().unwrap_or(u64::MAX).min(clients).min(self.now + 20);
        self.now = next.max(self.now + 1);
        if self.now > LIMIT {
            return Err("clients wait without end".to_owned());
        }
        if self.api.is_none() && self.now >= self.restart_at {
            self.start_api()?;
        }
        self.deliver();
        self.run_api();
        for number in 0..self.clients.len() {
            self.take_answer(number)?;
            let client = &self.clients[number];
            if client.open.is_none() && client.left > 0 && self.now >= client.next_at {
                self.clients[number].left -= 1;
                let question = self.question(number);
                self.ask(number, question);
            }
        }
        while let Some(sent) = self.outbox.take() {
            self.network.send(self.now, sent, &self.names, &mut self.story);
        }
        Ok(())
    }

    fn start_api(&mut self) -> Result<(), String> {
        let runtime = PausedRuntime::start(self.now, 1_000, 0);
        match ApiProcess::start(&runtime, &self.disk, self.random.split()) {
            Ok(process) => {
                self.note("api", format_args!("starts at revision {}", process.api.engine().revision()));
                self.api = Some((process, runtime));
                Ok(())
            }
            Err(why) if self.disk.has_stopped() => {
                self.note("api", format_args!("stops while it starts: {why}"));
                drop(runtime);
                self.restart(true);
                Ok(())
            }
            Err(why) => Err(format!("the store does not open: {why}")),
        }
    }

    fn deliver(&mut self) {
        let Self { network, api, story, names, now, random, options, questions, .. } = self;
        let Self { histories, events, .. } = self;
        network.deliver(*now, names, story, |id, mut request| {
            let (process, runtime) = api.as_ref()?;
            if options.sabotage == Some(StoreSabotage::IgnoredPreconditions) && random.below(8) == 0 {
                request = without_precondition(request);
            }
            // A copy: it may take effect once more.
            if id == 0
                && let Some(number) = operation_of(&request)
                && let Some((client, Question::One { name, call, .. })) = questions.get(number)
                && let Some(history) = histories.get_mut(name)
            {
                *events += 1;
                let (answer, answered) = (ObjectAnswer::Unknown, u64::MAX);
                let operation =
                    ClientOperation { client: *client, call: *call, answer, called: *events, answered };
                history.push(operation);
            }
            Some(process.serve(runtime, id, request))
        });
    }

    /// Lets the API handle what arrived, and takes its responses, unless its machine stopped meanwhile.
    fn run_api(&mut self) {
        let Some((process, mut runtime)) = self.api.take() else { return };
        runtime.run_until(self.now);
        if self.disk.has_stopped() || process.has_aborted.load(Ordering::SeqCst) {
            self.api = Some((process, runtime));
            self.count("machine of the API stopped within a write");
            return self.crash(true);
        }
        while let Some((id, part)) = process.take_response() {
            let part = self.sabotaged(id, part);
            self.network.respond(self.now, id, part);
        }
        self.api = Some((process, runtime));
        self.keep_old_disk();
    }

    /// Remembers answers to reads, and gives an old one instead if that is the fault of this run.
    fn sabotaged(&mut self, id: u64, part: ResponsePart) -> ResponsePart {
        let line = self.network.call(id).map(|call| call.line.clone()).unwrap_or_default();
        let wanted = match self.options.sabotage {
            Some(StoreSabotage::StaleReads) => line.starts_with("GET") && !line.ends_with("configmaps"),
            Some(StoreSabotage::StaleLists) => line.starts_with("GET") && line.ends_with("configmaps"),
            _ => false,
        };
        let ResponsePart::Whole(head, body) = part else { return part };
        if !wanted {
            return ResponsePart::Whole(head, body);
        }
        let old = self.old_answers.entry(line).or_default();
        old.push((head.clone(), body.clone()));
        if self.random.below(8) > 0 {
            return ResponsePart::Whole(head, body);
        }
        let (head, body) = self.random.pick(old).cloned().unwrap_or((head, body));
        ResponsePart::Whole(head, body)
    }

    fn keep_old_disk(&mut self) {
        let is_due = self.old_disk.as_ref().is_none_or(|(at, _)| self.now - at > 3_000);
        if is_due && self.options.sabotage == Some(StoreSabotage::LostSyncs) {
            self.old_disk = Some((self.now, self.disk.image()));
        }
    }

    fn crash_now_and_then(&mut self) {
        let faults = self.options.faults;
        let happens =
            |random: &mut Random, every_ms: usize| every_ms > 0 && random.below(every_ms.max(40)) < 4;
        if happens(&mut self.random, faults.partition_ms) {
            let (party, until) =
                (self.random.below(self.clients.len()), self.now + 20 + self.random.below(4_000) as u64);
            let (to, from) = [(until, 0), (0, until), (until, until)][self.random.below(3)];
            self.network.partition(party, to, from);
        }
        if happens(&mut self.random, faults.api_crash_ms) && self.api.is_some() {
            match self.random.below(3) {
                0 => self.disk.stop_after(1 + self.random.below(12) as u64),
                power => {
                    self.count("crash of the API");
                    self.crash(power == 1);
                }
            }
        }
    }

    /// No destructor may write: the process is gone.
    fn crash(&mut self, loses_power: bool) {
        self.note("api", format_args!("crashes, power lost: {loses_power}"));
        self.disk.stop_after(1);
        self.api = None;
        self.restart(loses_power);
    }

    fn restart(&mut self, loses_power: bool) {
        self.disk.restart(loses_power);
        if let Some((_, image)) = self.old_disk.take().filter(|_| loses_power) {
            self.disk.restore(image);
        }
        self.network.api_crashed(self.now);
        self.restart_at = self.now + self.random.below(400) as u64;
    }

    fn question(&mut self, client: usize) -> Question {
        let value = 1 + self.questions.len() as u64;
        let name = format!("object-{}", self.random.below(self.options.objects));
        let seen = self.clients[client].seen.get(&name).copied();
        let only_at = seen.filter(|_| self.random.below(3) > 0);
        let call = match self.random.below(20) {
            0..4 => ObjectCall::Create { value },
            4..9 => ObjectCall::Read,
            9..16 => ObjectCall::Update { value, only_at },
            16..18 => ObjectCall::Delete { only_at },
            _ => return Question::List,
        };
        Question::One { name, call, is_patch: self.random.below(2) == 0 }
    }

    fn ask(&mut self, client: usize, question: Question) {
        let request = request(self.questions.len(), &question);
        self.questions.push((client, question.clone()));
        self.events += 1;
        let client = &mut self.clients[client];
        let reply = client.link.send(request);
        client.open = Some(OpenOperation { question, called: self.events, reply });
    }

    fn take_answer(&mut self, number: usize) -> Result<(), String> {
        let client = &mut self.clients[number];
        let Some(open) = &mut client.open else { return Ok(()) };
        let response = match open.reply.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => return Ok(()),
            Err(oneshot::error::TryRecvError::Closed) => None,
            Ok(response) => response.ok(),
        };
        let Some(OpenOperation { question, called, .. }) = client.open.take() else { return Ok(()) };
        self.clients[number].next_at = self.now + self.random.below(self.options.pause_ms) as u64;
        self.events += 1;
        let answered = self.events;
        match question {
            Question::One { name, call, .. } => {
                let Some(answer) = answer_of(call, response)? else { return Ok(()) };
                self.count(count_name(answer));
                if let ObjectAnswer::Object { revision, .. } = answer {
                    self.clients[number].seen.insert(name.clone(), revision);
                }
                let answered = if answer == ObjectAnswer::Unknown { u64::MAX } else { answered };
                let operation = ClientOperation { client: number, call, answer, called, answered };
                self.histories.entry(name).or_default().push(operation);
            }
            Question::List => {
                let Some((items, revision)) = list_of(response)? else { return Ok(()) };
                self.count("list");
                for (name, history) in &mut self.histories {
                    let found = items.get(name).copied();
                    let answer = ObjectAnswer::Listed { found, revision };
                    let call = ObjectCall::Read;
                    history.push(ClientOperation { client: number, call, answer, called, answered });
                }
            }
        }
        Ok(())
    }
}

fn count_name(answer: ObjectAnswer) -> &'static str {
    match answer {
        ObjectAnswer::Unknown => "no answer",
        ObjectAnswer::Object { .. } => "answer: object",
        ObjectAnswer::Listed { .. } => "answer: list",
        ObjectAnswer::Deleted => "answer: deleted",
        ObjectAnswer::Absent => "answer: 404",
        ObjectAnswer::AlreadyExists => "answer: 409 for a create",
        ObjectAnswer::Conflict => "answer: 409 for a precondition",
    }
}

fn request(number: usize, question: &Question) -> Request<Bytes> {
    let (method, path, body) = match question {
        Question::List => (Method::GET, COLLECTION.to_owned(), Value::Null),
        Question::One { name, call, is_patch } => {
            let path = format!("{COLLECTION}/{name}");
            let config_map = |value: &u64, metadata: Value| {
                let data = json!({"value": value.to_string()});
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
            };
            let version = |only_at: &Option<u64>| only_at.map(|revision| revision.to_string());
            match call {
                ObjectCall::Create { value } => {
                    (Method::POST, COLLECTION.to_owned(), config_map(value, json!({"name": name})))
                }
                ObjectCall::Read => (Method::GET, path, Value::Null),
                ObjectCall::Update { value, only_at } => {
                    let mut metadata = json!({"name": name});
                    if let Some(version) = version(only_at) {
                        metadata["resourceVersion"] = version.into();
                    }
                    let method = if *is_patch { Method::PATCH } else { Method::PUT };
                    (method, path, config_map(value, metadata))
                }
                ObjectCall::Delete { only_at } => {
                    let preconditions = version(only_at).map(|version| json!({"resourceVersion": version}));
                    let body = json!({"apiVersion": "v1", "kind": "DeleteOptions",
                        "preconditions": preconditions});
                    (Method::DELETE, path, body)
                }
            }
        }
    };
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    request.header(OPERATION_HEADER, number).body(body).expect("a request of constant parts")
}

fn operation_of(request: &Request<Bytes>) -> Option<usize> {
    request.headers().get(OPERATION_HEADER)?.to_str().ok()?.parse().ok()
}

fn without_precondition(request: Request<Bytes>) -> Request<Bytes> {
    let (head, body) = request.into_parts();
    let Ok(mut value) = serde_json::from_slice::<Value>(&body) else {
        return Request::from_parts(head, body);
    };
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    Request::from_parts(head, value.to_string().into())
}

/// Status and content; `None` if there was no response, or one of a server that does not say what it did.
fn content(response: Option<Response<LinkBody>>) -> Option<(u16, Value)> {
    let (head, body) = response?.into_parts();
    let LinkBody::Whole(Some(body)) = body else { return None };
    let status = head.status.as_u16();
    (status < 500).then(|| (status, serde_json::from_slice(&body).unwrap_or_default()))
}

/// Value and revision of a ConfigMap.
fn object_of(object: &Value) -> Option<(u64, u64)> {
    let number = |value: &Value| value.as_str()?.parse().ok();
    Some((number(&object["data"]["value"])?, number(&object["metadata"]["resourceVersion"])?))
}

/// `None` if the request had no effect and says nothing: it was refused on the way.
fn answer_of(call: ObjectCall, response: Option<Response<LinkBody>>) -> Result<Option<ObjectAnswer>, String> {
    let Some((status, content)) = content(response) else { return Ok(Some(ObjectAnswer::Unknown)) };
    let answer = match (status, call) {
        (429, _) => return Ok(None),
        (200, ObjectCall::Delete { .. }) => Some(ObjectAnswer::Deleted),
        (200 | 201, _) => {
            object_of(&content).map(|(value, revision)| ObjectAnswer::Object { value, revision })
        }
        (404, _) => Some(ObjectAnswer::Absent),
        (409, ObjectCall::Create { .. }) => Some(ObjectAnswer::AlreadyExists),
        (409, _) => Some(ObjectAnswer::Conflict),
        _ => None,
    };
    answer.map(Some).ok_or_else(|| format!("{call:?} was answered with {status} {content}"))
}

type ListedObjects = BTreeMap<String, (u64, u64)>;

fn list_of(response: Option<Response<LinkBody>>) -> Result<Option<(ListedObjects, u64)>, String> {
    let Some((status, content)) = content(response).filter(|(status, _)| *status != 429) else {
        return Ok(None);
    };
    let unexpected = || format!("a list was answered with {status} {content}");
    let revision = content["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    let (Some(revision), Some(items)) = (revision, content["items"].as_array()) else {
        return Err(unexpected());
    };
    // Others, such as the root certificates of the namespace, are no objects of the clients.
    let named = items.iter().filter_map(|item| {
        let name = item["metadata"]["name"].as_str()?;
        object_of(item).map(|found| (name.to_owned(), found))
    });
    Ok(Some((named.collect(), revision)))
}
