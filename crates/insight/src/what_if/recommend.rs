//! Which mechanism to recommend, and why not the runner-up. One rule, stated as [`RULE`].

use std::cmp::Ordering;

use plan::hints::Mechanism;

use super::{MechanismOutcome, TrafficFigures, WhatIfResult};

/// The rule, for people.
pub const RULE: &str = "of the mechanisms that refuse no request, also when a zone fails, and load no endpoint more than \
                        20 % above its fair share, the one that keeps most traffic in its zone; within 1 % of that, the \
                        one with the least overload; within 1 % of that, the present one";

/// Overload that is still good, as Auto has it (seed 001: 20 %).
const BEARABLE: f64 = 0.2;
/// Shares that differ by less count as equal: a change has to be worth it.
const EQUAL: f64 = 0.01;
/// What is left of nothing after rounding.
const NOTHING: f64 = 1e-9;

/// What to use.
#[derive(Clone, Debug)]
pub struct Recommendation<'a> {
    /// The mechanism; `None` where none serves every zone, and the present one stays.
    pub chosen: Option<&'a MechanismOutcome>,
    /// Whether it is the present one.
    pub stays: bool,
    /// The next best, and why it is not recommended.
    pub runner_up: Option<(&'a MechanismOutcome, NotRecommended)>,
}

/// Why a mechanism is not recommended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NotRecommended {
    /// Its safeguards hold its hints back.
    HeldBack(&'static str),
    /// It refuses this share of traffic.
    Refuses(f64),
    /// It refuses this share of traffic when a zone fails.
    RefusesInFailure(f64),
    /// It loads an endpoint by this share above its fair one, which is more than bearable.
    Overloads(f64),
    /// It keeps less in its zone.
    KeepsLess,
    /// It keeps as much in its zone, at more overload.
    LoadsMore,
    /// It is no better than the present one.
    NoBetter,
}

/// The mechanism to use for a Service.
pub fn recommend(answer: &WhatIfResult) -> Recommendation<'_> {
    let unavoidable = unavoidable(answer);
    let mut good: Vec<&MechanismOutcome> =
        answer.outcomes.iter().filter(|outcome| fault(outcome, unavoidable).is_none()).collect();
    good.sort_by(|a, b| b.figures.in_zone.total_cmp(&a.figures.in_zone));
    let Some(most) = good.first().map(|outcome| outcome.figures.in_zone) else {
        return Recommendation { chosen: None, stays: true, runner_up: None };
    };
    good.retain(|outcome| most - outcome.figures.in_zone < EQUAL);
    let least = good.iter().map(|outcome| outcome.figures.max_overload).fold(f64::INFINITY, f64::min);
    good.retain(|outcome| outcome.figures.max_overload - least < EQUAL);
    // What is left is equal: the present one, else what hurts least when a zone fails, else the first of the list.
    let present = good.iter().find(|outcome| outcome.mechanism == answer.current);
    let chosen = present.or_else(|| good.iter().min_by(|a, b| by_failure(a, b))).copied();
    let stays = present.is_some();
    let runner_up = chosen.and_then(|chosen| runner_up(answer, chosen, unavoidable, stays));
    Recommendation { chosen, stays, runner_up }
}

/// With endpoints in one zone alone, the failure of that zone refuses everything whatever is chosen.
fn unavoidable(answer: &WhatIfResult) -> f64 {
    let even = answer.outcomes.iter().find(|outcome| outcome.mechanism == Mechanism::None);
    even.map_or(0.0, refused_in_failure)
}

fn refused_in_failure(outcome: &MechanismOutcome) -> f64 {
    outcome.worst_failure.as_ref().map_or(0.0, |(_, figures)| figures.refused)
}

fn by_failure(a: &MechanismOutcome, b: &MechanismOutcome) -> Ordering {
    let badness = |outcome: &MechanismOutcome| {
        outcome.worst_failure.as_ref().map_or(0.0, |(_, f)| TrafficFigures::badness(f))
    };
    let (a, b) = (badness(a), badness(b));
    if (a - b).abs() < EQUAL { Ordering::Equal } else { a.total_cmp(&b) }
}

/// What forbids a mechanism.
fn fault(outcome: &MechanismOutcome, unavoidable: f64) -> Option<NotRecommended> {
    let figures = &outcome.figures;
    let in_failure = refused_in_failure(outcome);
    if let Some(why) = outcome.held_back {
        return Some(NotRecommended::HeldBack(why));
    }
    if figures.refused >= NOTHING {
        return Some(NotRecommended::Refuses(figures.refused));
    }
    if in_failure >= unavoidable + NOTHING {
        return Some(NotRecommended::RefusesInFailure(in_failure));
    }
    (figures.max_overload > BEARABLE + NOTHING).then_some(NotRecommended::Overloads(figures.max_overload))
}

/// Of the others, the one that keeps most in its zone, also if it is forbidden: that is the one that needs a reason.
fn runner_up<'a>(
    answer: &'a WhatIfResult,
    chosen: &MechanismOutcome,
    unavoidable: f64,
    stays: bool,
) -> Option<(&'a MechanismOutcome, NotRecommended)> {
    let others = answer.outcomes.iter().filter(|outcome| outcome.mechanism != chosen.mechanism);
    let next = others.min_by(|a, b| {
        let (a, b) = (&a.figures, &b.figures);
        let by_zone = match (a.in_zone - b.in_zone).abs() < EQUAL {
            true => Ordering::Equal,
            false => b.in_zone.total_cmp(&a.in_zone),
        };
        by_zone.then(a.refused.total_cmp(&b.refused)).then(a.max_overload.total_cmp(&b.max_overload))
    })?;
    let why = fault(next, unavoidable).unwrap_or_else(|| {
        let (next, chosen) = (&next.figures, &chosen.figures);
        if chosen.in_zone - next.in_zone >= EQUAL {
            NotRecommended::KeepsLess
        } else if next.max_overload - chosen.max_overload >= EQUAL || !stays {
            NotRecommended::LoadsMore
        } else {
            NotRecommended::NoBetter
        }
    });
    Some((next, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(in_zone: f64, max_overload: f64, refused: f64) -> TrafficFigures {
        TrafficFigures { in_zone, max_overload, refused, ..TrafficFigures::default() }
    }

    fn outcome(mechanism: Mechanism, figures: TrafficFigures) -> MechanismOutcome {
        MechanismOutcome {
            mechanism,
            programmed: true,
            held_back: None,
            slices_written: 0,
            hints_changed: 0,
            figures,
            worst_failure: None,
            replica_added: None,
            rolling_update: None,
        }
    }

    fn answer(current: Mechanism, outcomes: Vec<MechanismOutcome>) -> WhatIfResult {
        WhatIfResult { current, shares: Vec::new(), endpoints_by_zone: Default::default(), outcomes }
    }

    fn check(
        current: Mechanism,
        outcomes: Vec<MechanismOutcome>,
        chosen: Mechanism,
        runner_up: (Mechanism, NotRecommended),
    ) {
        let answer = answer(current, outcomes);
        let found = recommend(&answer);
        assert_eq!(found.chosen.map(|o| o.mechanism), Some(chosen));
        assert_eq!(found.stays, chosen == current);
        assert_eq!(found.runner_up.map(|(o, why)| (o.mechanism, why)), Some(runner_up));
    }

    #[test]
    fn at_equal_locality_less_overload_is_preferred_even_to_the_present_mechanism() {
        let outcomes = vec![
            outcome(Mechanism::None, figures(0.367, 0.0, 0.0)),
            outcome(Mechanism::PreferSameZone, figures(0.7, 0.2, 0.0)),
            outcome(Mechanism::Spill, figures(0.7, 0.001, 0.0)),
        ];
        let because = (Mechanism::PreferSameZone, NotRecommended::LoadsMore);
        check(Mechanism::PreferSameZone, outcomes, Mechanism::Spill, because);
    }

    #[test]
    fn the_present_mechanism_stays_unless_another_is_better_by_a_hundredth() {
        let outcomes = vec![
            outcome(Mechanism::PreferSameZone, figures(0.995, 0.005, 0.0)),
            outcome(Mechanism::Spill, figures(1.0, 0.0, 0.0)),
        ];
        let because = (Mechanism::Spill, NotRecommended::NoBetter);
        check(Mechanism::PreferSameZone, outcomes, Mechanism::PreferSameZone, because);
    }

    #[test]
    fn what_overloads_or_refuses_is_not_recommended_and_the_reason_is_given() {
        let outcomes = vec![
            outcome(Mechanism::None, figures(0.33, 0.0, 0.0)),
            outcome(Mechanism::PreferSameZone, figures(0.7, 0.5, 0.0)),
            outcome(Mechanism::RequireZone, figures(0.7, 0.0, 0.3)),
            outcome(Mechanism::Spill, figures(0.63, 0.0, 0.0)),
        ];
        let because = (Mechanism::PreferSameZone, NotRecommended::Overloads(0.5));
        check(Mechanism::None, outcomes, Mechanism::Spill, because);
        let outcomes = vec![
            outcome(Mechanism::None, figures(0.33, 0.0, 0.0)),
            outcome(Mechanism::RequireZone, figures(0.7, 0.0, 0.3)),
        ];
        check(
            Mechanism::None,
            outcomes,
            Mechanism::None,
            (Mechanism::RequireZone, NotRecommended::Refuses(0.3)),
        );
    }

    #[test]
    fn where_no_mechanism_serves_every_zone_the_present_one_stays() {
        let answer = answer(Mechanism::None, vec![outcome(Mechanism::None, figures(0.0, 0.0, 1.0))]);
        let found = recommend(&answer);
        assert!(found.chosen.is_none() && found.stays && found.runner_up.is_none());
    }
}
