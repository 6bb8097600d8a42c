//! What happens to a request that hit a rule: filters and backends, resolved and in the form that a proxy obeys.

use crate::name::Name;
use crate::route::changes::HeaderChanges;
use crate::route::path;
use crate::route::redirect::Redirect;
use crate::route::rule::{PathMatch, Percentage};
use crate::route::table::BackendId;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Changes to its headers.
    pub request_headers: HeaderChanges,
    /// Changes to the headers of the answer, whoever gives it: a backend, a redirect, a direct response.
    pub response_headers: HeaderChanges,
    /// Where copies go. They carry the changed headers and the rewritten path.
    pub mirrors: Box<[Mirror]>,
    /// Other host or path.
    pub rewrite: Rewrite,
    /// Who answers.
    pub end: End,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A backend.
    Forward(Split),
    /// The proxy, with another address.
    Redirect(Redirect),
    /// The proxy, by itself.
    Respond(DirectResponse),
}

/// Backends with their shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    legs: Box<[Leg]>,
    /// Where each leg ends when they are laid end to end.
    ends: Box<[u64]>,
}

/// One of several ways that requests of a rule go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Where to.
    pub to: LegTarget,
    /// Its share relative to the others, above zero.
    pub weight: u64,
}

/// Where a leg leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LegTarget {
    /// To a backend.
    Backend(BackendId),
    /// Nowhere: the backend could not be resolved, its share is answered with this status.
    Error(u16),
}

impl Split {
    /// The split of these; weights of zero get no traffic and are left out, equal targets become one.
    pub fn new(parts: impl IntoIterator<Item = (LegTarget, u32)>) -> Self {
        let mut legs: Vec<Leg> = Vec::new();
        for (to, weight) in parts.into_iter().filter(|(_, weight)| *weight > 0) {
            match legs.iter_mut().find(|leg| leg.to == to) {
                // Semantics 1.8: two references to the same subset sum.
                Some(leg) => leg.weight += u64::from(weight),
                None => legs.push(Leg { to, weight: weight.into() }),
            }
        }
        let sum = |sum: &mut u64, leg: &Leg| {
            *sum += leg.weight;
            Some(*sum)
        };
        let ends = legs.iter().scan(0, sum).collect();
        Self { legs: legs.into(), ends }
    }

    /// The legs, in the order of the policy.
    pub fn legs(&self) -> &[Leg] {
        &self.legs
    }

    /// The backends among the legs.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        self.legs.iter().filter_map(|leg| match &leg.to {
            LegTarget::Backend(id) => Some(id),
            LegTarget::Error(_) => None,
        })
    }

    /// The leg for a random number. `None`: there is no weight above zero, so nobody can answer (500).
    pub fn pick(&self, random: u64) -> Option<&LegTarget> {
        let total = *self.ends.last()?;
        let point = random % total;
        self.legs.get(self.ends.partition_point(|end| *end <= point)).map(|leg| &leg.to)
    }

    /// Each leg with its share; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (&Leg, f64)> {
        let total = self.ends.last().copied().unwrap_or(1) as f64;
        self.legs.iter().map(move |leg| (leg, leg.weight as f64 / total))
    }

    /// The status if nobody can answer: no leg, or none that leads to a backend.
    pub fn failure(&self) -> Option<u16> {
        let status = |leg: &Leg| match leg.to {
            LegTarget::Error(status) => Some(status),
            LegTarget::Backend(_) => None,
        };
        match self.legs.first() {
            None => Some(500),
            Some(first) => status(first).filter(|_| self.legs.iter().all(|leg| status(leg).is_some())),
        }
    }
}

/// Where copies of requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The backend.
    pub to: BackendId,
    /// Of how many requests.
    pub share: Percentage,
}

impl Mirror {
    /// Whether a copy is sent, for a random number.
    pub fn wants(&self, random: u64) -> bool {
        random % u64::from(Percentage::ALL.0) < u64::from(self.share.0)
    }
}

/// Another host or path for the backend to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The host.
    pub hostname: Option<Name>,
    /// The path.
    pub path: Option<PathChange>,
}

/// A new path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// This one, whatever it was.
    Full(Name),
    /// This in the place of the prefix that matched.
    Prefix(Name),
}

impl PathChange {
    /// The new path of a request, without its query. `matched` is what its path hit.
    pub fn apply(&self, path: &str, matched: &PathMatch) -> String {
        match (self, matched) {
            (Self::Full(value), _) => value.to_string(),
            (Self::Prefix(replacement), PathMatch::Prefix(prefix)) => {
                path::replace_prefix(path, prefix, replacement)
            }
            // Refused by validation; the path stays.
            (Self::Prefix(_), _) => path.to_owned(),
        }
    }
}

/// An answer that the proxy gives by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectResponse {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Option<Body>,
}

/// Where the body of a direct response comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// From the policy, as text.
    Text(Name),
    /// From the policy, as bytes.
    Bytes(Box<[u8]>),
    /// From a file of the proxy, if its own allow-list has it: a policy is no licence to read files.
    File(Name),
    /// From an environment variable of the proxy, if its own allow-list has it.
    Environment(Name),
}
