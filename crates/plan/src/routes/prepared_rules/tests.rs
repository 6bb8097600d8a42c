//! Merging prepared lists gives the same rules as merging their sources at once.

use model::route::{BackendRef, PathMatch, RouteFilter, RouteMatch, RuleOverrides};
use model::{ObjectRef, Snapshot};
use proptest::prelude::*;

use super::super::backend_resolution::BackendResolver;
use super::super::rule_action;
use super::*;

fn rule() -> impl Strategy<Value = Arc<RouteRule>> {
    let path =
        |path: &str| RouteMatch { path: Some(PathMatch::Prefix(path.into())), ..RouteMatch::default() };
    let on = prop::collection::vec(prop::sample::select(vec!["/a", "/b", "/c", "/d"]), 1..3);
    let respond = |status: u16| RouteFilter::Respond { status, body: None };
    let backend = |name: &str| BackendRef {
        name: name.into(),
        tags: None,
        port: None,
        weight: None,
        filters: Box::default(),
        object: None,
    };
    let filters = prop::option::of(prop::collection::vec(200..202_u16, 0..2));
    let backends = prop::option::of(prop::collection::vec(prop::sample::select(vec!["x", "y"]), 0..2));
    let overrides = prop::option::of(prop::sample::select(vec!["x", "z"]));
    (on, filters, backends, overrides, 0..3usize).prop_map(move |(on, filters, backends, over, merged)| {
        let overrides = over.map(|name| {
            let backends = Some([backend(name)].into());
            Box::new(RuleOverrides { backends, ..RuleOverrides::default() })
        });
        let mirror = || RouteFilter::Mirror { backend: backend("copy"), percentage: None };
        Arc::new(RouteRule {
            overrides,
            merge: (0..merged).map(|_| mirror()).collect(),
            matches: on.into_iter().map(path).collect(),
            filters: filters.map(|list| list.into_iter().map(respond).collect()),
            backends: backends.map(|list| list.into_iter().map(backend).collect()),
            ..RouteRule::default()
        })
    })
}

fn source((i, rules): (usize, &Vec<Arc<RouteRule>>)) -> RuleSource<'_> {
    let policy = ObjectRef::new("MeshGatewayHTTPRoute", "ns", &format!("p{i}"));
    RuleSource { policy, field: "spec.rules".to_owned(), rules }
}

proptest! {
    #[test]
    fn merged_lists_equal_merged_sources(
        lists in prop::collection::vec(prop::collection::vec(rule(), 0..6), 0..5)
    ) {
        let snapshot = Snapshot::default();
        let resolver = BackendResolver { snapshot: &snapshot, client_port: None };
        let context = RouteContext { resolver, otherwise: None };
        let sources: Vec<RuleSource<'_>> = lists.iter().enumerate().map(source).collect();
        let mut wanted_notices = Vec::new();
        let wanted = rule_action::rules(merge(&sources), &context, &mut wanted_notices);
        let prepared: Vec<PreparedRules> = sources.iter().map(|source| PreparedRules::new(source, &context, None)).collect();
        let (rules, notices) = merge_lists(prepared.iter(), |_| true, &context, &[]);
        prop_assert!(rules.iter().map(|rule| &**rule).eq(&wanted));
        prop_assert_eq!(notices, wanted_notices);
        let again: Vec<PreparedRules> =
            sources.iter().zip(&prepared).map(|(s, rules)| PreparedRules::new(s, &context, Some(rules))).collect();
        let (same, _) = merge_lists(again.iter(), |_| true, &context, &rules);
        prop_assert!(same.iter().zip(&rules).all(|(a, b)| Arc::ptr_eq(a, b)), "nothing is made twice");
    }
}
