//! Which mechanism holds for a Service, and the hints that its endpoints get from it.
//!
//! ```text
//! Service, defaults, gates -> choice ------\
//! Nodes -> facts (once) --------------------> one mechanism -> write -> slices with hints and annotations
//! Packing -> survey (endpoints by zone) ---/   auto | same | bound | prefer | spilling
//! memory in ------------------------------/        \-> Notices, memory out -> conditions
//! ```
//!
//! There is one list of mechanisms ([`mechanism`]) and one place for precedence ([`choice`]); each mechanism is a
//! module that starts with its rule. Each choice and each refusal is a Notice with the numbers that decided it.

mod auto;
mod bound;
pub mod choice;
pub mod conditions;
pub mod facts;
pub mod heap;
pub mod levels;
pub mod local;
pub mod mechanism;
mod memory;
mod overload;
mod prefer;
pub mod reason;
mod same;
mod spilling;
mod survey;
mod words;
mod write;

use model::{ClusterIps, Family, Name, Notice, ObjectRef, Service};

pub use choice::{Choice, Defaults, Origin, choose};
pub use conditions::{Condition, NodeAcks, Status, conditions};
pub use facts::{ClusterFacts, PreferBy};
pub use mechanism::{Mechanism, Scope};
pub use memory::Memory;

use crate::gates::FeatureGates;
use crate::slices::Packing;
use crate::spill::Demand;
use memory::Said;
use survey::Survey;
use words::count;
use write::{Tag, Unready, Wanted, write};

/// What holds for all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// What is switched on.
    pub gates: FeatureGates,
    /// What stands for a zone's traffic under `same-zone: Prefer`, and in warnings.
    pub prefer_by: PreferBy,
    /// The traffic distribution of Services that say none, in namespaces that say none.
    pub cluster_default: Option<Name>,
    /// Leaves Notices out, for those who try thousands of cases and look at the hints alone.
    pub without_notices: bool,
}

/// What is known when the hints of one Service and one address family are decided.
#[derive(Clone, Copy, Debug)]
pub struct HintInput<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The family of the slices.
    pub family: Family,
    /// The cluster.
    pub facts: &'a ClusterFacts,
    /// The namespace's `zoneward.dev/default-traffic-distribution`.
    pub namespace_default: Option<&'a Name>,
    /// What holds for all Services.
    pub config: &'a Config,
    /// The last outcome's memory, or what [`Memory::from_slices`] reads from the slices.
    pub memory: &'a Memory,
}

/// What was decided beside the hints themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HintOutcome {
    /// The mechanism that the slices name.
    pub mechanism: Mechanism,
    /// The family.
    pub family: Family,
    /// The setting that decided; empty if nothing is set.
    pub source: String,
    /// Whether anybody asked for a mechanism, on the Service or by a default, in words that we know or not.
    pub requested: bool,
    /// What there is to say, about the Service.
    pub notices: Vec<Notice>,
    /// What to remember.
    pub memory: Memory,
    /// Whether the slices say what was asked for.
    pub programmed: bool,
    /// Why they do not: a reason and a sentence without numbers.
    pub held_back: Option<(&'static str, &'static str)>,
    /// What consumers that know only hints do otherwise, as a sentence.
    pub caveat: Option<&'static str>,
    /// Why no setting could be accepted.
    pub accepted: Result<(), String>,
    /// Why a setting was refused beside the one that decides.
    pub refused: Option<String>,
    /// Why Zoneward's nodes do not send traffic to the Service.
    pub not_proxied: Option<&'static str>,
    /// Whether that is because the Service has no cluster IP, so that no other proxy does either.
    pub headless: bool,
    /// A known setting of the Service that another one overrides, as a sentence.
    pub overridden: Option<String>,
    /// Which of the Notices were not said before.
    fresh: Vec<bool>,
}

impl HintOutcome {
    /// `zoneward.dev/demand`, where Spill is at work.
    pub fn demand(&self) -> Option<String> {
        self.memory.demand.as_ref().map(Demand::to_string)
    }

    /// The Notices that are worth an Event: those that the memory going in did not know of.
    pub fn news(&self) -> impl Iterator<Item = &Notice> {
        self.notices.iter().zip(&self.fresh).filter(|(_, fresh)| **fresh).map(|(notice, _)| notice)
    }
}

/// Decides the hints of a Service's slices and puts them on.
///
/// A slice that says the right thing stays where it is; one that does not moves from `unchanged` to `updates`. A
/// Service that uses no mechanism, and whose slices carry neither hints nor our annotations, is left alone entirely.
pub fn assign<'a>(input: &HintInput<'_>, packing: &mut Packing<'a>) -> HintOutcome {
    let defaults = Defaults {
        namespace: input.namespace_default.cloned(),
        cluster: input.config.cluster_default.clone(),
    };
    assign_chosen(input, choose(input.service, &defaults, &input.config.gates), packing)
}

/// The same where the choice was made already.
pub fn assign_chosen<'a>(
    input: &HintInput<'_>,
    mut choice: Choice,
    packing: &mut Packing<'a>,
) -> HintOutcome {
    let mut task = Task {
        mechanism: choice.mechanism,
        source: choice.source.clone().unwrap_or_default(),
        origin: choice.origin,
        starting_threshold: choice.starting_threshold,
        family: input.family,
        facts: input.facts,
        config: input.config,
        memory: input.memory,
        survey: match choice.mechanism {
            Mechanism::None => Survey::empty(input.facts),
            _ => Survey::new(input.facts, packing),
        },
        said: std::mem::take(&mut choice.remarks),
    };
    if input.memory.mechanism == Mechanism::Auto
        && input.memory.programmed
        && choice.mechanism != Mechanism::Auto
    {
        auto::say_switched_off(&mut task);
    }
    let applied = apply(&mut task, packing);
    let programmed = applied.mechanism != Mechanism::None && applied.held_back.is_none();
    if programmed && is_headless(input.service) {
        task.promise_nothing();
    }
    outcome(input, task, applied, choice, packing)
}

fn apply(task: &mut Task<'_>, packing: &mut Packing<'_>) -> Applied {
    match task.mechanism {
        Mechanism::None => {
            clear(task, packing, Mechanism::None);
            task.say_ended();
            Applied::programmed(Mechanism::None)
        }
        Mechanism::Auto => auto::apply(task, packing),
        Mechanism::PreferSameZone | Mechanism::PreferSameNode => same::apply(task, packing),
        Mechanism::Spill => spilling::apply(task, packing),
        mechanism if mechanism.rebalances() => prefer::apply(task, packing),
        _ => bound::apply(task, packing),
    }
}

fn outcome(
    input: &HintInput<'_>,
    task: Task<'_>,
    applied: Applied,
    choice: Choice,
    packing: &Packing<'_>,
) -> HintOutcome {
    let requested = choice.source.is_some() || choice.accepted.is_err();
    let said = Said::new(&task, applied.held_back.map(|(word, _)| word));
    let memory = Memory::after(applied.mechanism, applied.demand, said, packing);
    let news = |(reason, message): &(&str, String)| memory.is_news(input.memory, reason, message);
    let fresh = task.said.iter().map(news).collect();
    let ignored = task.said.iter().find(|(reason, _)| *reason == reason::SETTING_IGNORED);
    let overridden = ignored.map(|(_, message)| message.clone());
    let object = (!task.said.is_empty()).then(|| ObjectRef::service(&input.service.key));
    let notice = |(reason, message)| Some(Notice::new(object.clone()?, reason, message));
    HintOutcome {
        mechanism: applied.mechanism,
        family: input.family,
        source: task.source,
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
        notices: task.said.into_iter().filter_map(notice).collect(),
        memory,
    }
}

/// Whether it says that it has no cluster IP; one from a file may only have none yet.
fn is_headless(service: &Service) -> bool {
    service.cluster_ips == ClusterIps::None
}

/// One Service's hints in the making.
#[derive(Debug)]
struct Task<'t> {
    /// What was asked for.
    mechanism: Mechanism,
    /// The setting that asked.
    source: String,
    /// Whose setting that is.
    origin: Origin,
    starting_threshold: Option<usize>,
    family: Family,
    facts: &'t ClusterFacts,
    config: &'t Config,
    memory: &'t Memory,
    survey: Survey<'t>,
    said: Vec<(&'static str, String)>,
}

impl Task<'_> {
    fn say(&mut self, reason: &'static str, message: String) {
        self.said.push((reason, message));
    }

    /// Whether anybody reads what would be said.
    fn is_heard(&self) -> bool {
        !self.config.without_notices
    }

    /// A mechanism was at work, and none is any more. Auto has upstream's words for that.
    fn say_ended(&mut self) {
        let before = self.memory.mechanism;
        if !self.is_heard() || matches!(before, Mechanism::None | Mechanism::Auto) {
            return;
        }
        let why = match self.source.as_str() {
            "" => "no setting asks for it any more".to_owned(),
            source => format!("{source} decides now"),
        };
        let message =
            format!("{} has ended and traffic spreads evenly over all endpoints: {why}.", before.as_str());
        self.say(reason::ENDED, message);
    }

    /// Clients of a headless Service connect to the endpoints themselves: where traffic goes is not ours to say.
    fn promise_nothing(&mut self) {
        let about_traffic = [reason::PROGRAMMED, reason::OVERLOAD, reason::UNREACHABLE];
        self.said.retain(|(reason, _)| !about_traffic.contains(reason));
        if self.is_heard() {
            let message = format!(
                "{}: the hints are set, but no service proxy obeys them: the Service is headless, so clients get the \
                 endpoints' addresses from DNS and connect to any of them. Give the Service a cluster IP.",
                self.source
            );
            self.say(reason::NOT_PROXIED, message);
        }
    }

    fn remark_endpoints_without_zone(&mut self, consequence: &str) {
        let Some(first) = &self.survey.first_without_zone else { return };
        let message = format!(
            "In no known zone: {}, the first is {first}, {consequence}. Add topology.kubernetes.io/zone to its node.",
            count(self.survey.without_zone, "ready endpoint")
        );
        self.say(reason::PLACE_UNKNOWN, message);
    }

    /// Hints are set as upstream sets them, and yet no consumer can use them (semantics C1).
    fn say_unusable(&mut self) {
        let first = self.survey.first_without_zone.as_deref().unwrap_or_default();
        let message = format!(
            "{}: traffic spreads evenly, because consumers ignore the hints of the whole Service where one is missing. In \
             no known zone: {}, the first is {first}. Add topology.kubernetes.io/zone to its node.",
            self.source,
            count(self.survey.without_zone, "ready endpoint"),
        );
        self.say(reason::WITHHELD, message);
        self.remark_nodes_without_zone();
    }

    fn remark_nodes_without_zone(&mut self) {
        let Some((nodes, first)) = self.facts.nodes_without_zone() else { return };
        let message = format!(
            "In no known zone: {}, the first is {first}, so its traffic goes everywhere. Give it the label \
             topology.kubernetes.io/zone.",
            count(nodes, "ready node")
        );
        self.say(reason::PLACE_UNKNOWN, message);
    }
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

/// What a mechanism did.
#[derive(Debug)]
struct Applied {
    mechanism: Mechanism,
    demand: Option<Demand>,
    held_back: Option<(&'static str, &'static str)>,
    caveat: Option<&'static str>,
}

impl Applied {
    fn programmed(mechanism: Mechanism) -> Self {
        Self { mechanism, demand: None, held_back: None, caveat: None }
    }

    /// The slices say it, but a hint that is missing makes consumers ignore all of them.
    fn unusable(mechanism: Mechanism) -> Self {
        let sentence =
            "A ready endpoint is in no known zone, so consumers ignore the hints of the whole Service.";
        Self::held_back(mechanism, "EndpointWithoutZone", sentence)
    }

    fn held_back(mechanism: Mechanism, reason: &'static str, sentence: &'static str) -> Self {
        debug_assert!(SAFEGUARDS.contains(&reason), "{reason} is missing in SAFEGUARDS");
        Self { held_back: Some((reason, sentence)), ..Self::programmed(mechanism) }
    }
}

/// Takes all hints off (semantics A1, rule 4).
fn clear(task: &Task<'_>, packing: &mut Packing<'_>, mechanism: Mechanism) {
    write(packing, task.facts, &Tag::new(task, mechanism), Unready::Cleared, |_, _| Wanted::Nothing);
}
