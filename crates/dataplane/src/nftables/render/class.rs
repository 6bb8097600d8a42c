//! What a chain has to know of a frontend, as one number.
//!
//! Frontends with equal classes share a chain. The number is a mark only in nft's way of naming types: no
//! packet keeps it.

use model::forward::{ForwardedPort, Frontend, FrontendAction, Masquerade};

use super::names::{Kind, SetName, Side};
use super::slots::slot_count;
use crate::nftables::ir::{Name, Verdict};

/// What is done with new connections to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// How the frontend was found.
    pub(super) kind: Kind,
    /// Whose traffic it is.
    pub(super) role: Role,
    /// Whether source ranges are asked first.
    pub(super) restricted: bool,
    /// How it ends.
    pub(super) ending: Ending,
}

/// Whose traffic, and with that who is masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    /// To a cluster IP: all but pods are masqueraded.
    ClusterIp,
    /// From anywhere, under externalTrafficPolicy Cluster: all are.
    External,
    /// From outside, under externalTrafficPolicy Local: nobody is.
    ExternalLocal,
    /// From inside, under externalTrafficPolicy Local: that has been seen to.
    Inside,
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ending {
    Reject,
    Drop,
    /// To one of so many slots.
    Send(u32),
    /// The same, and the client is remembered for so many seconds.
    Sticky(u32, u32),
}

impl Ending {
    /// The same with another number of slots.
    fn with(self, slots: u32) -> Self {
        match self {
            Self::Sticky(_, seconds) if slots <= MOST_STICKY => Self::Sticky(slots, rounded(slots, seconds)),
            Self::Sticky(..) | Self::Send(_) => Self::Send(slots),
            other => other,
        }
    }
}

/// What fits into the 26 bits that a class has for its ending.
const MOST_SLOTS: u32 = (1 << 26) - 1;
const FEW: u32 = (1 << 8) - 1;
const MOST_STICKY: u32 = (1 << 14) - 1;
/// The longest that the API allows.
const LONGEST_SECONDS: u32 = 86_400;

impl Class {
    /// The class of a frontend for everybody, or for those inside.
    pub(super) fn of(frontend: &Frontend, side: Side) -> Option<Self> {
        let (role, outcome) = match (side, frontend.masquerade) {
            (Side::Inside, _) => (Role::Inside, frontend.inside?),
            (Side::Main, Masquerade::NotPods) => (Role::ClusterIp, frontend.outside),
            (Side::Main, Masquerade::Everyone) => (Role::External, frontend.outside),
            (Side::Main, Masquerade::NodeItself) => (Role::ExternalLocal, frontend.outside),
        };
        Some(Self {
            kind: Kind::of(&frontend.address),
            role,
            // Those inside have passed the check on their way.
            restricted: side == Side::Main && frontend.source_ranges.is_some(),
            ending: ending(&frontend.port, outcome),
        })
    }

    /// Its number; no two classes have the same.
    pub fn value(&self) -> u32 {
        let kind = if self.kind == Kind::NodePort { 1 } else { 0 };
        let role = match self.role {
            Role::ClusterIp => 0,
            Role::External => 1,
            Role::ExternalLocal => 2,
            Role::Inside => 3,
        };
        let (ending, payload) = match self.ending {
            Ending::Send(slots) => (0, slots),
            Ending::Sticky(slots, seconds) => (1, sticky_payload(slots, seconds)),
            Ending::Reject => (2, 0),
            Ending::Drop => (3, 0),
        };
        ending << 30 | kind << 29 | role << 27 | u32::from(self.restricted) << 26 | payload
    }

    /// The choice of endpoints that it makes.
    pub(super) fn side(&self) -> Side {
        if self.role == Role::Inside { Side::Inside } else { Side::Main }
    }

    /// The map that leads to it.
    pub(super) fn verdicts(&self) -> SetName {
        SetName::Verdicts(self.side())
    }

    /// The map that its chain finds endpoints in.
    pub(super) fn endpoints(&self) -> SetName {
        match self.ending {
            Ending::Sticky(..) => SetName::StickyEndpoints(self.kind, self.side()),
            _ => SetName::Endpoints(self.kind, self.side()),
        }
    }

    /// Whether something has to be done before it ends.
    fn is_plain(&self) -> bool {
        !self.restricted && self.role != Role::ExternalLocal
    }

    /// What leads there.
    pub(super) fn verdict(&self) -> Verdict {
        match (self.ending, self.is_plain()) {
            (Ending::Reject, true) => Verdict::Goto("reject".into()),
            (Ending::Drop, true) => Verdict::Drop,
            _ => self.chain().map_or(Verdict::Drop, Verdict::Goto),
        }
    }

    /// The name of its chain, if it has one of its own.
    pub fn chain(&self) -> Option<Name> {
        if self.is_plain() && matches!(self.ending, Ending::Reject | Ending::Drop) {
            return None;
        }
        let restricted = if self.restricted { "restricted-" } else { "" };
        let who = match (self.kind, self.role) {
            (_, Role::ClusterIp) => "cluster-ip",
            (Kind::Address, Role::External) => "external",
            (Kind::Address, Role::ExternalLocal) => "external-local",
            (Kind::Address, Role::Inside) => "external-inside",
            (Kind::NodePort, Role::External) => "node-port",
            (Kind::NodePort, Role::ExternalLocal) => "node-port-local",
            (Kind::NodePort, Role::Inside) => "node-port-inside",
        };
        let ending = match self.ending {
            Ending::Reject => "reject".to_owned(),
            Ending::Drop => "drop".to_owned(),
            Ending::Send(slots) => slots.to_string(),
            Ending::Sticky(slots, seconds) => format!("{slots}-sticky-{seconds}s"),
        };
        Some(format!("{restricted}{who}-{ending}").into())
    }

    /// The classes that one endpoint more or less leads to. They are kept ready: the kernel looks through a whole
    /// map when a new chain uses it, so a chain had better be there before it is needed.
    pub(super) fn neighbours(&self) -> Vec<Self> {
        let endings = match self.ending {
            Ending::Reject | Ending::Drop => vec![Ending::Send(1)],
            Ending::Send(1) | Ending::Sticky(1, _) => vec![Ending::Reject, Ending::Drop, self.ending.with(2)],
            Ending::Send(n) | Ending::Sticky(n, _) => vec![self.ending.with(n - 1), self.ending.with(n + 1)],
        };
        let fits = |ending: &Ending| !matches!(ending, Ending::Send(n) if *n > MOST_SLOTS);
        endings.into_iter().filter(fits).map(|ending| Self { ending, ..*self }).collect()
    }

    /// In words for people.
    pub(super) fn describe(&self) -> String {
        let who = match self.role {
            Role::ClusterIp => "to a cluster IP",
            Role::External => "from anywhere, externalTrafficPolicy Cluster",
            Role::ExternalLocal => "from outside, externalTrafficPolicy Local",
            Role::Inside => "from inside, past externalTrafficPolicy Local",
        };
        match self.ending {
            Ending::Reject => format!("{who}: no endpoint, rejected"),
            Ending::Drop => format!("{who}: no endpoint here, dropped"),
            Ending::Send(slots) => format!("{who}: {slots} slots"),
            Ending::Sticky(slots, seconds) => {
                format!("{who}: {slots} slots, clients remembered for {seconds} s")
            }
        }
    }
}

fn ending(port: &ForwardedPort, outcome: FrontendAction) -> Ending {
    match outcome {
        FrontendAction::Reject => Ending::Reject,
        FrontendAction::Drop => Ending::Drop,
        FrontendAction::Send(scope) => {
            let slots =
                u32::try_from(slot_count(port.endpoints(scope))).unwrap_or(MOST_SLOTS).min(MOST_SLOTS);
            match port.affinity_seconds {
                _ if slots == 0 => Ending::Reject,
                // Beyond 16,383 slots nobody is remembered: the class has no room to say so.
                Some(seconds) if slots <= MOST_STICKY => Ending::Sticky(slots, rounded(slots, seconds)),
                _ => Ending::Send(slots),
            }
        }
    }
}

/// The exact seconds fit beside up to 255 slots; beside more, whole minutes do.
fn rounded(slots: u32, seconds: u32) -> u32 {
    let seconds = seconds.min(LONGEST_SECONDS);
    if slots <= FEW { seconds } else { seconds.div_ceil(60) * 60 }
}

fn sticky_payload(slots: u32, seconds: u32) -> u32 {
    if slots <= FEW { seconds << 8 | slots } else { 1 << 25 | (seconds / 60) << 14 | slots }
}
