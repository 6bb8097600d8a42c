//! Rules as policies state them, in one normal form: short forms are spelled out before anything is compared.

use crate::label::Labels;
use crate::name::Name;
use crate::route::action::{Body, PathChange};
use crate::route::pattern::Pattern;
use crate::route::redirect::Scheme;

/// One rule: what it matches, and what then happens.
///
/// Absent filters or backends keep what a policy of lower precedence says; empty ones clear it (seed 004).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Any of these; the key by which rules of different policies are merged.
    pub matches: Box<[Match]>,
    /// What is changed on the way.
    pub filters: Option<Box<[Filter]>>,
    /// Where requests go.
    pub backends: Option<Box<[BackendRef]>>,
}

/// One alternative of a rule: everything in it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Match {
    /// The path; absent is every path.
    pub path: Option<PathMatch>,
    /// Everything else.
    pub conditions: Conditions,
}

/// What a match asks besides the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conditions {
    /// The method, in capitals.
    pub method: Option<Name>,
    /// Headers; of two with one name only the first counts (semantics 1.6).
    pub headers: Box<[HeaderMatch]>,
    /// Query parameters, each name once.
    pub query: Box<[QueryMatch]>,
}

/// What the path has to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathMatch {
    /// Exactly this.
    Exact(Name),
    /// This, or below it: whole segments only. `/` or without a slash at its end.
    Prefix(Name),
    /// A pattern for all of it.
    Regex(Pattern),
}

/// What a header has to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeaderMatch {
    /// Its name, in lower case.
    pub name: Name,
    /// The test; one line of the header has to pass it.
    pub test: ValueTest,
}

/// A test of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueTest {
    /// Exactly this.
    Exact(Name),
    /// How it begins.
    Prefix(Name),
    /// A pattern for all of it.
    Regex(Pattern),
    /// It is there.
    Present,
    /// It is not there.
    Absent,
}

/// What a query parameter has to be; its first value counts, as it was sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueryMatch {
    /// Its name; case counts.
    pub name: Name,
    /// `Exact` or `Regex`.
    pub test: ValueTest,
}

/// What a rule does to a request or its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Changes headers of the request.
    RequestHeaders(HeaderModifier),
    /// Changes headers of the response.
    ResponseHeaders(HeaderModifier),
    /// Sends a copy elsewhere; its answer is dropped.
    Mirror {
        /// Where to.
        backend: BackendRef,
        /// Of how many requests.
        percentage: Option<Percentage>,
    },
    /// Answers with another address.
    Redirect(RedirectFilter),
    /// Changes host or path of the request.
    Rewrite(RewriteFilter),
    /// Answers by itself.
    Respond {
        /// The status.
        status: u16,
        /// The body.
        body: Option<Body>,
    },
}

/// Header changes of one filter; each name stands in it once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderModifier {
    /// Takes the place of what is there.
    pub set: Box<[(Name, Name)]>,
    /// Comes in addition.
    pub add: Box<[(Name, Name)]>,
    /// Goes.
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
    /// The host that the backend sees.
    pub hostname: Option<Name>,
    /// The path that the backend sees.
    pub path: Option<PathChange>,
}

/// A share of requests, in millionths: percentages with four decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentage(pub u32);

impl Percentage {
    /// Every request.
    pub const ALL: Self = Self(1_000_000);

    /// As a number from 0 to 100.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 10_000.0
    }
}

/// A Service as a backend, or the part of it whose pods carry all of the tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRef {
    /// The Service, in the namespace of the policy.
    pub name: Name,
    /// Tags of the pods; `None` for the kind MeshService.
    pub tags: Option<Labels>,
    /// The port of the Service.
    pub port: Option<u16>,
    /// Its share relative to the others; absent is 1.
    pub weight: Option<u32>,
}

impl Match {
    /// The path with `/` filled in: a match without one is for every path. Before sorting, so that
    /// `{headers: ...}` goes before a bare `/` (semantics 1.5).
    pub fn full_path(&self) -> PathMatch {
        self.path.clone().unwrap_or(PathMatch::Prefix(Name::new("/")))
    }

    /// Whether it takes every request.
    pub fn is_everything(&self) -> bool {
        self.conditions == Conditions::default()
            && matches!(self.full_path(), PathMatch::Prefix(p) if p == "/")
    }
}

impl PathMatch {
    /// What was written.
    pub fn value(&self) -> &str {
        match self {
            Self::Exact(value) | Self::Prefix(value) => value,
            Self::Regex(pattern) => pattern.as_str(),
        }
    }

    /// Whether a normalised path, without its query, matches.
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
    /// Whether a value passes. `Absent` passes none: it is asked only where there is a value.
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
    /// `MeshService` or `MeshServiceSubset`.
    pub fn kind(&self) -> &'static str {
        if self.tags.is_some() { "MeshServiceSubset" } else { "MeshService" }
    }

    /// Its share relative to the others.
    pub fn share(&self) -> u32 {
        self.weight.unwrap_or(1)
    }
}
