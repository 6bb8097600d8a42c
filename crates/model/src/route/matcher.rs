//! From a request to the first entry that matches, without asking all of them.
//!
//! ```text
//! path -> exact map                          -\
//!      -> prefix map, a segment off each time -+-> entries that may match -> the first in order whose
//!      -> pattern sets                        -/                             conditions hold
//! ```
//!
//! The order of the entries was decided by whoever made the group; the maps only leave out what cannot match.
//! So the cost grows with the depth of a path and with the patterns, not with the number of routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::name::Name;
use crate::route::pattern::{Pattern, whole};
use crate::route::request::Request;
use crate::route::rule::{Conditions, PathMatch};
use crate::route::table::HttpRule;

/// One alternative of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The rule, as its place in the list of [`RouteGroup::rules`].
    pub rule: usize,
    /// The match, as its place within the rule.
    pub alternative: usize,
    /// The path; never absent.
    pub path: PathMatch,
    /// Everything else.
    pub conditions: Conditions,
}

/// Rules, their entries in order of precedence, and the maps to find the first that matches.
///
/// Groups share rules, and where these match alike everything else, too: one that differs from another in what a rule
/// does costs that rule, and pointers for the others.
#[derive(Clone, Debug, Default)]
pub struct RouteGroup {
    rules: Box<[Arc<HttpRule>]>,
    index: Arc<Index>,
}

/// Everything that follows from what the rules of a group match.
#[derive(Debug, Default)]
struct Index {
    entries: Box<[Entry]>,
    /// The first entry for each path.
    exact: BTreeMap<Name, u32>,
    prefix: BTreeMap<Name, u32>,
    /// For each entry the next one with the same path; `NONE` for the last.
    next: Box<[u32]>,
    /// How many segments the deepest prefix has: nothing deeper is looked up.
    deepest: usize,
    patterns: Vec<PatternSet>,
}

/// Behind the last entry of a path.
const NONE: u32 = u32::MAX;

/// Different patterns, matched in one pass, each with its first entry.
#[derive(Clone, Debug)]
struct PatternSet {
    compiled: Arc<Compiled>,
    firsts: Box<[u32]>,
}

/// Patterns, and all of them as one program: it takes long to make, so groups share it.
#[derive(Debug)]
struct Compiled {
    patterns: Vec<Pattern>,
    set: Option<RegexSet>,
}

/// Few enough that a set is compiled in a moment and stays small.
const PATTERNS_PER_SET: usize = 128;
const SET_SIZE: usize = 16 << 20;

impl RouteGroup {
    /// The group of these rules and entries; the first entry that matches wins.
    pub fn new(rules: Vec<Arc<HttpRule>>, entries: Vec<Entry>) -> Self {
        Self { rules: rules.into(), index: Arc::new(Index::new(entries, &Index::default())) }
    }

    /// The group of these rules in the place of another one: what was made for that is used again. `order` gives the
    /// entries of rules, which follow from what these match and from which of them is implied.
    pub fn after(
        before: &Self,
        rules: Vec<Arc<HttpRule>>,
        order: impl FnOnce(&[Arc<HttpRule>]) -> Vec<Entry>,
    ) -> Self {
        let alike = |(a, b): (&Arc<HttpRule>, &Arc<HttpRule>)| {
            Arc::ptr_eq(a, b) || (a.rule.matches == b.rule.matches && a.is_implied() == b.is_implied())
        };
        if before.rules.len() == rules.len() && before.rules.iter().zip(&rules).all(alike) {
            return Self { rules: rules.into(), index: before.index.clone() };
        }
        let index = Index::new(order(&rules), &before.index);
        Self { rules: rules.into(), index: Arc::new(index) }
    }

    /// The rules after merging, in merge order.
    pub fn rules(&self) -> &[Arc<HttpRule>] {
        &self.rules
    }

    /// The entries, in their order of precedence.
    pub fn entries(&self) -> &[Entry] {
        &self.index.entries
    }

    /// The first entry that matches.
    pub fn find(&self, request: &Request<'_>) -> Option<&Entry> {
        self.index.find(request)
    }

    /// Whether its rules are equal to these; those that are shared are not looked at.
    pub fn has_rules(&self, rules: &[Arc<HttpRule>]) -> bool {
        self.rules.len() == rules.len()
            && self.rules.iter().zip(rules).all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
    }
}

impl PartialEq for RouteGroup {
    /// The maps follow from the entries.
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.index, &other.index);
        self.has_rules(&other.rules) && (Arc::ptr_eq(a, b) || a.entries == b.entries)
    }
}

impl Index {
    fn new(entries: Vec<Entry>, before: &Self) -> Self {
        let mut index = Self { entries: entries.into(), ..Self::default() };
        let mut next = vec![NONE; index.entries.len()];
        let mut patterns: Vec<(Pattern, u32)> = Vec::new();
        let mut place_by_pattern: BTreeMap<&str, usize> = BTreeMap::new();
        // From the last to the first, so that each finds the one behind it.
        for (at, entry) in index.entries.iter().enumerate().rev() {
            let place = u32::try_from(at).unwrap_or(NONE);
            let behind = match &entry.path {
                PathMatch::Exact(value) => index.exact.insert(value.clone(), place),
                PathMatch::Prefix(value) => {
                    index.deepest = index.deepest.max(value.matches('/').count());
                    index.prefix.insert(value.clone(), place)
                }
                PathMatch::Regex(pattern) => {
                    let known = *place_by_pattern.entry(pattern.as_str()).or_insert(patterns.len());
                    if known == patterns.len() {
                        patterns.push((pattern.clone(), NONE));
                    }
                    Some(std::mem::replace(&mut patterns[known].1, place))
                }
            };
            next[at] = behind.unwrap_or(NONE);
        }
        patterns.sort_by_key(|(_, first)| *first);
        index.patterns = patterns.chunks(PATTERNS_PER_SET).map(|set| PatternSet::new(set, before)).collect();
        index.next = next.into();
        index
    }

    fn find(&self, request: &Request<'_>) -> Option<&Entry> {
        let mut best: Option<u32> = None;
        if let Some(first) = self.exact.get(request.path) {
            self.narrow(*first, request, &mut best);
        }
        self.below_prefixes(request, &mut best);
        for set in &self.patterns {
            if best.is_none_or(|best| set.firsts.first().is_some_and(|first| *first < best)) {
                set.matching(request.path, |first| self.narrow(first, request, &mut best));
            }
        }
        best.and_then(|place| self.entries.get(place as usize))
    }

    /// Tries every prefix of the path that ends with a whole segment, the longest first.
    fn below_prefixes(&self, request: &Request<'_>, best: &mut Option<u32>) {
        if self.prefix.is_empty() {
            return;
        }
        let path = request.path;
        let mut ends = path.bytes().enumerate().filter(|(at, byte)| *byte == b'/' && *at > 0);
        // Where the deepest prefix could end; every step goes one segment up from there.
        let deepest = self.deepest.checked_sub(1).and_then(|last| ends.nth(last)).map(|(at, _)| &path[..at]);
        let mut rest = Some(deepest.unwrap_or(path));
        while let Some(prefix) = rest {
            if let Some(first) = self.prefix.get(prefix) {
                self.narrow(*first, request, best);
            }
            rest = match prefix.rfind('/') {
                Some(0) if prefix != "/" => Some("/"),
                Some(at) if at > 0 => Some(&prefix[..at]),
                _ => None,
            };
        }
        if !path.starts_with('/')
            && let Some(first) = self.prefix.get("/")
        {
            self.narrow(*first, request, best);
        }
    }

    /// Takes the first entry of a path that goes before the best so far and whose conditions hold.
    fn narrow(&self, first: u32, request: &Request<'_>, best: &mut Option<u32>) {
        let limit = best.unwrap_or(NONE);
        let mut place = first;
        while place < limit
            && let Some(entry) = self.entries.get(place as usize)
        {
            if entry.conditions.first_miss(request).is_none() {
                *best = Some(place);
                return;
            }
            place = self.next.get(place as usize).copied().unwrap_or(NONE);
        }
    }
}

impl PatternSet {
    fn new(patterns: &[(Pattern, u32)], before: &Index) -> Self {
        let is_same = |compiled: &&Arc<Compiled>| {
            compiled.patterns.len() == patterns.len()
                && compiled.patterns.iter().zip(patterns).all(|(known, (pattern, _))| known == pattern)
        };
        let known = before.patterns.iter().map(|set| &set.compiled).find(is_same);
        let compiled = known.cloned().unwrap_or_else(|| {
            Arc::new(Compiled::new(patterns.iter().map(|(pattern, _)| pattern.clone()).collect()))
        });
        Self { compiled, firsts: patterns.iter().map(|(_, first)| *first).collect() }
    }

    fn matching(&self, path: &str, mut found: impl FnMut(u32)) {
        let Compiled { patterns, set } = &*self.compiled;
        match set {
            Some(set) => {
                let hits = set.matches(path.as_bytes()).into_iter();
                hits.filter_map(|at| self.firsts.get(at)).for_each(|first| found(*first));
            }
            None => {
                let both = patterns.iter().zip(&self.firsts);
                let hits = both.filter(|(pattern, _)| pattern.matches(path.as_bytes()));
                hits.for_each(|(_, first)| found(*first));
            }
        }
    }
}

impl Compiled {
    fn new(patterns: Vec<Pattern>) -> Self {
        let texts = patterns.iter().map(|pattern| whole(pattern.as_str()));
        // A set that would be too large is none: its patterns are tried one by one, and each is bounded.
        let set = RegexSetBuilder::new(texts).size_limit(SET_SIZE).build().ok();
        Self { patterns, set }
    }
}
