//! Whether what was measured is what was promised: shares within sampling error, nothing failed that should not.

use super::layout::ZONES;
use super::measure::Measured;

/// So many standard deviations off are no chance: one demo in ten thousand would cry wolf.
const DEVIATIONS: f64 = 5.0;

/// What is out of line, in words.
pub fn complaints(measured: &Measured) -> Vec<String> {
    let name = &measured.name;
    let mut complaints = Vec::new();
    if measured.failed > 0 {
        complaints.push(format!("{name}: {} connections got no answer", measured.failed));
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
            true if all > 0 => complaints.push(format!("{name}: {from} should be refused and was not")),
            false if refused > 0 && !may_refuse => {
                complaints.push(format!("{name}: {refused} from {from} were refused"))
            }
            _ => {}
        }
        for to in ZONES {
            let share = expected.get(to).copied().unwrap_or_default();
            let seen = if all == 0 { 0.0 } else { count(to) as f64 / all as f64 };
            if all > 0 && !measured.affinity && !is_in_line(share, seen, all) {
                complaints.push(format!(
                    "{name}: from {from} to {to} went {:.1} %, planned were {:.1} %",
                    seen * 100.0,
                    share * 100.0
                ));
            }
        }
    }
    complaints
}

/// Whether a share that was seen in so many connections can be chance.
pub fn is_in_line(share: f64, seen: f64, connections: u64) -> bool {
    let deviation = (share * (1.0 - share) / connections as f64).sqrt();
    // Weights are cut into 256 slots, which a zone gets to one slot; that is no error of the draw.
    let slot = if share > 0.0 && share < 1.0 { 1.0 / 256.0 } else { 0.0 };
    (seen - share).abs() <= DEVIATIONS * deviation + slot + f64::EPSILON
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certain_shares_allow_no_exception_and_uncertain_ones_only_chance() {
        assert!(is_in_line(1.0, 1.0, 600));
        assert!(!is_in_line(1.0, 599.0 / 600.0, 600));
        assert!(is_in_line(0.333, 0.36, 600));
        assert!(!is_in_line(0.333, 0.5, 600));
    }
}
