//! Watches of a server that answers as the test says, cut anywhere; and of the embedded API.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clock::Clock;
use futures_util::StreamExt;
use http_body_util::StreamBody;
use hyper::body::Frame;
use kube::api::{Api, DeleteParams, PostParams};
use model::random::Random;
use serde_json::{Value, json};
use store::admission::service::ServiceRanges;
use store::api::ApiLimits;
use store::engine::{Engine, EngineOptions};

use super::*;
use crate::{Informer, InformerEvent, ObjectChange, ObjectKind, WatchCache};

const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The bytes of a case of another encoder.
fn case(name: &str) -> Vec<u8> {
    let text = include_str!("../../../../../vectors/protobuf.json");
    let document: Value = serde_json::from_str(text).unwrap();
    let case = document["cases"].as_array().unwrap().iter().find(|case| case["name"] == name).unwrap();
    STANDARD.decode(case["protobuf"].as_str().unwrap()).unwrap()
}

/// A response: its content type and the chunks of its body.
type Scripted = (u16, &'static str, Vec<Vec<u8>>);

/// A client of a server with these responses, and the requests that it got.
fn scripted(responses: Vec<Scripted>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, left) = (requests.clone(), Mutex::new(VecDeque::from(responses)));
    let left = Arc::new(left);
    let service = tower::service_fn(move |request: Request<Body>| {
        let accept = request.headers()[header::ACCEPT].to_str().unwrap().to_owned();
        seen.lock().unwrap().push(format!("{} {accept}", request.uri()));
        let next = left.lock().unwrap().pop_front();
        async move {
            let Some((code, content_type, chunks)) = next else { return std::future::pending().await };
            let frames = chunks.into_iter().map(|chunk| Ok::<_, io::Error>(Frame::data(Bytes::from(chunk))));
            let body = StreamBody::new(stream::iter(frames));
            let response = Response::builder().status(code).header(header::CONTENT_TYPE, content_type);
            Ok::<_, io::Error>(response.body(body).unwrap())
        }
    });
    (Client::new(service, "default"), requests)
}

/// The events of a watch as text.
async fn items(client: &Client, spec: &WatchSpec, count: usize) -> Vec<String> {
    let shown = |item: Item| match item {
        Ok(watcher::Event::Init) => "init".to_owned(),
        Ok(watcher::Event::InitDone) => "init done".to_owned(),
        Ok(watcher::Event::InitApply(o)) => format!("initial {} {}", o.name(), o.message().is_some()),
        Ok(watcher::Event::Apply(o)) => format!("apply {} {}", o.name(), o.message().is_some()),
        Ok(watcher::Event::Delete(o)) => format!("delete {}", o.name()),
        Err(error) => format!("error {}", crate::failure::watch_cause(&error)),
    };
    events(client.clone(), spec).take(count).map(shown).collect().await
}

fn slices() -> WatchSpec {
    WatchSpec::all(ObjectKind::Slice).protobuf()
}

fn whole_watch() -> Vec<u8> {
    let [event, bookmark] = ["an event of a watch", "the bookmark after the initial objects"].map(case);
    [event.clone(), bookmark, event].concat()
}

#[tokio::test]
async fn frames_that_are_cut_anywhere_are_read() {
    let whole = whole_watch();
    let wanted = ["init", "initial web-abcde true", "init done", "apply web-abcde true"];
    for at in 0..whole.len() {
        let chunks = vec![whole[..at].to_vec(), whole[at..].to_vec()];
        let (client, _) = scripted(vec![(200, STREAM, chunks)]);
        assert_eq!(items(&client, &slices(), 4).await, wanted, "cut at {at}");
    }
    let single = whole.iter().map(|byte| vec![*byte]).collect();
    let (client, requests) = scripted(vec![(200, STREAM, single)]);
    assert_eq!(items(&client, &slices(), 4).await, wanted);
    let request = requests.lock().unwrap()[0].clone();
    assert!(request.contains("sendInitialEvents=true"), "{request}");
    assert!(request.ends_with(" application/vnd.kubernetes.protobuf,application/json"), "{request}");
}

#[tokio::test]
async fn a_watch_that_ends_within_a_frame_is_resumed_at_its_version() {
    let whole = whole_watch();
    let bookmark_end = whole.len() - case("an event of a watch").len();
    let (client, requests) = scripted(vec![
        (200, STREAM, vec![whole[..bookmark_end + 9].to_vec()]),
        (200, STREAM, vec![case("an expired version")]),
        (200, STREAM, vec![whole.clone()]),
    ]);
    let wanted = [
        "init",
        "initial web-abcde true",
        "init done",
        "error too old resource version: 1 (4711)",
        "init",
        "initial web-abcde true",
    ];
    assert_eq!(items(&client, &slices(), 6).await, wanted);
    assert!(requests.lock().unwrap()[1].contains("resourceVersion=4800"));
    assert!(requests.lock().unwrap()[2].contains("sendInitialEvents=true"), "expired: all again");
}

#[tokio::test]
async fn the_content_type_of_the_response_decides() {
    let lines = concat!(
        r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#,
        "\n",
        r#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"8","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n",
        r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}"#,
        "\n",
    );
    for size in [1, 7, 1_000] {
        let chunks = lines.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        let (client, _) = scripted(vec![(200, "application/json", chunks)]);
        assert_eq!(items(&client, &slices(), 4).await, ["init", "initial a false", "init done", "delete a"]);
    }
}

#[tokio::test]
async fn one_malformed_object_does_not_stop_the_others() {
    let good = case("an event of a watch");
    // The name of an object is not UTF-8; then an event of no known type.
    let object = [&b"k8s\0"[..], &[0x12, 5, 0x0a, 3, 0x0a, 1, 0xff]].concat();
    let object = [&[0x0a, object.len() as u8][..], &object].concat();
    let bad = [&[0x0a, 5][..], b"ADDED", &[0x12, object.len() as u8], &object].concat();
    let framed = |frame: &[u8]| [&(frame.len() as u32).to_be_bytes()[..], frame].concat();
    let whole = [framed(&bad), framed(&[0x0a, 1, b'?']), framed(b""), good.clone()].concat();
    let (client, _) = scripted(vec![(200, STREAM, vec![whole])]);
    let read = items(&client, &slices(), 5).await;
    assert_eq!(read[1], "error malformed protobuf: a string is not UTF-8");
    assert!(read[2].starts_with("error malformed") && read[3].starts_with("error malformed"), "{read:?}");
    assert_eq!(read[4], "initial web-abcde true");
    // Without a length there is no next frame: the watch starts again.
    let (client, _) = scripted(vec![(200, STREAM, vec![vec![0xff; 8]]), (200, STREAM, vec![good])]);
    let read = items(&client, &slices(), 4).await;
    assert_eq!(
        read,
        ["init", "error malformed protobuf: a frame is too long", "init", "initial web-abcde true"]
    );
}

#[tokio::test]
async fn failures_are_read_in_every_form() {
    let gone = case("an expired version");
    let (_, status) = protobuf::watch_event(&gone[FRAME_HEADER..]).unwrap();
    let (client, _) = scripted(vec![
        (410, MEDIA_TYPE, vec![status.to_vec()]),
        (503, "text/plain", vec![b"busy\n".to_vec()]),
        (403, "application/json", vec![br#"{"message":"no","reason":"Forbidden","code":403}"#.to_vec()]),
    ]);
    let wanted = ["error too old resource version: 1 (4711)", "error busy", "error no"];
    assert_eq!(items(&client, &slices(), 3).await, wanted);
}

#[tokio::test]
async fn pages_of_a_list_are_read_from_protobuf() {
    let mut services = WatchSpec::all(ObjectKind::Service).protobuf();
    services.config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
    let last = json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "4714"},
        "items": [{"metadata": {"name": "last"}}]});
    let (client, requests) = scripted(vec![
        (200, MEDIA_TYPE, vec![case("a page of a list")]),
        (200, "application/json", vec![last.to_string().into_bytes()]),
    ]);
    let wanted = ["init", "initial web true", "initial zeros true", "initial last false", "init done"];
    assert_eq!(items(&client, &services, 5).await, wanted);
    assert!(requests.lock().unwrap()[1].contains("continue=abc"));
}

/// The objects of the embedded API over both encodings.
#[tokio::test]
async fn the_embedded_api_is_watched_in_protobuf() {
    let folder = std::env::temp_dir().join(format!("zoneward-encoded-watch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = Engine::open(&folder, EngineOptions::default()).unwrap();
    // Open files live on; nothing is left behind.
    std::fs::remove_dir_all(&folder).unwrap();
    let api = store::api::Api::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
    let client = crate::in_process(api.local(), &Clock::system());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let cidr = json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/16"]}});
    let cidrs: Api<k8s_openapi::api::networking::v1::ServiceCIDR> = Api::all(client.clone());
    cidrs.create(&PostParams::default(), &serde_json::from_value(cidr).unwrap()).await.unwrap();
    let services: Api<k8s_openapi::api::core::v1::Service> = Api::namespaced(client.clone(), "default");
    let service = |name: &str| {
        let ports = json!([{"port": 80, "targetPort": "web"}]);
        let spec = json!({"ports": ports, "selector": {"app": name}});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"a": "b"}}, "spec": spec}))
            .unwrap()
    };
    services.create(&PostParams::default(), &service("before")).await.unwrap();
    let start = |spec| Informer::start(&client, Random::seeded(1), [spec]);
    let all = WatchSpec::all(ObjectKind::Service);
    let mut listed = all.clone().protobuf();
    listed.config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
    let mut watches = [
        start(all.clone().protobuf()),
        start(all.clone().labels("a=b").protobuf()),
        start(listed),
        start(all),
    ];
    let mut caches = [const { None }; 4];
    for (watch, cache) in watches.iter_mut().zip(&mut caches) {
        *cache = Some(WatchCache::default());
        let has_listed = |event: &InformerEvent| matches!(event, InformerEvent::ListCompleted(_));
        follow(watch, cache.as_mut().unwrap(), has_listed).await;
    }
    services.create(&PostParams::default(), &service("after")).await.unwrap();
    services.delete("before", &DeleteParams::default()).await.unwrap();
    for (at, (watch, cache)) in watches.iter_mut().zip(&mut caches).enumerate() {
        let is_deletion = |event: &InformerEvent| matches!(event, InformerEvent::Deleted(..));
        let messages = follow(watch, cache.as_mut().unwrap(), is_deletion).await;
        assert_eq!(messages, if at < 3 { 1 } else { 0 }, "of the watch {at}");
    }
    let shown = caches.map(|cache| format!("{:?}", cache.unwrap().snapshot().services().collect::<Vec<_>>()));
    assert!(shown[3].contains("after") && !shown[3].contains("before"), "{}", shown[3]);
    assert!(shown.iter().all(|snapshot| *snapshot == shown[3]), "{shown:?}");
}

/// Applies events up to one; how many objects came as protobuf.
async fn follow(
    watch: &mut Informer,
    cache: &mut WatchCache,
    is_last: impl Fn(&InformerEvent) -> bool,
) -> usize {
    let (mut messages, mut is_done) = (0, false);
    while !is_done {
        let event = watch.next().await;
        is_done = is_last(&event);
        messages +=
            usize::from(matches!(&event, InformerEvent::Applied(_, object) if object.message().is_some()));
        for change in cache.read(event) {
            assert!(!matches!(change, ObjectChange::Failed(..) | ObjectChange::Unreadable(..)), "{change:?}");
            cache.apply(change);
        }
    }
    messages
}
