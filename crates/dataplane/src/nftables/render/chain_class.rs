//! The class of a frontend: everything that its chain depends on, as one number. Frontends of equal class share a chain.
//!
//! The number has nft's type `mark`, but no packet keeps it.

use model::forward::{ForwardedPort, Frontend, FrontendAction, Masquerade};

use super::sets::{ClientScope, FrontendLookup, SetName};
use super::weighted_slots::slot_count;
use crate::nftables::ir::{NftName, NftVerdict};

/// What happens to new connections to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainClass {
    pub(super) lookup: FrontendLookup,
    pub(super) role: Role,
    /// Has loadBalancerSourceRanges.
    pub(super) restricted: bool,
    pub(super) ending: Ending,
}

/// Which traffic, and thus which clients are masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    /// To a cluster IP: all clients but pods.
    ClusterIp,
    /// externalTrafficPolicy Cluster: all clients.
    External,
    /// externalTrafficPolicy Local, clients outside: none.
    ExternalLocal,
    /// externalTrafficPolicy Local, clients inside: marked by the short circuit.
    Inside,
}

/// The end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ending {
    Reject,
    Drop,
    /// DNAT to one of this many slots.
    Send(u32),
    /// The same with session affinity, in seconds.
    Sticky(u32, u32),
    /// Accept: a virtual server of IPVS forwards it.
    Pass,
}

impl Ending {
    pub(super) fn with(self, slots: u32) -> Self {
        match self {
            Self::Sticky(_, seconds) if slots <= MAX_STICKY => Self::Sticky(slots, rounded(slots, seconds)),
            Self::Sticky(..) | Self::Send(_) => Self::Send(slots),
            other => other,
        }
    }
}

/// A class has 26 bits for its ending.
const MAX_SLOTS: u32 = (1 << 26) - 1;
/// Slots beside which the affinity timeout keeps its seconds.
const MAX_EXACT: u32 = 1 << 8;
const MAX_STICKY: u32 = (1 << 14) - 1;
/// The longest affinity timeout that the API allows.
const MAX_SECONDS: u32 = 86_400;

impl ChainClass {
    pub(super) fn of(frontend: &Frontend, scope: ClientScope) -> Option<Self> {
        let (role, outcome) = match (scope, frontend.masquerade) {
            (ClientScope::Inside, _) => (Role::Inside, frontend.inside?),
            (ClientScope::All, Masquerade::NotPods) => (Role::ClusterIp, frontend.outside),
            (ClientScope::All, Masquerade::Everyone) => (Role::External, frontend.outside),
            (ClientScope::All, Masquerade::NodeItself) => (Role::ExternalLocal, frontend.outside),
        };
        Some(Self {
            lookup: FrontendLookup::of(&frontend.address),
            role,
            // Clients inside passed the check before the short circuit.
            restricted: scope == ClientScope::All && frontend.source_ranges.is_some(),
            ending: ending(&frontend.port, outcome),
        })
    }

    /// The number of the class; no two classes share one.
    pub fn value(&self) -> u32 {
        let lookup = if self.lookup == FrontendLookup::NodePort { 1 } else { 0 };
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
            Ending::Pass => (3, 1),
        };
        ending << 30 | lookup << 29 | role << 27 | u32::from(self.restricted) << 26 | payload
    }

    pub(super) fn scope(&self) -> ClientScope {
        if self.role == Role::Inside { ClientScope::Inside } else { ClientScope::All }
    }

    /// The verdict map that has the class as a key.
    pub(super) fn verdicts(&self) -> SetName {
        SetName::Verdicts(self.scope())
    }

    /// The map in which its chain looks endpoints up.
    pub(super) fn endpoints(&self) -> SetName {
        match self.ending {
            Ending::Sticky(..) => SetName::StickyEndpoints(self.lookup, self.scope()),
            _ => SetName::Endpoints(self.lookup, self.scope()),
        }
    }

    /// Whether the chain only has its ending.
    fn is_plain(&self) -> bool {
        !self.restricted && self.role != Role::ExternalLocal
    }

    /// The verdict that the verdict map has for this class.
    pub(super) fn verdict(&self) -> NftVerdict {
        match (self.ending, self.is_plain()) {
            (Ending::Reject, true) => NftVerdict::Goto("reject".into()),
            (Ending::Drop, true) => NftVerdict::Drop,
            _ => self.chain().map_or(NftVerdict::Drop, NftVerdict::Goto),
        }
    }

    /// The name of its chain; none if the verdict alone is enough.
    pub fn chain(&self) -> Option<NftName> {
        if self.is_plain() && matches!(self.ending, Ending::Reject | Ending::Drop) {
            return None;
        }
        let restricted = if self.restricted { "restricted-" } else { "" };
        let who = match (self.lookup, self.role) {
            (_, Role::ClusterIp) => "cluster-ip",
            (FrontendLookup::Address, Role::External) => "external",
            (FrontendLookup::Address, Role::ExternalLocal) => "external-local",
            (FrontendLookup::Address, Role::Inside) => "external-inside",
            (FrontendLookup::NodePort, Role::External) => "node-port",
            (FrontendLookup::NodePort, Role::ExternalLocal) => "node-port-local",
            (FrontendLookup::NodePort, Role::Inside) => "node-port-inside",
        };
        let ending = match self.ending {
            Ending::Reject => "reject".to_owned(),
            Ending::Drop => "drop".to_owned(),
            Ending::Send(slots) => slots.to_string(),
            Ending::Sticky(slots, seconds) => format!("{slots}-sticky-{seconds}s"),
            Ending::Pass => "ipvs".to_owned(),
        };
        Some(format!("{restricted}{who}-{ending}").into())
    }

    /// The classes that one endpoint more or less leads to. Their chains are created in advance: the kernel walks a whole
    /// map when a new chain starts to use it.
    pub(super) fn neighbours(&self) -> Vec<Self> {
        let endings = match self.ending {
            Ending::Reject | Ending::Drop => vec![Ending::Send(1)],
            Ending::Pass => vec![Ending::Reject, Ending::Drop],
            Ending::Send(1) | Ending::Sticky(1, _) => vec![Ending::Reject, Ending::Drop, self.ending.with(2)],
            Ending::Send(n) | Ending::Sticky(n, _) => vec![self.ending.with(n - 1), self.ending.with(n + 1)],
        };
        let fits = |ending: &Ending| !matches!(ending, Ending::Send(n) if *n > MAX_SLOTS);
        endings.into_iter().filter(fits).map(|ending| Self { ending, ..*self }).collect()
    }

    /// The comment of its chain.
    pub(super) fn describe(&self) -> String {
        let who = match self.role {
            Role::ClusterIp => "cluster IP",
            Role::External => "externalTrafficPolicy Cluster",
            Role::ExternalLocal => "externalTrafficPolicy Local, external clients",
            Role::Inside => "externalTrafficPolicy Local, in-cluster clients",
        };
        match self.ending {
            Ending::Reject => format!("{who}: no endpoints, reject"),
            Ending::Drop => format!("{who}: no local endpoints, drop"),
            Ending::Send(slots) => format!("{who}: {slots} slots"),
            Ending::Pass => format!("{who}: IPVS"),
            Ending::Sticky(slots, seconds) => {
                format!("{who}: {slots} slots, session affinity {seconds} s")
            }
        }
    }
}

fn ending(port: &ForwardedPort, outcome: FrontendAction) -> Ending {
    match outcome {
        FrontendAction::Reject => Ending::Reject,
        FrontendAction::Drop => Ending::Drop,
        FrontendAction::Pass => Ending::Pass,
        FrontendAction::Send(scope) => {
            let slots = u32::try_from(slot_count(port.endpoints(scope))).unwrap_or(MAX_SLOTS).min(MAX_SLOTS);
            match port.affinity_seconds {
                _ if slots == 0 => Ending::Reject,
                // Beyond 16,383 slots there is no affinity: the class has no bits left for it.
                Some(seconds) if slots <= MAX_STICKY => Ending::Sticky(slots, rounded(slots, seconds)),
                _ => Ending::Send(slots),
            }
        }
    }
}

/// Beside up to 256 slots (unequal shares of up to 64 endpoints) seconds are exact; beside more they are rounded up to minutes.
fn rounded(slots: u32, seconds: u32) -> u32 {
    let seconds = seconds.min(MAX_SECONDS);
    if slots <= MAX_EXACT { seconds } else { seconds.div_ceil(60) * 60 }
}

fn sticky_payload(slots: u32, seconds: u32) -> u32 {
    if slots <= MAX_EXACT { seconds << 8 | (slots - 1) } else { 1 << 25 | (seconds / 60) << 14 | slots }
}
