//! The traffic distribution of a Service: its mechanism, and the hints of its endpoints.
//!
//! ```text
//! Service, defaults, gates -> traffic_distribution -\
//! Nodes -> topology (shared by all Services) --------> one mechanism -> write_hints -> slices with hints and annotations
//! Packing -> endpoints_by_zone ---------------------/   auto | prefer_same | same_zone::{prefer, require} | spill
//! hysteresis in -----------------------------------/        \-> Notices, hysteresis out -> conditions
//! ```
//!
//! [`mechanism`] lists the mechanisms and [`traffic_distribution`] decides precedence; each mechanism is a module that starts
//! with its rule. Every decision becomes a Notice with the numbers behind it.

mod auto;
pub mod conditions;
mod endpoints_by_zone;
pub mod event_reason;
mod expected_load;
mod hysteresis;
pub mod mechanism;
mod message;
mod prefer_same;
pub mod same_zone;
mod spill;
pub mod topology;
pub mod traffic_distribution;
mod write_hints;

use model::{ClusterIps, Family, Name, Notice, ObjectRef, Service, annotation};

pub use conditions::{Condition, NodeAcks, conditions};
pub use hysteresis::Hysteresis;
pub use mechanism::{Mechanism, TopologyScope};
pub use topology::{ClusterTopology, ZoneWeight};
pub use traffic_distribution::{MechanismChoice, SettingOrigin, TrafficDistributionDefaults, choose};

use crate::config::PlanningConfig;
use crate::slices::Packing;
use crate::spill::{ProvedLoad, SpillDemand, SpillDemandMode};
use endpoints_by_zone::EndpointsByZone;
use hysteresis::ReportedNotices;
use message::count;
use write_hints::{DesiredHints, SliceAnnotations, UnreadyHints, write_hints};

/// The input for one Service and one address family.
#[derive(Clone, Copy, Debug)]
pub struct HintInput<'a> {
    pub service: &'a Service,
    pub family: Family,
    pub topology: &'a ClusterTopology,
    /// The namespace's `zoneward.dev/default-traffic-distribution`.
    pub namespace_default: Option<&'a Name>,
    pub config: &'a PlanningConfig,
    /// From the last outcome, or from [`Hysteresis::from_slices`].
    pub hysteresis: &'a Hysteresis,
    /// Whether Notices are wanted; simulations use only the hints.
    pub with_notices: bool,
}

/// The decision about a Service's hints, besides the hints themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintOutcome {
    /// The mechanism in the slices' annotation.
    pub mechanism: Mechanism,
    pub family: Family,
    /// The setting that decided; empty if nothing is set.
    pub source: String,
    /// Whether the Service or a default has a setting, valid or not.
    pub requested: bool,
    pub notices: Vec<Notice>,
    pub hysteresis: Hysteresis,
    /// Whether the slices express the requested mechanism.
    pub programmed: bool,
    /// Why they do not: the condition's reason, and a sentence without numbers.
    pub held_back: Option<(&'static str, &'static str)>,
    /// How consumers that read only hints deviate, as a sentence.
    pub caveat: Option<&'static str>,
    /// Why no setting was accepted.
    pub accepted: Result<(), String>,
    /// A setting that was refused while another one decides, and why.
    pub refused: Option<String>,
    /// Why Zoneward's nodes do not proxy the Service.
    pub not_proxied: Option<&'static str>,
    /// Whether the Service is headless, so that no other proxy serves it either.
    pub headless: bool,
    /// A valid setting of the Service that another one overrides, as a sentence.
    pub overridden: Option<String>,
    /// Whether each Notice is new.
    fresh: Vec<bool>,
}

/// Safeguards that hold a mechanism back: the reasons of condition Programmed and of the controller's metric.
pub const SAFEGUARDS: [&str; 8] = [
    "EndpointWithoutZone",
    "FewerEndpointsThanZones",
    "InsufficientNodeInformation",
    "NoZones",
    "OneZoneOnly",
    "OverloadUnavoidable",
    "TooFewEndpoints",
    "TooManyZones",
];

impl HintOutcome {
    /// The annotation `zoneward.dev/demand` of Spill.
    pub fn demand(&self) -> Option<String> {
        self.hysteresis.demand.as_ref().map(SpillDemand::to_string)
    }

    /// The Notices that are new since the hysteresis in the input: each becomes an Event.
    pub fn news(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().zip(&self.fresh).filter(|(_, fresh)| **fresh).map(|(notice, _)| notice)
    }
}

/// Decides the hints of a Service's slices and writes them.
///
/// A slice that already has the right hints stays in `unchanged`; others move to `updates`. Slices without hints and without
/// our annotations, of a Service without a mechanism, are not touched.
pub fn assign<'a>(input: &HintInput<'_>, packing: &mut Packing<'a>) -> HintOutcome {
    assign_chosen(input, input.config.choose(input.service, input.namespace_default), packing)
}

/// Like [`assign`], for a mechanism that is already chosen.
pub fn assign_chosen<'a>(
    input: &HintInput<'_>,
    mut choice: MechanismChoice,
    packing: &mut Packing<'a>,
) -> HintOutcome {
    let mut context = HintContext {
        mechanism: choice.mechanism,
        source: choice.source.clone().unwrap_or_default(),
        origin: choice.origin,
        starting_threshold: choice.starting_threshold,
        family: input.family,
        topology: input.topology,
        config: input.config,
        demand_mode: input.config.spill_demand,
        hysteresis: input.hysteresis,
        with_notices: input.with_notices,
        endpoints: match choice.mechanism {
            Mechanism::None => EndpointsByZone::empty(input.topology),
            _ => EndpointsByZone::new(input.topology, packing),
        },
        notices: std::mem::take(&mut choice.notices),
    };
    if input.hysteresis.mechanism == Mechanism::Auto
        && input.hysteresis.programmed
        && choice.mechanism != Mechanism::Auto
    {
        auto::report_switched_off(&mut context);
    }
    if let Some(text) = input.service.annotations.value(annotation::SPILL_DEMAND) {
        context.read_demand_mode(text);
    }
    let applied = apply(&mut context, packing);
    let programmed = applied.mechanism != Mechanism::None && applied.held_back.is_none();
    if programmed && is_headless(input.service) {
        context.report_headless();
    }
    outcome(input, context, applied, choice, packing)
}

fn apply(context: &mut HintContext<'_>, packing: &mut Packing<'_>) -> MechanismOutcome {
    match context.mechanism {
        Mechanism::None => {
            clear(context, packing, Mechanism::None);
            context.report_ended();
            MechanismOutcome::programmed(Mechanism::None)
        }
        Mechanism::Auto => auto::apply(context, packing),
        Mechanism::PreferSameZone | Mechanism::PreferSameNode => prefer_same::apply(context, packing),
        Mechanism::Spill => spill::apply(context, packing),
        mechanism if mechanism.rebalances() => same_zone::prefer::apply(context, packing),
        _ => same_zone::require::apply(context, packing),
    }
}

fn outcome(
    input: &HintInput<'_>,
    context: HintContext<'_>,
    applied: MechanismOutcome,
    choice: MechanismChoice,
    packing: &Packing<'_>,
) -> HintOutcome {
    let requested = choice.source.is_some() || choice.accepted.is_err();
    let reported = ReportedNotices::new(&context, applied.held_back.map(|(reason, _)| reason));
    let hysteresis = Hysteresis::after(applied.mechanism, applied.demand, applied.proved, reported, packing);
    let news = |(reason, message): &(&str, String)| hysteresis.is_news(input.hysteresis, reason, message);
    let fresh = context.notices.iter().map(news).collect();
    let ignored = context.notices.iter().find(|(reason, _)| *reason == event_reason::SETTING_IGNORED);
    let overridden = ignored.map(|(_, message)| message.clone());
    let object = (!context.notices.is_empty()).then(|| ObjectRef::service(&input.service.key));
    let notice = |(reason, message)| Some(Notice::new(object.clone()?, reason, message));
    HintOutcome {
        mechanism: applied.mechanism,
        family: input.family,
        source: context.source,
        requested,
        programmed: applied.mechanism != Mechanism::None && applied.held_back.is_none(),
        held_back: applied.held_back,
        caveat: applied.caveat,
        accepted: choice.accepted,
        refused: choice.refused,
        not_proxied: crate::select::not_proxied(input.service),
        headless: is_headless(input.service),
        overridden,
        fresh,
        notices: context.notices.into_iter().filter_map(notice).collect(),
        hysteresis,
    }
}

/// Whether its cluster IP is `None`; a Service from a file may just not have one yet.
fn is_headless(service: &Service) -> bool {
    service.cluster_ips == ClusterIps::None
}

/// What a mechanism works on: one Service and family, with the Notices so far.
#[derive(Debug)]
struct HintContext<'t> {
    /// The requested mechanism.
    mechanism: Mechanism,
    /// The setting that requests it.
    source: String,
    origin: SettingOrigin,
    starting_threshold: Option<usize>,
    family: Family,
    topology: &'t ClusterTopology,
    config: &'t PlanningConfig,
    /// Where the demand of Spill comes from, if that is known.
    demand_mode: Option<SpillDemandMode>,
    hysteresis: &'t Hysteresis,
    with_notices: bool,
    endpoints: EndpointsByZone<'t>,
    notices: Vec<(&'static str, String)>,
}

impl HintContext<'_> {
    fn report(&mut self, reason: &'static str, message: String) {
        self.notices.push((reason, message));
    }

    /// The Service's own source of the demand.
    fn read_demand_mode(&mut self, text: &str) {
        match text.parse() {
            Ok(mode) => self.demand_mode = Some(mode),
            Err(why) if self.reports_notices() => {
                let message = format!("{} is ignored: {why}.", annotation::SPILL_DEMAND);
                self.report(event_reason::INVALID_VALUE, message);
            }
            Err(_) => {}
        }
    }

    fn reports_notices(&self) -> bool {
        self.with_notices
    }

    /// A mechanism ended. Auto has upstream's own message for that.
    fn report_ended(&mut self) {
        let before = self.hysteresis.mechanism;
        if !self.reports_notices() || matches!(before, Mechanism::None | Mechanism::Auto) {
            return;
        }
        let why = match self.source.as_str() {
            "" => "no setting requests it any more".to_owned(),
            source => format!("{source} decides now"),
        };
        let message =
            format!("{} ended, traffic is spread evenly over all endpoints: {why}.", before.as_str());
        self.report(event_reason::ENDED, message);
    }

    /// Clients of a headless Service choose an endpoint themselves: replaces the Notices about where traffic goes.
    fn report_headless(&mut self) {
        let about_traffic = [event_reason::PROGRAMMED, event_reason::OVERLOAD, event_reason::UNREACHABLE];
        self.notices.retain(|(reason, _)| !about_traffic.contains(reason));
        if self.reports_notices() {
            let message = format!(
                "{}: the Service is headless, so hints have an effect only where Zoneward serves DNS (--dns): other DNS \
                 servers give clients the addresses of all endpoints. Give the Service a cluster IP.",
                self.source
            );
            self.report(event_reason::NOT_PROXIED, message);
        }
    }

    fn report_endpoints_without_zone(&mut self, consequence: &str) {
        let Some(first) = &self.endpoints.first_without_zone else { return };
        let message = format!(
            "Without a zone: {}, the first is {first}, {consequence}. Add the label topology.kubernetes.io/zone to its node.",
            count(self.endpoints.without_zone, "ready endpoint")
        );
        self.report(event_reason::TOPOLOGY_UNKNOWN, message);
    }

    /// Hints are set as upstream sets them, but consumers ignore them (semantics C1).
    fn report_unusable(&mut self) {
        let first = self.endpoints.first_without_zone.as_deref().unwrap_or_default();
        let message = format!(
            "{}: traffic is spread evenly, because consumers ignore all hints of a Service if one is missing. Without a \
             zone: {}, the first is {first}. Add the label topology.kubernetes.io/zone to its node.",
            self.source,
            count(self.endpoints.without_zone, "ready endpoint"),
        );
        self.report(event_reason::WITHHELD, message);
        self.report_nodes_without_zone();
    }

    fn report_nodes_without_zone(&mut self) {
        let Some((nodes, first)) = self.topology.nodes_without_zone() else { return };
        let message = format!(
            "Without a zone: {}, the first is {first}, so its traffic goes to all endpoints. Add the label \
             topology.kubernetes.io/zone to it.",
            count(nodes, "ready node")
        );
        self.report(event_reason::TOPOLOGY_UNKNOWN, message);
    }
}

#[derive(Debug)]
struct MechanismOutcome {
    mechanism: Mechanism,
    demand: Option<SpillDemand>,
    proved: Option<ProvedLoad>,
    held_back: Option<(&'static str, &'static str)>,
    caveat: Option<&'static str>,
}

impl MechanismOutcome {
    fn programmed(mechanism: Mechanism) -> Self {
        Self { mechanism, demand: None, proved: None, held_back: None, caveat: None }
    }

    /// Hints are set, but one is missing, so consumers ignore all of them.
    fn unusable(mechanism: Mechanism) -> Self {
        let sentence = "A ready endpoint has no zone, so consumers ignore all hints of the Service.";
        Self::held_back(mechanism, "EndpointWithoutZone", sentence)
    }

    fn held_back(mechanism: Mechanism, reason: &'static str, sentence: &'static str) -> Self {
        debug_assert!(SAFEGUARDS.contains(&reason), "{reason} is missing in SAFEGUARDS");
        Self { held_back: Some((reason, sentence)), ..Self::programmed(mechanism) }
    }
}

/// Removes all hints (semantics A1, rule 4).
fn clear(context: &HintContext<'_>, packing: &mut Packing<'_>, mechanism: Mechanism) {
    write_hints(
        packing,
        context.topology,
        &SliceAnnotations::new(context, mechanism),
        UnreadyHints::Cleared,
        |_, _| DesiredHints::Nothing,
    );
}
