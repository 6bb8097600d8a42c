//! The finer parts of the wire: what strict clients, metadata clients and rehearsals see, and Events in two groups.

use crate::world;
use http::{Request, Response};
use serde_json::{Value, json};
use store::api::{Caller, ResponseBody};
use store::kinds;
use world::{CONFIG_MAPS, Lines, SERVICES, World, read, service};

async fn accepting(world: &World, path: &str, accept: &str) -> Response<ResponseBody> {
    let request = Request::get(path).header("accept", accept).body(Vec::new().into()).unwrap();
    world.api.answer(request, &Caller::own()).await
}

#[tokio::test]
async fn a_watch_may_show_metadata_alone_or_tables() {
    let world = World::new().await;
    world.config_map("a", json!({"labels": {"x": "y"}})).await;
    let path = format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1");
    // What client-go's metadata client sends.
    let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                    application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
    let mut lines = Lines::new(accepting(&world, &path, metadata).await);
    let (word, object) = lines.next().await.unwrap();
    assert_eq!((word.as_str(), &object["kind"]), ("ADDED", &json!("PartialObjectMetadata")));
    assert_eq!(object["metadata"]["labels"]["x"], "y");
    let (word, object) = lines.next().await.unwrap();
    assert_eq!((word.as_str(), &object["kind"]), ("BOOKMARK", &json!("PartialObjectMetadata")));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let mut lines = Lines::new(accepting(&world, &path, table).await);
    world.config_map("b", json!({})).await;
    let (_, first) = lines.next().await.unwrap();
    assert_eq!((&first["kind"], &first["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
    assert!(first["columnDefinitions"].is_array());
    let (_, second) = lines.next().await.unwrap();
    assert!(second["columnDefinitions"].is_null(), "columns are described once");
}

#[tokio::test]
async fn a_watch_of_one_object_shows_no_other() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.config_map(name, json!({})).await;
    }
    let path = format!("{CONFIG_MAPS}/b?watch=true&timeoutSeconds=1");
    let mut lines = Lines::new(world.send("GET", &path, "", Vec::new()).await);
    assert_eq!(lines.next_name().await, "ADDED b");
    assert!(lines.next().await.is_none());
    let (code, object) = world.get(&format!("{CONFIG_MAPS}/b?watch=false")).await;
    assert_eq!((code, &object["kind"]), (200, &json!("ConfigMap")));
}

#[tokio::test]
async fn fields_that_stand_twice_are_refused_by_strict_and_warned_of_by_default() {
    let world = World::new().await;
    let text = r#"{"metadata": {"name": "a"}, "data": {"x": "1", "x": "2"}, "odd": 1}"#;
    let post = |query: &'static str, kind: &'static str, text: &'static str| {
        let world = &world;
        async move { world.send("POST", &format!("{CONFIG_MAPS}{query}"), kind, text.as_bytes().to_vec()).await }
    };
    let (code, status) = read(post("?fieldValidation=Strict", "application/json", text).await).await;
    assert_eq!((code, &status["reason"]), (400, &json!("BadRequest")));
    let message = "strict decoding error: duplicate field \"data.x\", unknown field \"odd\"";
    assert_eq!(status["message"], message);
    let response = post("", "application/json", text).await;
    let warnings: Vec<String> =
        response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    assert_eq!(warnings, ["299 - \"duplicate field \\\"data.x\\\"\"", "299 - \"unknown field \\\"odd\\\"\""]);
    assert_eq!(read(response).await.1["data"]["x"], "2", "the last one counts");
    let patch = br#"{"data": {"y": "1", "y": "2"}}"#.to_vec();
    let path = format!("{CONFIG_MAPS}/a?fieldValidation=Strict");
    let refused = world.send("PATCH", &path, "application/merge-patch+json", patch).await;
    assert_eq!(refused.status(), 422);
    let yaml = "metadata: {name: b}\ndata:\n  x: '1'\n  x: '2'\n";
    assert_eq!(post("?fieldValidation=Strict", "application/yaml", yaml).await.status(), 400);
    let (code, made) = read(post("?fieldValidation=Ignore", "application/yaml", yaml).await).await;
    assert_eq!((code, &made["data"]["x"]), (201, &json!("2")));
}

#[tokio::test]
async fn every_verb_can_be_rehearsed() {
    let world = World::new().await;
    world.config_map("kept", json!({"labels": {"kind": "x"}})).await;
    let kept = world.get(&format!("{CONFIG_MAPS}/kept")).await.1;
    let before = world.api.engine().revision();
    let one = format!("{CONFIG_MAPS}/kept?dryRun=All");
    let mut changed = kept.clone();
    changed["data"] = json!({"a": "1"});
    assert_eq!(
        world
            .json("POST", &format!("{CONFIG_MAPS}?dryRun=All"), &json!({"metadata": {"name": "new"}}))
            .await
            .0,
        201
    );
    let (code, after) = world.json("PUT", &one, &changed).await;
    assert_eq!((code, &after["data"]["a"]), (200, &json!("1")));
    for kind in ["merge-patch", "strategic-merge-patch"] {
        let (code, after) = world.patch(&one, kind, &json!({"data": {"a": "2"}})).await;
        assert_eq!((code, &after["data"]["a"]), (200, &json!("2")), "{kind}");
    }
    assert_eq!(world.delete(&one, &Value::Null).await.0, 200);
    assert_eq!(world.delete(&format!("{CONFIG_MAPS}/kept"), &json!({"dryRun": ["All"]})).await.0, 200);
    let (code, list) =
        world.delete(&format!("{CONFIG_MAPS}?dryRun=All&labelSelector=kind%3Dx"), &Value::Null).await;
    assert_eq!((code, list["items"].as_array().unwrap().len()), (200, 1));
    assert_eq!(world.api.engine().revision(), before, "nothing was written");
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/kept")).await.1, kept);
}

#[tokio::test]
async fn every_selectable_field_can_be_selected_by_in_lists_and_watches() {
    let world = World::new().await;
    for kind in kinds::KINDS.iter().filter(|kind| kind.is_stored()) {
        let base = if kind.group.is_empty() { "api".to_owned() } else { format!("apis/{}", kind.group) };
        for field in kind.selectable.iter().chain(&["metadata.name"]) {
            let path = format!("/{base}/{}/{}?fieldSelector={field}%3Dnone", kind.version, kind.plural);
            let (code, list) = world.get(&path).await;
            assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(0)), "{path}: {list}");
            let watch = format!("{path}&watch=true&timeoutSeconds=1");
            assert_eq!(world.send("GET", &watch, "", Vec::new()).await.status(), 200, "{watch}");
        }
    }
    world.service("web", json!({"type": "NodePort"})).await;
    let (_, list) = world.get("/api/v1/services?fieldSelector=spec.type%3DNodePort").await;
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
}

#[tokio::test]
async fn pages_and_versions_go_together_as_in_kubernetes() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.config_map(name, json!({})).await;
    }
    let (_, first) = world.get(&format!("{CONFIG_MAPS}?limit=2")).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    world.config_map("aa", json!({})).await;
    for (query, code, count) in [
        (format!("limit=2&resourceVersion={version}&resourceVersionMatch=Exact"), 200, Some(2)),
        (format!("limit=2&resourceVersion={version}&resourceVersionMatch=NotOlderThan"), 200, Some(2)),
        ("limit=2&resourceVersion=0".to_owned(), 200, Some(2)),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(), 200, Some(4)),
        ("resourceVersionMatch=Exact".to_owned(), 422, None),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422, None),
    ] {
        let (got, list) = world.get(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!((got, list["items"].as_array().map(Vec::len)), (code, count), "{query}");
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let both = format!("{CONFIG_MAPS}?limit=2&continue={token}&resourceVersion={version}");
    assert_eq!(world.get(&both).await.0, 400, "a token has its version already");
}

const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const OLD_EVENTS: &str = "/api/v1/namespaces/default/events";

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name}, "regarding": {"kind": "Service", "name": "web", "namespace": "default"},
        "note": "n", "reason": "R", "action": "A", "type": "Normal", "reportingController": "zoneward",
        "reportingInstance": "i", "eventTime": "2026-01-01T00:00:00.000001Z"})
}

#[tokio::test]
async fn one_event_is_seen_in_both_groups() {
    let world = World::new().await;
    let mut lines = Lines::new(world.send("GET", &format!("{NEW_EVENTS}?watch=true"), "", Vec::new()).await);
    let (code, made) = world.json("POST", NEW_EVENTS, &event("e")).await;
    assert_eq!((code, &made["apiVersion"], &made["note"]), (201, &json!("events.k8s.io/v1"), &json!("n")));
    let (_, old) = world.get(&format!("{OLD_EVENTS}/e")).await;
    assert_eq!((&old["apiVersion"], &old["message"]), (&json!("v1"), &json!("n")));
    assert_eq!(old["involvedObject"]["name"], "web");
    assert_eq!(old["reportingComponent"], "zoneward");
    let series =
        json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}, "note": "m"});
    let (code, patched) = world.patch(&format!("{NEW_EVENTS}/e"), "merge-patch", &series).await;
    assert_eq!((code, &patched["series"]["count"]), (200, &json!(2)), "{patched:#}");
    let (_, list) = world.get(&format!("{NEW_EVENTS}?fieldSelector=regarding.name%3Dweb")).await;
    assert_eq!((&list["kind"], &list["items"][0]["note"]), (&json!("EventList"), &json!("m")));
    assert_eq!(list["apiVersion"], "events.k8s.io/v1");
    for note in ["n", "m"] {
        let (_, seen) = lines.next().await.unwrap();
        assert_eq!((&seen["note"], &seen["apiVersion"]), (&json!(note), &json!("events.k8s.io/v1")));
    }
    let (code, gone) = world.delete(NEW_EVENTS, &Value::Null).await;
    assert_eq!((code, &gone["items"][0]["note"]), (200, &json!("m")));
    assert_eq!(world.get(&format!("{OLD_EVENTS}/e")).await.0, 404);
}

#[tokio::test]
async fn an_event_goes_after_an_hour_and_lives_with_its_object() {
    let world = World::new().await;
    assert_eq!(world.json("POST", NEW_EVENTS, &event("e")).await.0, 201);
    let mut elsewhere = event("x");
    elsewhere["regarding"]["namespace"] = "kube-system".into();
    let (code, status) = world.json("POST", NEW_EVENTS, &elsewhere).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("involvedObject.namespace")));
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
    let engine = world.api.engine().clone();
    let expired = tokio::task::spawn_blocking(move || {
        let last = |stored: &store::engine::StoredObject, _: store::engine::Revision| stored.json.clone();
        let early = engine.expire(now + 3_500, 10, last).unwrap();
        (early, engine.expire(now + 3_700, 10, last).unwrap())
    });
    assert_eq!(expired.await.unwrap(), (0, 1));
    assert_eq!(world.get(&format!("{OLD_EVENTS}/e")).await.0, 404);
}

#[tokio::test]
async fn questions_are_answered_and_not_kept() {
    let world = World::new().await;
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let (code, answer) = world.json("POST", who, &json!({})).await;
    assert_eq!((code, &answer["status"]["userInfo"]["username"]), (201, &json!("system:zoneward")));
    for (method, path) in
        [("GET", who.to_owned()), ("DELETE", format!("{who}/x")), ("PUT", format!("{who}/x"))]
    {
        assert_eq!(world.json(method, &path, &json!({})).await.0, 405, "{method} {path}");
    }
    let may = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = json!({"spec": {"resourceAttributes": {"verb": "delete", "resource": "services"}}});
    let request = |caller: Caller| {
        let (api, question) = (world.api.clone(), question.to_string());
        async move {
            let request = Request::post(may).header("content-type", "application/json");
            read(api.answer(request.body(question.into()).unwrap(), &caller).await).await
        }
    };
    assert_eq!(request(Caller::own()).await.1["status"]["allowed"], true);
    let reader = Caller::new("reader", &["zoneward:readers", "system:authenticated"]);
    assert_eq!(request(reader).await.1["status"]["allowed"], false);
}

#[tokio::test]
async fn nobody_is_somebody_else() {
    let world = World::new().await;
    let request = Request::get(SERVICES).header("impersonate-user", "x").body(Vec::new().into()).unwrap();
    assert_eq!(world.api.answer(request, &Caller::own()).await.status(), 403);
}

#[tokio::test]
async fn a_secret_takes_texts_and_shows_data() {
    let world = World::new().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let (code, made) =
        world.json("POST", secrets, &json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}})).await;
    assert_eq!((code, &made["data"], made.get("stringData")), (201, &json!({"a": "Yg=="}), None));
    assert_eq!(world.json("POST", SERVICES, &service("a", json!({}))).await.0, 201);
}

#[tokio::test]
async fn every_answer_says_that_it_depends_on_the_accepted_encoding() {
    let world = World::new().await;
    for (path, wanted) in [
        ("/api/v1/namespaces/default/services", "Accept-Encoding"),
        ("/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=1", "Accept-Encoding"),
        ("/apis", "Accept-Encoding"),
        ("/nowhere", "Accept-Encoding"),
        ("/openapi/v2", "Accept-Encoding, Accept"),
    ] {
        let response = world.send("GET", path, "", Vec::new()).await;
        assert_eq!(response.headers()["vary"], wanted, "{path}");
    }
}

#[tokio::test]
async fn a_path_to_nowhere_has_details_that_are_empty() {
    let world = World::new().await;
    for path in ["/nowhere", "/api/v1/namespaces/default/pods/p/log", "/apis/apps/v1/deployments"] {
        let (code, status) = world.get(path).await;
        assert_eq!((code, status.get("details")), (404, Some(&json!({}))), "{path}");
    }
}

/// The bytes of a body, as far as they come.
async fn bytes(response: Response<ResponseBody>) -> Vec<u8> {
    http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes().to_vec()
}

#[tokio::test]
async fn lists_and_watches_of_some_kinds_come_in_protobuf() {
    use model::protobuf::{FRAME_HEADER, envelope, frame_length, head, list, watch_event};
    let world = World::new().await;
    let (code, made) = world.json("POST", SERVICES, &service("web", json!({}))).await;
    assert_eq!(code, 201, "{made}");
    let both = "application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json";
    let response = accepting(&world, SERVICES, both).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf");
    let content = bytes(response).await;
    let page = envelope(&content).unwrap();
    assert_eq!((page.api_version, page.kind), ("v1", "ServiceList"));
    let items = list(page.raw).unwrap().items;
    let parsed = |raw: &[u8]| model::parse::message("v1", "Service", raw, &mut Default::default()).0;
    let by_json = model::parse::object(&made, &mut Default::default()).0;
    assert!(by_json.is_some() && items.iter().any(|raw| parsed(raw) == by_json));
    // A page, and what follows it.
    world.json("POST", SERVICES, &service("web2", json!({}))).await;
    let content = bytes(accepting(&world, &format!("{SERVICES}?limit=1"), both).await).await;
    assert!(!list(envelope(&content).unwrap().raw).unwrap().continue_token.is_empty());

    let watch = format!(
        "{SERVICES}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let response = accepting(&world, &watch, both).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let content = bytes(response).await;
    let (mut rest, mut words) = (&content[..], Vec::new());
    while let Some(length) = frame_length(rest).unwrap() {
        let (frame, after) = rest[FRAME_HEADER..].split_at(length);
        let (word, object) = watch_event(frame).unwrap();
        let head = head(envelope(object).unwrap().raw).unwrap();
        words.push(format!("{word} {} {}", head.name, head.ends_initial_events));
        rest = after;
    }
    assert!(rest.is_empty(), "whole frames");
    assert!(
        words.contains(&"ADDED web false".to_owned()) && words.contains(&"BOOKMARK  true".to_owned()),
        "{words:?}"
    );

    // An expired version is an event; errors of requests are JSON, and so are other kinds, unless only protobuf will do.
    let only = "application/vnd.kubernetes.protobuf";
    assert_eq!(accepting(&world, SERVICES, only).await.status(), 200);
    assert_eq!(accepting(&world, CONFIG_MAPS, only).await.status(), 406);
    assert_eq!(accepting(&world, &format!("{SERVICES}/web"), only).await.status(), 406);
    for path in [
        CONFIG_MAPS.to_owned(),
        format!("{SERVICES}/web"),
        format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1"),
    ] {
        let response = accepting(&world, &path, both).await;
        assert_eq!(response.headers()["content-type"], "application/json", "{path}");
    }
    let response = accepting(&world, &format!("{SERVICES}?watch=true&resourceVersion=999999"), both).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (504, &"application/json".parse().unwrap())
    );
}
