//! A long list of routes as a matcher tree, so that a request costs the same with ten routes and with ten thousand.
//!
//! Envoy evaluates a list up to the first match. In a tree it finds the longest known prefix of the path, and evaluates
//! the short list of that key: every route that can match such a path, in the order of the whole list. These are the
//! exact routes of the key, the prefixes above it, and all regular expressions.

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::route::v3::{Route, RouteList};
use envoy_types::pb::envoy::r#type::matcher::v3::HttpRequestHeaderMatchInput;
use model::route::{MatchConditions, MatchedRoute, PathMatch};
use prost::Message;

use super::protobuf::{any, append};

/// Shorter lists stay lists: a route that does not match costs Envoy 0.1 to 0.2 microseconds.
const MIN_ROUTES: usize = 100;
/// The limit on the size of all lists relative to the routes. Regular expressions are in every list, so with many of them
/// a tree does not help.
const MAX_GROWTH: usize = 4;

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

/// `None`: a list serves as well.
pub(super) fn render(routes: &[(MatchedRoute<'_>, Route)]) -> Option<Vec<u8>> {
    if routes.len() < MIN_ROUTES {
        return None;
    }
    let index = RouteIndex::new(routes);
    let lists = index.lists();
    let total: usize = lists.values().map(Vec::len).sum();
    if total > routes.len() * MAX_GROWTH {
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
    if !index.regexes.is_empty() {
        append(&mut matcher, NO_MATCH, &on_match(routes, &index.regexes));
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

struct RouteIndex<'r> {
    exact: BTreeMap<&'r str, Vec<usize>>,
    prefix: BTreeMap<&'r str, Vec<usize>>,
    regexes: Vec<usize>,
    /// The first route that matches everything; those after it are unreachable.
    catch_all: usize,
}

impl<'r> RouteIndex<'r> {
    fn new(routes: &'r [(MatchedRoute<'_>, Route)]) -> Self {
        let mut index = Self {
            exact: BTreeMap::new(),
            prefix: BTreeMap::new(),
            regexes: Vec::new(),
            catch_all: usize::MAX,
        };
        for (at, (hit, _)) in routes.iter().enumerate() {
            match &hit.entry.path {
                // A path has no query: these match nothing, and their key would shadow others.
                PathMatch::Exact(path) if path.contains(['?', '#']) => {}
                PathMatch::Exact(path) => index.exact.entry(path).or_default().push(at),
                PathMatch::Prefix(path) => {
                    if path == "/" && hit.entry.conditions == MatchConditions::default() {
                        index.catch_all = index.catch_all.min(at);
                    }
                    index.prefix.entry(path).or_default().push(at);
                }
                PathMatch::Regex(_) => index.regexes.push(at),
            }
        }
        let catch_all = index.catch_all;
        index.regexes.retain(|at| *at < catch_all);
        index
    }

    fn lists(&self) -> BTreeMap<&'r str, Vec<usize>> {
        let keys: BTreeSet<&'r str> = self.exact.keys().chain(self.prefix.keys()).copied().collect();
        keys.into_iter().map(|key| (key, self.list(key))).collect()
    }

    /// Every route that can match a path whose longest known prefix is this key. A prefix route that matches such a path
    /// is a prefix of the key that ends at a segment, so it is one of those looked up here.
    fn list(&self, key: &str) -> Vec<usize> {
        let mut list: Vec<usize> = self.exact.get(key).into_iter().flatten().copied().collect();
        let ends =
            key.bytes().enumerate().filter(|(at, byte)| *byte == b'/' && *at > 0).map(|(at, _)| &key[..at]);
        let whole = (key != "/").then_some(key);
        for prefix in ends.chain(whole).chain(["/"]) {
            list.extend(self.prefix.get(prefix).into_iter().flatten());
        }
        list.extend(&self.regexes);
        list.sort_unstable();
        list.dedup();
        list.retain(|at| *at <= self.catch_all);
        list
    }
}
