//! Envoy's `load_aware_locality` as its documentation of 1.40 describes it, with its defaults; all proxies in step. Weights
//! follow headroom, unless the own zone is hardly more loaded than the others: then all traffic stays, but for probes.

use crate::closed_loop::{ByZone, LoopState, ShareMatrix};

const SMOOTHING_SECONDS: f64 = 5.0;
const VARIANCE_THRESHOLD: f64 = 0.1;
const REMOTE_PROBES: f64 = 0.03;

#[derive(Default)]
pub(super) struct LoadAwareLocality {
    utilisation: ByZone,
}

impl LoadAwareLocality {
    pub(super) fn step(&mut self, state: &LoopState, rows: &mut ShareMatrix) {
        let hosts = &state.endpoints;
        let follow = 1.0 - (-1.0 / SMOOTHING_SECONDS).exp();
        for (zone, mean) in self.utilisation.iter_mut().enumerate().take(state.zones) {
            let used = state.load[zone] / (hosts[zone] * state.capacity).max(1e-9);
            *mean += follow * (used.min(1.0) - *mean);
        }
        let mut headroom = ByZone::default();
        (0..state.zones)
            .for_each(|zone| headroom[zone] = hosts[zone] * (1.0 - self.utilisation[zone]).max(0.0));
        for zone in 0..state.zones {
            let remote_hosts: f64 = hosts.iter().sum::<f64>() - hosts[zone];
            let others = (0..state.zones).filter(|other| *other != zone);
            let used: f64 = others.map(|other| self.utilisation[other] * hosts[other]).sum();
            let is_local = hosts[zone] > 0.0
                && self.utilisation[zone] <= used / remote_hosts.max(1.0) + VARIANCE_THRESHOLD;
            let mut weights = if is_local { ByZone::default() } else { headroom };
            if is_local || weights.iter().sum::<f64>() <= 0.0 {
                weights[zone] = hosts[zone].max(1e-9);
            }
            let sum: f64 = weights.iter().sum();
            let mut row = weights.map(|weight| weight / sum);
            let missing = (REMOTE_PROBES - (1.0 - row[zone])).max(0.0).min(row[zone]);
            if missing > 0.0 && remote_hosts > 0.0 {
                row[zone] -= missing;
                for other in (0..state.zones).filter(|other| *other != zone) {
                    row[other] += missing * hosts[other] / remote_hosts;
                }
            }
            rows[zone] = row;
        }
    }
}
