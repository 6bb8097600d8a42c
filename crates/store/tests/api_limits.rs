//! Limits of the server: watches, connections, requests, memory, and the errors above them.

use crate::served;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use served::Served;
use store::api::ApiLimits;
use store::engine::EngineOptions;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn connect(served: &Served) -> UnixStream {
    let stream = UnixStream::connect(&served.socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// An answer: its head, and the rest as it comes.
struct Answer {
    code: u16,
    head: String,
    rest: BufReader<UnixStream>,
}

fn send(mut stream: UnixStream, method: &str, path: &str, body: &str) -> Option<Answer> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut rest = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if rest.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { code, head, rest })
}

fn ask(served: &Served, method: &str, path: &str, body: &str) -> Answer {
    send(connect(served), method, path, body).expect("an answer")
}

impl Answer {
    /// The Status of a refusal.
    fn status(mut self) -> Value {
        let length = self.head.split("content-length: ").nth(1).unwrap();
        let mut body = vec![0; length.split("\r\n").next().unwrap().parse().unwrap()];
        self.rest.read_exact(&mut body).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// The next event of a watch, without the lines that HTTP puts between; `None` at the end.
    fn event(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            if self.rest.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            if line.starts_with('{') {
                // A chunk may end inside of an event: what follows is its length, and then the rest.
                while !line.ends_with("}\n") {
                    let mut more = String::new();
                    self.rest.read_line(&mut more).unwrap();
                    line.truncate(line.trim_end_matches(['\r', '\n']).len());
                    if !more.trim_end().is_empty() && more.trim_end().chars().all(|c| c.is_ascii_hexdigit()) {
                        continue;
                    }
                    line.push_str(&more);
                }
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }
}

fn config_map(name: &str, size: usize) -> String {
    json!({"metadata": {"name": name}, "data": {"a": "x".repeat(size)}}).to_string()
}

fn refused(answer: Answer, code: u16, reason: &str) -> Value {
    assert_eq!(answer.code, code, "{}", answer.head);
    let retry = answer.head.contains("retry-after: 1\r\n");
    let status = answer.status();
    assert_eq!((status["kind"].as_str(), status["reason"].as_str()), (Some("Status"), Some(reason)));
    assert_eq!(retry, code == 429, "clients wait a little before they come again");
    status
}

#[test]
fn a_connection_more_than_the_most_takes_the_place_of_the_oldest_idle_one() {
    let limits = ApiLimits { reserved_connections: 4, ..ApiLimits::default() };
    let served = Served::with("limits", EngineOptions::default(), limits);
    let mut watch = ask(&served, "GET", &format!("{CONFIG_MAPS}?watch=true"), "");
    let _idle: Vec<UnixStream> = (0..9).map(|_| connect(&served)).collect();
    for number in 0..5 {
        assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map(&format!("c{number}"), 10)).code, 201);
        assert_eq!(watch.event().unwrap()["type"], "ADDED", "a busy connection stays");
    }
    assert!(served.api.fairness_stats().evicted_connections >= 6);
}

#[test]
fn a_thousand_idle_connections_hold_nobody_up() {
    let served = Served::new("limits", EngineOptions::default());
    let idle: Vec<UnixStream> = (0..400).map(|_| connect(&served)).collect();
    let watching: Vec<Answer> =
        (0..100).map(|_| ask(&served, "GET", &format!("{CONFIG_MAPS}?watch=true"), "")).collect();
    for number in 0..50 {
        assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map(&format!("c{number}"), 10)).code, 201);
    }
    for mut watch in watching {
        for number in 0..50 {
            let event = watch.event().unwrap();
            assert_eq!(event["object"]["metadata"]["name"], format!("c{number}"), "each once and in order");
        }
    }
    drop(idle);
}

#[test]
fn a_body_larger_than_the_most_is_refused_and_nothing_is_written() {
    let limits = ApiLimits { body: 10_000, ..ApiLimits::default() };
    let served = Served::with("limits", EngineOptions::default(), limits);
    assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map("fits", 9_000)).code, 201);
    let status = refused(
        ask(&served, "POST", CONFIG_MAPS, &config_map("large", 10_000)),
        413,
        "RequestEntityTooLarge",
    );
    assert!(status["message"].as_str().unwrap().contains("10000"), "{status}");
    assert_eq!(ask(&served, "GET", &format!("{CONFIG_MAPS}/large"), "").code, 404);
}

#[test]
fn bookmarks_come_with_the_clock_and_say_what_others_wrote() {
    let limits = ApiLimits { bookmark_every: Duration::from_millis(300), ..ApiLimits::default() };
    let served = Served::with("limits", EngineOptions::default(), limits);
    let mut plain = ask(&served, "GET", &format!("{CONFIG_MAPS}?watch=true"), "");
    let mut watch = ask(
        &served,
        "GET",
        &format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion=0"),
        "",
    );
    let version = |event: &Value| -> u64 {
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let first = watch.event().unwrap();
    assert_eq!(first["type"], "BOOKMARK");
    assert_eq!(first["object"]["kind"], "ConfigMap");
    // Others' writes are no events of this watch, and move its bookmark.
    let namespace = json!({"metadata": {"name": "elsewhere"}}).to_string();
    assert_eq!(ask(&served, "POST", "/api/v1/namespaces", &namespace).code, 201);
    let written = served.api.engine().revision().0;
    let later = (0..20).map(|_| watch.event().unwrap()).find(|event| version(event) >= written);
    assert_eq!(later.unwrap()["type"], "BOOKMARK");
    assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map("c", 1)).code, 201);
    let added = (0..20).map(|_| watch.event().unwrap()).find(|event| event["type"] != "BOOKMARK");
    assert_eq!(added.unwrap()["type"], "ADDED");
    assert_eq!(plain.event().unwrap()["type"], "ADDED", "who asks for no bookmarks gets none");
}

#[test]
fn a_watch_that_ends_by_its_time_says_goodbye_with_a_bookmark() {
    let served = Served::new("limits", EngineOptions::default());
    let path = format!("{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1");
    let mut watch = ask(&served, "GET", &path, "");
    let last = watch.event().unwrap();
    assert_eq!((last["type"].as_str(), watch.event()), (Some("BOOKMARK"), None));
}

#[test]
fn a_slow_watcher_costs_no_memory_and_is_told_410_when_the_log_has_moved_on() {
    let options = EngineOptions { history_events: 16, log_revisions: 64, ..EngineOptions::default() };
    let served = Served::new("limits", options);
    let mut slow = ask(&served, "GET", &format!("{CONFIG_MAPS}?watch=true"), "");
    let mut quick = ask(&served, "GET", &format!("{CONFIG_MAPS}?watch=true"), "");
    // Far more than sockets hold; the slow one reads nothing of it for now.
    let (count, size) = (400, 20_000);
    for number in 0..count {
        assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map(&format!("c{number}"), size)).code, 201);
        assert_eq!(quick.event().unwrap()["object"]["metadata"]["name"], format!("c{number}"));
    }
    let mut seen = 0;
    let last = loop {
        let event = slow.event().expect("an ERROR comes before the end");
        if event["type"] != "ADDED" {
            break event;
        }
        assert_eq!(event["object"]["metadata"]["name"], format!("c{seen}"), "what it gets has no gap");
        seen += 1;
    };
    assert!(seen < count, "{seen}");
    assert_eq!((last["type"].as_str(), &last["object"]["code"]), (Some("ERROR"), &json!(410)));
    assert_eq!(last["object"]["reason"], "Expired");
    assert_eq!(slow.event(), None);
}

#[test]
fn a_watch_without_news_outlives_a_log_full_of_others() {
    let options = EngineOptions { history_events: 4, log_revisions: 16, ..EngineOptions::default() };
    let served = Served::new("limits", options);
    let mut watch = ask(&served, "GET", "/apis/coordination.k8s.io/v1/leases?watch=true", "");
    for number in 0..100 {
        assert_eq!(ask(&served, "POST", CONFIG_MAPS, &config_map(&format!("c{number}"), 1)).code, 201);
    }
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    assert_eq!(ask(&served, "POST", leases, &json!({"metadata": {"name": "a"}}).to_string()).code, 201);
    let event = watch.event().unwrap();
    assert_eq!((event["type"].as_str(), &event["object"]["metadata"]["name"]), (Some("ADDED"), &json!("a")));
}
