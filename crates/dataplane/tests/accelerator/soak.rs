//! A node proxy that is killed and started again at random moments while endpoints change, half of the time where bpf() is
//! refused; clients connect all the time.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dataplane::accelerator::{
    AccelerateScope, Accelerator, AcceleratorKernel, AcceleratorSettings, MapCapacity, MapChange, MapEntries,
    PinnedAccelerator, remove_pins,
};
use dataplane::backend::{BackendError, NodeBackend};
use dataplane::nftables::NftablesBackend;
use dataplane::nftables::apply::ConnectionCount;
use model::random::Random;

use crate::connect::{open_within, serve};
use crate::net::{Neighbour, be_a_router};
use crate::place::{Cgroup, pins};
use crate::service::{PORT, frontends, table};

const SYNC_PERIOD: Duration = Duration::from_millis(100);
/// Between the kernel's change and the look at the clock.
const SLACK: Duration = Duration::from_millis(250);
const ENDPOINTS: u64 = 60;
/// Endpoints at a time: the others are gone, and come back when all others were there.
const WINDOW: u64 = 3;
/// How long the window stays.
const STEP: Duration = Duration::from_millis(50);

fn endpoint(index: u64) -> SocketAddr {
    let last = u8::try_from(index + 1).expect("few endpoints");
    SocketAddr::from(([10, 1, 0, last], 8080))
}

/// What the rules of nftables sent to, and until when.
#[derive(Default)]
struct History {
    sets: VecDeque<(Instant, Vec<SocketAddr>)>,
}

impl History {
    /// Whether an endpoint was in force since a time.
    fn had(&self, endpoint: SocketAddr, since: Instant) -> bool {
        let from = self.sets.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
        self.sets.iter().skip(from).any(|(_, set)| set.contains(&endpoint))
    }
}

/// A kernel that refuses, or stops in the middle of a change, as a killed process does.
struct Mortal {
    kernel: PinnedAccelerator,
    changes_left: u64,
    /// As if bpf() was not permitted.
    is_refused: bool,
}

impl AcceleratorKernel for Mortal {
    fn open(&mut self, capacity: MapCapacity) -> Result<MapCapacity, BackendError> {
        if self.is_refused {
            return Err(BackendError::failed("bpf() is refused"));
        }
        self.kernel.open(capacity)
    }
    fn entries(&mut self) -> Result<MapEntries, BackendError> {
        self.kernel.entries()
    }
    fn apply(&mut self, change: &MapChange) -> Result<(), BackendError> {
        self.changes_left = self.changes_left.checked_sub(1).ok_or_else(|| BackendError::failed("killed"))?;
        self.kernel.apply(change)
    }
    fn set(&mut self, settings: AcceleratorSettings) -> Result<(), BackendError> {
        self.kernel.set(settings)
    }
    fn attach(&mut self) -> Result<(), BackendError> {
        self.kernel.attach()
    }
    fn is_attached(&mut self) -> bool {
        self.kernel.is_attached()
    }
    fn remove(&mut self) -> Result<(), BackendError> {
        self.kernel.remove()
    }
    fn counts(&mut self) -> Result<Vec<ConnectionCount>, BackendError> {
        self.kernel.counts()
    }
    fn now(&mut self) -> u64 {
        self.kernel.now()
    }
    fn node_netns(&mut self) -> Result<u64, BackendError> {
        self.kernel.node_netns()
    }
}

/// One life of a node proxy: changes until it is killed.
struct Life<'a> {
    cgroup: &'a Cgroup,
    history: &'a Mutex<History>,
    cluster_ip: SocketAddr,
    start: Instant,
}

impl Life<'_> {
    fn run(&self, is_refused: bool, random: &mut Random, held: &mut Vec<SocketAddr>) -> u64 {
        let kernel = Mortal {
            kernel: PinnedAccelerator::new(pins(), &self.cgroup.path),
            changes_left: 20 + random.below(2_000) as u64,
            is_refused,
        };
        let mut accelerator = Accelerator::new(Box::new(kernel), AccelerateScope::AllNamespaces, SYNC_PERIOD);
        let mut rules = NftablesBackend::open().unwrap();
        let mut frontends_now = frontends(self.cluster_ip.ip(), held);
        rules.load(&table(frontends_now.clone())).unwrap();
        let mut is_accelerated = accelerator.load(&table(frontends_now.clone())).is_ok();
        assert_eq!(is_accelerated, !is_refused, "only bpf() may fail");
        // Without bpf() a node proxy may still unpin; where it does not, entries have to expire.
        if !is_accelerated && random.below(2) == 0 {
            remove_pins(pins(), false).unwrap();
        }
        let mut changes = 0;
        let (begin, long) = (Instant::now(), Duration::from_millis(200 + random.below(1_300) as u64));
        while begin.elapsed() < long {
            let set = self.endpoints(random);
            let new = frontends(self.cluster_ip.ip(), &set);
            // In force from here on, perhaps; the old one until the change is done.
            self.remember([&set[..], &held[..]].concat());
            rules.change(&table(new.clone()), &[(&frontends_now, &new)]).unwrap();
            if is_accelerated {
                is_accelerated = accelerator.change(&table(new.clone()), &[(&frontends_now, &new)]).is_ok();
                if !is_accelerated {
                    return changes;
                }
            }
            self.remember(set.clone());
            (*held, frontends_now) = (set, new);
            changes += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        changes
    }

    /// Some of those that there are now.
    fn endpoints(&self, random: &mut Random) -> Vec<SocketAddr> {
        let step = self.start.elapsed().as_millis() / STEP.as_millis();
        let first = u64::try_from(step).unwrap_or_default();
        let window = (first..first + WINDOW).map(|index| endpoint(index % ENDPOINTS));
        let some: Vec<SocketAddr> = window.clone().filter(|_| random.below(2) == 0).collect();
        if some.is_empty() { window.collect() } else { some }
    }

    fn remember(&self, set: Vec<SocketAddr>) {
        let mut history = self.history.lock().unwrap();
        history.sets.push_back((Instant::now(), set));
        if history.sets.len() > 20_000 {
            history.sets.pop_front();
        }
    }
}

pub(crate) fn soak_killed_node_proxies_leave_no_stale_endpoint_and_lose_no_connection() {
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let cgroup = Cgroup::enter("test");
    be_a_router(&[]);
    let (clients, servers) = (Neighbour::new(1, "clients"), Neighbour::new(2, "servers"));
    for index in 0..ENDPOINTS {
        servers.add_address(endpoint(index).ip());
        servers.within(move || serve(endpoint(index)));
    }
    let cluster_ip = SocketAddr::from(([10, 96, 0, 1], PORT));
    let history = Arc::new(Mutex::new(History::default()));
    let life = Life { cgroup: &cgroup, history: &history, cluster_ip, start: Instant::now() };
    let mut held = vec![endpoint(0)];
    life.remember(held.clone());
    NftablesBackend::open().unwrap().load(&table(frontends(cluster_ip.ip(), &held))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let client = {
        let (history, is_over) = (history.clone(), is_over.clone());
        std::thread::spawn(move || {
            clients.within(move || {
                let mut connections = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    let before = Instant::now();
                    let (seen, _) =
                        open_within(cluster_ip, Duration::from_secs(10)).expect("no connection is lost");
                    let since = before - 2 * SYNC_PERIOD - SLACK;
                    assert!(history.lock().unwrap().had(seen, since), "{seen} was removed long ago");
                    connections += 1;
                }
                connections
            })
        })
    };
    let (mut random, mut lives, mut changes) = (Random::seeded(1), 0, 0);
    while life.start.elapsed() < Duration::from_secs(seconds) {
        let is_refused = lives % 2 == 1;
        changes += life.run(is_refused, &mut random, &mut held);
        lives += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    let connections = client.join().expect("every connection was made, to an endpoint that there was");
    println!("{lives} lives, {changes} changes, {connections} connections");
    assert!(lives > 2 && connections > 100);
    remove_pins(pins(), false).unwrap();
}
