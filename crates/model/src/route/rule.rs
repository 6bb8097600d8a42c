//! Rules as written in policies, in one normal form: short forms are expanded before rules are compared.

use std::borrow::Cow;
use std::time::Duration;

use crate::label::Labels;
use crate::name::Name;
use crate::route::action::{DirectResponseBody, PathChange};
use crate::route::cors::CorsFilter;
use crate::route::pattern::Pattern;
use crate::route::redirect::Scheme;
use crate::route::retry::RouteRetry;

/// One rule: its matches, filters and backends.
///
/// Absent filters or backends inherit those of a policy of lower precedence; empty ones clear them (seed 004).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRule {
    /// A request has to meet one of them. Rules with equal matches are merged across policies.
    pub matches: Box<[RouteMatch]>,
    pub filters: Option<Box<[RouteFilter]>>,
    pub backends: Option<Box<[BackendRef]>>,
    /// What policies of higher precedence cannot change.
    pub overrides: Option<Box<RuleOverrides>>,
    /// Filters that are added to those of any policy: header modifiers and mirrors.
    pub merge: Box<[RouteFilter]>,
    pub timeouts: RequestTimeouts,
    pub retry: Option<RouteRetry>,
}

/// `override` of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleOverrides {
    pub filters: Option<Box<[RouteFilter]>>,
    pub backends: Option<Box<[BackendRef]>>,
}

/// The timeouts of a rule; `None`: no limit of the route's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimeouts {
    /// The whole exchange, with all retries.
    pub request: Option<Duration>,
    /// One request to a backend.
    pub backend_request: Option<Duration>,
}

/// One match of a rule: a request has to meet all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteMatch {
    /// Absent matches every path.
    pub path: Option<PathMatch>,
    pub conditions: MatchConditions,
}

/// The conditions of a match besides the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchConditions {
    /// In upper case.
    pub method: Option<Name>,
    /// Of two with one name only the first counts (semantics 1.6).
    pub headers: Box<[HeaderMatch]>,
    /// Each name once.
    pub query: Box<[QueryMatch]>,
}

/// A match on the path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathMatch {
    Exact(Name),
    /// By whole segments. `/`, or without a trailing slash.
    Prefix(Name),
    Regex(Pattern),
}

/// A match on a header.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: Name,
    /// At least one line of the header has to pass it.
    pub test: ValueTest,
}

/// A test of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueTest {
    Exact(Name),
    Prefix(Name),
    Regex(Pattern),
    Present,
    Absent,
}

/// A match on the first value of a query parameter, as sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryMatch {
    /// Case-sensitive.
    pub name: Name,
    /// `Exact` or `Regex`.
    pub test: ValueTest,
}

/// A filter of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteFilter {
    RequestHeaders(HeaderModifier),
    ResponseHeaders(HeaderModifier),
    Mirror {
        backend: BackendRef,
        percentage: Option<Percentage>,
    },
    Redirect(RedirectFilter),
    Rewrite(RewriteFilter),
    /// A direct response.
    Respond {
        status: u16,
        body: Option<DirectResponseBody>,
    },
    /// Only in routes of the Gateway API.
    Cors(CorsFilter),
    /// A MeshRouteFilter, or a filter of another API: requests get an error if it is not known, because skipping it may
    /// be unsafe.
    Extension(ExtensionFilter),
}

/// `extensionRef`: a filter that is an object of its own, in the route's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionFilter {
    pub group: Name,
    pub kind: Name,
    pub name: Name,
}

impl ExtensionFilter {
    /// Whether it names a MeshRouteFilter.
    pub fn is_own(&self) -> bool {
        self.group == crate::parse::route::GROUP && self.kind == crate::route::MeshRouteFilter::KIND
    }
}

/// The header changes of one filter; each name occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    pub set: Box<[(Name, Name)]>,
    pub add: Box<[(Name, Name)]>,
    pub remove: Box<[Name]>,
}

/// `requestRedirect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectFilter {
    /// The scheme; absent keeps it.
    pub scheme: Option<Scheme>,
    /// The host; absent keeps it.
    pub hostname: Option<Name>,
    /// The path; absent keeps it.
    pub path: Option<PathChange>,
    /// The port; absent follows the scheme.
    pub port: Option<u16>,
    /// 301, 302, 303, 307 or 308; absent is 302.
    pub status: Option<u16>,
}

/// `urlRewrite`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteFilter {
    pub hostname: Option<Name>,
    pub path: Option<PathChange>,
}

/// A share of requests in millionths: a percentage with four decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentage(pub u32);

impl Percentage {
    pub const ALL: Self = Self(1_000_000);

    /// From 0 to 100.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

/// A reference to a Service, or to those of its pods that carry all tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRef {
    /// The Service, in the namespace of the policy.
    pub name: Name,
    /// Tags of the pods; `None` for the kind MeshService.
    pub tags: Option<Labels>,
    pub port: Option<u16>,
    /// Absent is 1.
    pub weight: Option<u32>,
    /// Applied to requests to this backend, after those of the rule.
    pub filters: Box<[RouteFilter]>,
    /// Only in routes of the Gateway API.
    pub object: Option<Box<BackendObject>>,
}

/// The parts of a backendRef that only the Gateway API has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendObject {
    pub group: Name,
    pub kind: Name,
    /// With the default of the route applied.
    pub namespace: Name,
}

impl RouteRule {
    /// The filters after merging; `None` if no policy has any.
    pub fn effective_filters(&self) -> Option<Cow<'_, [RouteFilter]>> {
        let overrides = self.overrides.as_deref();
        let chosen = match overrides.and_then(|overrides| overrides.filters.as_deref()) {
            Some(filters) => Some(Cow::Borrowed(filters)),
            None => self.filters.as_deref().map(|filters| match overrides {
                // Backends that cannot be changed are not replaced by a response, either.
                Some(RuleOverrides { backends: Some(backends), .. }) if !backends.is_empty() => {
                    filters.iter().filter(|filter| !filter.is_response()).cloned().collect()
                }
                _ => Cow::Borrowed(filters),
            }),
        };
        if self.merge.is_empty() {
            return chosen;
        }
        let chosen = chosen.unwrap_or_default();
        Some(chosen.iter().chain(&self.merge).cloned().collect())
    }

    /// The backends after merging; `None` if no policy has any.
    pub fn effective_backends(&self) -> Option<&[BackendRef]> {
        let overrides = self.overrides.as_deref().and_then(|overrides| overrides.backends.as_deref());
        overrides.or(self.backends.as_deref())
    }

    /// Everything that a policy has in this rule, with the field.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &[RouteFilter], &[BackendRef])> {
        let overrides = self.overrides.as_deref();
        let all = [
            ("default", self.filters.as_deref(), self.backends.as_deref()),
            (
                "override",
                overrides.and_then(|part| part.filters.as_deref()),
                overrides.and_then(|part| part.backends.as_deref()),
            ),
            ("merge", Some(&*self.merge), None),
        ];
        all.into_iter()
            .map(|(field, filters, refs)| (field, filters.unwrap_or_default(), refs.unwrap_or_default()))
    }
}

impl RouteFilter {
    /// Whether the proxy responds itself.
    pub fn is_response(&self) -> bool {
        matches!(self, Self::Redirect(_) | Self::Respond { .. })
    }
}

impl RouteMatch {
    /// The path, `/` if absent. Entries are sorted by it, so that `{headers: ...}` comes before a bare `/`
    /// (semantics 1.5).
    pub fn full_path(&self) -> PathMatch {
        self.path.clone().unwrap_or(PathMatch::Prefix(Name::new("/")))
    }

    /// Whether it matches every request.
    pub fn is_everything(&self) -> bool {
        self.conditions == MatchConditions::default()
            && matches!(self.full_path(), PathMatch::Prefix(p) if p == "/")
    }
}

impl PathMatch {
    /// As written in the policy.
    pub fn value(&self) -> &str {
        match self {
            Self::Exact(value) | Self::Prefix(value) => value,
            Self::Regex(pattern) => pattern.as_str(),
        }
    }

    /// `path` is normalised and has no query.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(value) => path == value.as_str(),
            Self::Prefix(prefix) => is_below(path, prefix),
            Self::Regex(pattern) => pattern.matches(path.as_bytes()),
        }
    }
}

/// Prefixes go by segments: `/v2` has `/v2/x` below it, not `/v2x` (semantics 1.6).
fn is_below(path: &str, prefix: &str) -> bool {
    prefix == "/" || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl ValueTest {
    /// Whether a value passes. `Absent` passes none: there is a value.
    pub fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(wanted) => value == wanted.as_bytes(),
            Self::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
            Self::Regex(pattern) => pattern.matches(value),
            Self::Present => true,
            Self::Absent => false,
        }
    }
}

impl BackendRef {
    /// `MeshService` or `MeshServiceSubset`; in the Gateway API, the kind of the object.
    pub fn kind(&self) -> &str {
        match &self.object {
            Some(object) => &object.kind,
            None if self.tags.is_some() => "MeshServiceSubset",
            None => "MeshService",
        }
    }

    /// The weight, with its default.
    pub fn share(&self) -> u32 {
        self.weight.unwrap_or(1)
    }
}
