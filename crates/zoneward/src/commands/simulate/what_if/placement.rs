//! Recommends a placement of misplaced endpoints.
//!
//! If zones send similar traffic, a topology spread constraint is enough. Otherwise a Deployment per zone with
//! replicas in proportion to traffic is better.

use model::{Name, Service};
use sim::what_if::WhatIfResult;

use super::workload::{self, Workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Equally many endpoints per zone.
    Spread,
    /// Endpoints in proportion to the traffic of each zone.
    PerZone,
}

/// Minimum in-zone share for an even spread to be recommended.
const MIN_EVEN_IN_ZONE: f64 = 0.9;

impl Placement {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Spread => "topology-spread",
            Self::PerZone => "deployment-per-zone",
        }
    }

    /// The better placement, and its in-zone share under Spill.
    fn choose(result: &WhatIfResult) -> (Self, f64) {
        let (even, fitting) = Self::kept(result);
        match even >= MIN_EVEN_IN_ZONE || fitting - even < 0.05 {
            true => (Self::Spread, even),
            false => (Self::PerZone, fitting),
        }
    }

    /// In-zone shares under Spill with an even spread and with one in proportion to traffic.
    fn kept(result: &WhatIfResult) -> (f64, f64) {
        let sending = result.shares.iter().filter(|(_, share)| *share > 0.0);
        let all = result.endpoints_by_zone.values().sum::<usize>();
        let kept = |counts: &[usize]| -> f64 {
            let kept = sending.clone().zip(counts);
            kept.map(|((_, share), count)| share.min(*count as f64 / all.max(1) as f64)).sum()
        };
        let zones = sending.clone().count().max(1);
        let even: Vec<usize> = (0..zones).map(|at| all / zones + usize::from(at < all % zones)).collect();
        let fitting: Vec<usize> = replicas(result).into_iter().map(|(_, count)| count).collect();
        (kept(&even), kept(&fitting))
    }

    /// The placement that a kind of workload supports: a StatefulSet cannot be split, and a DaemonSet is fixed.
    pub(super) fn of(kind: Option<&str>, result: &WhatIfResult) -> Option<(Self, f64)> {
        let (placement, kept) = Self::choose(result);
        match kind {
            None | Some("Deployment") => Some((placement, kept)),
            Some("StatefulSet") => Some((Self::Spread, Self::kept(result).0)),
            Some(_) => None,
        }
    }

    pub(super) fn yaml(
        self,
        service: &Service,
        result: &WhatIfResult,
        workload: Option<&Workload>,
    ) -> String {
        match self {
            Self::Spread => workload::spread(service, workload),
            Self::PerZone => workload::per_zone(service, &replicas(result), workload),
        }
    }
}

impl Placement {
    /// `None` if the input lacks the pod template.
    pub(super) fn command(
        self,
        service: &Service,
        result: &WhatIfResult,
        workload: &Workload,
    ) -> Option<String> {
        match self {
            Self::Spread => Some(workload::spread_command(service, workload)),
            Self::PerZone => {
                let yaml = workload::per_zone(service, &replicas(result), Some(workload));
                let command = format!("kubectl apply -f - <<'EOF'\n{}EOF", yaml.trim_start_matches("---\n"));
                workload.is_complete().then_some(command)
            }
        }
    }
}

/// Distributes the endpoints in proportion to traffic: whole ones, then the largest remainders.
fn replicas(result: &WhatIfResult) -> Vec<(&Name, usize)> {
    let all = result.endpoints_by_zone.values().sum::<usize>();
    let sending: Vec<&(Name, f64)> = result.shares.iter().filter(|(_, share)| *share > 0.0).collect();
    let wanted = |share: f64| share * all as f64;
    let mut counts: Vec<(&Name, usize)> =
        sending.iter().map(|(zone, share)| (zone, wanted(*share).floor() as usize)).collect();
    let given: usize = counts.iter().map(|(_, count)| count).sum();
    let mut order: Vec<usize> = (0..sending.len()).collect();
    order.sort_by(|a, b| wanted(sending[*b].1).fract().total_cmp(&wanted(sending[*a].1).fract()));
    order.iter().take(all.saturating_sub(given)).for_each(|at| counts[*at].1 += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_follow_demand_and_add_up() {
        let zones = [("a", 0.6), ("b", 0.3), ("c", 0.1)];
        let result = WhatIfResult {
            current: plan::hints::Mechanism::None,
            shares: zones.iter().map(|(zone, share)| (Name::new(zone), *share)).collect(),
            endpoints_by_zone: [(Name::new("c"), 7)].into(),
            outcomes: Vec::new(),
        };
        let counts: Vec<usize> = replicas(&result).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [4, 2, 1]);
        let (placement, kept) = Placement::choose(&result);
        assert_eq!(placement, Placement::PerZone);
        assert!(kept > 0.9, "{kept}");
    }
}
