//! The recommendation in words, and the commands that apply it.
//!
//! Which mechanism is recommended is decided by [`recommend`]. Where the endpoints are in the wrong zones no mechanism
//! helps much, and another placement does.

use model::{Name, Service, annotation};
use plan::hints::Mechanism;
use serde_json::json;
use sim::what_if::{MechanismOutcome, NotRecommended, WhatIfResult, recommend};

use super::placement::Placement;
use super::workload::{Workload, quoted};

/// Traffic in its zone that another placement of pods has to win to be worth it.
const WORTH_THE_WORK: f64 = 0.05;
/// Below this share in zone the endpoints are in the wrong places.
const POOR: f64 = 0.8;

/// What to do.
pub(super) struct Advice {
    pub(super) mechanism: Mechanism,
    pub(super) reason: String,
    /// The next best mechanism, and why it is not recommended.
    pub(super) runner_up: Option<(Mechanism, String)>,
    /// Traffic that would stay in its zone, beyond what stays there now; a share.
    pub(super) gain: f64,
    /// `topology-spread` or `deployment-per-zone`, where endpoints should be elsewhere.
    pub(super) placement: Option<&'static str>,
    /// Whether the YAML for the placement has blanks, since the input does not say enough of the workload.
    pub(super) has_blanks: bool,
    /// Lines for a shell, each a command of kubectl; empty if nothing has to change.
    pub(super) commands: Vec<String>,
    /// The same to apply as YAML.
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
            reason: "leave it: no mechanism serves every zone".to_owned(),
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
        advice.commands.push(command(service, chosen.mechanism));
        advice.yaml = setting(service, chosen.mechanism);
    }
    if chosen.figures.in_zone < POOR && result.shares.len() > 1 && service.selector.is_some() {
        advice.place(service, result, chosen, workload().as_ref());
    }
    advice
}

impl Advice {
    /// Adds another placement of the endpoints, if that is worth the work.
    fn place(
        &mut self,
        service: &Service,
        result: &WhatIfResult,
        chosen: &MechanismOutcome,
        workload: Option<&Workload>,
    ) {
        let better = Placement::of(workload.map(|w| w.kind.as_str()), result);
        let worth = |kept: f64| kept - chosen.figures.in_zone > WORTH_THE_WORK;
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

/// `zone-b sends 33 % and has 10 % of the endpoints`, for the zone that lacks most.
fn misplaced(result: &WhatIfResult) -> String {
    let all = result.endpoints_by_zone.values().sum::<usize>().max(1) as f64;
    let has = |zone: &Name| result.endpoints_by_zone.get(zone).copied().unwrap_or(0) as f64 / all;
    let lack = |(zone, share): &&(Name, f64)| share - has(zone);
    let most = result.shares.iter().max_by(|a, b| lack(a).total_cmp(&lack(b)));
    most.map_or_else(String::new, |(zone, share)| {
        format!("{zone} sends {:.0} % and has {:.0} % of the endpoints", 100.0 * share, 100.0 * has(zone))
    })
}

/// The value of our annotation for a mechanism.
fn value(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::None => "Balanced",
        other => other.as_str(),
    }
}

/// Whether Kubernetes' own field can say it, and would be heard: an annotation goes before it.
fn by_field(service: &Service, mechanism: Mechanism) -> bool {
    matches!(mechanism, Mechanism::PreferSameZone | Mechanism::PreferSameNode)
        && service.annotations.is_empty()
}

/// The command that sets a mechanism: Kubernetes' own field where it will do, else our annotation.
fn command(service: &Service, mechanism: Mechanism) -> String {
    let [name, namespace] = [&service.key.name, &service.key.namespace].map(|name| quoted(name));
    match by_field(service, mechanism) {
        true => {
            let patch = json!({"spec": {"trafficDistribution": mechanism.as_str()}});
            format!("kubectl patch service {name} -n {namespace} --type merge \\\n  -p '{patch}'")
        }
        false => format!(
            "kubectl annotate service {name} -n {namespace} --overwrite \\\n  {}={}",
            annotation::TRAFFIC_DISTRIBUTION,
            value(mechanism)
        ),
    }
}

fn setting(service: &Service, mechanism: Mechanism) -> String {
    let head = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: {}\n",
        service.key.name, service.key.namespace
    );
    match by_field(service, mechanism) {
        true => head + &format!("spec:\n  trafficDistribution: {}\n", mechanism.as_str()),
        false => {
            head + &format!(
                "  annotations:\n    {}: {}\n",
                annotation::TRAFFIC_DISTRIBUTION,
                value(mechanism)
            )
        }
    }
}
