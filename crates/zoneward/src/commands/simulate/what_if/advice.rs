//! The recommendation as text, and the commands that apply it.
//!
//! [`recommend`] selects the mechanism. If endpoints are in the wrong zones, another placement is recommended.

use model::{Name, Service, annotation};
use plan::hints::Mechanism;
use sim::what_if::{
    MechanismOutcome, NotRecommended, WhatIfResult, is_set_by_field, recommend, setting_command,
    setting_value,
};

use super::placement::Placement;
use super::workload::Workload;

/// Minimum gain of in-zone traffic for another placement of pods.
const MIN_PLACEMENT_GAIN: f64 = 0.05;
/// Share of in-zone traffic below which endpoints are misplaced.
const MISPLACED_BELOW: f64 = 0.8;

pub(super) struct Advice {
    pub(super) mechanism: Mechanism,
    pub(super) reason: String,
    /// The second-best mechanism, and why it is not recommended.
    pub(super) runner_up: Option<(Mechanism, String)>,
    /// Gain of in-zone traffic, as a share.
    pub(super) gain: f64,
    /// `topology-spread` or `deployment-per-zone`, if endpoints are misplaced.
    pub(super) placement: Option<&'static str>,
    /// Whether the YAML has placeholders, because the input lacks details of the workload.
    pub(super) has_blanks: bool,
    /// kubectl commands; empty if nothing has to change.
    pub(super) commands: Vec<String>,
    /// The same as YAML.
    pub(super) yaml: String,
}

pub(super) fn advise(
    service: &Service,
    result: &WhatIfResult,
    workload: impl Fn() -> Option<Workload>,
) -> Advice {
    let recommendation = recommend(result);
    let Some(chosen) = recommendation.chosen else {
        return Advice {
            mechanism: result.current,
            reason: "no change: no mechanism serves every zone".to_owned(),
            runner_up: None,
            gain: 0.0,
            placement: None,
            has_blanks: false,
            commands: Vec::new(),
            yaml: String::new(),
        };
    };
    let stays = recommendation.stays;
    let now = result.outcomes.iter().find(|outcome| outcome.mechanism == result.current);
    let mut advice = Advice {
        mechanism: chosen.mechanism,
        reason: reason(chosen, stays),
        runner_up: recommendation.runner_up.map(|(o, why)| (o.mechanism, why_not(o, chosen, why))),
        gain: now.map_or(0.0, |now| chosen.figures.in_zone - now.figures.in_zone),
        placement: None,
        has_blanks: false,
        commands: Vec::new(),
        yaml: String::new(),
    };
    if !stays {
        advice.commands.push(setting_command(service, chosen.mechanism).join(" \\\n  "));
        advice.yaml = setting(service, chosen.mechanism);
    }
    if chosen.figures.in_zone < MISPLACED_BELOW && result.shares.len() > 1 && service.selector.is_some() {
        advice.place(service, result, chosen, workload().as_ref());
    }
    advice
}

impl Advice {
    /// Adds another placement, if the gain is large enough.
    fn place(
        &mut self,
        service: &Service,
        result: &WhatIfResult,
        chosen: &MechanismOutcome,
        workload: Option<&Workload>,
    ) {
        let better = Placement::of(workload.map(|w| w.kind.as_str()), result);
        let worth = |kept: f64| kept - chosen.figures.in_zone > MIN_PLACEMENT_GAIN;
        let Some((better, kept)) = better.filter(|(_, kept)| worth(*kept)) else { return };
        self.reason += &format!(
            "; about {:.0} % would if endpoints were where traffic is: {}",
            100.0 * kept,
            misplaced(result)
        );
        self.yaml += &better.yaml(service, result, workload);
        let command = workload.and_then(|workload| better.command(service, result, workload));
        self.has_blanks = command.is_none();
        self.commands.extend(command);
        self.placement = Some(better.as_str());
    }
}

fn reason(chosen: &MechanismOutcome, stays: bool) -> String {
    format!(
        "{}{}: {:.1} % of the traffic stays in its zone, and no endpoint gets more than {:.1} % above its fair share",
        if stays { "keep " } else { "" },
        chosen.mechanism.as_str(),
        100.0 * chosen.figures.in_zone,
        100.0 * chosen.figures.max_overload,
    )
}

fn why_not(other: &MechanismOutcome, chosen: &MechanismOutcome, why: NotRecommended) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let (in_zone, load) = (percent(other.figures.in_zone), percent(other.figures.max_overload));
    match why {
        NotRecommended::HeldBack(why) => format!("its hints would be held back: {why}"),
        NotRecommended::Refuses(share) => {
            format!("it would keep {in_zone} in its zone, and refuse {}", percent(share))
        }
        NotRecommended::RefusesInFailure(share) => {
            format!("when a zone fails, it would refuse {} of the traffic", percent(share))
        }
        NotRecommended::Overloads(share) => format!(
            "it would keep {in_zone} in its zone, but load an endpoint {} above its fair share",
            percent(share)
        ),
        NotRecommended::KeepsLess => format!("it would keep {in_zone} in its zone"),
        NotRecommended::LoadsMore => format!(
            "it would keep as much in its zone, but load an endpoint {load} above its fair share instead of {}",
            percent(chosen.figures.max_overload)
        ),
        NotRecommended::NoBetter => format!("it would be no better: {in_zone} in its zone, {load} overload"),
    }
}

/// As in `zone-b sends 33 % and has 10 % of the endpoints`, for the zone with the largest deficit.
fn misplaced(result: &WhatIfResult) -> String {
    let all = result.endpoints_by_zone.values().sum::<usize>().max(1) as f64;
    let has = |zone: &Name| result.endpoints_by_zone.get(zone).copied().unwrap_or(0) as f64 / all;
    let lack = |(zone, share): &&(Name, f64)| share - has(zone);
    let most = result.shares.iter().max_by(|a, b| lack(a).total_cmp(&lack(b)));
    most.map_or_else(String::new, |(zone, share)| {
        format!("{zone} sends {:.0} % and has {:.0} % of the endpoints", 100.0 * share, 100.0 * has(zone))
    })
}

fn setting(service: &Service, mechanism: Mechanism) -> String {
    let head = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: {}\n",
        service.key.name, service.key.namespace
    );
    match is_set_by_field(service, mechanism) {
        true => head + &format!("spec:\n  trafficDistribution: {}\n", mechanism.as_str()),
        false => {
            head + &format!(
                "  annotations:\n    {}: {}\n",
                annotation::TRAFFIC_DISTRIBUTION,
                setting_value(mechanism)
            )
        }
    }
}
