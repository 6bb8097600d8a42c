//! Lists and watches: pages that fit together, versions that mean what they mean in Kubernetes, every change
//! once and in order.

use crate::world;
use std::io::Read;

use flate2::read::GzDecoder;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::Caller;
use store::engine::EngineOptions;
use world::{CONFIG_MAPS, Lines, SERVICES, World, read};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

async fn some(world: &World) {
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"), ("e", "x")] {
        world.config_map(name, json!({"labels": {"kind": label}})).await;
    }
}

#[tokio::test]
async fn pages_show_one_version_whatever_is_written_in_between() {
    let world = World::new().await;
    some(&world).await;
    let (_, first) = world.get(&format!("{CONFIG_MAPS}?limit=2")).await;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
    world.config_map("bb", json!({})).await;
    world.delete(&format!("{CONFIG_MAPS}/d"), &Value::Null).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, rest) = world.get(&format!("{CONFIG_MAPS}?limit=10&continue={token}")).await;
    assert_eq!(names(&rest), ["c", "d", "e"]);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(rest["metadata"].get("continue"), None);
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let (_, exact) =
        world.get(&format!("{CONFIG_MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")).await;
    assert_eq!(names(&exact), ["a", "b", "c", "d", "e"]);
    let (_, newest) = world.get(&format!("{CONFIG_MAPS}?resourceVersion=0")).await;
    assert_eq!(names(&newest), ["a", "b", "bb", "c", "e"]);
}

#[tokio::test]
async fn selectors_choose_and_pages_of_them_are_full() {
    let world = World::new().await;
    some(&world).await;
    let (_, first) = world.get(&format!("{CONFIG_MAPS}?labelSelector=kind%3Dx&limit=2")).await;
    assert_eq!(names(&first), ["a", "c"]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, rest) =
        world.get(&format!("{CONFIG_MAPS}?labelSelector=kind%3Dx&limit=2&continue={token}")).await;
    assert_eq!((names(&rest), rest["metadata"].get("continue")), (vec!["e"], None));
    let (_, one) = world.get(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Db")).await;
    assert_eq!(names(&one), ["b"]);
}

#[tokio::test]
async fn what_is_compacted_is_gone() {
    // With a short ring, so that memory does not remember what the log forgot.
    let world = World::on(
        ServiceRanges::without_flags(),
        EngineOptions { history_events: 1, ..EngineOptions::default() },
    )
    .await;
    some(&world).await;
    let (_, first) = world.get(&format!("{CONFIG_MAPS}?limit=1")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    world.config_map("z", json!({})).await;
    let engine = world.api.engine().clone();
    let newest = engine.revision();
    tokio::task::spawn_blocking(move || engine.compact(newest).unwrap()).await.unwrap();
    for path in [
        format!("{CONFIG_MAPS}?limit=1&continue={token}"),
        format!("{CONFIG_MAPS}?resourceVersion=1&resourceVersionMatch=Exact"),
    ] {
        let (code, status) = world.get(&path).await;
        assert_eq!((code, status["reason"].as_str()), (410, Some("Expired")), "{path}");
    }
    let mut lines = watch(&world, "resourceVersion=1").await;
    let (word, status) = lines.next().await.unwrap();
    assert_eq!(
        (word.as_str(), &status["code"], &status["reason"]),
        ("ERROR", &json!(410), &json!("Expired"))
    );
    assert!(lines.next().await.is_none(), "that was all");
}

async fn watch(world: &World, query: &str) -> Lines {
    let path = format!("{CONFIG_MAPS}?watch=true&{query}");
    Lines::new(world.send("GET", &path, "", Vec::new()).await)
}

#[tokio::test]
async fn a_watch_goes_on_where_a_list_ended() {
    let world = World::new().await;
    some(&world).await;
    let (_, list) = world.get(CONFIG_MAPS).await;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut lines = watch(&world, &format!("resourceVersion={version}")).await;
    world.config_map("f", json!({})).await;
    world.patch(&format!("{CONFIG_MAPS}/a"), "merge-patch", &json!({"data": {"x": "y"}})).await;
    world.delete(&format!("{CONFIG_MAPS}/b"), &Value::Null).await;
    for wanted in ["ADDED f", "MODIFIED a", "DELETED b"] {
        assert_eq!(lines.next_name().await, wanted);
    }
}

#[tokio::test]
async fn a_deletion_carries_its_own_version() {
    let world = World::new().await;
    let made = world.config_map("a", json!({})).await;
    let mut lines = watch(&world, "").await;
    assert_eq!(lines.next_name().await, "ADDED a");
    world.delete(&format!("{CONFIG_MAPS}/a"), &Value::Null).await;
    let (word, object) = lines.next().await.unwrap();
    let number =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(word, "DELETED");
    assert!(number(&object) > number(&made));
}

#[tokio::test]
async fn an_object_that_leaves_the_view_is_deleted_from_it() {
    let world = World::new().await;
    some(&world).await;
    let version = world.get(CONFIG_MAPS).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut lines = watch(&world, &format!("labelSelector=kind%3Dx&resourceVersion={version}")).await;
    for (name, label) in [("a", "y"), ("b", "x"), ("c", "x"), ("d", "y")] {
        let patch = json!({"metadata": {"labels": {"kind": label}}, "data": {"n": "1"}});
        world.patch(&format!("{CONFIG_MAPS}/{name}"), "merge-patch", &patch).await;
    }
    for wanted in ["DELETED a", "ADDED b", "MODIFIED c"] {
        assert_eq!(lines.next_name().await, wanted);
    }
}

#[tokio::test]
async fn a_streamed_list_ends_with_its_bookmark() {
    let world = World::new().await;
    some(&world).await;
    let query =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1";
    let mut lines = watch(&world, query).await;
    for wanted in ["ADDED a", "ADDED b", "ADDED c", "ADDED d", "ADDED e"] {
        assert_eq!(lines.next_name().await, wanted);
    }
    let (word, object) = lines.next().await.unwrap();
    assert_eq!((word.as_str(), &object["kind"]), ("BOOKMARK", &json!("ConfigMap")));
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(lines.next().await.map(|(word, _)| word).as_deref(), Some("BOOKMARK"), "one more at the end");
    assert!(lines.next().await.is_none(), "timeoutSeconds ends it");
}

#[tokio::test]
async fn an_update_that_changes_nothing_is_no_event() {
    let world = World::new().await;
    let made = world.config_map("a", json!({})).await;
    let (code, same) = world.json("PUT", &format!("{CONFIG_MAPS}/a"), &made).await;
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &made["metadata"]["resourceVersion"]));
}

async fn accept(world: &World, path: &str, form: &str) -> (u16, Value) {
    let request =
        Request::get(path).header("accept", format!("application/json;as={form};v=v1;g=meta.k8s.io"));
    read(world.api.answer(request.body(Vec::new().into()).unwrap(), &Caller::own()).await).await
}

#[tokio::test]
async fn objects_come_as_tables_and_as_metadata_alone() {
    let world = World::new().await;
    let (_, table) = accept(&world, SERVICES, "Table").await;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][0], "kubernetes");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, list) = accept(&world, SERVICES, "PartialObjectMetadataList").await;
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0].get("spec"), None);
    let (_, one) = accept(&world, &format!("{SERVICES}/kubernetes"), "PartialObjectMetadata").await;
    assert_eq!((&one["kind"], one.get("spec")), (&json!("PartialObjectMetadata"), None));
}

#[tokio::test]
async fn generated_names_are_made_up_and_kept() {
    let world = World::new().await;
    let object = json!({"metadata": {"generateName": "web-"}});
    let (code, made) = world.json("POST", CONFIG_MAPS, &object).await;
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(code == 201 && name.starts_with("web-") && name.len() == 9, "{name}");
    assert_eq!(world.get(&format!("{CONFIG_MAPS}/{name}")).await.0, 200);
}

#[tokio::test]
async fn the_status_is_written_by_its_own_path_alone() {
    let world = World::new().await;
    let node = json!({"metadata": {"name": "n1"}, "status": {"phase": "x"}});
    let nodes = "/api/v1/nodes";
    assert_eq!(world.json("POST", nodes, &node).await.0, 201);
    let web = world.service("web", json!({})).await;
    let condition = json!({"status": {"conditions": [{"type": "A", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}, "spec": {"type": "NodePort"}});
    let (code, after) =
        world.patch(&format!("{SERVICES}/web/status"), "strategic-merge-patch", &condition).await;
    assert_eq!(code, 200, "{after:#}");
    assert_eq!((&after["spec"], &after["status"]["conditions"][0]["type"]), (&web["spec"], &json!("A")));
    let (code, after) =
        world.patch(&format!("{SERVICES}/web"), "merge-patch", &json!({"status": null})).await;
    assert_eq!((code, &after["status"]["conditions"][0]["type"]), (200, &json!("A")));
}

/// KEP-5958.
#[tokio::test]
async fn managed_fields_are_left_out_on_request() {
    let world = World::new().await;
    some(&world).await;
    let has_fields = |object: &Value| object["metadata"].get("managedFields").is_some();
    let ask = async |uri: &str, accept: &str| {
        let request = Request::builder().uri(uri).header("accept", accept);
        let answer = world.api.answer(request.body(Vec::new().into()).unwrap(), &Caller::own()).await;
        read(answer).await
    };
    let lean = "application/json;drop=metadata.managedFields";
    for (accept, has) in
        [("application/json", true), ("application/json;drop=metadata.labels", true), (lean, false)]
    {
        let object: Value = ask(&format!("{CONFIG_MAPS}/a"), accept).await.1;
        assert_eq!(has_fields(&object), has, "{accept}");
        let list: Value = ask(CONFIG_MAPS, accept).await.1;
        assert_eq!(names(&list), ["a", "b", "c", "d", "e"]);
        assert!(list["items"].as_array().unwrap().iter().all(|item| has_fields(item) == has), "{accept}");
        let partial = format!("{accept};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
        let list: Value = ask(CONFIG_MAPS, &partial).await.1;
        assert!(list["items"].as_array().unwrap().iter().all(|item| has_fields(item) == has), "{partial}");
    }
}

#[tokio::test]
async fn a_compressed_watch_is_one_gzip_stream_with_the_same_events() {
    let world = World::new().await;
    some(&world).await;
    let watch = async |encoding: &str| {
        let uri = format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=3&allowWatchBookmarks=true");
        let request = Request::builder().uri(uri).header("accept-encoding", encoding);
        let answer = world.api.answer(request.body(Vec::new().into()).unwrap(), &Caller::own()).await;
        let is_compressed = answer.headers().get("content-encoding").is_some_and(|value| value == "gzip");
        (is_compressed, answer.into_body().collect().await.unwrap().to_bytes())
    };
    let change = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        world.config_map("f", json!({})).await
    };
    let (plain, first, second, _) = tokio::join!(watch("identity"), watch("gzip"), watch("gzip, br"), change);
    assert!(
        !plain.0 && plain.1.iter().filter(|byte| **byte == b'\n').count() == 7,
        "six objects, a bookmark"
    );
    for (is_compressed, sent) in [first, second] {
        let mut text = Vec::new();
        GzDecoder::new(&sent[..]).read_to_end(&mut text).unwrap();
        assert!(is_compressed && text == plain.1 && sent.len() < plain.1.len() / 2);
    }
}
