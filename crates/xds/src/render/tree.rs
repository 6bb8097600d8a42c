//! A long list of routes as a tree, so that a request costs the same with ten routes and with ten thousand.
//!
//! Envoy asks a list from its beginning to the first hit. In a tree it finds the longest known text that the path
//! begins with, and asks the short list that hangs there: every route that can match such a path, in the order of the
//! whole list. Those are the exact routes for that text, the prefixes that lie above it, and all patterns.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteList};
use envoy_types::pb::envoy::r#type::matcher::v3::HttpRequestHeaderMatchInput;
use model::route::{MatchConditions, MatchedRoute, PathMatch};
use prost::Message;

use super::wire::{any, append};

/// Shorter lists are asked one by one: a route that does not match costs Envoy between 0.1 and 0.2 microseconds, which a
/// request does not notice before there are hundreds.
const LONG: usize = 100;
/// How many times as long as the list all lists of the tree together may be. Many patterns would make it so: each of
/// them may match anywhere, and a list is then as good.
const GROWTH: usize = 4;

/// Fields of xds.type.matcher.v3: Matcher.matcher_tree and .on_no_match, MatcherTree.input and .prefix_match_map,
/// MatchMap.map, an entry's key and value, OnMatch.action.
const TREE: u32 = 2;
const NO_MATCH: u32 = 3;
const INPUT: u32 = 1;
const PREFIX_MAP: u32 = 3;
const MAP: u32 = 1;
const KEY: u32 = 1;
const VALUE: u32 = 2;
const ACTION: u32 = 2;

/// The tree as a Matcher. `None`: a list serves as well.
pub(super) fn render(routes: &[(MatchedRoute<'_>, Route)]) -> Option<Vec<u8>> {
    if routes.len() < LONG {
        return None;
    }
    let index = Index::new(routes);
    let lists = index.lists();
    let total: usize = lists.values().map(Vec::len).sum();
    if total > routes.len() * GROWTH {
        return None;
    }
    let mut map = Vec::new();
    for (key, list) in &lists {
        let mut entry = Vec::new();
        append(&mut entry, KEY, key.as_bytes());
        append(&mut entry, VALUE, &on_match(routes, list));
        append(&mut map, MAP, &entry);
    }
    let mut tree = Vec::new();
    let path = HttpRequestHeaderMatchInput { header_name: ":path".to_owned() };
    append(&mut tree, INPUT, &extension("path", &path));
    append(&mut tree, PREFIX_MAP, &map);
    let mut matcher = Vec::new();
    append(&mut matcher, TREE, &tree);
    if !index.patterns.is_empty() {
        append(&mut matcher, NO_MATCH, &on_match(routes, &index.patterns));
    }
    Some(matcher)
}

fn on_match(routes: &[(MatchedRoute<'_>, Route)], list: &[usize]) -> Vec<u8> {
    let routes = list.iter().filter_map(|at| routes.get(*at)).map(|(_, route)| route.clone()).collect();
    let mut message = Vec::new();
    append(&mut message, ACTION, &extension("routes", &RouteList { routes }));
    message
}

fn extension<M: Message + prost::Name>(name: &str, config: &M) -> Vec<u8> {
    let typed_config = Some(any(config));
    TypedExtensionConfig { name: name.to_owned(), typed_config }.encode_to_vec()
}

/// Where each path is asked for.
struct Index<'r> {
    exact: BTreeMap<&'r str, Vec<usize>>,
    prefix: BTreeMap<&'r str, Vec<usize>>,
    patterns: Vec<usize>,
    /// The first route that takes everything: none behind it is ever asked.
    last: usize,
}

impl<'r> Index<'r> {
    fn new(routes: &'r [(MatchedRoute<'_>, Route)]) -> Self {
        let mut index =
            Self { exact: BTreeMap::new(), prefix: BTreeMap::new(), patterns: Vec::new(), last: usize::MAX };
        for (at, (hit, _)) in routes.iter().enumerate() {
            match &hit.entry.path {
                // A path has no query, so these match nothing, and a key with one would hide others.
                PathMatch::Exact(path) if path.contains(['?', '#']) => {}
                PathMatch::Exact(path) => index.exact.entry(path).or_default().push(at),
                PathMatch::Prefix(path) => {
                    if path == "/" && hit.entry.conditions == MatchConditions::default() {
                        index.last = index.last.min(at);
                    }
                    index.prefix.entry(path).or_default().push(at);
                }
                PathMatch::Regex(_) => index.patterns.push(at),
            }
        }
        let last = index.last;
        index.patterns.retain(|at| *at < last);
        index
    }

    fn lists(&self) -> BTreeMap<&'r str, Vec<usize>> {
        let keys: BTreeSet<&'r str> = self.exact.keys().chain(self.prefix.keys()).copied().collect();
        keys.into_iter().map(|key| (key, self.list(key))).collect()
    }

    /// Every route that can match a path whose longest known beginning is this key. A prefix that matches such a path
    /// is a beginning of the key, and ends there where a segment does: so it is one of those asked here.
    fn list(&self, key: &str) -> Vec<usize> {
        let mut list: Vec<usize> = self.exact.get(key).into_iter().flatten().copied().collect();
        let ends =
            key.bytes().enumerate().filter(|(at, byte)| *byte == b'/' && *at > 0).map(|(at, _)| &key[..at]);
        let whole = (key != "/").then_some(key);
        for prefix in ends.chain(whole).chain(["/"]) {
            list.extend(self.prefix.get(prefix).into_iter().flatten());
        }
        list.extend(&self.patterns);
        list.sort_unstable();
        list.dedup();
        list.retain(|at| *at <= self.last);
        list
    }
}
