//! Lists of drafts are what merging all of their sources at once gives.

use model::route::{BackendRef, Filter, Match, PathMatch};
use model::{ObjectRef, Snapshot};
use proptest::prelude::*;

use super::super::act;
use super::super::resolve::Resolver;
use super::*;

fn rule() -> impl Strategy<Value = Arc<Rule>> {
    let path = |path: &str| Match { path: Some(PathMatch::Prefix(path.into())), ..Match::default() };
    let on = prop::collection::vec(prop::sample::select(vec!["/a", "/b", "/c", "/d"]), 1..3);
    let respond = |status: u16| Filter::Respond { status, body: None };
    let backend = |name: &str| BackendRef { name: name.into(), tags: None, port: None, weight: None };
    let filters = prop::option::of(prop::collection::vec(200..202_u16, 0..2));
    let backends = prop::option::of(prop::collection::vec(prop::sample::select(vec!["x", "y"]), 0..2));
    (on, filters, backends).prop_map(move |(on, filters, backends)| {
        Arc::new(Rule {
            matches: on.into_iter().map(path).collect(),
            filters: filters.map(|list| list.into_iter().map(respond).collect()),
            backends: backends.map(|list| list.into_iter().map(backend).collect()),
        })
    })
}

fn source((i, rules): (usize, &Vec<Arc<Rule>>)) -> Source<'_> {
    let policy = ObjectRef::new("MeshGatewayHTTPRoute", "ns", &format!("p{i}"));
    Source { policy, field: "spec.rules".to_owned(), rules }
}

proptest! {
    #[test]
    fn joined_drafts_are_the_merged_sources(
        lists in prop::collection::vec(prop::collection::vec(rule(), 0..6), 0..5)
    ) {
        let snapshot = Snapshot::default();
        let resolver = Resolver { snapshot: &snapshot, near: None };
        let setting = Setting { resolver, otherwise: None, keeps_query: false };
        let sources: Vec<Source<'_>> = lists.iter().enumerate().map(source).collect();
        let mut wanted_notices = Vec::new();
        let wanted = act::rules(merge(&sources), &setting, &mut wanted_notices);
        let drafts: Vec<Draft> = sources.iter().map(|source| Draft::new(source, &setting, None)).collect();
        let (rules, notices) = join(drafts.iter(), |_| true, &setting, &[]);
        prop_assert!(rules.iter().map(|rule| &**rule).eq(&wanted));
        prop_assert_eq!(notices, wanted_notices);
        let again: Vec<Draft> =
            sources.iter().zip(&drafts).map(|(s, draft)| Draft::new(s, &setting, Some(draft))).collect();
        let (same, _) = join(again.iter(), |_| true, &setting, &rules);
        prop_assert!(same.iter().zip(&rules).all(|(a, b)| Arc::ptr_eq(a, b)), "nothing is made twice");
    }
}
