//! What the servers counted, as figures: traffic in zone, seconds above capacity, load against the fair share.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::place::Competitor;

/// The minutes of a scenario.
pub const MINUTES: usize = 3;

/// A server as the scores see it.
#[derive(Clone, Debug)]
pub struct ScoredServer {
    pub zone: usize,
    /// When its listeners were off.
    pub lost: Option<Range<u64>>,
}

/// What one competitor did in a scenario, by Unix seconds.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    pub start: u64,
    /// Seconds of a minute, which is shorter in tests.
    pub minute: u64,
    /// Seconds over which load is averaged.
    pub window: u64,
    /// Requests per second that a server can take.
    pub capacity: f64,
    pub servers: Vec<ScoredServer>,
    /// Requests by server, second and zone of the client.
    pub served: BTreeMap<(usize, u64, usize), u64>,
    pub answered: u64,
    pub failed: u64,
    pub writes: u64,
}

/// The figures of one competitor.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Percent of the requests, in all and by minute.
    pub in_zone: f64,
    pub in_zone_by_minute: [f64; MINUTES],
    /// Seconds with a server above its capacity.
    pub overloaded: [u64; MINUTES],
    /// Load of servers in fair shares.
    pub p99: f64,
    pub writes: u64,
    pub writes_per_hour: f64,
    pub answered: u64,
    pub failed: u64,
}

impl Recorded {
    pub fn score(&self) -> Score {
        let minutes: [Range<u64>; MINUTES] = std::array::from_fn(|at| {
            let start = self.start + at as u64 * self.minute;
            start..start + self.minute
        });
        let all = minutes[0].start..minutes[MINUTES - 1].end;
        let mut loads = Vec::new();
        let overloaded = minutes.clone().map(|minute| {
            let whole = minute.filter(|second| *second + 1 >= self.start + self.window);
            whole.filter(|second| self.is_overloaded(*second, &mut loads)).count() as u64
        });
        loads.sort_by(f64::total_cmp);
        let p99 = loads.get((loads.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default();
        let hours = (MINUTES as u64 * self.minute) as f64 / 3_600.0;
        Score {
            in_zone: self.in_zone(&all),
            in_zone_by_minute: minutes.each_ref().map(|minute| self.in_zone(minute)),
            overloaded,
            p99,
            writes: self.writes,
            writes_per_hour: self.writes as f64 / hours,
            answered: self.answered,
            failed: self.failed,
        }
    }

    /// Percent of the requests of these seconds that a server of the client's zone got.
    fn in_zone(&self, seconds: &Range<u64>) -> f64 {
        let (mut inside, mut all) = (0, 0);
        for ((server, second, zone), count) in &self.served {
            if seconds.contains(second) {
                all += count;
                inside += if self.servers[*server].zone == *zone { *count } else { 0 };
            }
        }
        100.0 * inside as f64 / (all as f64).max(1.0)
    }

    /// Whether a server is above its capacity in the window that ends with this second. Adds the load of each server.
    fn is_overloaded(&self, second: u64, loads: &mut Vec<f64>) -> bool {
        let window = second + 1 - self.window..second + 1;
        // A server that was off in a part of the window has no mean.
        let has_mean = |server: &ScoredServer| {
            server.lost.as_ref().is_none_or(|lost| lost.end <= window.start || window.end <= lost.start)
        };
        let rate = |server: usize| {
            let of_server = (server, window.start, 0)..(server, window.end, 0);
            self.served.range(of_server).map(|(_, count)| count).sum::<u64>() as f64 / self.window as f64
        };
        let fair_share =
            window.clone().map(|second| self.fair_share(second)).sum::<f64>() / self.window as f64;
        let servers = self.servers.iter().enumerate().filter(|(_, server)| has_mean(server));
        let counted: Vec<f64> = servers.map(|(server, _)| rate(server)).collect();
        loads.extend(counted.iter().map(|rate| rate / fair_share.max(f64::MIN_POSITIVE)));
        counted.iter().any(|rate| *rate > self.capacity)
    }

    /// An equal share of the requests of a second for each server that is there.
    fn fair_share(&self, second: u64) -> f64 {
        let of_second = |server: usize| self.served.range((server, second, 0)..(server, second + 1, 0));
        let sum: u64 = (0..self.servers.len()).flat_map(of_second).map(|(_, count)| count).sum();
        let is_live =
            |server: &&ScoredServer| server.lost.as_ref().is_none_or(|lost| !lost.contains(&second));
        sum as f64 / self.servers.iter().filter(is_live).count().max(1) as f64
    }
}

/// The figures of a scenario, as Markdown.
pub fn table(scenario: &str, recorded: &[(Competitor, Recorded)]) -> String {
    let mut text = format!(
        "| {scenario} | in zone % | by minute | seconds above capacity | by minute | p99 load | writes (an hour) | failed |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for (competitor, recorded) in recorded {
        let score = recorded.score();
        let by_minute = score.in_zone_by_minute.map(|percent| format!("{percent:.0}")).join(", ");
        text += &format!(
            "\n| {} | {:.1} | {by_minute} | {} | {} | {:.2} | {} ({:.0}) | {} of {} |",
            competitor.as_str(),
            score.in_zone,
            score.overloaded.iter().sum::<u64>(),
            score.overloaded.map(|seconds| seconds.to_string()).join(", "),
            score.p99,
            score.writes,
            score.writes_per_hour,
            score.failed,
            score.answered + score.failed,
        );
    }
    text
}
