//! The mechanism that a Service's settings select: precedence is decided here.
//!
//! ```text
//! 1 zoneward.dev/traffic-distribution        Balanced, None or Disabled in our annotation ends the search.
//! 2 same-node | same-zone | same-region      An unknown value becomes a Notice and the search continues, except
//! 3 topology-aware-hints, else topology-mode for the field: its value may be for another implementation, so an
//! 4 spec.trafficDistribution                 unknown one means "no hints".
//! 5 the namespace's default
//! 6 the controller's default
//! ```
//!
//! `topology-mode: Disabled` disables Auto and both defaults, but not the field, as in kube-controller-manager: a Service
//! that has only settings of Kubernetes gets what Kubernetes gives.

use model::{Name, Service, annotation};

use super::event_reason;
use super::mechanism::Mechanism;
use super::same_zone::{TopologyLevel, combine};
use crate::feature_gates::FeatureGates;

/// The defaults for Services without a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficDistributionDefaults {
    /// The namespace's annotation `zoneward.dev/default-traffic-distribution`.
    pub namespace: Option<Name>,
    /// The controller's flag `--default-traffic-distribution`.
    pub cluster: Option<Name>,
}

/// Where the setting that decides comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettingOrigin {
    #[default]
    Service,
    /// The namespace's default.
    Namespace,
    /// The controller's default.
    Controller,
}

impl SettingOrigin {
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

/// The selected mechanism.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MechanismChoice {
    /// In its active form.
    pub mechanism: Mechanism,
    /// The setting that decided, e.g. `spec.trafficDistribution: PreferSameZone`; none if nothing is set.
    pub source: Option<String>,
    pub origin: SettingOrigin,
    /// Why a setting of the Service was refused, if no other one decides.
    pub accepted: Result<(), String>,
    /// Why a setting of the Service was refused, if another one decides.
    pub refused: Option<String>,
    /// The Service's starting threshold for `same-zone: Prefer`.
    pub starting_threshold: Option<usize>,
    /// Reasons and messages.
    pub notices: Vec<(&'static str, String)>,
}

/// The value of one setting.
enum SettingValue {
    /// Not set, or without effect.
    Unset,
    /// A mechanism and its source; `None` disables hints.
    Decided(Mechanism, String),
    /// An unsupported value that ends the search.
    Refused(String),
}

const SUPPORTED: &str = "PreferSameZone, PreferSameNode, zoneward.dev/Spill and PreferClose";
const SUPPORTED_BY_US: &str = "Spill, Auto, PreferSameZone, PreferSameNode, PreferZone, RequireZone and the other \
    mechanisms of docs/guide/choosing.md, and Balanced for none";
const LEVELS: [&str; 3] = [annotation::SAME_NODE, annotation::SAME_ZONE, annotation::SAME_REGION];

/// The annotation that may enable Auto: the older key masks the newer one (semantics A1, rule 1).
fn topology_annotation(service: &Service) -> Option<(&'static str, &Name)> {
    let keys = [annotation::TOPOLOGY_AWARE_HINTS, annotation::TOPOLOGY_MODE];
    keys.into_iter().find_map(|key| Some((key, service.annotation(key)?)))
}

/// Whether a Service's annotation enables Auto.
pub fn is_auto(service: &Service) -> bool {
    topology_annotation(service).is_some_and(|(_, value)| matches!(value.as_str(), "Auto" | "auto"))
}

/// Selects the mechanism of a Service.
pub fn choose(
    service: &Service,
    defaults: &TrafficDistributionDefaults,
    gates: &FeatureGates,
) -> MechanismChoice {
    let mut search =
        SettingSearch { service, gates, notices: Vec::new(), refused: None, takes_defaults: true };
    type ReadSetting<'a> = &'a dyn Fn(&mut SettingSearch) -> SettingValue;
    let settings: [(SettingOrigin, ReadSetting); 6] = [
        (SettingOrigin::Service, &|s| s.own_annotation()),
        (SettingOrigin::Service, &|s| s.levels()),
        (SettingOrigin::Service, &|s| s.topology_annotation()),
        (SettingOrigin::Service, &|s| s.field()),
        (SettingOrigin::Namespace, &|s| s.default("the namespace's default", defaults.namespace.as_ref())),
        (SettingOrigin::Controller, &|s| s.default("the controller's default", defaults.cluster.as_ref())),
    ];
    for (rank, (origin, read)) in settings.iter().enumerate() {
        match read(&mut search) {
            SettingValue::Unset => {}
            SettingValue::Refused(source) => return search.refused(Some(source)),
            SettingValue::Decided(mechanism, source) => {
                search.report_ignored(rank, &source);
                return search.decided(mechanism, *origin, source);
            }
        }
    }
    search.refused(None)
}

struct SettingSearch<'s> {
    service: &'s Service,
    gates: &'s FeatureGates,
    notices: Vec<(&'static str, String)>,
    refused: Option<String>,
    /// Whether defaults apply if the Service decides nothing.
    takes_defaults: bool,
}

/// The values that end the search.
fn is_off(value: &str) -> bool {
    matches!(value, "Balanced" | "None" | "Disabled" | "disabled")
}

fn gate_off(source: &str, gate: &str) -> String {
    format!(
        "{source} is ignored and its hints are removed: the feature gate {gate} is off. Enable it with \
         --feature-gates={gate}=true."
    )
}

impl<'s> SettingSearch<'s> {
    fn set(&self, key: &str) -> Option<&'s Name> {
        self.service.annotation(key).filter(|value| !value.is_empty())
    }

    fn refuse(&mut self, reason: &'static str, message: String) {
        self.refused.get_or_insert_with(|| message.clone());
        self.notices.push((reason, message));
    }

    fn own_annotation(&mut self) -> SettingValue {
        let key = annotation::TRAFFIC_DISTRIBUTION;
        let Some(value) = self.set(key) else { return SettingValue::Unset };
        self.named(format!("{key}: {value}"), value, false)
    }

    fn default(&mut self, whose: &str, value: Option<&Name>) -> SettingValue {
        let value = value.filter(|v| self.takes_defaults && !v.is_empty());
        let Some(value) = value else { return SettingValue::Unset };
        self.named(format!("{whose}: {value}"), value, true)
    }

    /// A mechanism by name, in our annotation or a default. A default replaces the field, so the field's gates apply to it; a
    /// wrong default is not the Service's fault and does not affect its Accepted condition.
    fn named(&mut self, source: String, value: &Name, is_default: bool) -> SettingValue {
        let mechanism = match value.as_str() {
            off if is_off(off) => Some(Mechanism::None),
            "auto" => Some(Mechanism::Auto),
            "PreferClose" => Some(Mechanism::PreferSameZone),
            "zoneward.dev/Spill" => Some(Mechanism::Spill),
            name => Mechanism::parse(name).filter(|m| !m.is_resting()),
        };
        let Some(mechanism) = mechanism else {
            let message = format!("{source} is ignored: unknown mechanism. Supported are {SUPPORTED_BY_US}.");
            match is_default {
                true => self.notices.push((event_reason::INVALID_VALUE, message)),
                false => self.refuse(event_reason::INVALID_VALUE, message),
            }
            return SettingValue::Unset;
        };
        if let Some(gate) = self.closed_gate(mechanism, value, is_default) {
            match is_default {
                true => self.notices.push((event_reason::GATE_OFF, gate_off(&source, gate))),
                false => self.refuse_gate(&source, gate),
            }
            return SettingValue::Unset;
        }
        self.report_deprecated(&source, value);
        SettingValue::Decided(mechanism, source)
    }

    fn closed_gate(&self, mechanism: Mechanism, value: &str, is_field: bool) -> Option<&'static str> {
        let of_field = matches!(mechanism, Mechanism::PreferSameZone | Mechanism::PreferSameNode);
        if mechanism == Mechanism::Auto && !self.gates.topology_aware_hints {
            return Some("TopologyAwareHints");
        }
        if of_field && is_field && !self.gates.service_traffic_distribution {
            return Some("ServiceTrafficDistribution");
        }
        // Semantics A1: PreferClose predates that gate and works without it.
        let closed = of_field && value != "PreferClose" && !self.gates.prefer_same_traffic_distribution;
        closed.then_some("PreferSameTrafficDistribution")
    }

    fn refuse_gate(&mut self, source: &str, gate: &str) {
        self.refuse(event_reason::GATE_OFF, gate_off(source, gate));
    }

    fn report_deprecated(&mut self, source: &str, value: &str) {
        if value == "PreferClose" {
            self.notices.push((
                event_reason::DEPRECATED_VALUE,
                format!(
                    "{source} works, but PreferClose is the deprecated name of PreferSameZone. Use PreferSameZone."
                ),
            ));
        }
    }

    /// Seed 003: Balanced, Require or Prefer per level. Any other value counts as not set, so that the search continues
    /// (docs/differences.md).
    fn levels(&mut self) -> SettingValue {
        let mut levels = [TopologyLevel::Balanced; 3];
        let mut sources = Vec::new();
        for (level, key) in levels.iter_mut().zip(LEVELS) {
            let Some(value) = self.set(key) else { continue };
            match TopologyLevel::parse(value) {
                Some(known) => {
                    *level = known;
                    sources.push(format!("{key}: {value}"));
                }
                None => self.refuse(
                    event_reason::INVALID_VALUE,
                    format!(
                        "{key}: {value} is ignored as if not set, so settings of lower precedence decide. Use Balanced, \
                         Prefer or Require."
                    ),
                ),
            }
        }
        let [node, zone, region] = levels;
        if sources.is_empty() {
            SettingValue::Unset
        } else {
            SettingValue::Decided(combine(node, zone, region), sources.join(", "))
        }
    }

    /// Semantics A1, rule 1: the older key masks the newer one, even with an invalid value.
    fn topology_annotation(&mut self) -> SettingValue {
        let Some((key, value)) = topology_annotation(self.service) else { return SettingValue::Unset };
        let source = format!("{key}: {value}");
        match value.as_str() {
            "Auto" | "auto" if self.gates.topology_aware_hints => {
                SettingValue::Decided(Mechanism::Auto, source)
            }
            "Auto" | "auto" => {
                self.refuse_gate(&source, "TopologyAwareHints");
                SettingValue::Unset
            }
            "Disabled" | "disabled" => {
                self.takes_defaults = false;
                SettingValue::Unset
            }
            _ => {
                let masks =
                    key == annotation::TOPOLOGY_AWARE_HINTS && self.set(annotation::TOPOLOGY_MODE).is_some();
                let masked = if masks { " and hides topology-mode" } else { "" };
                self.refuse(
                    event_reason::INVALID_VALUE,
                    format!("{source} is ignored{masked}. Use Auto or Disabled, with this spelling."),
                );
                SettingValue::Unset
            }
        }
    }

    fn field(&mut self) -> SettingValue {
        let Some(value) = &self.service.traffic_distribution else { return SettingValue::Unset };
        let source = format!("spec.trafficDistribution: {value}");
        if !self.gates.service_traffic_distribution {
            self.refuse_gate(&source, "ServiceTrafficDistribution");
            return SettingValue::Unset;
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
            return SettingValue::Refused(source);
        }
        self.report_deprecated(&source, value);
        SettingValue::Decided(mechanism, source)
    }

    /// KEP-4444: `<domain>/<heuristicName>` is for that domain's implementation. Either way there are no hints.
    fn unknown_field(&mut self, source: String, value: &str) -> SettingValue {
        let whose = match value.split_once('/') {
            Some((domain, _)) => format!("it is for the implementation of {domain}"),
            None => "the value is not supported".to_owned(),
        };
        self.refuse(
            event_reason::INVALID_VALUE,
            format!(
                "{source} sets no hints, so traffic is spread evenly: {whose}. Supported are {SUPPORTED}."
            ),
        );
        SettingValue::Refused(source)
    }

    /// Settings of the Service with lower precedence than the one that decided.
    fn report_ignored(&mut self, rank: usize, source: &str) {
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
            self.notices.push((
                event_reason::SETTING_IGNORED,
                format!("{later} {verb} ignored: {source} has precedence. Remove the settings that you do not need."),
            ));
        }
    }

    fn decided(mut self, mechanism: Mechanism, origin: SettingOrigin, source: String) -> MechanismChoice {
        let starting_threshold = self.starting_threshold(mechanism);
        MechanismChoice {
            mechanism,
            source: Some(source),
            origin,
            accepted: Ok(()),
            refused: self.refused,
            starting_threshold,
            notices: self.notices,
        }
    }

    /// No setting decides, possibly because one was refused.
    fn refused(mut self, source: Option<String>) -> MechanismChoice {
        self.starting_threshold(Mechanism::None);
        MechanismChoice {
            mechanism: Mechanism::None,
            source,
            origin: SettingOrigin::Service,
            accepted: self.refused.map_or(Ok(()), Err),
            refused: None,
            starting_threshold: None,
            notices: self.notices,
        }
    }

    /// Seed 003, "Invalid starting threshold": the default applies.
    fn starting_threshold(&mut self, mechanism: Mechanism) -> Option<usize> {
        let key = annotation::SAME_ZONE_STARTING_THRESHOLD;
        let value = self.set(key)?;
        if !mechanism.rebalances() {
            let message = format!("{key}: {value} has no effect: it applies only to same-zone: Prefer.");
            self.notices.push((event_reason::SETTING_IGNORED, message));
            return None;
        }
        let threshold = value.parse::<u32>().ok().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        if threshold.is_none() {
            let message = format!(
                "{key}: {value} is not a positive whole number, so the default applies: three per zone."
            );
            self.refuse(event_reason::INVALID_VALUE, message);
        }
        threshold
    }
}
