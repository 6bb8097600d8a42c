//! The action of a rule: its filters and backends, resolved into what a proxy does with a request.

use std::sync::Arc;

use crate::name::Name;
use crate::route::cors::CorsFilter;
use crate::route::header_changes::HeaderChanges;
use crate::route::path;
use crate::route::redirect::RequestRedirect;
use crate::route::retry::RouteRetry;
use crate::route::rule::{PathMatch, Percentage, RequestTimeouts};
use crate::route::table::BackendId;

/// What a proxy does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleAction {
    pub request_headers: HeaderChanges,
    /// Also applied to redirects and direct responses.
    pub response_headers: HeaderChanges,
    /// Mirrored requests carry the changed headers and the rewritten path.
    pub mirrors: Box<[RequestMirror]>,
    pub rewrite: Rewrite,
    pub timeouts: RequestTimeouts,
    pub retry: Option<RouteRetry>,
    pub cors: Option<CorsFilter>,
    /// Backends get requests by HTTP/2, whatever their ports declare: the rule is of a GRPCRoute.
    pub is_grpc: bool,
    pub responder: Responder,
}

impl RuleAction {
    /// The action that changes nothing.
    pub fn new(responder: Responder) -> Self {
        Self {
            request_headers: HeaderChanges::default(),
            response_headers: HeaderChanges::default(),
            mirrors: Box::default(),
            rewrite: Rewrite::default(),
            timeouts: RequestTimeouts::default(),
            retry: None,
            cors: None,
            is_grpc: false,
            responder,
        }
    }
}

/// What responds to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Responder {
    Forward(WeightedBackends),
    Redirect(RequestRedirect),
    Respond(DirectResponse),
}

/// The backends of a rule with their weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightedBackends {
    entries: Box<[WeightedBackend]>,
    /// Running sums of the weights.
    cumulative: Box<[u64]>,
}

/// One backend of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedBackend {
    pub to: BackendTarget,
    /// Relative to the other backends, above zero.
    pub weight: u64,
    /// Applied after the changes of the rule.
    pub filters: Option<Arc<BackendFilters>>,
}

/// The changes to requests to one backend, and to its responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendFilters {
    pub request_headers: HeaderChanges,
    pub response_headers: HeaderChanges,
    pub rewrite: Rewrite,
}

/// The target of a [`WeightedBackend`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BackendTarget {
    Backend(BackendId),
    /// The backend could not be resolved: its share of requests gets this status.
    Error(u16),
}

impl WeightedBackends {
    /// Leaves out weights of zero and sums the weights of equal targets.
    pub fn new(backends: impl IntoIterator<Item = (BackendTarget, u32)>) -> Self {
        Self::with_filters(backends.into_iter().map(|(to, weight)| (to, weight, None)))
    }

    /// The same, with the filters of each backend.
    pub fn with_filters(
        backends: impl IntoIterator<Item = (BackendTarget, u32, Option<Arc<BackendFilters>>)>,
    ) -> Self {
        let mut entries: Vec<WeightedBackend> = Vec::new();
        for (to, weight, filters) in backends.into_iter().filter(|(_, weight, _)| *weight > 0) {
            match entries.iter_mut().find(|entry| entry.to == to && entry.filters == filters) {
                // Semantics 1.8: two references to the same subset sum.
                Some(entry) => entry.weight += u64::from(weight),
                None => entries.push(WeightedBackend { to, weight: weight.into(), filters }),
            }
        }
        let sum = |sum: &mut u64, entry: &WeightedBackend| {
            *sum += entry.weight;
            Some(*sum)
        };
        let cumulative = entries.iter().scan(0, sum).collect();
        Self { entries: entries.into(), cumulative }
    }

    /// In the order of the policy.
    pub fn entries(&self) -> &[WeightedBackend] {
        &self.entries
    }

    /// The backends that could be resolved.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        self.entries.iter().filter_map(|entry| match &entry.to {
            BackendTarget::Backend(id) => Some(id),
            BackendTarget::Error(_) => None,
        })
    }

    /// The target for a random number; `None` if no weight is above zero (status 500).
    pub fn pick(&self, random: u64) -> Option<&BackendTarget> {
        let total = *self.cumulative.last()?;
        let point = random % total;
        self.entries.get(self.cumulative.partition_point(|end| *end <= point)).map(|entry| &entry.to)
    }

    /// Each entry with its share; the shares sum to 1.
    pub fn shares(&self) -> impl Iterator<Item = (&WeightedBackend, f64)> {
        let total = self.cumulative.last().copied().unwrap_or(1) as f64;
        self.entries.iter().map(move |entry| (entry, entry.weight as f64 / total))
    }

    /// The status of every response if there is no resolved backend.
    pub fn failure(&self) -> Option<u16> {
        let status = |entry: &WeightedBackend| match entry.to {
            BackendTarget::Error(status) => Some(status),
            BackendTarget::Backend(_) => None,
        };
        match self.entries.first() {
            None => Some(500),
            Some(first) => status(first).filter(|_| self.entries.iter().all(|entry| status(entry).is_some())),
        }
    }
}

/// Where copies of requests go; their responses are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestMirror {
    pub to: BackendId,
    /// The fraction of requests that is mirrored.
    pub share: Percentage,
}

impl RequestMirror {
    /// Whether to mirror a request, for a random number.
    pub fn wants(&self, random: u64) -> bool {
        random % u64::from(Percentage::ALL.0) < u64::from(self.share.0)
    }
}

/// A rewrite of the host and path that the backend sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    pub hostname: Option<Name>,
    pub path: Option<PathChange>,
}

/// A rewrite of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// Replaces the whole path.
    Full(Name),
    /// Replaces the prefix that matched.
    Prefix(Name),
}

impl PathChange {
    /// The new path of a request, without its query. `matched` is the path match that it hit.
    pub fn apply(&self, path: &str, matched: &PathMatch) -> String {
        match (self, matched) {
            (Self::Full(value), _) => value.to_string(),
            (Self::Prefix(replacement), PathMatch::Prefix(prefix)) => {
                path::replace_prefix(path, prefix, replacement)
            }
            // Validation refuses this; the path stays.
            (Self::Prefix(_), _) => path.to_owned(),
        }
    }
}

/// A response from the proxy itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectResponse {
    pub status: u16,
    pub body: Option<DirectResponseBody>,
}

/// The source of a direct response's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectResponseBody {
    /// Inline text.
    Text(Name),
    /// Inline bytes.
    Bytes(Box<[u8]>),
    /// A file on the proxy's machine; the proxy reads only files of its allow-list.
    File(Name),
    /// An environment variable of the proxy; the proxy reads only those of its allow-list.
    Environment(Name),
}
