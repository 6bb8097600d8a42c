//! Requests that cost more than they seem to: each is refused or answered soon, and others are served meanwhile.

use crate::served;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use served::Served;
use store::engine::{Bytes, Engine, EngineOptions, Expect, ListQuery, ResourceId, TxnError};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// An answer within half a minute: bounded work takes a fraction of that even without optimisation.
const BOUND: Duration = Duration::from_secs(30);

struct Answer {
    code: u16,
    head: String,
    body: Value,
}

fn send(served: &Served, method: &str, path: &str, content_type: &str, body: &[u8]) -> Answer {
    let mut stream = UnixStream::connect(&served.socket).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("an answer in time");
    let split = text.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(text[..split].to_vec()).unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head, body: serde_json::from_slice(&text[split + 4..]).unwrap_or_default() }
}

fn post(served: &Served, path: &str, object: &Value) -> Answer {
    send(served, "POST", path, "application/json", object.to_string().as_bytes())
}

fn patch(served: &Served, path: &str, kind: &str, body: &Value) -> Answer {
    send(served, "PATCH", path, &format!("application/{kind}+json"), body.to_string().as_bytes())
}

fn message(answer: &Answer) -> String {
    answer.body["message"].as_str().unwrap_or_default().chars().take(300).collect()
}

#[test]
fn removing_unknown_fields_stops_no_other_client_and_warnings_are_few() {
    let served = Served::new("costs", EngineOptions::default());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacks: Vec<_> = (0..2)
            .map(|number| {
                let served = &served;
                scope.spawn(move || {
                    let unknown: String = (0..190_000).map(|field| format!("\"field{field}\":1,")).collect();
                    let body = format!("{{{unknown}\"metadata\":{{\"name\":\"a{number}\"}}}}");
                    assert!(body.len() > 2_900_000 && body.len() < 3 << 20);
                    send(served, "POST", CONFIG_MAPS, "application/json", body.as_bytes())
                })
            })
            .collect();
        let others = scope.spawn(|| {
            let mut answers = 0;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(send(&served, "GET", "/api/v1/namespaces/default", "", b"").code, 200);
                answers += 1;
            }
            answers
        });
        for attack in attacks {
            let answer = attack.join().unwrap();
            assert_eq!(answer.code, 201, "{}", message(&answer));
            let warnings: Vec<&str> =
                answer.head.lines().filter(|line| line.starts_with("warning: ")).collect();
            assert!(!warnings.is_empty() && answer.head.len() < 8 << 10, "{} bytes", answer.head.len());
        }
        done.store(true, Ordering::SeqCst);
        assert!(others.join().unwrap() > 0);
    });
    let unknown: serde_json::Map<String, Value> =
        (0..100_000).map(|field| (format!("field{field}"), 1.into())).collect();
    let strict = post(&served, &format!("{CONFIG_MAPS}?fieldValidation=Strict"), &Value::Object(unknown));
    assert_eq!(strict.code, 400);
    assert!(strict.body["message"].as_str().unwrap().len() < 16 << 10);
}

#[test]
fn an_object_has_at_most_as_many_bytes_as_etcd_takes() {
    let served = Served::new("costs", EngineOptions::default());
    let pod = |name: &str, size: usize| {
        json!({"metadata": {"name": name}, "spec": {"containers": [
            {"name": "a", "image": "b", "env": [{"name": "C", "value": "x".repeat(size)}]}]}})
    };
    assert_eq!(post(&served, PODS, &pod("fits", 1_500_000)).code, 201);
    let refused = post(&served, PODS, &pod("large", 1_600_000));
    assert_eq!((refused.code, refused.body["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
    assert!(message(&refused).contains("1572864"), "{}", message(&refused));
    // A patch cannot make it larger, either; what stays within the bound works.
    let path = format!("{PODS}/fits");
    let large = json!({"metadata": {"annotations": {"a": "x".repeat(100_000)}}});
    assert_eq!(patch(&served, &path, "merge-patch", &large).code, 413);
    let small = json!({"metadata": {"annotations": {"a": "x"}}});
    assert_eq!(patch(&served, &path, "merge-patch", &small).code, 200);
    assert_eq!(send(&served, "DELETE", &path, "", b"").code, 200);
}

#[test]
fn a_json_patch_cannot_grow_an_object_by_copies() {
    let served = Served::new("costs", EngineOptions::default());
    assert_eq!(post(&served, CONFIG_MAPS, &json!({"metadata": {"name": "a"}, "data": {"x": "1"}})).code, 201);
    let path = format!("{CONFIG_MAPS}/a");
    let doubling: Vec<Value> = (0..40)
        .map(|number| json!({"op": "copy", "from": "/data", "path": format!("/data/y{number}")}))
        .collect();
    let answer = patch(&served, &path, "json-patch", &doubling.into());
    assert_eq!(answer.code, 422, "{}", message(&answer));
    assert!(message(&answer).contains("accumulated size increase of copy"), "{}", message(&answer));
    // A list that moves as a whole with each of the operations.
    let items: Value = vec![json!(0); 400_000].into();
    let mut operations = vec![json!({"op": "add", "path": "/data/list", "value": items})];
    operations.extend((0..9_999).map(|_| json!({"op": "add", "path": "/data/list/0", "value": 1})));
    let answer = patch(&served, &path, "json-patch", &operations.into());
    assert_eq!(answer.code, 422, "{}", message(&answer));
    let few = json!([{"op": "copy", "from": "/data/x", "path": "/data/y"}]);
    assert_eq!(patch(&served, &path, "json-patch", &few).body["data"], json!({"x": "1", "y": "1"}));
}

#[test]
fn a_strategic_merge_of_long_lists_is_linear() {
    let served = Served::new("costs", EngineOptions::default());
    assert_eq!(post(&served, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).code, 201);
    let path = format!("{CONFIG_MAPS}/a");
    let finalizers = |from: usize| -> Vec<String> {
        (from..from + 20_000).map(|number| format!("example.com/f{number}")).collect()
    };
    for from in [0, 10_000] {
        let body = json!({"metadata": {"finalizers": finalizers(from)}});
        let answer = patch(&served, &path, "strategic-merge-patch", &body);
        assert_eq!(answer.code, 200, "{}", message(&answer));
    }
    let mut body = json!({"metadata": {}});
    body["metadata"]["$deleteFromPrimitiveList/finalizers"] = finalizers(0).into();
    body["metadata"]["$setElementOrder/finalizers"] = finalizers(10_000).into();
    let answer = patch(&served, &path, "strategic-merge-patch", &body);
    assert_eq!(answer.code, 200, "{}", message(&answer));
    assert_eq!(answer.body["metadata"]["finalizers"].as_array().unwrap().len(), 10_000);
    let too_many: Vec<Value> =
        (0..8_000).map(|number| json!({"name": format!("c{number}"), "image": "i"})).collect();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": too_many}});
    let answer = post(&served, PODS, &pod);
    assert_eq!(answer.code, 413, "with its defaults and managedFields it is too large: {}", message(&answer));
    let containers: Vec<Value> =
        (0..4_000).map(|number| json!({"name": format!("c{number}"), "image": "i"})).collect();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    assert_eq!(post(&served, PODS, &pod).code, 201);
    let images: Vec<Value> =
        (0..4_000).map(|number| json!({"name": format!("c{number}"), "image": "j"})).collect();
    let body = json!({"spec": {"containers": images}});
    let answer = patch(&served, &format!("{PODS}/p"), "strategic-merge-patch", &body);
    assert_eq!(answer.code, 200, "{}", message(&answer));
}

/// A field of a protobuf message with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut encoded = vec![number << 3 | 2];
    let mut left = bytes.len();
    while left >= 0x80 {
        encoded.push(left as u8 | 0x80);
        left >>= 7;
    }
    encoded.push(left as u8);
    encoded.extend(bytes);
    encoded
}

#[test]
fn a_pod_with_a_million_containers_is_refused_before_they_are_made() {
    let served = Served::new("costs", EngineOptions::default());
    let spec = [0x12, 0x00].repeat(1_000_000);
    let pod = [field(1, &field(1, b"a")), field(2, &spec)].concat();
    let kind = [field(1, b"v1"), field(2, b"Pod")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &pod)].concat();
    let answer = send(&served, "POST", PODS, "application/vnd.kubernetes.protobuf", &body);
    assert_eq!(answer.code, 413, "{}", message(&answer));
    let json = format!(
        "{{\"metadata\":{{\"name\":\"a\"}},\"spec\":{{\"containers\":[{}{{}}]}}}}",
        "{},".repeat(400_000)
    );
    let answer = send(&served, "POST", PODS, "application/json", json.as_bytes());
    assert_eq!(answer.code, 413, "{}", message(&answer));
    // Few enough to be decoded: the causes are bounded, too.
    let containers = vec![json!({}); 5_000];
    let answer = post(&served, PODS, &json!({"metadata": {"name": "a"}, "spec": {"containers": containers}}));
    assert!(answer.body.to_string().len() < 64 << 10, "{}", message(&answer));
}

#[test]
fn lists_of_every_kind_are_validated_in_time() {
    let served = Served::new("costs", EngineOptions::default());
    let many = |make: &dyn Fn(usize) -> Value, count: usize| -> Value { (0..count).map(make).collect() };
    let owner =
        |number: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": format!("u{number}")});
    let rule = |_: usize| json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let subject = |number: usize| json!({"kind": "User", "name": format!("u{number}")});
    for (path, object) in [
        (CONFIG_MAPS, json!({"metadata": {"name": "a", "ownerReferences": many(&owner, 15_000)}})),
        (
            CONFIG_MAPS,
            json!({"metadata": {"name": "b", "finalizers": many(&|number| json!(format!("a.b/c{number}")), 60_000)}}),
        ),
        (
            CONFIG_MAPS,
            json!({"metadata": {"name": "c"}, "data": (0..60_000).map(|number| (format!("k{number}"), json!(""))).collect::<serde_json::Map<_, _>>()}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "d"}, "spec": {
            "ports": many(&|number| json!({"name": format!("p{number}"), "port": number % 65_535 + 1}), 12_000)}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "e"}, "spec": {"ports": [{"port": 1}],
            "externalIPs": many(&|number| json!(format!("10.{}.{}.1", number / 256 % 256, number % 256)), 30_000)}}),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"metadata": {"name": "f"}, "addressType": "IPv4",
            "endpoints": many(&|number| json!({"addresses": [format!("10.{}.{}.1", number / 256 % 256, number % 256)]}), 30_000)}),
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            json!({"metadata": {"name": "g"}, "addressType": "IPv4",
            "endpoints": [], "ports": many(&|number| json!({"name": format!("p{number}"), "port": 1}), 20_000)}),
        ),
        (
            PODS,
            json!({"metadata": {"name": "h"}, "spec": {"containers":
            many(&|number| json!({"name": format!("c{number}"), "image": "i"}), 8_000)}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"metadata": {"name": "i"}, "rules": many(&rule, 15_000)}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({"metadata": {"name": "j"},
            "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": many(&subject, 12_000)}),
        ),
    ] {
        let answer = post(&served, path, &object);
        assert!([201, 413, 422].contains(&answer.code), "{path} {}: {}", answer.code, message(&answer));
        assert_eq!(send(&served, "GET", "/api/v1/namespaces/default", "", b"").code, 200);
    }
}

fn policy(name: &str, failure_policy: &str, expression: &str) -> (Value, Value) {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let policy = json!({"metadata": {"name": name}, "spec": {"failurePolicy": failure_policy,
        "matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression}]}});
    let binding =
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    (policy, binding)
}

#[test]
fn a_policy_that_cannot_be_loaded_falls_under_its_failure_policy() {
    for (failure_policy, code) in [("Ignore", 201), ("Fail", 422)] {
        let served = Served::new("costs", EngineOptions::default());
        let (object, binding) = policy("deep", failure_policy, "true == PLACE");
        assert_eq!(post(&served, POLICIES, &object).code, 201);
        assert_eq!(post(&served, BINDINGS, &binding).code, 201);
        // As an older version may have stored it.
        replace_in_store(served.api.engine(), "PLACE", &format!("1{}", "+1".repeat(3_000)));
        let answer = post(&served, CONFIG_MAPS, &json!({"metadata": {"name": "a"}}));
        assert_eq!(answer.code, code, "{}", message(&answer));
        let notices = store::bootstrap::check(&|query| served.api.engine().list(query)).unwrap();
        assert_eq!(notices.len(), 1);
        assert!(notices[0].to_string().contains("expression recursion limit exceeded"), "{}", notices[0]);
        // A start with such a policy.
        let options = store::bootstrap::BootstrapOptions {
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            listen: "127.0.0.1:6443".parse().unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let started = runtime.block_on(store::bootstrap::bootstrap(&served.api, options)).unwrap();
        assert_eq!(started.notices.len(), 1);
    }
}

/// Replaces a text in every stored object that has it.
fn replace_in_store(engine: &Engine, from: &'static str, to: &str) {
    for number in 0..200 {
        let page = engine.list(&ListQuery::all(ResourceId(number))).unwrap();
        for item in page.items {
            let text = String::from_utf8(item.json.to_vec()).unwrap();
            if text.contains(from) {
                let (key, json) = (item.key, Bytes::from(text.replace(from, to)));
                engine
                    .write(move |txn| txn.put(key, json, Expect::Anything).map_err(|error: TxnError| error))
                    .unwrap();
            }
        }
    }
}

#[test]
fn a_policy_that_costs_too_much_is_cancelled_and_refuses_the_write() {
    let served = Served::new("costs", EngineOptions::default());
    let expression = "object.data.all(a, object.data.all(b, object.data.all(c, a + b != c)))";
    let (object, binding) = policy("costly", "Fail", expression);
    assert_eq!(post(&served, POLICIES, &object).code, 201);
    assert_eq!(post(&served, BINDINGS, &binding).code, 201);
    let data: serde_json::Map<String, Value> =
        (0..5_000).map(|number| (format!("k{number}"), "".into())).collect();
    let answer = post(&served, CONFIG_MAPS, &json!({"metadata": {"name": "a"}, "data": data}));
    assert_eq!(answer.code, 422);
    assert!(message(&answer).contains("actual cost limit exceeded"), "{}", message(&answer));
    assert_eq!(post(&served, CONFIG_MAPS, &json!({"metadata": {"name": "a"}, "data": {"b": "c"}})).code, 201);
}
