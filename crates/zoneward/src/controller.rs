//! The slice controller: EndpointSlices, Events and conditions, kept as the plan says.
//!
//! ```text
//! watches -> Head (snapshot, queue, plan) -> Work -> commit, several at once -> the API
//!              ^                              ^         |
//!              |                           leading      |
//!              +---------------- Done ------------------+
//! ```
//!
//! The loop is thin: it carries events in, work out and results back, and it waits. One task owns the world, so a plan
//! never sees half a change. It watches from the beginning and writes only while it leads: whoever takes over has
//! everything in memory.

pub mod commit;
pub mod conditions;
pub mod hand_back;
pub mod leases;
pub mod memory;
pub mod metrics;
pub mod slices;
mod tally;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::Client;
use model::{Notice, ObjectKey, ServiceKey, annotation};
use plan::work_queue::MonotonicTime;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{self, JoinSet};
use tracing::{debug, info};

use crate::cluster::{Event, Feed, Kind, Wanted};
use crate::events;
use commit::{Done, Failure, Work};
pub use metrics::Metrics;
use slices::Head;
pub use slices::Settings;

/// How many events are taken in before plans are made.
const EVENTS_PER_TURN: usize = 1_024;
/// How many Events may wait to be written; more than that would be noise.
const MOST_UNSAID: usize = 1_000;
/// How many are remembered as said.
const MOST_SAID: usize = 10_000;
/// How long writes under way may take after the stop.
const FAREWELL: Duration = Duration::from_secs(5);

/// What an operator can choose.
#[derive(Clone, Debug)]
pub struct Config {
    /// How plans are made.
    pub settings: Settings,
    /// How many Services are written at once.
    pub concurrent_syncs: usize,
    /// Where the nodes' Leases are.
    pub lease_namespace: String,
}

impl Default for Config {
    fn default() -> Self {
        let settings = Settings::default();
        Self { settings, concurrent_syncs: 5, lease_namespace: "kube-system".to_owned() }
    }
}

/// Why the controller ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// Kubernetes' own controller writes slices, too: the one that it wrote.
    Rival(ObjectKey),
    /// Nobody says any more who leads.
    NoElection,
}

impl Ended {
    /// What an operator can do about it; nothing where all is as it should be.
    pub fn advice(&self) -> Option<String> {
        match self {
            Self::Stopped => None,
            Self::NoElection => {
                Some("the election of a leader ended badly: start this controller again".into())
            }
            Self::Rival(slice) => Some(format!(
                "kube-controller-manager's EndpointSlice controller is at work: it has just written EndpointSlice \
                 {slice}. Two writers would undo each other's hints, so this one stops. Either turn that one off \
                 (kube-controller-manager --controllers=*,-endpointslice-controller), or, where that cannot be done, \
                 start this one with --coexist: it then writes slices of its own that only Zoneward's nodes use."
            )),
        }
    }
}

/// Runs until `stop` turns true, or until somebody else turns out to write the same slices. It writes only while
/// `leading` is true, and stops at once when that turns false. Dropping the future ends everything that it began.
pub async fn run(
    client: Client,
    config: Config,
    metrics: Metrics,
    mut leading: watch::Receiver<bool>,
    mut stop: watch::Receiver<bool>,
) -> Ended {
    let mut running = Loop::new(client, &config, metrics);
    let mut tick = tokio::time::interval(slices::TICK);
    loop {
        if let Some(slice) = running.head.rival() {
            return Ended::Rival(slice.clone());
        }
        running.hand_out();
        let (leads, due) = (running.leads, running.wake_at());
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            turned = leading.wait_for(|leading| *leading != leads) => match turned.map(|now| *now) {
                Ok(true) => running.lead(),
                Ok(false) => running.stand_by(),
                Err(_) => return Ended::NoElection,
            },
            Some(done) = running.writers.join_next_with_id() => running.take_done(done),
            event = running.feed.next() => running.take_events(event),
            _ = tick.tick() => {
                let now = running.now();
                running.head.tick(now);
            }
            () = tokio::time::sleep_until(due.into()) => {}
        }
    }
    running.farewell(leading).await;
    Ended::Stopped
}

fn wanted(config: &Config) -> Vec<Wanted> {
    let kinds = [Kind::Service, Kind::Slice, Kind::Pod, Kind::Node, Kind::Namespace];
    let node_proxies = format!("{}={}", annotation::COMPONENT, annotation::NODE_PROXY);
    let leases = Wanted::all(Kind::Lease).within(&config.lease_namespace).labels(&node_proxies);
    kinds.into_iter().map(Wanted::all).chain([leases]).collect()
}

struct Loop {
    head: Head,
    feed: Feed,
    client: Client,
    writers: JoinSet<Done>,
    /// Whose sync a writer's end is; those that only say something have none.
    services: HashMap<task::Id, ServiceKey>,
    /// Events about objects that are not right, and the names of those that were said.
    unsaid: Vec<Value>,
    said: BTreeSet<String>,
    speaking: bool,
    /// Whether we may write.
    leads: bool,
    /// How many may write at once, and how many more may now.
    writers_at_once: usize,
    free: usize,
    start: Instant,
}

impl Loop {
    fn new(client: Client, config: &Config, metrics: Metrics) -> Self {
        let writers_at_once = config.concurrent_syncs.max(1);
        Self {
            head: Head::new(config.settings.clone(), metrics),
            feed: Feed::start(&client, wanted(config)),
            client,
            writers: JoinSet::new(),
            services: HashMap::new(),
            unsaid: Vec::new(),
            said: BTreeSet::new(),
            speaking: false,
            leads: false,
            writers_at_once,
            free: writers_at_once,
            start: Instant::now(),
        }
    }

    fn lead(&mut self) {
        self.leads = true;
        self.head.lead(self.now());
        self.speak();
    }

    /// Writes under way are left at once. The API may still carry them out: whoever leads repairs that.
    fn stand_by(&mut self) {
        self.leads = false;
        self.writers = JoinSet::new();
        self.services.clear();
        self.speaking = false;
        self.free = self.writers_at_once;
        self.head.stand_by();
    }

    /// Writes under way come to their end, as long as we lead.
    async fn farewell(mut self, mut leading: watch::Receiver<bool>) {
        info!(writes = self.writers.len(), "stopping");
        let written = async { while self.writers.join_next().await.is_some() {} };
        tokio::select! {
            _ = tokio::time::timeout(FAREWELL, written) => {}
            _ = leading.wait_for(|leading| !*leading) => {}
        }
        if !self.writers.is_empty() {
            debug!("some writes were still under way");
        }
    }

    fn now(&self) -> MonotonicTime {
        MonotonicTime(self.start.elapsed())
    }

    fn hand_out(&mut self) {
        while self.free > 0 {
            let Some(work) = self.head.next(self.now(), Timestamp::now()) else { return };
            self.free -= 1;
            let service = work.service.clone();
            let writer = self.write(work);
            self.services.insert(writer, service);
        }
    }

    fn write(&mut self, work: Work) -> task::Id {
        let client = self.client.clone();
        self.writers.spawn(async move { commit::commit(&client, work).await }).id()
    }

    fn wake_at(&self) -> Instant {
        let idle = self.start + self.now().0 + slices::TICK;
        let due = self.head.due().filter(|_| self.free > 0).map(|due| self.start + due.0);
        due.map_or(idle, |due| due.min(idle))
    }

    fn take_done(&mut self, ended: Result<(task::Id, Done), task::JoinError>) {
        let (writer, done) = match ended {
            Ok((writer, done)) => (writer, Some(done)),
            Err(error) => (error.id(), None),
        };
        let Some(service) = self.services.remove(&writer) else {
            self.speaking = false;
            return self.speak();
        };
        self.free += 1;
        // A writer that broke is a failure like others: its Service is planned again.
        let broken = || Done {
            service,
            failure: Some(Failure::Unavailable("a writer broke".into())),
            ..Done::default()
        };
        let done = done.unwrap_or_else(broken);
        let event = self.head.done(done, self.now(), Timestamp::now());
        self.unsaid.extend(event);
        self.speak();
    }

    fn take_events(&mut self, first: Event) {
        let now = self.now();
        let mut next = Some(first);
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = next.take().or_else(|| self.feed.ready()) else { break };
            let notices = self.head.saw(event, now);
            if !notices.is_empty() {
                self.say(&notices);
            }
        }
    }

    /// About objects that are not right. Their Events are named by what they say, so saying it again makes none; what
    /// was said lately is not even tried.
    fn say(&mut self, notices: &[Notice]) {
        for notice in notices {
            let event = events::event(events::SLICES, notice, None, Timestamp::now());
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.said.len() >= MOST_SAID {
                self.said.clear();
            }
            if self.unsaid.len() < MOST_UNSAID && self.said.insert(name) {
                self.unsaid.push(event);
            }
        }
        self.speak();
    }

    fn speak(&mut self) {
        if self.leads && !self.speaking && !self.unsaid.is_empty() {
            self.speaking = true;
            let events = std::mem::take(&mut self.unsaid);
            self.write(Work { events, ..Work::default() });
        }
    }
}
