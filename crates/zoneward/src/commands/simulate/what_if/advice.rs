//! Which mechanism to use, why, and what to apply.
//!
//! Of those that refuse nothing, also when a zone fails, and load no endpoint far above its fair share, the one that
//! keeps most traffic in its zone; the present one if that is hardly better. Where the endpoints are in the wrong
//! zones no mechanism helps much, and another placement does.

use model::{Name, Service, annotation};
use plan::hints::Mechanism;
use sim::whatif::{Answer, Outcome};

use super::placement::Placement;
use super::workload::Workload;

/// Overload that is still good, as Auto has it (seed 001: 20 %).
const BEARABLE: f64 = 0.2;
/// Traffic in its zone that a change has to win to be worth it.
const WORTH_IT: f64 = 0.01;
/// Traffic in its zone that another placement of pods has to win to be worth it.
const WORTH_THE_WORK: f64 = 0.05;
/// Below this share in zone the endpoints are in the wrong places.
const POOR: f64 = 0.8;

/// What to do.
pub(super) struct Advice {
    pub(super) mechanism: Mechanism,
    pub(super) reason: String,
    /// `topology-spread` or `deployment-per-zone`, where endpoints should be elsewhere.
    pub(super) placement: Option<&'static str>,
    /// To apply; empty if nothing has to change.
    pub(super) yaml: String,
}

pub(super) fn advise(service: &Service, answer: &Answer, workload: impl Fn() -> Option<Workload>) -> Advice {
    let current = answer.outcomes.iter().find(|o| o.mechanism == answer.current);
    // With endpoints in one zone alone, the failure of that zone refuses everything whatever is chosen.
    let even = answer.outcomes.iter().find(|o| o.mechanism == Mechanism::None);
    let unavoidable = even.map_or(0.0, refused_in_failure);
    let is_good = |o: &Outcome| is_good(o, unavoidable);
    let mut good: Vec<&Outcome> = answer.outcomes.iter().filter(|o| is_good(o)).collect();
    good.sort_by(|a, b| b.figures.in_zone.total_cmp(&a.figures.in_zone));
    let Some(best) = good.first().copied() else {
        let reason = "leave it: no mechanism serves every zone".to_owned();
        return Advice { mechanism: answer.current, reason, placement: None, yaml: String::new() };
    };
    let stays = current.is_some_and(|c| is_good(c) && best.figures.in_zone - c.figures.in_zone < WORTH_IT);
    let chosen = if stays { current.unwrap_or(best) } else { best };
    let figures = &chosen.figures;
    let mut reason = format!(
        "{}{}: {:.0} % of the traffic stays in its zone, and no endpoint gets more than {:.0} % above its fair share",
        if stays { "keep " } else { "" },
        chosen.mechanism.as_str(),
        100.0 * figures.in_zone,
        100.0 * figures.max_overload,
    );
    let mut yaml = if stays { String::new() } else { setting(service, chosen.mechanism) };
    let mut placement = None;
    if figures.in_zone < POOR && answer.shares.len() > 1 && service.selector.is_some() {
        let workload = workload();
        let better = Placement::of(workload.as_ref().map(|w| w.kind.as_str()), answer);
        if let Some((better, kept)) = better.filter(|(_, kept)| kept - figures.in_zone > WORTH_THE_WORK) {
            reason += &format!(
                "; about {:.0} % would if endpoints were where traffic is: {}",
                100.0 * kept,
                misplaced(answer)
            );
            yaml += &better.yaml(service, answer, workload.as_ref());
            placement = Some(better.as_str());
        }
    }
    Advice { mechanism: chosen.mechanism, reason, placement, yaml }
}

fn refused_in_failure(outcome: &Outcome) -> f64 {
    outcome.worst_failure.as_ref().map_or(0.0, |(_, f)| f.refused)
}

fn is_good(outcome: &Outcome, unavoidable: f64) -> bool {
    outcome.figures.refused < 1e-9
        && refused_in_failure(outcome) < unavoidable + 1e-9
        && outcome.figures.max_overload <= BEARABLE + 1e-9
        && outcome.held_back.is_none()
}

/// `zone-b sends 33 % and has 10 % of the endpoints`, for the zone that lacks most.
fn misplaced(answer: &Answer) -> String {
    let all = answer.endpoints_by_zone.values().sum::<usize>().max(1) as f64;
    let has = |zone: &Name| answer.endpoints_by_zone.get(zone).copied().unwrap_or(0) as f64 / all;
    let lack = |(zone, share): &&(Name, f64)| share - has(zone);
    let most = answer.shares.iter().max_by(|a, b| lack(a).total_cmp(&lack(b)));
    most.map_or_else(String::new, |(zone, share)| {
        format!("{zone} sends {:.0} % and has {:.0} % of the endpoints", 100.0 * share, 100.0 * has(zone))
    })
}

/// What Kubernetes itself knows goes into its field, the rest into our annotation.
fn setting(service: &Service, mechanism: Mechanism) -> String {
    let head = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: {}\n",
        service.key.name, service.key.namespace
    );
    match mechanism {
        Mechanism::PreferSameZone | Mechanism::PreferSameNode => {
            head + &format!("spec:\n  trafficDistribution: {}\n", mechanism.as_str())
        }
        Mechanism::None => {
            head + &format!("  annotations:\n    {}: Balanced\n", annotation::TRAFFIC_DISTRIBUTION)
        }
        other => {
            head + &format!("  annotations:\n    {}: {}\n", annotation::TRAFFIC_DISTRIBUTION, other.as_str())
        }
    }
}
