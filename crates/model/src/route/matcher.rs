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
#[derive(Clone, Debug, Default)]
pub struct RouteGroup {
    rules: Box<[HttpRule]>,
    entries: Box<[Entry]>,
    exact: BTreeMap<Name, Vec<u32>>,
    prefix: BTreeMap<Name, Vec<u32>>,
    /// How many segments the deepest prefix has: nothing deeper is looked up.
    deepest: usize,
    patterns: Vec<PatternSet>,
}

/// Different patterns, matched in one pass, each with its entries.
#[derive(Clone, Debug)]
struct PatternSet {
    set: Option<RegexSet>,
    patterns: Vec<(Pattern, Vec<u32>)>,
    first: u32,
}

/// Few enough that a set is compiled in a moment and stays small.
const PATTERNS_PER_SET: usize = 128;
const SET_SIZE: usize = 16 << 20;

impl RouteGroup {
    /// The group of these rules and entries; the first entry that matches wins.
    pub fn new(rules: Vec<HttpRule>, entries: Vec<Entry>) -> Self {
        let mut group = Self { rules: rules.into(), ..Self::default() };
        let mut patterns: Vec<(Pattern, Vec<u32>)> = Vec::new();
        let mut place_by_pattern: BTreeMap<String, usize> = BTreeMap::new();
        for (i, entry) in entries.iter().enumerate() {
            let i = u32::try_from(i).unwrap_or(u32::MAX);
            match &entry.path {
                PathMatch::Exact(value) => group.exact.entry(value.clone()).or_default().push(i),
                PathMatch::Prefix(value) => {
                    group.deepest = group.deepest.max(value.matches('/').count());
                    group.prefix.entry(value.clone()).or_default().push(i);
                }
                PathMatch::Regex(pattern) => {
                    let next = patterns.len();
                    let place = *place_by_pattern.entry(pattern.as_str().to_owned()).or_insert(next);
                    if place == next {
                        patterns.push((pattern.clone(), Vec::new()));
                    }
                    patterns[place].1.push(i);
                }
            }
        }
        group.patterns = patterns.chunks(PATTERNS_PER_SET).map(PatternSet::new).collect();
        group.entries = entries.into();
        group
    }

    /// The rules after merging, in merge order.
    pub fn rules(&self) -> &[HttpRule] {
        &self.rules
    }

    /// The entries, in their order of precedence.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The first entry that matches.
    pub fn find(&self, request: &Request<'_>) -> Option<&Entry> {
        let mut best: Option<u32> = None;
        if let Some(places) = self.exact.get(request.path) {
            self.narrow(places, request, &mut best);
        }
        self.below_prefixes(request, &mut best);
        for set in &self.patterns {
            if best.is_none_or(|best| set.first < best) {
                set.matching(request.path, |places| self.narrow(places, request, &mut best));
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
            if let Some(places) = self.prefix.get(prefix) {
                self.narrow(places, request, best);
            }
            rest = match prefix.rfind('/') {
                Some(0) if prefix != "/" => Some("/"),
                Some(at) if at > 0 => Some(&prefix[..at]),
                _ => None,
            };
        }
        if !path.starts_with('/')
            && let Some(places) = self.prefix.get("/")
        {
            self.narrow(places, request, best);
        }
    }

    /// Takes the first of these entries that goes before the best so far and whose conditions hold.
    fn narrow(&self, places: &[u32], request: &Request<'_>, best: &mut Option<u32>) {
        let limit = best.unwrap_or(u32::MAX);
        let earlier = places.iter().take_while(|place| **place < limit);
        let holds = |place: &&u32| {
            let entry = self.entries.get(**place as usize);
            entry.is_some_and(|entry| entry.conditions.first_miss(request).is_none())
        };
        if let Some(place) = earlier.into_iter().find(holds) {
            *best = Some(*place);
        }
    }
}

impl PatternSet {
    fn new(patterns: &[(Pattern, Vec<u32>)]) -> Self {
        let texts = patterns.iter().map(|(pattern, _)| whole(pattern.as_str()));
        // A set that would be too large is none: its patterns are tried one by one, and each is bounded.
        let set = RegexSetBuilder::new(texts).size_limit(SET_SIZE).build().ok();
        let first = patterns.iter().filter_map(|(_, places)| places.first()).min();
        Self { set, patterns: patterns.to_vec(), first: first.copied().unwrap_or(u32::MAX) }
    }

    fn matching(&self, path: &str, mut found: impl FnMut(&[u32])) {
        match &self.set {
            Some(set) => {
                let hits = set.matches(path.as_bytes()).into_iter();
                hits.filter_map(|at| self.patterns.get(at)).for_each(|(_, places)| found(places));
            }
            None => {
                let hits = self.patterns.iter().filter(|(pattern, _)| pattern.matches(path.as_bytes()));
                hits.for_each(|(_, places)| found(places));
            }
        }
    }
}

impl PartialEq for RouteGroup {
    /// The maps follow from the entries.
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules && self.entries == other.entries
    }
}
