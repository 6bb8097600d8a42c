//! A band of load in the manner of Linkerd's HAZL, from its documentation: a zone adds endpoints of other zones while the
//! requests in flight per endpoint of its pool are above the band, and removes them while they are below.

use crate::closed_loop::{ByZone, LoopState, MAX_ZONES, ShareMatrix};

const LOW: f64 = 0.8;
const HIGH: f64 = 2.0;
/// Seconds between changes of a pool, and over which load is averaged.
const PERIOD: usize = 10;

pub(super) struct LoadBand {
    /// Requests in flight at half of the capacity: latency grows with utilisation as in a queue.
    in_flight: f64,
    /// Endpoints of other zones in the pool of each zone.
    remote: ByZone,
    mean: ByZone,
}

impl LoadBand {
    pub(super) fn new(in_flight: f64) -> Self {
        Self { in_flight, remote: [0.0; MAX_ZONES], mean: ByZone::default() }
    }

    pub(super) fn step(&mut self, state: &LoopState, rows: &mut ShareMatrix) {
        let all: f64 = state.endpoints.iter().sum();
        let in_flight = |zone: usize| {
            let used = state.load[zone] / (state.endpoints[zone] * state.capacity).max(1e-9);
            self.in_flight * used / (1.0 - used.min(0.95))
        };
        for (zone, row) in rows.iter_mut().enumerate().take(state.zones) {
            let others = all - state.endpoints[zone];
            let pool = state.endpoints[zone] + self.remote[zone];
            let own = state.endpoints[zone] * in_flight(zone);
            let elsewhere = (0..state.zones).filter(|other| *other != zone);
            let far: f64 = elsewhere.map(|other| state.endpoints[other] * in_flight(other)).sum();
            let load = (own + far * self.remote[zone] / others.max(1.0)) / pool.max(1.0);
            self.mean[zone] += (load - self.mean[zone]) / PERIOD as f64;
            if state.second.is_multiple_of(PERIOD) {
                if self.mean[zone] > HIGH || pool < 1.0 {
                    self.remote[zone] += (others * 0.1).max(1.0);
                } else if self.mean[zone] < LOW {
                    self.remote[zone] -= (others * 0.1).max(1.0);
                }
            }
            let least = if state.endpoints[zone] > 0.0 { 0.0 } else { others };
            self.remote[zone] = self.remote[zone].max(least).min(others);
            let pool = state.endpoints[zone] + self.remote[zone];
            for (to, share) in row.iter_mut().enumerate().take(state.zones) {
                let part = match to == zone {
                    true => state.endpoints[zone],
                    false => self.remote[zone] * state.endpoints[to] / others.max(1.0),
                };
                *share = part / pool.max(1e-9);
            }
        }
    }
}
