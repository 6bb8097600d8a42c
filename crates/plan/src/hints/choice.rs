//! Which mechanism a Service asks for: the one place where precedence is decided.
//!
//! ```text
//! 1 zoneward.dev/traffic-distribution        an explicit Balanced, None or Disabled of ours ends the search;
//! 2 same-node | same-zone | same-region      an unknown value is a Notice, and the search goes on, but for the
//! 3 topology-aware-hints, else topology-mode field: its value may be meant for another implementation, so an
//! 4 spec.trafficDistribution                 unknown one means "no hints"
//! 5 the namespace's default
//! 6 the controller's default
//! ```
//!
//! `topology-mode: Disabled` turns Auto off and keeps the two defaults away, but not the field: kube-controller-manager
//! obeys the field beside it and gives no hints without it, and a Service that uses only settings of Kubernetes gets what
//! Kubernetes gives.

use model::{Name, Service, annotation};

use super::levels::{Level, combine};
use super::mechanism::Mechanism;
use super::reason;
use crate::gates::FeatureGates;

/// What holds for Services that say nothing themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    /// The namespace's annotation `zoneward.dev/default-traffic-distribution`.
    pub namespace: Option<Name>,
    /// The controller's flag `--default-traffic-distribution`.
    pub cluster: Option<Name>,
}

/// Whose setting a mechanism comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The Service itself.
    #[default]
    Service,
    /// The namespace's default.
    Namespace,
    /// The controller's default.
    Controller,
}

impl Origin {
    /// All of them, in the order of their numbers.
    pub(super) const ALL: [Self; 3] = [Self::Service, Self::Namespace, Self::Controller];

    /// The value of `zoneward.dev/mechanism-source`; none for the Service itself.
    pub fn annotation(self) -> Option<&'static str> {
        match self {
            Self::Service => None,
            Self::Namespace => Some("namespace"),
            Self::Controller => Some("controller"),
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The mechanism; one that may rest is given as if it were at work.
    pub mechanism: Mechanism,
    /// The setting that decided, as `spec.trafficDistribution: PreferSameZone`; none if nothing is set.
    pub source: Option<String>,
    /// Whose setting that is.
    pub origin: Origin,
    /// Why nothing could be accepted, where a setting of the Service was refused and none decides in its place.
    pub accepted: Result<(), String>,
    /// A setting of the Service that was refused while another one decides.
    pub refused: Option<String>,
    /// From how many endpoints on Prefer starts, if the Service says so.
    pub starting_threshold: Option<usize>,
    /// What there is to say: reason and message.
    pub remarks: Vec<(&'static str, String)>,
}

/// What one setting says.
enum Answer {
    /// It is not set, or does not count.
    Silent,
    /// This one; `None` if it says that there shall be none.
    Decided(Mechanism, String),
    /// It is set to a value that cannot be obeyed, and no later setting may stand in for it.
    Refused(String),
}

const KNOWN: &str = "PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose";
const KNOWN_TO_US: &str = "Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other \
    mechanisms of docs/guide/choosing.md, and Balanced for none";
const LEVELS: [&str; 3] = [annotation::SAME_NODE, annotation::SAME_ZONE, annotation::SAME_REGION];

/// The annotation that may turn Auto on: the older key masks the newer one (semantics A1, rule 1).
fn topology_annotation(service: &Service) -> Option<(&'static str, &Name)> {
    let keys = [annotation::TOPOLOGY_AWARE_HINTS, annotation::TOPOLOGY_MODE];
    keys.into_iter().find_map(|key| Some((key, service.annotation(key)?)))
}

/// Whether a Service's annotation turns Auto on.
pub fn is_auto(service: &Service) -> bool {
    topology_annotation(service).is_some_and(|(_, value)| matches!(value.as_str(), "Auto" | "auto"))
}

/// Finds the mechanism of a Service.
pub fn choose(service: &Service, defaults: &Defaults, gates: &FeatureGates) -> Choice {
    let mut search = Search { service, gates, remarks: Vec::new(), refused: None, takes_defaults: true };
    type Ask<'a> = &'a dyn Fn(&mut Search) -> Answer;
    let settings: [(Origin, Ask); 6] = [
        (Origin::Service, &|s| s.own_annotation()),
        (Origin::Service, &|s| s.levels()),
        (Origin::Service, &|s| s.topology_annotation()),
        (Origin::Service, &|s| s.field()),
        (Origin::Namespace, &|s| s.default("the namespace's default", defaults.namespace.as_ref())),
        (Origin::Controller, &|s| s.default("the controller's default", defaults.cluster.as_ref())),
    ];
    for (rank, (origin, ask)) in settings.iter().enumerate() {
        match ask(&mut search) {
            Answer::Silent => {}
            Answer::Refused(source) => return search.refused(Some(source)),
            Answer::Decided(mechanism, source) => {
                search.remark_ignored(rank, &source);
                return search.decided(mechanism, *origin, source);
            }
        }
    }
    search.refused(None)
}

struct Search<'s> {
    service: &'s Service,
    gates: &'s FeatureGates,
    remarks: Vec<(&'static str, String)>,
    refused: Option<String>,
    /// Whether a default may stand in where the Service decides nothing.
    takes_defaults: bool,
}

/// The words that end the search.
fn is_off(value: &str) -> bool {
    matches!(value, "Balanced" | "None" | "Disabled" | "disabled")
}

fn gate_off(source: &str, gate: &str) -> String {
    format!(
        "{source} is ignored and its hints are removed: the feature gate {gate} is off. Switch it on with \
         --feature-gates={gate}=true."
    )
}

impl<'s> Search<'s> {
    fn set(&self, key: &str) -> Option<&'s Name> {
        self.service.annotation(key).filter(|value| !value.is_empty())
    }

    fn refuse(&mut self, reason: &'static str, message: String) {
        self.refused.get_or_insert_with(|| message.clone());
        self.remarks.push((reason, message));
    }

    fn own_annotation(&mut self) -> Answer {
        let key = annotation::TRAFFIC_DISTRIBUTION;
        let Some(value) = self.set(key) else { return Answer::Silent };
        self.named(format!("{key}: {value}"), value, false)
    }

    fn default(&mut self, whose: &str, value: Option<&Name>) -> Answer {
        let value = value.filter(|v| self.takes_defaults && !v.is_empty());
        let Some(value) = value else { return Answer::Silent };
        self.named(format!("{whose}: {value}"), value, true)
    }

    /// A mechanism by its name, wherever we define the names. A default stands in for the field, so the field's gate
    /// counts for the field's values; the Service itself is not to blame for a default.
    fn named(&mut self, source: String, value: &Name, is_default: bool) -> Answer {
        let mechanism = match value.as_str() {
            off if is_off(off) => Some(Mechanism::None),
            "auto" => Some(Mechanism::Auto),
            "PreferClose" => Some(Mechanism::PreferSameZone),
            "zoneward.dev/Spill" => Some(Mechanism::Spill),
            name => Mechanism::parse(name).filter(|m| !m.is_resting()),
        };
        let Some(mechanism) = mechanism else {
            let message =
                format!("{source} is ignored: no mechanism has that name. Known are {KNOWN_TO_US}.");
            match is_default {
                true => self.remarks.push((reason::INVALID_VALUE, message)),
                false => self.refuse(reason::INVALID_VALUE, message),
            }
            return Answer::Silent;
        };
        if let Some(gate) = self.closed_gate(mechanism, value, is_default) {
            match is_default {
                true => self.remarks.push((reason::GATE_OFF, gate_off(&source, gate))),
                false => self.refuse_gate(&source, gate),
            }
            return Answer::Silent;
        }
        self.remark_deprecated(&source, value);
        Answer::Decided(mechanism, source)
    }

    fn closed_gate(&self, mechanism: Mechanism, value: &str, is_field: bool) -> Option<&'static str> {
        let of_field = matches!(mechanism, Mechanism::PreferSameZone | Mechanism::PreferSameNode);
        if mechanism == Mechanism::Auto && !self.gates.topology_aware_hints {
            return Some("TopologyAwareHints");
        }
        if of_field && is_field && !self.gates.service_traffic_distribution {
            return Some("ServiceTrafficDistribution");
        }
        // Semantics A1: PreferClose is older than that gate and works without it.
        let closed = of_field && value != "PreferClose" && !self.gates.prefer_same_traffic_distribution;
        closed.then_some("PreferSameTrafficDistribution")
    }

    fn refuse_gate(&mut self, source: &str, gate: &str) {
        self.refuse(reason::GATE_OFF, gate_off(source, gate));
    }

    fn remark_deprecated(&mut self, source: &str, value: &str) {
        if value == "PreferClose" {
            self.remarks.push((
                reason::DEPRECATED_VALUE,
                format!(
                    "{source} works as PreferSameZone does, but is its deprecated name. Write PreferSameZone."
                ),
            ));
        }
    }

    /// Seed 003: Balanced, Require or Prefer per level. A value that is none of these counts as not set, so that the
    /// search goes on (docs/differences.md).
    fn levels(&mut self) -> Answer {
        let mut levels = [Level::Balanced; 3];
        let mut sources = Vec::new();
        for (level, key) in levels.iter_mut().zip(LEVELS) {
            let Some(value) = self.set(key) else { continue };
            match Level::parse(value) {
                Some(known) => {
                    *level = known;
                    sources.push(format!("{key}: {value}"));
                }
                None => self.refuse(
                    reason::INVALID_VALUE,
                    format!(
                        "{key}: {value} is ignored, as if it were not set, so the settings after it decide. Write \
                         Balanced, Prefer or Require."
                    ),
                ),
            }
        }
        let [node, zone, region] = levels;
        if sources.is_empty() {
            Answer::Silent
        } else {
            Answer::Decided(combine(node, zone, region), sources.join(", "))
        }
    }

    /// Semantics A1, rule 1: the older key masks the newer one, even with a value that says nothing.
    fn topology_annotation(&mut self) -> Answer {
        let Some((key, value)) = topology_annotation(self.service) else { return Answer::Silent };
        let source = format!("{key}: {value}");
        match value.as_str() {
            "Auto" | "auto" if self.gates.topology_aware_hints => Answer::Decided(Mechanism::Auto, source),
            "Auto" | "auto" => {
                self.refuse_gate(&source, "TopologyAwareHints");
                Answer::Silent
            }
            "Disabled" | "disabled" => {
                self.takes_defaults = false;
                Answer::Silent
            }
            _ => {
                let masks =
                    key == annotation::TOPOLOGY_AWARE_HINTS && self.set(annotation::TOPOLOGY_MODE).is_some();
                let masked = if masks { ", and hides topology-mode beside it" } else { "" };
                self.refuse(
                    reason::INVALID_VALUE,
                    format!("{source} is ignored{masked}. Write Auto or Disabled, in exactly these letters."),
                );
                Answer::Silent
            }
        }
    }

    fn field(&mut self) -> Answer {
        let Some(value) = &self.service.traffic_distribution else { return Answer::Silent };
        let source = format!("spec.trafficDistribution: {value}");
        if !self.gates.service_traffic_distribution {
            self.refuse_gate(&source, "ServiceTrafficDistribution");
            return Answer::Silent;
        }
        let mechanism = match value.as_str() {
            off if is_off(off) => Mechanism::None,
            "PreferSameZone" | "PreferClose" => Mechanism::PreferSameZone,
            "PreferSameNode" => Mechanism::PreferSameNode,
            "zoneward.dev/Spill" => Mechanism::Spill,
            _ => return self.unknown_field(source, value),
        };
        if let Some(gate) = self.closed_gate(mechanism, value, true) {
            self.refuse_gate(&source, gate);
            return Answer::Refused(source);
        }
        self.remark_deprecated(&source, value);
        Answer::Decided(mechanism, source)
    }

    /// KEP-4444: `<domain>/<heuristicName>` belongs to that domain's implementation. Either way there are no hints.
    fn unknown_field(&mut self, source: String, value: &str) -> Answer {
        let whose = match value.split_once('/') {
            Some((domain, _)) => format!("only the implementation of {domain} could know it"),
            None => "it is not a value that we know".to_owned(),
        };
        self.refuse(
            reason::INVALID_VALUE,
            format!("{source} gives no hints, so traffic spreads evenly: {whose}. Known are {KNOWN}."),
        );
        Answer::Refused(source)
    }

    /// Settings of the Service that come after the one that decided.
    fn remark_ignored(&mut self, rank: usize, source: &str) {
        let topology = [annotation::TOPOLOGY_AWARE_HINTS, annotation::TOPOLOGY_MODE];
        let mut keys: Vec<&str> = Vec::new();
        if rank < 1 {
            keys.extend(LEVELS);
        }
        if rank < 2 {
            keys.extend(topology);
        }
        let shown = |key: &&str| Some(format!("{key}: {}", self.set(key)?));
        let mut later: Vec<String> = keys.iter().filter_map(shown).collect();
        if let Some(value) = self.service.traffic_distribution.as_ref().filter(|_| rank < 3) {
            later.push(format!("spec.trafficDistribution: {value}"));
        }
        if !later.is_empty() {
            let verb = if later.len() > 1 { "are" } else { "is" };
            let later = later.join(", ");
            self.remarks.push((
                reason::SETTING_IGNORED,
                format!("{later} {verb} ignored, because {source} comes first. Remove what you do not mean."),
            ));
        }
    }

    fn decided(mut self, mechanism: Mechanism, origin: Origin, source: String) -> Choice {
        let starting_threshold = self.starting_threshold(mechanism);
        Choice {
            mechanism,
            source: Some(source),
            origin,
            accepted: Ok(()),
            refused: self.refused,
            starting_threshold,
            remarks: self.remarks,
        }
    }

    /// No setting decides; if one was refused, that is why.
    fn refused(mut self, source: Option<String>) -> Choice {
        self.starting_threshold(Mechanism::None);
        Choice {
            mechanism: Mechanism::None,
            source,
            origin: Origin::Service,
            accepted: self.refused.map_or(Ok(()), Err),
            refused: None,
            starting_threshold: None,
            remarks: self.remarks,
        }
    }

    /// Seed 003, "Invalid starting threshold": the default holds, and Prefer starts as usual.
    fn starting_threshold(&mut self, mechanism: Mechanism) -> Option<usize> {
        let key = annotation::SAME_ZONE_STARTING_THRESHOLD;
        let value = self.set(key)?;
        if !mechanism.rebalances() {
            let message = format!("{key}: {value} has no effect: it only counts with same-zone: Prefer.");
            self.remarks.push((reason::SETTING_IGNORED, message));
            return None;
        }
        let threshold = value.parse::<u32>().ok().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        if threshold.is_none() {
            let message = format!(
                "{key}: {value} is no whole number from 1 on, so three times the number of zones holds."
            );
            self.refuse(reason::INVALID_VALUE, message);
        }
        threshold
    }
}
