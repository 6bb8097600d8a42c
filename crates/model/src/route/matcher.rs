//! Finds the first entry that matches a request without testing all of them.
//!
//! ```text
//! path -> exact map                          -\
//!      -> prefix map, a segment off each time -+-> entries that may match -> the first in order whose
//!      -> pattern sets                        -/                             conditions hold
//! ```
//!
//! `plan::routes` orders the entries; the maps only skip those that cannot match. The cost grows with the depth of the
//! path and with the patterns, not with the number of routes.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::bytes::{RegexSet, RegexSetBuilder};

use crate::name::Name;
use crate::route::pattern::{Pattern, whole};
use crate::route::request::RequestView;
use crate::route::rule::{MatchConditions, PathMatch};
use crate::route::table::HttpRule;

/// One match of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchEntry {
    /// The index of the rule in [`RouteGroup::rules`].
    pub rule: usize,
    /// The index of the match in the rule.
    pub alternative: usize,
    /// `/` if the match has none.
    pub path: PathMatch,
    pub conditions: MatchConditions,
}

/// Rules, their entries in order of precedence, and an index to find the first that matches.
///
/// Groups share rules, and the index where all rules match alike: a group that differs only in the action of one rule
/// costs that rule and pointers to the others.
#[derive(Clone, Debug, Default)]
pub struct RouteGroup {
    rules: Box<[Arc<HttpRule>]>,
    index: Arc<Index>,
}

/// The part of a group that depends only on the matches of its rules.
#[derive(Debug, Default)]
struct Index {
    entries: Box<[MatchEntry]>,
    /// The first entry for each path.
    exact: BTreeMap<Name, u32>,
    prefix: BTreeMap<Name, u32>,
    /// For each entry the next one with the same path; `NONE` for the last.
    next: Box<[u32]>,
    /// The number of segments of the deepest prefix.
    deepest: usize,
    patterns: Vec<PatternSet>,
}

/// No further entry.
const NONE: u32 = u32::MAX;

/// Patterns that are matched in one pass, each with its first entry.
#[derive(Clone, Debug)]
struct PatternSet {
    compiled: Arc<Compiled>,
    firsts: Box<[u32]>,
}

/// Patterns compiled into one program. Compiling is slow, so groups share it.
#[derive(Debug)]
struct Compiled {
    patterns: Vec<Pattern>,
    set: Option<RegexSet>,
}

/// Bounds the compile time and memory of a set.
const PATTERNS_PER_SET: usize = 128;
const SET_SIZE: usize = 16 << 20;

impl RouteGroup {
    /// The group of these rules and entries; the first entry that matches wins.
    pub fn new(rules: Vec<Arc<HttpRule>>, entries: Vec<MatchEntry>) -> Self {
        Self { rules: rules.into(), index: Arc::new(Index::new(entries, &Index::default())) }
    }

    /// The successor of a group: reuses the index if all rules match as before, and compiled patterns otherwise. `order`
    /// gives the entries of the rules, which depend only on their matches and on which rule is implied.
    pub fn after(
        before: &Self,
        rules: Vec<Arc<HttpRule>>,
        order: impl FnOnce(&[Arc<HttpRule>]) -> Vec<MatchEntry>,
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
    pub fn entries(&self) -> &[MatchEntry] {
        &self.index.entries
    }

    /// The first entry that matches.
    pub fn find(&self, request: &RequestView<'_>) -> Option<&MatchEntry> {
        self.index.find(request)
    }

    /// Whether its rules are equal to these; shared rules are not compared.
    pub fn has_rules(&self, rules: &[Arc<HttpRule>]) -> bool {
        self.rules.len() == rules.len()
            && self.rules.iter().zip(rules).all(|(a, b)| Arc::ptr_eq(a, b) || a == b)
    }
}

impl PartialEq for RouteGroup {
    /// The index follows from the entries.
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.index, &other.index);
        self.has_rules(&other.rules) && (Arc::ptr_eq(a, b) || a.entries == b.entries)
    }
}

impl Index {
    fn new(entries: Vec<MatchEntry>, before: &Self) -> Self {
        let mut index = Self { entries: entries.into(), ..Self::default() };
        let mut next = vec![NONE; index.entries.len()];
        let mut patterns: Vec<(Pattern, u32)> = Vec::new();
        let mut place_by_pattern: BTreeMap<&str, usize> = BTreeMap::new();
        // Backwards, so that each entry finds the next one with its path.
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

    fn find(&self, request: &RequestView<'_>) -> Option<&MatchEntry> {
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
    fn below_prefixes(&self, request: &RequestView<'_>, best: &mut Option<u32>) {
        if self.prefix.is_empty() {
            return;
        }
        let path = request.path;
        let mut ends = path.bytes().enumerate().filter(|(at, byte)| *byte == b'/' && *at > 0);
        // Starts at the depth of the deepest prefix and goes up one segment at a time.
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

    /// Updates the best entry with the first one of a path whose conditions hold.
    fn narrow(&self, first: u32, request: &RequestView<'_>, best: &mut Option<u32>) {
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
        // The patterns of a set that would be too large are tried one by one.
        let set = RegexSetBuilder::new(texts).size_limit(SET_SIZE).build().ok();
        Self { patterns, set }
    }
}
