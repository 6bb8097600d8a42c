//! The schemas of deploy/crds: structural, and refusing nothing that the parser of routes accepts, which is what
//! `plan validate` accepts, `plan routes` plans and `trace http` applies.

#[path = "../../store/tests/route_grammar/objects.rs"]
mod objects;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use model::random::Random;
use model::{Interner, parse};
use schema::{Schema, dear_rules, structural_problems};
use serde_json::{Value, json};

fn root() -> &'static Path {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).expect("this crate lies two levels below the root")
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let documents = text.split("\n---\n").filter(|text| !text.trim().is_empty());
    let read = |text: &str| {
        serde_saphyr::from_str::<Value>(text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
    };
    documents.map(read).collect()
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).expect("the folder can be listed");
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "yaml"));
    files.sort();
    files
}

fn definitions() -> Vec<Value> {
    files("deploy/crds").iter().flat_map(|file| documents(file)).collect()
}

/// The schemas by kind.
fn schemas() -> BTreeMap<String, Schema> {
    let one = |definition: Value| {
        let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind").to_owned();
        (kind, Schema::new(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()))
    };
    definitions().into_iter().map(one).collect()
}

#[test]
fn every_kind_has_a_structural_schema_and_a_status() {
    let definitions = definitions();
    assert_eq!(definitions.len(), 7);
    for definition in definitions {
        let (name, spec) = (&definition["metadata"]["name"], &definition["spec"]);
        assert_eq!(*name, format!("{}.zoneward.dev", spec["names"]["plural"].as_str().unwrap()));
        let version = &spec["versions"][0];
        assert_eq!(version["name"], "v1alpha1");
        assert_eq!(version["subresources"], json!({"status": {}}), "{name}");
        let schema = &version["schema"]["openAPIV3Schema"];
        assert_eq!(structural_problems(schema, "schema"), [""; 0], "{name}");
        assert_eq!(dear_rules(schema, "schema", 1), [""; 0], "{name}");
    }
}

#[test]
fn every_example_passes_its_schema() {
    let (schemas, mut seen) = (schemas(), 0);
    for file in files("examples/routes") {
        for object in documents(&file) {
            let Some(schema) = schemas.get(object["kind"].as_str().unwrap_or_default()) else { continue };
            assert_eq!(schema.problems(&object), [""; 0], "{}", file.display());
            seen += 1;
        }
    }
    assert!(seen >= 14, "{seen}");
}

fn wrapped(resource: &Value) -> Value {
    json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": resource["type"],
        "metadata": {"name": resource["name"]}, "spec": resource["spec"]})
}

fn vectors() -> Value {
    let text = std::fs::read_to_string(root().join("vectors/l7-routing.json"));
    serde_json::from_str(&text.expect("the vectors are in the repository")).expect("the vectors are JSON")
}

#[test]
fn good_cases_pass_and_bad_ones_fail() {
    let vectors = vectors();
    let mut good: Vec<Value> = Vec::new();
    for fixture in vectors["fixtures"].as_object().unwrap().values() {
        good.extend(fixture["resources"].as_array().unwrap().iter().map(wrapped));
        if fixture["listeners"].is_array() {
            good.push(json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshGateway",
                "metadata": {"name": "edge"}, "spec": {"listeners": fixture["listeners"]}}));
        }
    }
    let cases = vectors["cases"].as_array().unwrap();
    let merges = cases.iter().filter(|case| case["kind"] == "merge");
    good.extend(merges.flat_map(|case| case["resources"].as_array().unwrap()).map(wrapped));
    let schemas = schemas();
    for object in &good {
        assert_eq!(schemas[object["kind"].as_str().unwrap()].problems(object), [""; 0], "{object}");
    }
    for case in cases.iter().filter(|case| case["kind"] == "validation") {
        let object = wrapped(&case["resource"]);
        let is_parsed = parse::object(&object, &mut Interner::default()).0.is_some();
        assert_eq!(is_parsed, case["accept"] == true, "{}", case["id"]);
        let problems = schemas[object["kind"].as_str().unwrap()].problems(&object);
        // CEL does not see `matches`, a list or a map, so a schema cannot compare it with the filters.
        let is_beyond_schemas = object.to_string().contains("replacePrefixMatch");
        assert_eq!(problems.is_empty(), is_parsed || is_beyond_schemas, "{}: {problems:?}", case["id"]);
    }
}

/// A good policy, and changes to it that both the schema and `plan validate` refuse.
#[test]
fn schema_and_plan_validate_are_of_one_mind() {
    let rule = |matches: Value, default: Value| json!({"matches": matches, "default": default});
    let route = |rule: Value| {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute", "metadata": {"name": "p"},
            "spec": {"to": [{"targetRef": {"kind": "MeshService", "name": "b"}, "rules": [rule]}]}})
    };
    let everything = json!([{"path": {"prefix": "/"}}]);
    let filter = |filter: Value| route(rule(everything.clone(), json!({"filters": [filter]})));
    let refs = json!([{"kind": "MeshService", "name": "b"}]);
    let redirect = json!({"requestRedirect": {"statusCode": 301}});
    let bad = [
        route(rule(json!([{"path": {"prefix": "/v1/"}}]), json!({}))),
        route(rule(json!([{"path": {"exact": "v1"}}]), json!({}))),
        route(rule(json!([{"path": {"prefix": "/", "exact": "/"}}]), json!({}))),
        route(rule(json!([{"path": {"type": "Prefix"}}]), json!({}))),
        route(rule(json!([{"method": "get"}]), json!({}))),
        route(rule(
            json!([{"queryParams": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]}]),
            json!({}),
        )),
        route(rule(json!([{"headers": [{"name": "a"}]}]), json!({}))),
        route(rule(everything.clone(), json!({"filters": [redirect], "backendRefs": refs}))),
        route(rule(
            everything.clone(),
            json!({"backendRefs": [{"kind": "MeshService", "name": "b", "weight": -1}]}),
        )),
        route(rule(everything.clone(), json!({"backendRefs": [{"kind": "MeshServiceSubset", "name": "b"}]}))),
        route(rule(
            everything.clone(),
            json!({"backendRefs": [{"kind": "MeshService", "name": "b", "tags": {"a": "b"}}]}),
        )),
        filter(json!({})),
        filter(json!({"type": "RequestRedirect", "urlRewrite": {"hostname": "a.io"}})),
        filter(json!({"requestHeaderModifier": {}})),
        filter(json!({"requestRedirect": {"statusCode": 200}})),
        filter(json!({"urlRewrite": {"path": {"replaceFullPath": "/a", "replacePrefixMatch": "/b"}}})),
        filter(json!({"directResponse": {"body": {"inlineString": "x"}}})),
        filter(json!({"directResponse": {"status": 200, "body": {"inlineString": "x", "filename": "/x"}}})),
    ];
    let schema = &schemas()["MeshHTTPRoute"];
    assert_eq!(schema.problems(&filter(redirect)), [""; 0]);
    for object in &bad {
        let problems = schema.problems(object);
        assert!(!problems.is_empty(), "the schema lets through: {object}");
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refused-routes.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": bad.iter().enumerate().map(|(i, object)| {
        let mut object = object.clone();
        object["metadata"]["name"] = format!("p{i}").into();
        object
    }).collect::<Vec<_>>()});
    std::fs::write(&file, list.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_zoneward"))
        .args(["plan", "validate", "-o", "json", "-f", file.to_str().unwrap()])
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (i, object) in bad.iter().enumerate() {
        let name = format!("MeshHTTPRoute default/p{i}");
        let told = answer["violations"].as_array().unwrap().iter().any(|v| v["object"] == name.as_str());
        assert!(told, "plan validate lets through: {object}");
    }
}

/// Random and changed routes: those that `plan validate` accepts are those that `plan routes` plans, and the schemas refuse
/// none of them.
#[test]
fn what_is_planned_is_what_validation_accepts_and_the_schemas_take() {
    const ROUNDS: usize = 1_000;
    let (schemas, valid, mut random) = (schemas(), objects::valid(), Random::seeded(42));
    let mut list = vec![
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "backend"},
            "spec": {"ports": [{"port": 80, "appProtocol": "http"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "frontend"}, "spec": {"ports": [{"port": 80}]}}),
    ];
    for i in 0..ROUNDS {
        let mut object = objects::changed(&valid, &mut random);
        object["metadata"]["name"] = format!("p{i}").into();
        // The CEL interpreter of tests takes its time.
        if i % 8 == 0 && parse::object(&object, &mut Interner::default()).0.is_some() {
            let problems = schemas[object["kind"].as_str().unwrap()].problems(&without_nulls(&object, false));
            assert_eq!(problems, [""; 0], "{object}");
        }
        list.push(object);
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("random-routes.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": list}).to_string()).unwrap();
    let answer = |args: &[&str]| -> Value {
        let program = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args(args)
            .args(["-o", "json", "-f", file.to_str().unwrap()])
            .output();
        serde_json::from_slice(&program.unwrap().stdout).unwrap()
    };
    let names = |entries: &Value, reason: Option<&str>| -> BTreeSet<String> {
        let about = entries.as_array().unwrap().iter();
        let about = about.filter(|entry| reason.is_none_or(|reason| entry["reason"] == reason));
        about.map(|entry| entry["object"].as_str().unwrap().to_owned()).collect()
    };
    let validated = names(&answer(&["plan", "validate"])["violations"], None);
    assert!((ROUNDS / 4..ROUNDS * 3 / 4).contains(&validated.len()), "{} are refused", validated.len());
    let routes = answer(&["plan", "routes", "--from", "frontend", "--to", "backend"]);
    assert_eq!(names(&routes["notices"], Some("Malformed")), validated);
}

/// The object without members that are null: an API server removes them, unless the schema says nullable.
fn without_nulls(value: &Value, has_nullable: bool) -> Value {
    match value {
        Value::Object(map) => {
            let set = map.iter().filter(|(name, value)| !value.is_null() || has_nullable && *name == "value");
            let inner = |name: &String, value| {
                (name.clone(), without_nulls(value, matches!(name.as_str(), "set" | "add")))
            };
            set.map(|(name, value)| inner(name, value)).collect()
        }
        Value::Array(items) => items.iter().map(|item| without_nulls(item, has_nullable)).collect(),
        other => other.clone(),
    }
}
