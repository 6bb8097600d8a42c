//! Reports of a process' traffic to the leading controller: cumulative sums, so that a lost report loses nothing.

use std::net::IpAddr;
use std::time::Duration;

use crate::ledger::{
    PodZones, ReportSchedule, ReportedSums, TrafficGaps, TrafficReply, TrafficReport, TrafficRow,
};
use anyhow::Result;
use clock::Clock;
use cluster::failure;
use cluster::ledger_client::{LedgerClient, NoLeader};
use futures_util::future::BoxFuture;
use model::random::Random;
use plan::work_queue::MonotonicTime;
use tracing::{debug, info, warn};

/// Interval between looks at the sums.
const POLL: Duration = Duration::from_secs(5);
/// Pause after a failure, and its jitter: all nodes look for a new leader at once.
const RETRY: Duration = Duration::from_secs(10);
const RETRY_JITTER_MILLIS: u64 = 10_000;

/// What is reported.
pub trait ReportedTraffic: Send {
    /// The sums since the start of the process.
    fn read(&mut self) -> (Vec<TrafficRow>, TrafficGaps);

    /// Version of the zones of pods that it has; 0 if none.
    fn pod_zones_version(&self) -> u64;

    /// Takes the zones of pods from the controller.
    fn set_pod_zones(&mut self, zones: PodZones);

    /// Addresses that its connections come from, if no node shall count them.
    fn addresses(&self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Counts a report.
    fn reported(&mut self, is_accepted: bool);
}

/// The way to the leading controller.
pub trait ReportChannel: Send {
    fn send<'a>(&'a mut self, report: &'a TrafficReport) -> BoxFuture<'a, Result<TrafficReply>>;
}

impl ReportChannel for LedgerClient {
    fn send<'a>(&'a mut self, report: &'a TrafficReport) -> BoxFuture<'a, Result<TrafficReply>> {
        Box::pin(LedgerClient::send(self, report))
    }
}

/// Who reports to whom.
pub struct TrafficReporter {
    pub channel: Box<dyn ReportChannel>,
    /// `node/NAME` or `proxy/NAMESPACE/POD`.
    pub reporter: String,
    pub source: Box<dyn ReportedTraffic>,
    pub clock: Clock,
    pub random: Random,
}

impl TrafficReporter {
    /// Reports until it is dropped.
    pub async fn run(mut self) {
        let start = self.clock.now();
        let id = format!("{:016x}", self.random.next_u64());
        let mut schedule = ReportSchedule::default();
        let (mut sequence, mut is_failing, mut is_first) = (0, false, true);
        loop {
            let (rows, gaps) = self.source.read();
            let sums = ReportedSums::new(&rows);
            let counted = self.clock.since(start);
            let mut pause = POLL;
            if schedule.is_due(sums, MonotonicTime(counted)) {
                sequence += 1;
                let report = TrafficReport {
                    reporter: self.reporter.clone(),
                    start: id.clone(),
                    sequence,
                    counted_seconds: counted.as_secs(),
                    rows,
                    gaps,
                    pod_zones_version: self.source.pod_zones_version(),
                    addresses: self.source.addresses(),
                };
                let sent = self.channel.send(&report).await;
                self.source.reported(sent.is_ok());
                match sent {
                    Ok(reply) => {
                        if is_failing || is_first {
                            info!("traffic is reported to the leading controller");
                        }
                        (is_failing, is_first) = (false, false);
                        schedule.sent(sums, MonotonicTime(counted));
                        reply.pod_zones.into_iter().for_each(|zones| self.source.set_pod_zones(zones));
                    }
                    Err(error) => {
                        // Beside a kube-controller-manager alone, there is none.
                        let has_leader = !error.is::<NoLeader>();
                        let error = failure::text(&error);
                        if is_failing || !has_leader {
                            debug!(error, "traffic is not reported; retrying");
                        } else {
                            warn!(error, "traffic is not reported; retrying, and nothing is lost meanwhile");
                        }
                        is_failing |= has_leader;
                        // A new leader gets the sums at once: its ledger starts with them.
                        schedule.restart();
                        pause = RETRY + Duration::from_millis(self.random.next_u64() % RETRY_JITTER_MILLIS);
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
    }
}
