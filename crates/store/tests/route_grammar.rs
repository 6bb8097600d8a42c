//! One grammar for routes: validation and the API accept exactly what the parser of the daemons accepts, which is what
//! `plan routes` plans and `trace http` applies.

mod objects;

use apimachinery::validate::validate;
use model::parse::gateway_api;
use model::random::Random;
use model::{Interner, parse};
use serde_json::{Value, json};

use crate::gateway_api_cases;
use crate::world::{World, read};

const ROUNDS: usize = 1_000;

fn path(object: &Value) -> String {
    let plural = format!("{}s", object["kind"].as_str().unwrap_or_default().to_lowercase());
    format!("/apis/zoneward.dev/v1alpha1/namespaces/default/{plural}?dryRun=All&fieldValidation=Strict")
}

#[tokio::test]
async fn validation_and_the_api_accept_exactly_the_routes_that_are_planned() {
    let world = World::new().await;
    let (valid, mut random) = (objects::valid(), Random::seeded(40));
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let object = objects::changed(&valid, &mut random);
        let (planned, notices) = parse::object(&object, &mut Interner::default());
        let violations = validate(&object);
        let about = || format!("round {round}: {object}\n{notices:?}");
        assert_eq!(violations.is_empty(), planned.is_some(), "{violations:?}\n{}", about());
        let (code, answer) = world.json("POST", &path(&object), &object).await;
        assert_eq!(code == 201, planned.is_some(), "{answer}\n{}", about());
        accepted += usize::from(planned.is_some());
    }
    assert!((ROUNDS / 4..ROUNDS * 3 / 4).contains(&accepted), "{accepted} of {ROUNDS} are valid");
}

/// The published schemas of the Gateway API decide what a route is: the parser reads all that they accept.
#[tokio::test]
async fn objects_of_the_gateway_api_that_the_api_accepts_are_read() {
    let world = World::new().await;
    let is_parsed =
        |object: &Value| object["kind"].as_str().is_some_and(|kind| gateway_api::KINDS.contains(&kind));
    let valid = gateway_api_cases::cases()
        .into_iter()
        .filter(|case| case["valid"] == true && case["channel"] != "experimental");
    let valid: Vec<Value> = valid
        .map(|case| case["object"].clone())
        .filter(|object| object["apiVersion"] == "gateway.networking.k8s.io/v1" && is_parsed(object))
        .map(|mut object| {
            object["metadata"] = json!({"namespace": "default", "name": "a"});
            object
        })
        .collect();
    let (mut random, mut accepted) = (Random::seeded(41), 0);
    for round in 0..ROUNDS {
        let object = objects::changed(&valid, &mut random);
        let path = format!("{}?dryRun=All&fieldValidation=Strict", gateway_api_cases::path(&object));
        let (code, stored) = world.json("POST", &path, &object).await;
        if code == 201 {
            accepted += 1;
            let (read, notices) = parse::object(&stored, &mut Interner::default());
            assert!(read.is_some(), "round {round}: {object}\n{notices:?}");
        }
    }
    assert!(accepted > ROUNDS / 4, "{accepted} of {ROUNDS} are valid");
}

/// Seed 004: the example of merged filters, as it is written there.
#[tokio::test]
async fn the_merge_example_of_the_seed_is_accepted_as_it_is_written() {
    let world = World::new().await;
    let spec = json!({"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": objects::seed_merge()}]});
    let object = json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshHTTPRoute",
        "metadata": {"namespace": "default", "name": "seed"}, "spec": spec});
    assert_eq!(validate(&object), []);
    let stored = "/apis/zoneward.dev/v1alpha1/namespaces/default/meshhttproutes";
    let (code, answer) = world.json("POST", stored, &object).await;
    assert_eq!((code, &answer["spec"]), (201, &object["spec"]), "{answer}");
    // A merge patch and server-side apply see a map where the schema knows lists, too.
    let patch = json!({"spec": {"to": [{"targetRef": {"kind": "MeshService", "name": "backend"},
        "rules": [{"matches": {"method": "GET"}, "default": {}}]}]}});
    let (code, answer) = world.patch(&format!("{stored}/seed"), "merge-patch", &patch).await;
    assert_eq!((code, &answer["spec"]), (200, &patch["spec"]), "{answer}");
    let mut applied = object.clone();
    applied["metadata"]["name"] = json!("applied");
    for _ in 0..2 {
        let path = format!("{stored}/applied?fieldManager=test");
        let body = applied.to_string().into_bytes();
        let (code, answer) =
            read(world.send("PATCH", &path, "application/apply-patch+yaml", body).await).await;
        assert!(code == 200 || code == 201, "{answer}");
        assert_eq!(answer["spec"], object["spec"]);
    }
}
