//! Which load the endpoints of a Service have proved to carry: the one that they carried for a quarter of an hour without a
//! break, or for an hour of a day in all. A burst may be more than they can carry, so it proves nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::HOUR;
use crate::work_queue::MonotonicTime;

const WITHOUT_BREAK: Duration = Duration::from_secs(900);
/// Endpoints that have gone count this long: the load while many are missing is not what the others are known to carry.
const ENDPOINTS_COUNT: Duration = HOUR;
/// Loads are counted in steps of 3 %, and forgotten with this half-life.
const STEP: f64 = 1.03;
const HALF_LIFE_SECONDS: f64 = 12.0 * 3600.0;
const MAX_STEPS: i32 = 1_000;
/// Decisions further apart say nothing on the time between.
const MAX_GAP: Duration = Duration::from_secs(60);

/// Loads of the last day, in connections per second and endpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LoadHistory {
    /// The last quarter of an hour.
    recent: VecDeque<(MonotonicTime, f64)>,
    /// Seconds at each step of load.
    seconds_by_step: BTreeMap<i32, f64>,
    /// Highest numbers of endpoints, each later one smaller.
    most_endpoints: VecDeque<(MonotonicTime, f64)>,
    last: Option<MonotonicTime>,
}

impl LoadHistory {
    /// Adds the load of now and returns what is proved. `rate` is `None` while it is not known for all zones.
    pub(super) fn add(&mut self, rate: Option<f64>, endpoints: f64, now: MonotonicTime) -> f64 {
        let since = |at: &MonotonicTime| now.0.saturating_sub(at.0);
        while self.most_endpoints.back().is_some_and(|(_, count)| *count <= endpoints) {
            self.most_endpoints.pop_back();
        }
        self.most_endpoints.push_back((now, endpoints));
        while self.most_endpoints.front().is_some_and(|(at, _)| since(at) > ENDPOINTS_COUNT) {
            self.most_endpoints.pop_front();
        }
        let most = self.most_endpoints.front().map_or(endpoints, |(_, count)| *count);
        let seconds = self.last.replace(now).map_or(0.0, |last| since(&last).as_secs_f64());
        let forgotten = (-seconds / HALF_LIFE_SECONDS).exp2();
        self.seconds_by_step.values_mut().for_each(|seconds| *seconds *= forgotten);
        self.seconds_by_step.retain(|_, seconds| *seconds >= 1.0);
        match rate.filter(|_| most > 0.0) {
            Some(rate) => self.add_load(rate / most, seconds, now),
            None => self.recent.clear(),
        }
        self.without_break(now).max(self.in_all())
    }

    fn add_load(&mut self, load: f64, seconds: f64, now: MonotonicTime) {
        self.recent.push_back((now, load));
        while self.recent.front().is_some_and(|(at, _)| at.after(WITHOUT_BREAK) < now) {
            self.recent.pop_front();
        }
        if load > 0.0 {
            let step = (load.ln() / STEP.ln()).floor().clamp(f64::from(-MAX_STEPS), f64::from(MAX_STEPS));
            *self.seconds_by_step.entry(step as i32).or_default() += seconds.min(MAX_GAP.as_secs_f64());
        }
    }

    /// The least load of the last quarter of an hour.
    fn without_break(&self, now: MonotonicTime) -> f64 {
        let is_covered =
            self.recent.front().is_some_and(|(at, _)| at.after(WITHOUT_BREAK).0 <= now.0 + MAX_GAP);
        let least = self.recent.iter().map(|(_, load)| *load).fold(f64::INFINITY, f64::min);
        if is_covered && least.is_finite() { least } else { 0.0 }
    }

    /// The load that was reached for an hour.
    fn in_all(&self) -> f64 {
        let mut left = HOUR.as_secs_f64();
        for (step, seconds) in self.seconds_by_step.iter().rev() {
            left -= seconds;
            if left <= 0.0 {
                return STEP.powi(*step);
            }
        }
        0.0
    }
}
