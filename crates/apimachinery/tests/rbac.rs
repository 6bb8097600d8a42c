//! The cases of `vectors/rbac.json`, and the evaluator against a naive form that reads the objects for every request.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::rbac::{
    AUTHENTICATED, AccessAttributes, EscalationError, GROUP, PolicyRule, RbacPolicy, RbacWrite,
    ResourceAttributes, UserInfo, aggregated_rules, authorize, bootstrap_objects, check_escalation, compact,
    extra_key, impersonate, reconciled, rules_for, uncovered,
};
use apimachinery::service_account::{LiveObject, TokenConfig, TokenRequestError, check_claims, plan_token};
use proptest::prelude::*;
use serde_json::{Value, json};

fn cases(section: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/rbac.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let cases = all[section].as_array().unwrap().clone();
    assert!(!cases.is_empty(), "{section}");
    cases
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn user(value: &Value) -> UserInfo {
    let mut extra = BTreeMap::new();
    for (key, values) in value["callerExtra"].as_object().into_iter().flatten() {
        extra.insert(key.clone(), strings(values));
    }
    let name = value["user"].as_str().unwrap_or_default().to_owned();
    UserInfo { name, uid: String::new(), groups: strings(&value["groups"]), extra }
}

fn attributes(request: &Value) -> AccessAttributes<'_> {
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    match request.get("path") {
        Some(path) => AccessAttributes::Path { verb: text("verb"), path: path.as_str().unwrap() },
        None => AccessAttributes::Resource(ResourceAttributes {
            verb: text("verb"),
            group: text("apiGroup"),
            resource: text("resource"),
            subresource: text("subresource"),
            namespace: text("namespace"),
            name: text("name"),
        }),
    }
}

/// The bootstrap objects with their aggregated rules.
fn settled() -> Vec<Value> {
    let mut all = bootstrap_objects();
    settle(&mut all);
    all
}

fn settle(all: &mut [Value]) {
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
    all.sort_by_key(name);
    loop {
        let roles: Vec<Value> =
            all.iter().filter(|object| object["kind"] == "ClusterRole").cloned().collect();
        let mut changed = false;
        for object in all.iter_mut().filter(|object| object["kind"] == "ClusterRole") {
            if let Some(rules) = aggregated_rules(object, &roles) {
                object["rules"] = rules.into();
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

fn policy_of(case: &Value) -> RbacPolicy {
    let mut objects = if case["bootstrap"] == true { settled() } else { Vec::new() };
    objects.extend(case["objects"].as_array().unwrap().iter().cloned());
    RbacPolicy::of(&objects)
}

fn parsed(rules: &Value) -> Vec<PolicyRule> {
    rules.as_array().into_iter().flatten().map(PolicyRule::parse).collect()
}

#[test]
fn requests_are_allowed_as_kubernetes_allows_them() {
    for case in cases("authorize") {
        let policy = policy_of(&case);
        for request in case["requests"].as_array().unwrap() {
            let mut user = user(request);
            if case["layer"] == "rbac" {
                // The vectors of this layer leave the privileged group to another authorizer.
                user.groups.retain(|group| group != "system:masters");
            }
            let decision = authorize(&policy, &user, &attributes(request));
            assert_eq!(decision.is_allowed(), request["allowed"] == true, "{} {request}", case["id"]);
        }
    }
}

#[test]
fn rules_cover_others_combination_by_combination() {
    for case in cases("covers") {
        let (owner, servant) = (parsed(&case["owner"]), parsed(&case["servant"]));
        let missing = uncovered(&owner.iter().collect::<Vec<_>>(), &servant).unwrap();
        assert_eq!(missing.is_empty(), case["covers"] == true, "{}", case["id"]);
        if let Some(expected) = case.get("uncovered") {
            let set = |rules: Vec<PolicyRule>| rules.into_iter().collect::<BTreeSet<_>>();
            assert_eq!(set(missing), set(parsed(expected)), "{}", case["id"]);
        }
    }
}

/// As the API sets defaults before validation.
fn defaulted(mut object: Value) -> Value {
    if object["roleRef"].is_object() && object["roleRef"]["apiGroup"].as_str().is_none_or(str::is_empty) {
        object["roleRef"]["apiGroup"] = GROUP.into();
    }
    object
}

#[test]
fn roles_and_bindings_are_valid_as_in_kubernetes() {
    for case in cases("validation") {
        let id = case["id"].as_str().unwrap();
        let object = defaulted(case["object"].clone());
        let found = match case.get("old") {
            Some(old) => apimachinery::validate::validate_update(&defaulted(old.clone()), &object),
            None => apimachinery::validate::validate(&object),
        };
        if id == "up-role-binding-zero-length-namespace" {
            // A manifest may leave its namespace to kubectl; that the API stores no such object is a test of the API.
            assert_eq!(found, [], "{id}");
            continue;
        }
        let fields: BTreeSet<String> = found.iter().map(|violation| violation.field.clone()).collect();
        assert_eq!(fields.is_empty(), case["valid"] == true, "{id} {fields:?}");
        if let Some(expected) = case.get("fields") {
            assert_eq!(fields, strings(expected).into_iter().collect(), "{id}");
        }
        if let (Some(word), Some(first)) = (case["type"].as_str(), found.first()) {
            assert_eq!(format!("{:?}", first.error_type), word, "{id}");
        }
    }
}

#[test]
fn aggregated_roles_have_the_rules_that_their_selectors_match() {
    for case in cases("aggregation") {
        let mut roles = case["clusterRoles"].as_array().unwrap().clone();
        roles.sort_by_key(|role| role["metadata"]["name"].as_str().unwrap().to_owned());
        if case["fixpoint"] == true {
            settle(&mut roles);
        }
        let role = roles.iter().find(|role| role["metadata"]["name"] == case["sync"]).unwrap();
        let new = aggregated_rules(role, &roles);
        if case["fixpoint"] != true {
            assert_eq!(new.is_some(), case["changed"] == true, "{}", case["id"]);
        }
        let rules = new.map_or(role["rules"].clone(), Value::from);
        assert_eq!(parsed(&rules), parsed(&case["rules"]), "{}", case["id"]);
    }
}

#[test]
fn impersonation_checks_every_field() {
    for case in cases("impersonation") {
        let (id, wanted) = (&case["id"], &case["as"]);
        let text = |name: &str| wanted[name].as_str().unwrap_or_default().to_owned();
        let extra = wanted["extra"].as_object().into_iter().flatten();
        let extra = extra.map(|(key, values)| (extra_key(key), strings(values))).collect();
        let asked =
            UserInfo { name: text("user"), uid: text("uid"), groups: strings(&wanted["groups"]), extra };
        if asked.name.is_empty() {
            let others = asked != UserInfo::default();
            assert_eq!(case["status"], if others { 400 } else { 200 }, "{id}");
            continue;
        }
        let request = case.get("request").cloned().unwrap_or(json!({"verb": "get", "path": "/"}));
        let (policy, caller) = (policy_of(&case), user(&case));
        let outcome = impersonate(&policy, &caller, &asked, &attributes(&request));
        assert_eq!(outcome.is_ok(), case["allowed"] == true, "{id} {outcome:?}");
        if let (Ok(outcome), Some(expected)) = (outcome, case.get("result")) {
            let user = outcome.user;
            assert_eq!(user.name, expected["user"], "{id}");
            assert_eq!(json!(user.groups), expected["groups"], "{id}");
            assert_eq!(user.uid, expected["uid"], "{id}");
            assert_eq!(json!(user.extra), expected["extra"], "{id}");
        }
    }
}

#[test]
fn writes_of_roles_and_bindings_grant_no_more_than_the_writer_holds() {
    for case in cases("escalation") {
        let (id, new) = (&case["id"], &case["write"]);
        let (policy, caller) = (policy_of(&case), user(&case));
        let text = |name: &str| new["metadata"][name].as_str().unwrap_or_default();
        let verb = case["verb"].as_str().unwrap();
        let plural = format!("{}s", new["kind"].as_str().unwrap().to_ascii_lowercase());
        let name = if verb == "create" { "" } else { text("name") };
        let plain = ResourceAttributes {
            verb,
            group: GROUP,
            resource: &plural,
            namespace: text("namespace"),
            name,
            ..ResourceAttributes::default()
        };
        let plain = authorize(&policy, &caller, &AccessAttributes::Resource(plain)).is_allowed();
        let mut objects = if case["bootstrap"] == true { settled() } else { Vec::new() };
        objects.extend(case["objects"].as_array().unwrap().iter().cloned());
        let role = objects.iter().find(|role| {
            role["kind"] == new["roleRef"]["kind"]
                && role["metadata"]["name"] == new["roleRef"]["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"] == text("namespace"))
        });
        let write = RbacWrite { new, old: case.get("old"), request_name: name, role };
        let checked = check_escalation(&policy, &caller, &write);
        let status = match (plain, &checked) {
            (false, _) | (_, Err(EscalationError::Forbidden(_))) => 403,
            (_, Err(EscalationError::RoleNotFound(_))) => 404,
            _ if verb == "create" => 201,
            _ => 200,
        };
        assert_eq!(plain && checked.is_ok(), case["allowed"] == true, "{id} {checked:?}");
        assert_eq!(case["status"], status, "{id} {checked:?}");
    }
}

#[test]
fn a_user_has_the_rules_of_its_bindings() {
    for case in cases("rules") {
        let (policy, caller) = (policy_of(&case), user(&case));
        let (rules, _) = rules_for(&policy, &caller, case["namespace"].as_str().unwrap());
        let mut rules: Vec<PolicyRule> = rules.into_iter().cloned().collect();
        let mut expected = parsed(&case["rules"]);
        rules.sort();
        expected.sort();
        assert_eq!(rules, expected, "{}", case["id"]);
    }
}

#[test]
fn rules_of_messages_are_compact() {
    for case in cases("compact") {
        let set = |rules: Vec<PolicyRule>| rules.into_iter().collect::<BTreeSet<_>>();
        assert_eq!(set(compact(&parsed(&case["rules"]))), set(parsed(&case["compacted"])), "{}", case["id"]);
    }
    let simple = json!([
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]},
    ]);
    let shown: Vec<String> = compact(&parsed(&simple)).iter().map(PolicyRule::to_string).collect();
    assert_eq!(
        shown,
        [
            r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#,
            r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}"#,
        ]
    );
}

const NOW: i64 = 1_800_000_000;

#[test]
fn tokens_are_granted_and_hold_as_in_kubernetes() {
    for case in cases("tokens") {
        match case["op"].as_str().unwrap() {
            "request" => check_request(&case),
            _ => check_token(&case),
        }
    }
}

fn check_request(case: &Value) {
    let (id, config, state) = (&case["id"], &case["config"], &case["state"]);
    let find = |kind: &str, namespace: &str, name: &str| {
        let list = format!("{}{}s", kind[..1].to_ascii_lowercase(), &kind[1..]);
        let found = state[list].as_array()?.iter().find(|object| {
            object["name"] == name && object["namespace"].as_str().unwrap_or_default() == namespace
        })?;
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        let (uid, service_account, node) = (text("uid"), text("serviceAccountName"), text("nodeName"));
        Some(LiveObject { uid, deletion: None, service_account, node })
    };
    let config = TokenConfig {
        issuer: "api".to_owned(),
        api_audiences: strings(&config["apiAudiences"]),
        max_seconds: config["maxExpirationSeconds"].as_i64().unwrap(),
        extend: config["extendExpiration"] == true,
    };
    let text = |name: &str| case[name].as_str().unwrap();
    match plan_token(&config, text("namespace"), text("name"), &case["request"]["spec"], &find) {
        Ok(token) => {
            let expected = &case["effective"];
            assert_eq!(case["status"], 201, "{id}");
            assert_eq!(json!(token.audiences), expected["audiences"], "{id}");
            assert_eq!(token.seconds, expected["statusExpiresIn"], "{id}");
            assert_eq!(token.token_seconds, expected["tokenExpiresIn"], "{id}");
            assert_eq!(token.warning.is_some(), expected["warning"] == true, "{id}");
            assert_eq!(Value::Object(token.bound()), expected["boundClaims"], "{id}");
            let claims = token.claims("api", "1", NOW);
            let found = check_claims(&claims, "api", &token.audiences, NOW, &find).unwrap();
            assert!(found.0.groups.contains(&AUTHENTICATED.to_owned()), "{id}");
        }
        Err(error) => {
            let status = match &error {
                TokenRequestError::NotFound(..) => 404,
                TokenRequestError::BadRequest(_) => 400,
                TokenRequestError::Conflict(..) => 409,
                TokenRequestError::Invalid(..) => 422,
            };
            assert_eq!(case["status"], status, "{id} {error:?}");
        }
    }
}

fn check_token(case: &Value) {
    let (token, live) = (&case["token"], &case["live"]);
    let find = |kind: &str, _: &str, _: &str| {
        let found = &live[format!("{}{}", kind[..1].to_ascii_lowercase(), &kind[1..])];
        let uid = found["uid"].as_str()?.to_owned();
        let deletion = found["deletedSecondsAgo"].as_i64().map(|seconds| NOW - seconds);
        Some(LiveObject { uid, deletion, ..LiveObject::default() })
    };
    let refs = &token["refs"];
    let mut private =
        json!({"namespace": "n", "serviceaccount": {"name": "s", "uid": refs["serviceAccount"]}});
    for part in ["pod", "secret", "node"] {
        if !refs[part].is_null() {
            private[part] = json!({"name": part, "uid": refs[part]});
        }
    }
    let claims = json!({"iss": "api", "sub": "system:serviceaccount:n:s", "aud": token["audiences"],
        "exp": NOW + token["expiresIn"].as_i64().unwrap(), "nbf": NOW - 1000, "jti": "1", "kubernetes.io": private});
    let accepted = case.get("audiences").map_or(vec!["api".to_owned()], strings);
    let outcome = check_claims(&claims, "api", &accepted, NOW, &find);
    assert_eq!(outcome.is_ok(), case["authenticated"] == true, "{} {outcome:?}", case["id"]);
}

#[test]
fn bootstrap_objects_are_valid_stay_as_they_are_and_get_what_they_miss() {
    let objects = settled();
    for object in &objects {
        assert_eq!(apimachinery::validate::validate(object), [], "{object}");
        assert_eq!(reconciled(object, object), None, "{object}");
    }
    let wanted = objects.iter().find(|object| object["metadata"]["name"] == "system:basic-user").unwrap();
    let mut stored = wanted.clone();
    stored["rules"] = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["own"]}]);
    let new = reconciled(&stored, wanted).unwrap();
    assert_eq!(new["rules"].as_array().unwrap().len(), 3, "rules added by hand stay");
    stored["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false".into();
    assert_eq!(reconciled(&stored, wanted), None);
}

#[test]
fn a_role_with_too_many_combinations_is_refused_at_once() {
    let many: Vec<String> = (0..200).map(|at| format!("x{at}")).collect();
    let rule = PolicyRule {
        verbs: many.clone(),
        api_groups: many.clone(),
        resources: many,
        ..PolicyRule::default()
    };
    assert!(uncovered(&[], std::slice::from_ref(&rule)).is_err());
    assert_eq!(uncovered(&[&rule], std::slice::from_ref(&rule)), Ok(Vec::new()), "one rule covers the whole");
}

fn rules_of(count: usize, verb: &str) -> Vec<PolicyRule> {
    let one = |at: usize| {
        let list = |word: &str| vec![word.to_owned()];
        let (verbs, api_groups, resources) = (list(verb), list(""), list(&format!("r{at}")));
        PolicyRule { verbs, api_groups, resources, ..PolicyRule::default() }
    };
    (0..count).map(one).collect()
}

#[test]
fn many_rules_on_both_sides_are_refused_at_once_and_repeated_ones_cost_nothing() {
    let (own, wanted) = (rules_of(20_000, "get"), rules_of(20_000, "list"));
    let own: Vec<&PolicyRule> = own.iter().collect();
    assert!(uncovered(&own, &wanted).unwrap_err().starts_with("the rules are too many to compare"));
    let repeated: Vec<&PolicyRule> = own[..10].iter().cycle().take(100_000).copied().collect();
    assert_eq!(uncovered(&repeated, &rules_of(10, "get")), Ok(Vec::new()));
    assert_eq!(uncovered(&repeated, &rules_of(11, "get")).unwrap().len(), 1);
}

/// A user who may write bindings in its namespace can leave as many as it likes, to roles that it deletes again.
#[test]
fn bindings_to_missing_roles_cost_little_and_the_refusal_names_a_few() {
    let binding = |at: usize| {
        json!({"kind": "RoleBinding", "metadata": {"namespace": "n", "name": format!("b{at}")},
            "roleRef": {"kind": "Role", "name": format!("r{at}")},
            "subjects": [{"kind": "Group", "name": AUTHENTICATED}, {"kind": "User", "name": "u"}]})
    };
    let objects: Vec<Value> = (0..50_000).map(binding).collect();
    let (policy, user) = (RbacPolicy::of(&objects), UserInfo::new("u", &[AUTHENTICATED]));
    let wanted = ResourceAttributes { verb: "get", resource: "pods", namespace: "n", ..Default::default() };
    let decision = authorize(&policy, &user, &AccessAttributes::Resource(wanted));
    assert!(!decision.is_allowed());
    assert_eq!(decision.reason().matches("not found").count(), 50);
    let (rules, missing) = rules_for(&policy, &user, "n");
    assert_eq!((rules.len(), missing.len()), (0, 50));
}

/// Allowed, by reading all objects: the semantics in as few steps as possible.
fn naive(objects: &[Value], user: &UserInfo, attributes: &AccessAttributes<'_>) -> bool {
    let namespace = match attributes {
        AccessAttributes::Resource(wanted) => wanted.namespace,
        AccessAttributes::Path { .. } => "",
    };
    let applies = |binding: &Value| {
        binding["subjects"].as_array().unwrap().iter().any(|subject| {
            match subject["kind"].as_str().unwrap() {
                "User" => subject["name"] == user.name.as_str(),
                "Group" => user.groups.iter().any(|group| subject["name"] == group.as_str()),
                _ => {
                    let own = binding["metadata"]["namespace"].as_str().unwrap_or_default();
                    let space = subject["namespace"].as_str().unwrap_or(own);
                    let name = subject["name"].as_str().unwrap();
                    !space.is_empty() && user.name == format!("system:serviceaccount:{space}:{name}")
                }
            }
        })
    };
    objects.iter().any(|binding| {
        let scope = match binding["kind"].as_str().unwrap() {
            "ClusterRoleBinding" => "",
            "RoleBinding" if !namespace.is_empty() && binding["metadata"]["namespace"] == namespace => {
                namespace
            }
            _ => return false,
        };
        let of = &binding["roleRef"];
        let role = objects.iter().find(|role| {
            role["kind"] == of["kind"]
                && role["metadata"]["name"] == of["name"]
                && (of["kind"] == "ClusterRole" || role["metadata"]["namespace"] == scope)
        });
        applies(binding)
            && role.is_some_and(|role| parsed(&role["rules"]).iter().any(|rule| naive_rule(rule, attributes)))
    })
}

fn naive_rule(rule: &PolicyRule, attributes: &AccessAttributes<'_>) -> bool {
    let any = |list: &[String], wanted: &[&str]| list.iter().any(|item| wanted.contains(&item.as_str()));
    match attributes {
        AccessAttributes::Resource(wanted) => {
            let whole = format!("{}/{}", wanted.resource, wanted.subresource);
            let part = format!("*/{}", wanted.subresource);
            let resources = match wanted.subresource {
                "" => vec!["*", wanted.resource],
                _ => vec!["*", &whole, &part],
            };
            any(&rule.verbs, &["*", wanted.verb])
                && any(&rule.api_groups, &["*", wanted.group])
                && any(&rule.resources, &resources)
                && (rule.resource_names.is_empty() || any(&rule.resource_names, &[wanted.name]))
        }
        AccessAttributes::Path { verb, path } => {
            let prefixes = (0..=path.len()).filter(|end| path.is_char_boundary(*end));
            let prefixes: Vec<String> = prefixes.map(|end| format!("{}*", &path[..end])).collect();
            any(&rule.verbs, &["*", verb])
                && rule.non_resource_urls.iter().any(|url| url == path || prefixes.contains(url))
        }
    }
}

fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words).prop_map(str::to_owned)
}

fn list(words: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(word(words), 0..3)
}

const VERBS: &[&str] = &["get", "list", "create", "*"];
const GROUPS: &[&str] = &["", "apps", "*"];
const RESOURCES: &[&str] = &["pods", "pods/log", "*/log", "*", "services", "pods/*", "*/*"];
const NAMES: &[&str] = &["a", "b", ""];
const URLS: &[&str] = &["/a", "/a/*", "/a*", "*", "/b/c"];
const SPACES: &[&str] = &["n", "m"];

fn role() -> impl Strategy<Value = Value> {
    let rule = (list(VERBS), list(GROUPS), list(RESOURCES), list(NAMES), list(URLS)).prop_map(
        |(verbs, groups, resources, names, urls)| {
            json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names,
                "nonResourceURLs": urls})
        },
    );
    (prop::collection::vec(rule, 0..3), word(&["r", "s"]), word(SPACES), any::<bool>()).prop_map(
        |(rules, name, namespace, cluster)| {
            let kind = if cluster { "ClusterRole" } else { "Role" };
            let mut role = json!({"kind": kind, "metadata": {"name": name}, "rules": rules});
            if !cluster {
                role["metadata"]["namespace"] = namespace.into();
            }
            role
        },
    )
}

fn binding() -> impl Strategy<Value = Value> {
    let subject = (word(&["User", "Group", "ServiceAccount"]), word(&["u", "g", "s"]), word(&["", "n", "m"]))
        .prop_map(|(kind, name, namespace)| {
            let mut subject = json!({"kind": kind, "name": name});
            if kind == "ServiceAccount" && !namespace.is_empty() {
                subject["namespace"] = namespace.into();
            }
            subject
        });
    (
        prop::collection::vec(subject, 0..3),
        word(&["b", "c", "d"]),
        word(SPACES),
        any::<bool>(),
        word(&["Role", "ClusterRole"]),
        word(&["r", "s", "none"]),
    )
        .prop_map(|(subjects, name, namespace, cluster, role_kind, role)| {
            let kind = if cluster { "ClusterRoleBinding" } else { "RoleBinding" };
            let role_kind = if cluster { "ClusterRole".to_owned() } else { role_kind };
            let mut binding = json!({"kind": kind, "metadata": {"name": name}, "subjects": subjects,
                "roleRef": {"kind": role_kind, "name": role}});
            if !cluster {
                binding["metadata"]["namespace"] = namespace.into();
            }
            binding
        })
}

/// The newest object of each name, as a store keeps them.
fn stored(objects: Vec<Value>) -> Vec<Value> {
    let key = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&object["kind"]), text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
    };
    objects
        .into_iter()
        .map(|object| (key(&object), object))
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .collect()
}

proptest! {
    #[test]
    fn the_index_decides_as_reading_all_objects_does(
        objects in prop::collection::vec(prop_oneof![role(), binding()], 0..12),
        removed in 0usize..12,
        name in word(&["u", "system:serviceaccount:n:s", "other"]),
        groups in list(&["g", "h"]),
        verb in word(&["get", "list"]),
        group in word(&["", "apps"]),
        resource in word(&["pods", "services"]),
        subresource in word(&["", "log"]),
        namespace in word(&["", "n", "m"]),
        object in word(NAMES),
        path in word(&["/a", "/a/b", "/ab", "/b/c", ""]),
    ) {
        let mut policy = RbacPolicy::of(&objects);
        let mut objects = stored(objects);
        if removed < objects.len() {
            let gone = objects.remove(removed);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let meta = &gone["metadata"];
            policy.remove(&text(&gone["kind"]), &text(&meta["namespace"]), &text(&meta["name"]));
        }
        let user = UserInfo { name, groups, ..UserInfo::default() };
        let attributes = match path.as_str() {
            "" => AccessAttributes::Resource(ResourceAttributes {
                verb: &verb, group: &group, resource: &resource, subresource: &subresource,
                namespace: &namespace, name: &object,
            }),
            path => AccessAttributes::Path { verb: &verb, path },
        };
        let decision = authorize(&policy, &user, &attributes);
        prop_assert_eq!(decision.is_allowed(), naive(&objects, &user, &attributes));
        // The rules of the user say the same.
        let (rules, _) = rules_for(&policy, &user, &namespace);
        if path.is_empty() {
            prop_assert_eq!(decision.is_allowed(), rules.iter().any(|rule| rule.allows(&attributes)));
        }
    }
}
