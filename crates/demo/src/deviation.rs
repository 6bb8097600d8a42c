//! Compares measured with planned traffic: shares within sampling error, no unexpected failures.

use super::layout::ZONES;
use super::measure::MeasuredTraffic;

/// Tolerance in standard deviations: about one false alarm in ten thousand runs.
const TOLERANCE: f64 = 5.0;

/// Differences from the plan, as messages.
pub(crate) fn deviations(measured: &MeasuredTraffic) -> Vec<String> {
    let name = &measured.name;
    let mut deviations = Vec::new();
    if measured.failed > 0 {
        deviations.push(format!("{name}: {} connections failed", measured.failed));
    }
    for from in ZONES {
        let nothing = Default::default();
        let expected = measured.planned.zones.get(from).unwrap_or(&nothing);
        let may_refuse = measured.planned.refusing.contains(from);
        let counted = measured.connections.get(from);
        let count = |to: &str| counted.and_then(|row| row.get(to)).copied().unwrap_or_default();
        let all: u64 = counted.into_iter().flat_map(|row| row.values()).sum();
        let refused = measured.refused.get(from).copied().unwrap_or_default();
        match expected.is_empty() {
            true if all > 0 => deviations.push(format!("{name}: connections from {from} were not refused")),
            false if refused > 0 && !may_refuse => {
                deviations.push(format!("{name}: {refused} connections from {from} were refused"))
            }
            _ => {}
        }
        for to in ZONES {
            let share = expected.get(to).copied().unwrap_or_default();
            let seen = if all == 0 { 0.0 } else { count(to) as f64 / all as f64 };
            if all > 0 && !measured.affinity && !is_within_sampling_error(share, seen, all) {
                deviations.push(format!(
                    "{name}: {from} to {to}: {:.1} %, planned {:.1} %",
                    seen * 100.0,
                    share * 100.0
                ));
            }
        }
    }
    deviations
}

pub(crate) fn is_within_sampling_error(share: f64, seen: f64, connections: u64) -> bool {
    let deviation = (share * (1.0 - share) / connections as f64).sqrt();
    // Weights are rounded to 1/256.
    let slot = if share > 0.0 && share < 1.0 { 1.0 / 256.0 } else { 0.0 };
    (seen - share).abs() <= TOLERANCE * deviation + slot + f64::EPSILON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_0_and_1_are_exact_and_others_within_sampling_error() {
        assert!(is_within_sampling_error(1.0, 1.0, 600));
        assert!(!is_within_sampling_error(1.0, 599.0 / 600.0, 600));
        assert!(is_within_sampling_error(0.333, 0.36, 600));
        assert!(!is_within_sampling_error(0.333, 0.5, 600));
    }
}
