//! `same-zone: Prefer` (seed 003).
//!
//! Rule: each zone is served by its own endpoints as far as that loads none of them more than 50 % above its fair
//! share; where it would, endpoints of other zones are lent to it, by [`local`]. It starts at threshold + padding
//! ready endpoints and ends at threshold - padding, with a threshold of three per zone unless the Service says
//! otherwise. Once it works, an endpoint that comes or goes changes nothing else as long as no zone is overloaded;
//! only then everything is rebalanced. Within a region, where that is asked for, all of this holds per region.

use super::bound::{self, MOST_ZONES, Width, own_zone, put, width};
use super::facts::PreferBy;
use super::local::{ZoneLoad, is_overloaded, local};
use super::overload::THRESHOLD;
use super::survey::{Survey, contents};
use super::words::{count, list, percent};
use super::{Applied, Task, reason};
use crate::slices::Packing;

/// Endpoints per zone from which on Prefer is worth its churn (seed 003: 3).
const PER_ZONE: usize = 3;
/// Distance between the threshold and the numbers at which Prefer starts and ends (seed 003: 3).
const PADDING: usize = 3;

/// Zones that may lend to each other.
#[derive(Debug)]
struct Circle {
    /// In the order of their names.
    zones: Vec<usize>,
    ready: usize,
    /// Zones that send traffic.
    senders: usize,
    threshold: usize,
}

/// Why Prefer holds back.
enum Rest {
    NoZones,
    EndpointWithoutZone,
    TooManyZones,
    TooFew { zones: String, ready: usize, threshold: usize, was_active: bool },
    Overload { zones: String, ready: usize },
}

/// Puts the hints on, or takes them off.
pub(super) fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    let circles = circles(task);
    match decide(task, &circles, packing).and_then(|serves| fitting(task, serves)) {
        Ok(serves) => {
            put(task, packing, task.mechanism, &serves);
            if task.is_heard() {
                say_groups(task, &circles, &serves);
                remark_labels(task);
            }
            Applied::programmed(task.mechanism)
        }
        Err(rest) => {
            let own_zones: Vec<Option<usize>> = task.survey.spots.iter().map(own_zone).collect();
            put(task, packing, task.mechanism.at_rest(), &own_zones);
            if task.is_heard() {
                say_rest(task, &rest);
                remark_labels(task);
            }
            Applied::held_back(task.mechanism.at_rest(), rest.word(), rest.sentence())
        }
    }
}

/// What lends endpoints to other zones is told by hints alone: without room for them there is no lending.
fn fitting(task: &Task<'_>, serves: Vec<Option<usize>>) -> Result<Vec<Option<usize>>, Rest> {
    match width(&task.survey, task.mechanism, &serves) {
        Width::Fits => Ok(serves),
        Width::TooWide => Err(Rest::TooManyZones),
    }
}

fn remark_labels(task: &mut Task<'_>) {
    if task.mechanism.required().is_none() {
        task.remark_nodes_without_zone();
    }
    bound::remark_regions(task);
}

/// All zones together, or one circle per region.
fn circles(task: &Task<'_>) -> Vec<Circle> {
    let survey = &task.survey;
    let by_region = task.mechanism.is_regional();
    let mut circles: Vec<Circle> = Vec::new();
    for zone in survey.zones.by_name() {
        let region = survey.zones.region(zone);
        let same = |c: &&mut Circle| !by_region || survey.zones.region(c.zones[0]) == region;
        let sends = usize::from(survey.zones.weight(zone, task.config.prefer_by) > 0);
        let ready = survey.ready_by_zone[zone];
        match circles.iter_mut().find(same) {
            Some(circle) => {
                circle.zones.push(zone);
                circle.ready += ready;
                circle.senders += sends;
            }
            None => circles.push(Circle { zones: vec![zone], ready, senders: sends, threshold: 0 }),
        }
    }
    for circle in &mut circles {
        circle.threshold = task.starting_threshold.unwrap_or(PER_ZONE * circle.senders);
    }
    // A region without endpoints has nothing to lend; its clients go elsewhere, or nowhere under Require.
    if survey.ready > 0 {
        circles.retain(|c| c.ready > 0);
    }
    circles
}

/// The zone that each endpoint serves.
fn decide(task: &Task<'_>, circles: &[Circle], packing: &Packing<'_>) -> Result<Vec<Option<usize>>, Rest> {
    if task.facts.ready_zones() == 0 {
        return Err(Rest::NoZones);
    }
    if task.survey.without_zone > 0 {
        return Err(Rest::EndpointWithoutZone);
    }
    let was_active = task.memory.mechanism.rebalances() && !task.memory.mechanism.is_resting();
    if !was_active {
        return start(task, circles);
    }
    go_on(task, circles, packing).map_err(|end| match start(task, circles) {
        // What keeps it from starting again is what will be true from now on.
        Err(obstacle) if obstacle.word() != end.word() => obstacle,
        _ => end,
    })
}

fn start(task: &Task<'_>, circles: &[Circle]) -> Result<Vec<Option<usize>>, Rest> {
    for circle in circles {
        circle.check_size(&task.survey, task.config.prefer_by, false)?;
    }
    let own_zones = task.survey.spots.iter().map(own_zone).collect();
    rebalance(task, circles, own_zones)
}

fn go_on(task: &Task<'_>, circles: &[Circle], packing: &Packing<'_>) -> Result<Vec<Option<usize>>, Rest> {
    for circle in circles {
        circle.check_size(&task.survey, task.config.prefer_by, true)?;
    }
    let mut serves: Vec<Option<usize>> = task.survey.spots.iter().map(own_zone).collect();
    recall(task, circles, packing, &mut serves);
    // Seed 003, "Lazy Rebalance": an update that overloads nobody is made as it is.
    if circles.iter().all(|c| c.fits(&task.survey, task.config.prefer_by, &serves)) {
        return Ok(serves);
    }
    rebalance(task, circles, serves)
}

fn rebalance(
    task: &Task<'_>,
    circles: &[Circle],
    mut serves: Vec<Option<usize>>,
) -> Result<Vec<Option<usize>>, Rest> {
    for circle in circles {
        circle.rebalance(&task.survey, task.config.prefer_by, &mut serves)?;
    }
    Ok(serves)
}

/// Endpoints that were lent stay lent, unless the zone that had them sends nothing any more.
fn recall(task: &Task<'_>, circles: &[Circle], packing: &Packing<'_>, serves: &mut [Option<usize>]) {
    if task.memory.lent.is_empty() {
        return;
    }
    let endpoints = contents(packing).flat_map(|c| &c.endpoints);
    for (serves, endpoint) in serves.iter_mut().zip(endpoints) {
        let (Some(own), Some(name)) = (*serves, task.memory.lent_to(endpoint.addresses.first())) else {
            continue;
        };
        let Some(zone) = task.survey.zones.find(name) else { continue };
        let in_reach = circles.iter().any(|c| c.zones.contains(&own) && c.zones.contains(&zone));
        if in_reach && task.survey.zones.weight(zone, task.config.prefer_by) > 0 {
            *serves = Some(zone);
        }
    }
}

impl Circle {
    fn check_size(&self, survey: &Survey<'_>, by: PreferBy, was_active: bool) -> Result<(), Rest> {
        if self.senders == 0 {
            // Nobody to lend to: its endpoints stay where they are.
            return Ok(());
        }
        let edge = match was_active {
            true => self.threshold.saturating_sub(PADDING) + 1,
            false => self.threshold.saturating_add(PADDING),
        };
        let (ready, threshold) = (self.ready, self.threshold);
        if ready < edge {
            return Err(Rest::TooFew { zones: self.words(survey), ready, threshold, was_active });
        }
        // Three per zone can always be balanced. A Service that starts with fewer has to stay possible through a few
        // endpoints more or less, or a rolling update would switch Prefer on and off.
        let around = ready.saturating_sub(PADDING)..=ready + PADDING;
        let is_shaky = !was_active && around.into_iter().any(|n| self.minimum(survey, by, n) > n);
        if is_shaky { Err(Rest::Overload { zones: self.words(survey), ready }) } else { Ok(()) }
    }

    /// `3 zones`, or `2 zones of region west`.
    fn words(&self, survey: &Survey<'_>) -> String {
        let zones = count(self.senders, "zone");
        let is_part = self.zones.len() < survey.zones.len();
        match self.zones.first().and_then(|z| survey.zones.region(*z)).filter(|_| is_part) {
            Some(region) => format!("{zones} of region {region}"),
            None => zones,
        }
    }

    /// How many of `ready` endpoints each zone would have if they followed the traffic.
    fn expected(&self, survey: &Survey<'_>, by: PreferBy, ready: usize) -> Vec<f64> {
        let weights = self.zones.iter().map(|z| survey.zones.weight(*z, by));
        let all = weights.clone().fold(0u64, u64::saturating_add);
        let ratio = |w: u64| if all == 0 { 0.0 } else { w as f64 / all as f64 };
        weights.map(|w| ratio(w) * ready as f64).collect()
    }

    /// The fewest endpoints with which no zone is overloaded by the traffic of `ready`. A zone keeps its last one.
    fn minimum(&self, survey: &Survey<'_>, by: PreferBy, ready: usize) -> usize {
        let enough = |(zone, expected): (&usize, f64)| {
            let last = usize::from(survey.ready_by_zone[*zone] > 0);
            let guess = (expected / (1.0 + THRESHOLD)) as usize;
            let needed = (guess..).find(|n| !is_overloaded(expected, *n, THRESHOLD)).unwrap_or(guess);
            needed.max(last)
        };
        self.zones.iter().zip(self.expected(survey, by, ready)).map(enough).sum()
    }

    fn fits(&self, survey: &Survey<'_>, by: PreferBy, serves: &[Option<usize>]) -> bool {
        let mut sizes = vec![0usize; survey.zones.len()];
        serves.iter().flatten().for_each(|zone| sizes[*zone] += 1);
        let mut zones = self.zones.iter().zip(self.expected(survey, by, self.ready));
        zones.all(|(zone, expected)| !is_overloaded(expected, sizes[*zone], THRESHOLD))
    }

    fn rebalance(&self, survey: &Survey<'_>, by: PreferBy, serves: &mut [Option<usize>]) -> Result<(), Rest> {
        let load =
            |z: &usize| ZoneLoad { nodes: survey.zones.weight(*z, by), endpoints: survey.ready_by_zone[*z] };
        let loads: Vec<ZoneLoad> = self.zones.iter().map(load).collect();
        let Some(groups) = local(&loads, 0, THRESHOLD) else {
            return Err(Rest::Overload { zones: self.words(survey), ready: self.ready });
        };
        self.hand_out(survey, groups, serves);
        Ok(())
    }

    /// Gives each endpoint a zone so that the groups come out, and as many as possible keep the one that they have.
    fn hand_out(&self, survey: &Survey<'_>, mut groups: Vec<Vec<usize>>, serves: &mut [Option<usize>]) {
        let mut at_by_zone = vec![None; survey.zones.len()];
        self.zones.iter().enumerate().for_each(|(at, zone)| at_by_zone[*zone] = Some(at));
        let mut unplaced = Vec::new();
        for (place, spot) in survey.spots.iter().enumerate() {
            let Some(giver) = own_zone(spot).and_then(|zone| at_by_zone[zone]) else { continue };
            let receiver = serves[place].and_then(|zone| at_by_zone[zone]);
            match receiver.filter(|receiver| groups[*receiver][giver] > 0) {
                Some(receiver) => groups[receiver][giver] -= 1,
                None => unplaced.push((place, giver)),
            }
        }
        for (place, giver) in unplaced {
            if let Some(receiver) = (0..groups.len()).find(|receiver| groups[*receiver][giver] > 0) {
                groups[receiver][giver] -= 1;
                serves[place] = Some(self.zones[receiver]);
            }
        }
    }
}

impl Rest {
    /// The condition's reason.
    fn word(&self) -> &'static str {
        match self {
            Self::NoZones => "NoZones",
            Self::EndpointWithoutZone => "EndpointWithoutZone",
            Self::TooManyZones => "TooManyZones",
            Self::TooFew { .. } => "TooFewEndpoints",
            Self::Overload { .. } => "OverloadUnavoidable",
        }
    }

    /// The condition's message: nothing in it changes with a single pod.
    fn sentence(&self) -> &'static str {
        match self {
            Self::NoZones => "No ready node carries a zone label.",
            Self::EndpointWithoutZone => "A ready endpoint is in no known zone.",
            Self::TooManyZones => "A region has more than 8 zones, which hints cannot name.",
            Self::TooFew { .. } => "There are too few ready endpoints for Prefer to start.",
            Self::Overload { .. } => "No distribution keeps every endpoint below the overload threshold.",
        }
    }
}

fn say_rest(task: &mut Task<'_>, rest: &Rest) {
    let why = match rest {
        Rest::NoZones => {
            "no ready node carries the label topology.kubernetes.io/zone. Add it to the nodes.".to_owned()
        }
        Rest::EndpointWithoutZone => {
            let first = task.survey.first_without_zone.as_deref().unwrap_or_default();
            format!("{first} is ready in no known zone. Add topology.kubernetes.io/zone to its node.")
        }
        Rest::TooManyZones => format!(
            "a region has more than {MOST_ZONES} zones, and an endpoint's hints can name no more, so endpoints carry \
             none for zones and only Zoneward's nodes go by their region. Use same-zone alone, or smaller regions."
        ),
        Rest::TooFew { ready, threshold, zones, was_active } => {
            let start = threshold.saturating_add(PADDING);
            let ended = match was_active {
                true => format!("it ended at {} and starts again", threshold.saturating_sub(PADDING)),
                false => "it starts".to_owned(),
            };
            format!(
                "{} in {zones}, and {ended} at {start} (threshold {threshold}, padding {PADDING}). Add {}, lower \
                 endpointslice.kubernetes.io/same-zone-starting-threshold, or use Spill, which needs no minimum.",
                count(*ready, "ready endpoint"),
                start - ready,
            )
        }
        Rest::Overload { zones, ready } => format!(
            "{}, give or take {PADDING}, cannot always be shared out among {zones} so that none expects {} more than its \
             fair share. Add endpoints, or use Spill, which never overloads any.",
            count(*ready, "ready endpoint"),
            percent(THRESHOLD),
        ),
    };
    let meanwhile = match task.mechanism.required() {
        Some(_) => "traffic spreads evenly over the region",
        None if task.mechanism.is_regional() => "traffic spreads evenly over the region, else everywhere",
        None => "traffic spreads evenly",
    };
    let first = if task.mechanism.prefers_node() { " after the own node" } else { "" };
    task.say(reason::WITHHELD, format!("{}: {meanwhile}{first}: {why}", task.source));
}

fn say_groups(task: &mut Task<'_>, circles: &[Circle], serves: &[Option<usize>]) {
    let survey = &task.survey;
    let mut sizes = vec![0usize; survey.zones.len()];
    serves.iter().flatten().for_each(|zone| sizes[*zone] += 1);
    let by = task.config.prefer_by;
    let mut worst = 0.0f64;
    let mut groups = Vec::new();
    for circle in circles {
        let all = circle.ready as f64;
        for (zone, expected) in
            circle.zones.iter().zip(circle.expected(survey, by, circle.ready)).filter(|(z, _)| sizes[**z] > 0)
        {
            worst = worst.max(expected / sizes[*zone] as f64 - 1.0);
            let share = percent(expected / all);
            groups.push(format!(
                "{} has {} for {share} of the {}",
                survey.zones.name(*zone),
                sizes[*zone],
                by.noun()
            ));
        }
    }
    let lent = serves.iter().zip(&survey.spots).filter(|(serves, spot)| **serves != own_zone(spot)).count();
    let mut thresholds: Vec<usize> = circles.iter().map(|c| c.threshold).collect();
    thresholds.dedup();
    let bounds = list(thresholds.into_iter().map(|threshold| {
        let (start, end) = (threshold.saturating_add(PADDING), threshold.saturating_sub(PADDING));
        format!("starts at {start}, ends at {end}")
    }));
    let advice =
        if lent > 0 { " Add endpoints where they are lent to, and less traffic crosses zones." } else { "" };
    let message = format!(
        "{}: {}; {lent} of {} serve another zone than their own; overload at most {}, allowed below {} \
         ({bounds}).{advice}",
        task.source,
        list(groups),
        count(survey.ready, "ready endpoint"),
        percent(worst),
        percent(THRESHOLD),
    );
    task.say(reason::PROGRAMMED, message);
}
