//! Flows of sockets that the eBPF accelerator connected: to conntrack they are direct connections to an endpoint. The
//! accelerator counts its connections by frontend and endpoint; a new flow to such an endpoint is taken for one of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dataplane::accelerator::{AcceleratorKernel, PinnedAccelerator};

use super::conntrack_events::{FlowPair, Sums, since};

/// Counters below this number are kept, idle or not.
const KEPT_COUNTERS: usize = 1024;

/// Connections by endpoint and frontend that no flow was seen of yet.
type Unseen = BTreeMap<SocketAddr, BTreeMap<SocketAddr, u64>>;

/// Which flows belong to which frontend.
#[derive(Debug, Default)]
pub(super) struct AcceleratedFlows {
    /// Where the accelerator is pinned; `None` without one.
    folder: Option<PathBuf>,
    /// Counters at the last read.
    last: Sums,
    /// Counters at the last dump.
    dumped: Sums,
    unseen: Unseen,
    /// The same from before the last dump.
    older: Unseen,
    /// The frontend of each open flow, by its key.
    open: BTreeMap<u64, SocketAddr>,
}

impl AcceleratedFlows {
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.folder.is_some()
    }

    /// New connections since the last read.
    pub(super) fn read(&mut self) -> Vec<(FlowPair, u64)> {
        let Some(folder) = &self.folder else { return Vec::new() };
        match counts(folder) {
            Ok(now) => self.counted(now),
            Err(error) => {
                tracing::debug!(%error, "failed to read counters of the accelerator; the next read retries");
                Vec::new()
            }
        }
    }

    fn counted(&mut self, now: Sums) -> Vec<(FlowPair, u64)> {
        let new: Vec<(FlowPair, u64)> = since(&self.last, &now).collect();
        for (pair, count) in &new {
            *self.unseen.entry(pair.endpoint).or_default().entry(pair.frontend).or_default() += count;
        }
        self.last = now;
        new
    }

    /// The frontend of a direct flow, if it is accelerated.
    pub(super) fn frontend(
        &mut self,
        key: u64,
        endpoint: SocketAddr,
        is_new: bool,
        has_ended: bool,
    ) -> Option<SocketAddr> {
        if !self.is_on() {
            return None;
        }
        let known = if has_ended { self.open.remove(&key) } else { self.open.get(&key).copied() };
        if known.is_some() && !is_new {
            return known;
        }
        let frontend = is_new
            .then(|| take(&mut self.older, endpoint).or_else(|| take(&mut self.unseen, endpoint)))??;
        if !has_ended {
            self.open.insert(key, frontend);
        }
        Some(frontend)
    }

    /// After a dump of open flows: what was not seen within two was not tracked.
    pub(super) fn dumped(&mut self, is_open: impl Fn(u64) -> bool) {
        self.open.retain(|key, _| is_open(*key));
        self.older = std::mem::take(&mut self.unseen);
        self.forget_idle();
    }

    /// Endpoints come and go, and the program's map has room for so many counters.
    fn forget_idle(&mut self) {
        let before = std::mem::replace(&mut self.dumped, self.last.clone());
        let Some(folder) = self.folder.as_ref().filter(|_| self.last.len() > KEPT_COUNTERS) else { return };
        let is_idle = |(pair, count): &(&FlowPair, &u64)| before.get(pair) == Some(count);
        let idle: Vec<_> =
            self.last.iter().filter(is_idle).map(|(pair, _)| (pair.frontend, pair.endpoint)).collect();
        let forgotten = PinnedAccelerator::attached(folder).and_then(|mut maps| maps.forget_counts(&idle));
        if let Err(error) = forgotten {
            tracing::debug!(%error, "failed to delete idle counters of the accelerator; the next dump retries");
        }
    }
}

fn take(unseen: &mut Unseen, endpoint: SocketAddr) -> Option<SocketAddr> {
    let frontends = unseen.get_mut(&endpoint)?;
    let mut first = frontends.first_entry()?;
    let frontend = *first.key();
    *first.get_mut() -= 1;
    if *first.get() == 0 {
        first.remove();
    }
    if frontends.is_empty() {
        unseen.remove(&endpoint);
    }
    Some(frontend)
}

fn counts(folder: &Path) -> Result<Sums, dataplane::backend::BackendError> {
    let counts = PinnedAccelerator::attached(folder)?.counts()?;
    let pair = |one: &dataplane::nftables::apply::ConnectionCount| FlowPair {
        protocol: one.protocol,
        frontend: one.frontend,
        endpoint: one.endpoint,
    };
    Ok(counts.iter().map(|one| (pair(one), one.connections)).collect())
}

#[cfg(test)]
mod tests {
    use model::Protocol;

    use super::*;

    #[test]
    fn new_flows_to_an_endpoint_are_those_that_the_accelerator_counted() {
        let (frontend, endpoint) = (([10, 96, 0, 1], 80).into(), ([10, 1, 0, 9], 8080).into());
        let pair = FlowPair { protocol: Protocol::Tcp, frontend, endpoint };
        let mut flows = AcceleratedFlows::new(Some("/unused".into()));
        assert_eq!(flows.counted(Sums::from([(pair, 2)])), [(pair, 2)]);
        assert_eq!(flows.frontend(1, endpoint, true, false), Some(frontend));
        assert_eq!(flows.frontend(1, endpoint, false, true), Some(frontend), "its bytes at the end");
        assert_eq!(flows.frontend(2, endpoint, true, true), Some(frontend));
        assert_eq!(flows.frontend(3, endpoint, true, true), None, "a direct connection");
        assert_eq!(flows.counted(Sums::from([(pair, 3)])), [(pair, 1)]);
        flows.dumped(|_| true);
        flows.dumped(|_| true);
        assert_eq!(flows.frontend(4, endpoint, true, true), None, "too late");
    }
}
