//! The floor: the transactions that the data plane would send, recorded first and then sent to the kernel alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dataplane::backend::{CleanupScope, NodeBackend};
use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::{DumpRequest, Kernel, NftablesBackend};
use model::{Interner, ServiceKey, Snapshot, parse};
use node::kernel::apply_deltas;
use plan::forward::{Forwarder, NodeConfig, ServiceDelta};
use std::sync::{Arc, Mutex};

use super::row::{self, CHANGES, Floor};
use super::world::{service, slice};

/// A kernel without tables that keeps what it is sent.
struct Recorder {
    batches: Vec<Vec<u8>>,
    longest: usize,
}

impl Kernel for Recorder {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        self.batches.push(batch.to_vec());
        Ok(())
    }

    fn dump(&mut self, _: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        Ok(Vec::new())
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        Ok(1)
    }

    fn longest_batch(&self) -> usize {
        self.longest
    }
}

/// Sends the elements of these Services, then the changes of the bench, and deletes the tables.
pub(crate) fn measure(services: usize) -> Floor {
    let mut kernel = NetlinkSocket::open().unwrap();
    let (load, changes) = record(services, kernel.longest_batch());
    let begin = thread_cpu();
    load.iter().for_each(|batch| kernel.transact(batch).unwrap());
    let load_cpu = thread_cpu() - begin;
    drop(load);
    let begin = thread_cpu();
    let mut times = Vec::with_capacity(changes.len());
    for batch in &changes {
        let begin = Instant::now();
        kernel.transact(batch).unwrap();
        times.push(begin.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    let change_cpu = (thread_cpu() - begin) / u32::try_from(CHANGES).unwrap();
    times.sort();
    NftablesBackend::open().unwrap().cleanup(CleanupScope::NodeProxy, false).unwrap();
    let (change_p50, change_p99) = (row::percentile(&times, 0.5), row::percentile(&times, 0.99));
    Floor { load_cpu, change_p50, change_p99, change_cpu }
}

/// The transactions of a load, and of each change.
fn record(services: usize, longest: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
    for number in 0..services {
        for object in [service(number), slice(number, 0)] {
            snapshot.apply(parse::object(&object, &mut interner).0.unwrap());
        }
    }
    let mut forwarder = Forwarder::of(&snapshot, NodeConfig::without_flags("n1".into()));
    let recorder = Arc::new(Mutex::new(Recorder { batches: Vec::new(), longest }));
    let mut backend = NftablesBackend::new(Box::new(recorder.clone()));
    let taken = || std::mem::take(&mut recorder.lock().unwrap().batches);
    backend.load(forwarder.table()).unwrap();
    let load = taken();
    for round in 0..CHANGES {
        let number = round * 7919 % services;
        let object = parse::object(&slice(number, round + 1), &mut interner).0.unwrap();
        snapshot.apply(object);
        let name = format!("service-{number:05}");
        let key = ServiceKey::new(&format!("team-{}", number % 50).as_str().into(), &name.as_str().into());
        let deltas = forwarder.update(&snapshot, &BTreeSet::from([key]));
        let deltas: Vec<&ServiceDelta> = deltas.iter().collect();
        apply_deltas(&mut backend, &mut forwarder, &deltas).unwrap();
    }
    (load, taken())
}

/// The CPU time of this thread, in the kernel as well.
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
