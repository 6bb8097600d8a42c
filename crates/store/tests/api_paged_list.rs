//! Long lists: whole, at one revision whatever is written meanwhile, and never half of one.

use crate::world;
use std::collections::BTreeSet;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use store::engine::{Bytes, Expect, TxnError};
use store::{kinds, object_txn};
use world::{CONFIG_MAPS, Lines, World, read};

/// Writes ConfigMaps without the API, since thousands are wanted; every second has the label `odd`.
fn fill(world: &World, count: usize) {
    let written = world.api.engine().write(move |txn| {
        for number in 0..count {
            let name = format!("map-{number:05}");
            let key = object_txn::key(kinds::named("ConfigMap").unwrap(), "default", &name);
            let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name,
                "namespace": "default", "resourceVersion": txn.next_revision().0.to_string()}});
            if number % 2 == 1 {
                object["metadata"]["labels"] = json!({"odd": "yes"});
            }
            txn.put(key, Bytes::from(object.to_string()), Expect::Absent)?;
        }
        Ok::<(), TxnError>(())
    });
    written.unwrap();
}

fn names(list: &Value) -> BTreeSet<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_long_list_is_whole_and_of_one_revision_while_others_write() {
    let world = World::new().await;
    fill(&world, 2_600);
    let before = world.api.engine().revision();
    let response = world.send("GET", CONFIG_MAPS, "", Vec::new()).await;
    // Pages are read as they are sent: these changes come between them.
    assert_eq!(world.delete(&format!("{CONFIG_MAPS}/map-02599"), &Value::Null).await.0, 200);
    world.config_map("zz-late", json!({})).await;
    let (code, list) = read(response).await;
    assert_eq!((code, list["kind"].as_str()), (200, Some("ConfigMapList")));
    assert_eq!(list["metadata"]["resourceVersion"], before.to_string());
    assert_eq!((list["items"].as_array().unwrap().len(), names(&list).len()), (2_600, 2_600));
    let (_, odd) = world.get(&format!("{CONFIG_MAPS}?labelSelector=odd")).await;
    assert_eq!(names(&odd).len(), 1_299);
    let (_, one) = world.get(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name=map-00007")).await;
    assert_eq!(names(&one).len(), 1);
}

#[tokio::test]
async fn a_watch_begins_with_all_objects_however_many() {
    let world = World::new().await;
    fill(&world, 1_300);
    let path = format!(
        "{CONFIG_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut lines = Lines::new(world.send("GET", &path, "", Vec::new()).await);
    world.config_map("zz-late", json!({})).await;
    let mut seen = BTreeSet::new();
    loop {
        let (word, object) = lines.next().await.unwrap();
        if word == "BOOKMARK" {
            break;
        }
        assert_eq!(word, "ADDED");
        assert!(seen.insert(object["metadata"]["name"].as_str().unwrap().to_owned()));
    }
    assert_eq!(seen.len(), 1_300);
    assert_eq!(lines.next_name().await, "ADDED zz-late");
}

#[tokio::test]
async fn a_list_whose_revision_is_compacted_meanwhile_is_broken_and_not_half() {
    let world = World::new().await;
    fill(&world, 6_000);
    let mut body = world.send("GET", CONFIG_MAPS, "", Vec::new()).await.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    fill_over(&world).await;
    let mut ends = Ok(());
    while let Some(frame) = body.frame().await {
        ends = frame.map(drop);
        if ends.is_err() {
            break;
        }
    }
    assert!(ends.unwrap_err().to_string().contains("could not be completed"));
}

/// Moves the store on and forgets what was before.
async fn fill_over(world: &World) {
    world.config_map("zz-late", json!({})).await;
    let engine = world.api.engine().clone();
    tokio::task::spawn_blocking(move || engine.compact(engine.revision())).await.unwrap().unwrap();
}
