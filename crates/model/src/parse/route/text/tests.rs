//! What is read with a memory is what is read without one, whatever came before.

use proptest::prelude::*;
use serde_json::json;

use super::super::{mesh_object, mesh_problems};
use super::*;

const VERSION: &str = "zoneward.dev/v1alpha1";

fn good(path: usize) -> Value {
    json!({"matches": [{"path": {"type": "Prefix", "value": format!("/r{path}")}}],
        "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}})
}

/// Rules of every sort: good, bad, and with something in them that does not count.
fn rule() -> impl Strategy<Value = Value> {
    prop_oneof![
        12 => (0..40usize).prop_map(good),
        1 => Just(json!({"matches": [{"path": {"type": "Prefix", "value": "no-slash"}}], "default": {}})),
        1 => Just(json!({"matches": [], "colour": "red"})),
        1 => Just(json!({"matches": [{"headers": [{"name": "A", "value": "1"}, {"name": "a", "value": "2"}]}],
            "default": {"backendRefs": [{"kind": "MeshService", "name": "b"}]}})),
        1 => Just(Value::Null),
        1 => Just(json!(["a", 1, 2.5, true, {"b": null}])),
    ]
}

/// Mostly good rules, so that much is remembered.
fn rules() -> impl Strategy<Value = Vec<Value>> {
    let few = prop::collection::vec((any::<prop::sample::Index>(), rule()), 0..3);
    (prop::collection::vec((0..40usize).prop_map(good), MANY - 4..MANY + 12), few).prop_map(
        |(mut rules, few)| {
            for (at, rule) in few {
                rules.insert(at.index(rules.len() + 1), rule);
            }
            rules
        },
    )
}

#[derive(Clone, Debug)]
enum Edit {
    Replace(prop::sample::Index, Value),
    Insert(prop::sample::Index, Value),
    Remove(prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        3 => (at(), rule()).prop_map(|(at, rule)| Edit::Replace(at, rule)),
        1 => (at(), rule()).prop_map(|(at, rule)| Edit::Insert(at, rule)),
        1 => at().prop_map(Edit::Remove),
        1 => (at(), at()).prop_map(|(a, b)| Edit::Swap(a, b)),
    ]
}

fn apply(rules: &mut Vec<Value>, edit: Edit) {
    match edit {
        Edit::Insert(at, rule) => rules.insert(at.index(rules.len() + 1), rule),
        _ if rules.is_empty() => {}
        Edit::Replace(at, rule) => {
            let at = at.index(rules.len());
            rules[at] = rule;
        }
        Edit::Remove(at) => drop(rules.remove(at.index(rules.len()))),
        Edit::Swap(a, b) => {
            let (a, b) = (a.index(rules.len()), b.index(rules.len()));
            rules.swap(a, b);
        }
    }
}

fn policy(kind: &str, rules: &[Value]) -> Value {
    let spec = match kind {
        "MeshGatewayHTTPRoute" => {
            json!({"targetRef": {"kind": "MeshGateway", "name": "edge"}, "hostnames": ["a.example.com"], "rules": rules})
        }
        _ => {
            let (first, second) = rules.split_at(rules.len() / 2);
            let to = |name: &str, rules: &[Value]| json!({"targetRef": {"kind": "MeshService", "name": name}, "rules": rules});
            json!({"targetRef": {"kind": "Mesh"}, "to": [to("a", first), to("b", second)]})
        }
    };
    json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": "p", "namespace": "n"}, "spec": spec})
}

fn lists(reading: &Reading) -> Vec<&[Arc<RouteRule>]> {
    match &reading.object {
        Some(Object::HttpRoute(route)) => route.to.iter().map(|to| &*to.rules).collect(),
        Some(Object::GatewayHttpRoute(route)) => vec![&*route.rules],
        _ => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_policy_read_with_a_memory_is_the_policy(first in rules(), edits in prop::collection::vec(edit(), 0..4)) {
        for kind in ["MeshGatewayHTTPRoute", "MeshHTTPRoute"] {
            let (mut rules, mut before) = (first.clone(), None);
            for edit in std::iter::once(None).chain(edits.iter().cloned().map(Some)) {
                edit.into_iter().for_each(|edit| apply(&mut rules, edit));
                let wanted = mesh_object(&policy(kind, &rules), &mut Interner::default());
                let text = policy(kind, &rules).to_string();
                let (_, read, next) =
                    mesh_text(VERSION, kind, &text, before.as_ref(), &mut Interner::default()).unwrap();
                prop_assert_eq!(&read.object, &wanted.object);
                prop_assert_eq!(&read.problems, &wanted.problems);
                prop_assert_eq!(&read.ignored, &wanted.ignored);
                let (_, again, _) =
                    mesh_text(VERSION, kind, &text, next.as_ref(), &mut Interner::default()).unwrap();
                if next.is_some() {
                    let both = lists(&read).concat().into_iter().zip(lists(&again).concat());
                    prop_assert!(both.into_iter().all(|(a, b)| Arc::ptr_eq(&a, &b)), "nothing is read twice");
                }
                before = next;
            }
        }
    }

    #[test]
    fn a_change_of_a_good_policy_has_the_problems_of_the_new_one(
        first in prop::collection::vec((0..40usize).prop_map(good), 0..20), edits in prop::collection::vec(edit(), 0..6)
    ) {
        for kind in ["MeshGatewayHTTPRoute", "MeshHTTPRoute"] {
            let old = policy(kind, &first);
            let mut rules = first.clone();
            edits.iter().cloned().for_each(|edit| apply(&mut rules, edit));
            let new = policy(kind, &rules);
            let wanted = mesh_object(&new, &mut Interner::default()).problems;
            // An old one without rules was never good.
            if mesh_object(&old, &mut Interner::default()).problems.is_empty() {
                prop_assert_eq!(mesh_problems(&new, Some(&old)), wanted.clone());
            }
            prop_assert_eq!(mesh_problems(&new, None), wanted);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}\",:a-z0-9 ]{0,40}") {
        let before = mesh_text(VERSION, "MeshHTTPRoute", "{}", None, &mut Interner::default()).unwrap().2;
        let read = mesh_text(VERSION, "MeshHTTPRoute", &text, before.as_ref(), &mut Interner::default());
        prop_assert_eq!(read.is_ok(), serde_json::from_str::<Value>(&text).is_ok());
    }
}

#[test]
fn a_list_in_the_wrong_place_is_refused_and_known_rules_are_not_taken_for_it() {
    let rules: Vec<Value> = (0..MANY).map(good).collect();
    let mut interner = Interner::default();
    let right = policy("MeshHTTPRoute", &rules);
    let before = mesh_text(VERSION, "MeshHTTPRoute", &right.to_string(), None, &mut interner).unwrap().2;
    let mut wrong = right;
    wrong["spec"]["rules"] = wrong["spec"]["to"][0]["rules"].clone();
    wrong["spec"]["to"][0]["rules"] = json!([{"matches": []}]);
    let wanted = mesh_object(&wrong, &mut interner).problems;
    let read =
        mesh_text(VERSION, "MeshHTTPRoute", &wrong.to_string(), before.as_ref(), &mut interner).unwrap().1;
    assert_eq!(read.problems, wanted);
    assert_eq!(wanted.len(), 2);
}
