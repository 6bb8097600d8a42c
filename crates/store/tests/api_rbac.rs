//! RBAC, tokens, reviews, impersonation and the audit log of the API, asked without a network.

use crate::world;

use apimachinery::audit_policy::AuditPolicy;
use fixtures::eventually_async;
use http::Request;
use serde_json::{Value, json};
use store::api::Caller;
use store::audit::{AuditLog, AuditOptions};
use store::credentials::Credentials;
use store::kinds;
use world::{CONFIG_MAPS, World, folder, read};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn jane() -> Caller {
    Caller::new("jane", &["system:authenticated"])
}

async fn ask(world: &World, caller: &Caller, method: &str, path: &str, body: &Value) -> (u16, Value) {
    ask_with(world, caller, method, path, body, &[]).await
}

async fn ask_with(
    world: &World,
    caller: &Caller,
    method: &str,
    path: &str,
    body: &Value,
    headers: &[(&str, &str)],
) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let content = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    read(world.api.answer(request.body(content.into()).unwrap(), caller).await).await
}

async fn make(world: &World, path: &str, object: Value) -> Value {
    let (code, made) = world.json("POST", path, &object).await;
    assert_eq!(code, 201, "{made:#}");
    made
}

/// Binds a role of some rules to a user in `default`.
async fn grant(world: &World, name: &str, rules: Value, subject: &str) {
    make(
        world,
        &format!("{RBAC}/namespaces/default/roles"),
        json!({"metadata": {"name": name}, "rules": rules}),
    )
    .await;
    let binding = json!({"metadata": {"name": name}, "roleRef": {"kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": subject}]});
    make(world, &format!("{RBAC}/namespaces/default/rolebindings"), binding).await;
}

#[tokio::test]
async fn a_grant_holds_for_the_next_request_and_no_longer_than_it_exists() {
    let world = World::new().await;
    assert_eq!(ask(&world, &jane(), "GET", CONFIG_MAPS, &Value::Null).await.0, 403);
    grant(&world, "r", json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"]}]), "jane")
        .await;
    for _ in 0..3 {
        assert_eq!(ask(&world, &jane(), "GET", CONFIG_MAPS, &Value::Null).await.0, 200);
        let watched = ask(&world, &jane(), "GET", &format!("{CONFIG_MAPS}?watch=1"), &Value::Null).await;
        assert_eq!(watched.0, 403, "another verb");
    }
    world.delete(&format!("{RBAC}/namespaces/default/roles/r"), &Value::Null).await;
    let (code, status) = ask(&world, &jane(), "GET", CONFIG_MAPS, &Value::Null).await;
    assert_eq!(code, 403);
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("RBAC: role.rbac.authorization.k8s.io \"r\" not found"), "{message}");
    assert_eq!(status["details"], json!({"kind": "configmaps"}));
}

#[tokio::test]
async fn names_limit_what_is_listed_and_put_needs_create_for_what_is_new() {
    let world = World::new().await;
    let rules = json!([
        {"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"]},
        {"verbs": ["update"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
    ]);
    grant(&world, "r", rules, "jane").await;
    let one = format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Da");
    assert_eq!(ask(&world, &jane(), "GET", &one, &Value::Null).await.0, 200);
    assert_eq!(ask(&world, &jane(), "GET", CONFIG_MAPS, &Value::Null).await.0, 403);
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    let body = json!({"metadata": {"name": "l", "namespace": "default"}, "spec": {}});
    let (code, status) = ask(&world, &jane(), "PUT", lease, &body).await;
    assert_eq!(code, 403, "{status}");
    assert!(status["message"].as_str().unwrap().contains("cannot create resource \"leases\""), "{status}");
}

#[tokio::test]
async fn the_reader_reads_every_kind_but_secrets() {
    let world = World::new().await;
    let reader = Caller::new("zoneward-reader", &["zoneward:readers", "system:authenticated"]);
    for kind in kinds::stored() {
        let prefix = if kind.group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}", kind.api_version())
        };
        let path = format!("{prefix}/{}", kind.plural);
        let wanted = if kind.kind == "Secret" { 403 } else { 200 };
        assert_eq!(ask(&world, &reader, "GET", &path, &Value::Null).await.0, wanted, "{path}");
        if !kind.namespaced {
            assert_eq!(ask(&world, &reader, "POST", &path, &json!({})).await.0, 403, "{path}");
        }
    }
}

#[tokio::test]
async fn impersonation_acts_as_the_user_and_refuses_the_rest() {
    let world = World::new().await;
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let own = Caller::own();
    let headers = [
        ("impersonate-user", "joe"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "u"),
        ("impersonate-extra-example.com%2fscope", "x"),
    ];
    let (code, answer) = ask_with(&world, &own, "POST", reviews, &json!({}), &headers).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "joe", "uid": "u", "groups": ["a", "b", "system:authenticated"],
            "extra": {"example.com/scope": ["x"]}})
    );
    let (code, _) =
        ask_with(&world, &own, "GET", "/version", &Value::Null, &[("impersonate-group", "a")]).await;
    assert_eq!(code, 400, "a group without a user");
    let (code, status) =
        ask_with(&world, &jane(), "GET", "/version", &Value::Null, &[("impersonate-user", "joe")]).await;
    assert_eq!((code, &status["details"]), (403, &json!({"name": "joe", "kind": "users"})));
}

#[tokio::test]
async fn reviews_say_what_requests_meet() {
    let world = World::new().await;
    grant(&world, "r", json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]), "jane").await;
    let asked = |spec: Value| json!({"spec": spec});
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let (code, answer) =
        world.json("POST", ACCESS_REVIEWS, &asked(json!({"user": "jane", "resourceAttributes": pods}))).await;
    assert_eq!(code, 201);
    assert_eq!(
        answer["status"],
        json!({"allowed": true,
            "reason": "RBAC: allowed by RoleBinding \"r/default\" of Role \"r\" to User \"jane\""})
    );
    for (spec, field) in [
        (json!({"user": "jane"}), "spec.resourceAttributes"),
        (json!({"resourceAttributes": pods}), "spec.user"),
        (
            json!({"user": "x", "resourceAttributes": pods, "nonResourceAttributes": {"verb": "get", "path": "/"}}),
            "spec.nonResourceAttributes",
        ),
    ] {
        let (code, status) = world.json("POST", ACCESS_REVIEWS, &asked(spec)).await;
        assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!(field)), "{status}");
    }
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let (code, answer) =
        world.json("POST", local, &asked(json!({"user": "jane", "resourceAttributes": pods}))).await;
    assert_eq!((code, &answer["status"]["allowed"]), (201, &json!(true)), "{answer}");
    let other = json!({"verb": "get", "resource": "pods", "namespace": "kube-system"});
    let (code, _) =
        world.json("POST", local, &asked(json!({"user": "jane", "resourceAttributes": other}))).await;
    assert_eq!(code, 422);
    let without = "/apis/authorization.k8s.io/v1/localsubjectaccessreviews";
    let spec = json!({"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}});
    assert_eq!(world.json("POST", without, &asked(spec)).await.0, 405, "it needs a namespace");
    let rules = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    assert_eq!(
        ask(&world, &jane(), "POST", rules, &asked(json!({}))).await.0,
        400,
        "a namespace is required"
    );
    let (_, answer) = ask(&world, &jane(), "POST", rules, &asked(json!({"namespace": "default"}))).await;
    let listed = answer["status"]["resourceRules"].as_array().unwrap();
    assert!(
        listed.contains(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})),
        "{answer}"
    );
}

async fn token(world: &World, spec: Value) -> (u16, Value) {
    world.json("POST", &format!("{ACCOUNTS}/bot/token"), &json!({"spec": spec})).await
}

async fn reviewed(world: &World, token: &Value, audiences: Value) -> Value {
    let spec = json!({"spec": {"token": token, "audiences": audiences}});
    let (code, answer) = world.json("POST", TOKEN_REVIEWS, &spec).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"].clone()
}

#[tokio::test]
async fn tokens_are_bound_to_what_they_name() {
    let world = World::new().await;
    make(&world, ACCOUNTS, json!({"metadata": {"name": "bot"}})).await;
    let (code, made) = token(&world, json!({"audiences": ["vault"], "expirationSeconds": 600})).await;
    assert_eq!(code, 201, "{made}");
    let signed = &made["status"]["token"];
    assert_eq!(
        reviewed(&world, signed, json!([])).await["authenticated"],
        Value::Null,
        "for another audience"
    );
    let status = reviewed(&world, signed, json!(["vault", "x"])).await;
    assert_eq!(status["authenticated"], true, "{status}");
    assert_eq!(status["audiences"], json!(["vault"]));
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:bot");
    assert_eq!(reviewed(&world, &json!("x.y.z"), json!([])).await["authenticated"], Value::Null);
    // Another payload with the same signature.
    let mut parts: Vec<String> = signed.as_str().unwrap().split('.').map(str::to_owned).collect();
    parts[1] = parts[1].replace('a', "b");
    assert_eq!(
        reviewed(&world, &json!(parts.join(".")), json!(["vault"])).await["authenticated"],
        Value::Null
    );
    let secrets = "/api/v1/namespaces/default/secrets";
    make(&world, secrets, json!({"metadata": {"name": "s"}})).await;
    let bound = json!({"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "s"}});
    let made = token(&world, bound).await.1;
    assert_eq!(reviewed(&world, &made["status"]["token"], json!([])).await["authenticated"], true);
    world.delete(&format!("{secrets}/s"), &Value::Null).await;
    assert_eq!(reviewed(&world, &made["status"]["token"], json!([])).await["authenticated"], Value::Null);
    let long = token(&world, json!({"expirationSeconds": 4_294_967_296i64})).await;
    assert_eq!(long.1["spec"]["expirationSeconds"], 365 * 24 * 3_600, "cut to the maximum");
    assert_eq!(token(&world, json!({"expirationSeconds": 1})).await.0, 422);
    assert_eq!(world.json("POST", TOKEN_REVIEWS, &json!({"spec": {}})).await.0, 400);
}

#[tokio::test]
async fn a_new_signing_key_leaves_tokens_valid_across_a_restart() {
    let (world, data) = (World::new().await, folder());
    Credentials::open(&data).unwrap();
    world.api.open_signing_keys(&data).unwrap();
    make(&world, ACCOUNTS, json!({"metadata": {"name": "bot"}})).await;
    let before = token(&world, json!({})).await.1["status"]["token"].clone();
    // A key that is older than the rotation period: the next start creates another.
    let pki = data.join("pki");
    let names = || -> Vec<String> {
        let all =
            std::fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        all.filter(|name| name.starts_with("sa-")).collect()
    };
    let [first] = <[String; 1]>::try_from(names()).unwrap();
    let created: i64 = first["sa-".len()..].trim_end_matches(".key").parse().unwrap();
    std::fs::rename(pki.join(&first), pki.join(format!("sa-{}.key", created - 31 * 24 * 3_600))).unwrap();
    world.api.open_signing_keys(&data).unwrap();
    assert_eq!(names().len(), 2);
    let after = token(&world, json!({})).await.1["status"]["token"].clone();
    for token in [&before, &after] {
        assert_eq!(reviewed(&world, token, json!([])).await["authenticated"], true);
    }
    let head = |token: &Value| token.as_str().unwrap().split('.').next().unwrap().to_owned();
    assert_ne!(head(&before), head(&after), "another key");
    let (_, keys) = world.get("/openid/v1/jwks").await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2);
    assert_eq!(
        world.get("/.well-known/openid-configuration").await.1["jwks_uri"].as_str().unwrap().len(),
        59
    );
    let _ = std::fs::remove_dir_all(&data);
}

/// A world with an audit log, and the events of the log when there are as many as asked for.
fn audited(world: World, policy: Value, max_size: u64) -> (World, std::path::PathBuf) {
    let path = folder().join("audit.log");
    let policy = AuditPolicy::parse(&policy).unwrap();
    let options = AuditOptions { policy, path: path.clone(), max_size, max_backups: 2 };
    let log = AuditLog::open(options, clock::Clock::system()).unwrap();
    (world.map_api(|api| api.with_audit(log)), path)
}

async fn events(path: &std::path::Path, count: usize) -> Vec<Value> {
    eventually_async(&format!("{count} events"), async || {
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        if lines.len() >= count { Ok(lines) } else { Err(text) }
    })
    .await
}

#[tokio::test]
async fn the_audit_log_records_by_rule_and_leaves_secrets_out() {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
        {"level": "None", "verbs": ["list"]},
        {"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps", "secrets"]}]},
        {"level": "RequestResponse", "resources": [{"group": "", "resources": ["serviceaccounts/token"]}]},
        {"level": "Metadata"},
    ]});
    let (world, path) = audited(World::new().await, policy, 0);
    world.json("POST", CONFIG_MAPS, &json!({"metadata": {"name": "c"}, "data": {"a": "b"}})).await;
    world.get(CONFIG_MAPS).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    world.json("POST", "/api/v1/namespaces/default/secrets", &secret).await;
    make(&world, ACCOUNTS, json!({"metadata": {"name": "bot"}})).await;
    let issued = token(&world, json!({})).await.1;
    ask(&world, &jane(), "GET", "/api/v1/nodes/n", &Value::Null).await;
    ask_with(&world, &Caller::own(), "GET", "/version", &Value::Null, &[("impersonate-user", "joe")]).await;
    let all = events(&path, 6).await;
    assert_eq!(all.len(), 6, "{all:#?}");
    let first = &all[0];
    assert_eq!(first["apiVersion"], "audit.k8s.io/v1");
    assert_eq!((&first["verb"], &first["stage"]), (&json!("create"), &json!("ResponseComplete")));
    assert_eq!(first["requestObject"]["data"]["a"], "b");
    assert_eq!(first["responseObject"]["metadata"]["name"], "c");
    assert_eq!(first["responseStatus"]["code"], 201);
    assert_eq!(
        first["objectRef"],
        json!({"resource": "configmaps", "namespace": "default", "apiVersion": "v1"})
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "a Secret");
    assert!(!text.contains(issued["status"]["token"].as_str().unwrap()), "a token");
    let refused = &all[4];
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(refused["responseStatus"]["code"], 403);
    assert_eq!(all[5]["impersonatedUser"]["username"], "joe");
    assert_eq!(all[5]["annotations"]["authorization.k8s.io/decision"], "allow");
    let _ = std::fs::remove_dir_all(path.parent().unwrap());
}

#[tokio::test]
async fn the_audit_log_records_the_start_and_end_of_a_watch_and_is_rotated() {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]});
    let (world, path) = audited(World::new().await, policy, 4_000);
    let watched = world.send("GET", &format!("{CONFIG_MAPS}?watch=1"), "", Vec::new()).await;
    let stages = |all: &[Value]| -> Vec<String> {
        all.iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stages(&events(&path, 2).await), ["RequestReceived", "ResponseStarted"]);
    drop(watched);
    assert_eq!(stages(&events(&path, 3).await)[2], "ResponseComplete");
    for _ in 0..60 {
        world.get("/version").await;
    }
    let folder = path.parent().unwrap();
    let names = || -> Vec<String> {
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    eventually_async("the file and two rotated ones", async || {
        let is_whole = world.api.audit_stats().unwrap().events >= 123 && names().len() == 3;
        is_whole.then_some(()).ok_or_else(|| names().join(" "))
    })
    .await;
    let stats = world.api.audit_stats().unwrap();
    assert_eq!((stats.events, stats.dropped, stats.errors), (123, 0, 0));
    let _ = std::fs::remove_dir_all(folder);
}

#[tokio::test]
async fn bootstrap_keeps_what_was_added_and_restores_what_is_missing() {
    let world = World::new().await;
    let role = format!("{RBAC}/clusterroles/system:basic-user");
    let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["own"]}]);
    assert_eq!(world.patch(&role, "merge-patch", &json!({"rules": rules})).await.0, 200);
    let listen = "127.0.0.1:6443".parse().unwrap();
    let options = store::bootstrap::BootstrapOptions { service_cidrs: Vec::new(), listen };
    store::bootstrap::bootstrap(&world.api, options).await.unwrap();
    let (_, found) = world.get(&role).await;
    assert_eq!(found["rules"].as_array().unwrap().len(), 3, "{found:#}");
    let admin = world.get(&format!("{RBAC}/clusterroles/admin")).await.1;
    assert!(
        admin["rules"].to_string().contains("rolebindings")
            && admin["rules"].to_string().contains("endpointslices")
    );
}

/// Rights of `admin` in `default` for a user.
async fn make_admin(world: &World, user: &str) {
    let binding = json!({"metadata": {"name": format!("admin-{user}")},
        "roleRef": {"kind": "ClusterRole", "name": "admin"}, "subjects": [{"kind": "User", "name": user}]});
    make(world, &format!("{RBAC}/namespaces/default/rolebindings"), binding).await;
}

#[tokio::test]
async fn no_path_leads_around_authorization() {
    let world = World::new().await;
    make_admin(&world, "jane").await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    make(&world, "/api/v1/namespaces/kube-system/secrets", secret).await;
    for (method, path) in [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/secrets?watch=true"),
        ("GET", "//api/v1/secrets"),
        ("GET", "/api/v1/secrets/"),
        ("GET", "/api/v1//secrets"),
        ("HEAD", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces//secrets"),
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("GET", "/api/v1/namespaces/kube-system/secrets/s"),
        ("GET", "/api/v1/namespaces/kube%2Dsystem/secrets/s"),
        ("GET", "/api/v1/namespaces/default%2F..%2Fkube-system/secrets/s"),
        ("GET", "/api/v1/namespaces/default/../kube-system/secrets/s"),
        ("GET", "/api/v1/namespaces/default/secrets/..%2F..%2Fkube-system%2Fsecrets%2Fs"),
        ("GET", "/api/v1/namespaces/kube-system/secrets?fieldSelector=metadata.namespace%3Ddefault"),
        ("GET", "/api/v1/secrets?fieldSelector=metadata.namespace%3Ddefault"),
        ("GET", "/backup"),
        ("GET", "/backup/"),
        ("GET", "//backup"),
        ("GET", "/healthz/../backup"),
        ("GET", "/api/../backup"),
        ("POST", "/backup"),
        ("DELETE", "/api/v1/namespaces/kube-system/secrets"),
        ("DELETE", "/api/v1/secrets"),
        ("DELETE", "/api/v1/namespaces/default"),
        ("DELETE", "/api/v1/namespaces/kube-system/services/x/status"),
        ("PUT", "/api/v1/namespaces/default/status"),
        ("OPTIONS", "/api/v1/secrets"),
        ("PROPFIND", "/api/v1/namespaces/kube-system/secrets"),
    ] {
        let (code, answer) = ask(&world, &jane(), method, path, &Value::Null).await;
        assert!(matches!(code, 403..=405), "{method} {path}: {code} {answer}");
        assert!(!answer.to_string().contains("aHVudGVyMg"), "{method} {path}: {answer}");
    }
    // A page of another namespace cannot be continued in the own one, and the own one shows nothing else.
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    for name in ["a", "b", "c"] {
        make(&world, maps, json!({"metadata": {"name": name}})).await;
        make(&world, CONFIG_MAPS, json!({"metadata": {"name": name}})).await;
    }
    for path in [maps, CONFIG_MAPS, "/api/v1/configmaps"] {
        let (_, page) = world.get(&format!("{path}?limit=1")).await;
        let token = page["metadata"]["continue"].as_str().unwrap();
        let own = format!("{CONFIG_MAPS}?limit=50&continue={token}");
        let (code, page) = ask(&world, &jane(), "GET", &own, &Value::Null).await;
        assert_eq!(code, 200, "{page}");
        for item in page["items"].as_array().unwrap() {
            assert_eq!(item["metadata"]["namespace"], "default", "{path}");
        }
    }
}

#[tokio::test]
async fn a_dry_run_a_patch_and_a_put_need_the_rights_of_what_they_would_do() {
    let world = World::new().await;
    let rules = json!([{"verbs": ["get", "update", "patch"], "apiGroups": ["", "events.k8s.io"],
        "resources": ["configmaps", "events"]}]);
    grant(&world, "r", rules, "jane").await;
    make(&world, CONFIG_MAPS, json!({"metadata": {"name": "c"}})).await;
    let new = json!({"metadata": {"name": "n"}});
    for (method, path, wanted) in [
        ("POST", format!("{CONFIG_MAPS}?dryRun=All"), 403),
        ("DELETE", format!("{CONFIG_MAPS}/c?dryRun=All"), 403),
        ("DELETE", format!("{CONFIG_MAPS}?dryRun=All"), 403),
        ("PATCH", format!("{CONFIG_MAPS}/n"), 404),
        ("PATCH", format!("{CONFIG_MAPS}/c"), 200),
    ] {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(&path).header("content-type", kind);
        let body = if method == "PATCH" { json!({"data": {"a": "b"}}) } else { new.clone() };
        let content = body.to_string().into_bytes();
        let answer = read(world.api.answer(request.body(content.into()).unwrap(), &jane()).await).await;
        assert_eq!(answer.0, wanted, "{method} {path}: {}", answer.1);
    }
    // Rights are those of the path's group, though both forms of Events are stored as one.
    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "reason": "R", "type": "Normal",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let path = "/api/v1/namespaces/default/events/e";
    let (code, status) = ask(&world, &jane(), "PUT", path, &event).await;
    assert_eq!(code, 403, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("cannot create resource \"events\" in API group \"\""), "{message}");
    grant(
        &world,
        "create",
        json!([{"verbs": ["create"], "apiGroups": [""], "resources": ["events"]}]),
        "jane",
    )
    .await;
    let (code, answer) = ask(&world, &jane(), "PUT", path, &event).await;
    assert_eq!(code, 201, "{answer}");
    // Names of roles are any segment of a path; the plus sign is not a space there.
    let roles = format!("{RBAC}/namespaces/default/roles");
    make(&world, &roles, json!({"metadata": {"name": "a+b:c"}})).await;
    for name in ["a+b:c", "a%2Bb%3Ac"] {
        assert_eq!(world.get(&format!("{roles}/{name}")).await.0, 200, "{name}");
    }
}

#[tokio::test]
async fn tenants_cannot_raise_their_own_rights() {
    let world = World::new().await;
    make_admin(&world, "jane").await;
    let (roles, bindings) =
        (format!("{RBAC}/namespaces/default/roles"), format!("{RBAC}/namespaces/default/rolebindings"));
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let binding = |name: &str, kind: &str, role: &str| {
        json!({"metadata": {"name": name}, "roleRef": {"kind": kind, "name": role},
            "subjects": [{"kind": "User", "name": "jane"}]})
    };
    make(&world, &roles, json!({"metadata": {"name": "strong"}, "rules": all})).await;
    make(&world, &format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "strong"}, "rules": all}))
        .await;
    for (method, path, body, wanted) in [
        ("POST", roles.clone(), json!({"metadata": {"name": "r"}, "rules": all}), 403),
        ("PUT", format!("{roles}/r"), json!({"metadata": {"name": "r"}, "rules": all}), 403),
        // Labels of a role with more rights, or its aggregation.
        (
            "PUT",
            format!("{roles}/strong"),
            json!({"metadata": {"name": "strong", "labels": {"a": "b"}}, "rules": all}),
            403,
        ),
        ("POST", bindings.clone(), binding("x", "Role", "strong"), 403),
        ("POST", bindings.clone(), binding("x", "ClusterRole", "cluster-admin"), 403),
        ("POST", bindings.clone(), binding("x", "Role", "none"), 404),
        ("POST", bindings.clone(), binding("x", "ClusterRole", "none"), 404),
        ("POST", format!("{bindings}?dryRun=All"), binding("x", "ClusterRole", "cluster-admin"), 403),
        ("PUT", format!("{bindings}/x"), binding("x", "ClusterRole", "cluster-admin"), 403),
        ("PUT", format!("{bindings}/admin-jane"), binding("admin-jane", "ClusterRole", "cluster-admin"), 422),
        ("POST", format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "y"}}), 403),
        ("POST", format!("{RBAC}/clusterrolebindings"), binding("y", "ClusterRole", "admin"), 403),
        (
            "POST",
            format!("{RBAC}/namespaces/kube-system/rolebindings"),
            binding("y", "ClusterRole", "admin"),
            403,
        ),
        ("POST", bindings.clone(), binding("fine", "ClusterRole", "edit"), 201),
        (
            "POST",
            roles.clone(),
            json!({"metadata": {"name": "fine"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]}]}),
            201,
        ),
    ] {
        let (code, answer) = ask(&world, &jane(), method, &path, &body).await;
        assert_eq!(code, wanted, "{method} {path} {body}: {answer}");
    }
    // Impersonation reaches service accounts of the namespace, as in Kubernetes, and nothing else.
    for (headers, wanted) in [
        (vec![("impersonate-user", "system:serviceaccount:default:bot")], 200),
        (vec![("impersonate-user", "system:serviceaccount:kube-system:bot")], 403),
        (vec![("impersonate-user", "kubernetes-admin")], 403),
        (vec![("impersonate-user", "jane"), ("impersonate-group", "system:masters")], 403),
        (
            vec![
                ("impersonate-user", "system:serviceaccount:default:bot"),
                ("impersonate-group", "system:masters"),
            ],
            403,
        ),
        (vec![("impersonate-user", "system:serviceaccount:default:bot"), ("impersonate-uid", "1")], 403),
        (
            vec![
                ("impersonate-user", "system:serviceaccount:default:bot"),
                ("impersonate-extra-authentication.kubernetes.io%2fnode-name", "n"),
            ],
            403,
        ),
        (vec![("impersonate-group", "system:masters")], 400),
        // The first of several counts for the user, so it is the one that is checked.
        (
            vec![
                ("impersonate-user", "system:serviceaccount:default:bot"),
                ("impersonate-user", "kubernetes-admin"),
            ],
            200,
        ),
        (
            vec![
                ("impersonate-user", "kubernetes-admin"),
                ("impersonate-user", "system:serviceaccount:default:bot"),
            ],
            403,
        ),
    ] {
        let (code, answer) = ask_with(&world, &jane(), "GET", "/version", &Value::Null, &headers).await;
        assert_eq!(code, wanted, "{headers:?}: {answer}");
    }
}

#[tokio::test]
async fn aggregation_labels_and_rules_need_what_they_spread() {
    let world = World::new().await;
    let rules = json!([{"verbs": ["*"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
        "resourceNames": ["x", "system:aggregate-to-view", "view", "zoneward:reader"]},
        {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]}]);
    make(&world, &format!("{RBAC}/clusterroles"), json!({"metadata": {"name": "writer"}, "rules": rules}))
        .await;
    let binding = json!({"metadata": {"name": "writer"}, "roleRef": {"kind": "ClusterRole", "name": "writer"},
        "subjects": [{"kind": "User", "name": "jane"}]});
    make(&world, &format!("{RBAC}/clusterrolebindings"), binding).await;
    // `*` contains `escalate`, but only for these names: a create has none.
    let wide = json!({"metadata": {"name": "y", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]});
    let selector = json!({"metadata": {"name": "y"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
    for body in [wide, selector] {
        let (code, answer) = ask(&world, &jane(), "POST", &format!("{RBAC}/clusterroles"), &body).await;
        assert_eq!(code, 403, "{answer}");
    }
}

#[tokio::test]
async fn no_binding_is_without_a_namespace() {
    let world = World::new().await;
    let vectors = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/rbac.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(vectors).unwrap()).unwrap();
    let case = vectors["validation"].as_array().unwrap().iter();
    let case = case.clone().find(|case| case["id"] == "up-role-binding-zero-length-namespace").unwrap();
    for path in ["rolebindings", "namespaces//rolebindings", "namespaces/%20/rolebindings"] {
        let (code, answer) = world.json("POST", &format!("{RBAC}/{path}"), &case["object"]).await;
        assert!(matches!(code, 400 | 403 | 404 | 405 | 422), "{path}: {code} {answer}");
    }
    let (code, answer) =
        world.json("PUT", &format!("{RBAC}/namespaces//rolebindings/default"), &case["object"]).await;
    assert!(matches!(code, 400 | 403 | 404 | 405 | 422), "{code} {answer}");
    assert_eq!(world.get(&format!("{RBAC}/rolebindings")).await.1["items"], json!([]));
}

#[tokio::test]
async fn a_token_ends_with_the_uid_of_its_service_account() {
    let world = World::new().await;
    let own = json!({"metadata": {"name": "bot"}});
    let old = make(&world, ACCOUNTS, own.clone()).await;
    let first = token(&world, json!({})).await.1["status"]["token"].clone();
    // Verified once, so that its signature is remembered.
    assert_eq!(reviewed(&world, &first, json!([])).await["authenticated"], true);
    world.delete(&format!("{ACCOUNTS}/bot"), &Value::Null).await;
    assert_eq!(reviewed(&world, &first, json!([])).await["authenticated"], Value::Null);
    // A client cannot choose the uid, so it cannot revive the tokens of an account that is gone.
    let chosen = json!({"metadata": {"name": "bot", "uid": old["metadata"]["uid"]}});
    assert_ne!(make(&world, ACCOUNTS, chosen).await["metadata"]["uid"], old["metadata"]["uid"]);
    assert_eq!(reviewed(&world, &first, json!([])).await["authenticated"], Value::Null, "another uid");
    let second = token(&world, json!({"attestations": {"a": ["b"]}})).await.1;
    assert_eq!(second["spec"]["attestations"], Value::Null, "nothing is attested");
    assert_eq!(reviewed(&world, &second["status"]["token"], json!([])).await["authenticated"], true);
}

#[tokio::test]
async fn errors_about_secrets_are_recorded_without_what_they_quote() {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "RequestResponse"}]});
    let (world, path) = audited(World::new().await, policy, 0);
    let secrets = "/api/v1/namespaces/default/secrets";
    let bodies = [
        json!({"metadata": {"name": "s"}, "data": {"password": "hunter2!"}}),
        json!({"metadata": {"name": "s"}, "data": {"password": ["hunter2!"]}}),
        json!({"metadata": {"name": "s"}, "data": "hunter2!"}),
        json!({"metadata": {"name": "s"}, "hunter2!": {"password": "hunter2!"}}),
        json!({"metadata": {"name": "s"}, "type": "kubernetes.io/tls", "stringData": {"tls.crt": "hunter2!"}}),
        json!({"metadata": {"name": "s"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": "hunter2!"}}),
    ];
    for body in &bodies {
        world.json("POST", &format!("{secrets}?fieldValidation=Strict"), body).await;
    }
    // A policy may quote, and choose the code.
    let policies = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["secrets"]}]},
        "validations": [{"expression": "false", "reason": "Forbidden",
            "messageExpression": "'no ' + object.stringData['password']"}]}});
    let binding =
        json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    make(&world, &format!("{policies}/validatingadmissionpolicies"), policy).await;
    make(&world, &format!("{policies}/validatingadmissionpolicybindings"), binding).await;
    let refused = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2!"}});
    let (code, status) = world.json("POST", secrets, &refused).await;
    assert!(code >= 400, "{status}");
    world.send("POST", secrets, "application/json", b"{\"data\": hunter2!".to_vec()).await;
    world.json("POST", TOKEN_REVIEWS, &json!({"spec": {"token": "hunter2!", "audiences": "hunter2!"}})).await;
    world.json("POST", TOKEN_REVIEWS, &json!({"spec": {"token": "hunter2!"}})).await;
    let all = events(&path, bodies.len() + 6).await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hunter2"), "{all:#?}");
    assert!(all[0]["responseStatus"]["code"].as_u64().unwrap() >= 400, "{}", all[0]);
    let _ = std::fs::remove_dir_all(path.parent().unwrap());
}

#[tokio::test]
async fn revocation_holds_while_writes_race() {
    let world = World::new().await;
    make_admin(&world, "jane").await;
    for round in 0..20 {
        grant(
            &world,
            &format!("g{round}"),
            json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["nodes"]}]),
            "joe",
        )
        .await;
        let roles = format!("{RBAC}/namespaces/default/rolebindings/g{round}");
        let joe = Caller::new("joe", &["system:authenticated"]);
        let review = json!({"spec": {"resourceAttributes":
            {"verb": "list", "resource": "nodes", "namespace": "default"}}});
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert_eq!(ask(&world, &joe, "POST", reviews, &review).await.1["status"]["allowed"], true);
        let noise = json!({"metadata": {"generateName": "n"}});
        let jane = jane();
        let (_, _, (code, _)) = tokio::join!(
            world.json("POST", CONFIG_MAPS, &noise),
            ask(&world, &jane, "GET", CONFIG_MAPS, &Value::Null),
            world.delete(&roles, &Value::Null),
        );
        assert_eq!(code, 200);
        assert_eq!(ask(&world, &joe, "POST", reviews, &review).await.1["status"]["allowed"], false);
    }
}
