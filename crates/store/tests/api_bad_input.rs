//! Requests that are wrong in every way that clients get wrong: the code and the shape of the Status.

use crate::world;
use serde_json::{Value, json};
use world::{SERVICES, World, read, service};

fn check(what: &str, (code, status): (u16, Value), wanted: u16, reason: &str) {
    assert_eq!((code, status["reason"].as_str()), (wanted, Some(reason)), "{what}: {status:#}");
    assert_eq!(status["kind"], "Status", "{what}");
    assert_eq!(status["apiVersion"], "v1", "{what}");
    assert_eq!(status["status"], "Failure", "{what}");
    assert_eq!(status["code"], wanted, "{what}");
    assert!(status["message"].as_str().is_some_and(|message| !message.is_empty()), "{what}");
}

#[tokio::test]
async fn bodies_that_cannot_be_read_get_the_code_that_kubernetes_gives() {
    let world = World::new().await;
    let good = service("a", json!({})).to_string();
    for (what, content_type, body, code, reason) in [
        ("malformed JSON", "application/json", "{\"kind\":".to_owned(), 400, "BadRequest"),
        ("no object", "application/json", "[1,2]".to_owned(), 400, "BadRequest"),
        ("empty", "application/json", String::new(), 400, "BadRequest"),
        ("not UTF-8 as YAML", "application/yaml", "\u{0}:".to_owned(), 400, "BadRequest"),
        ("plain text", "text/plain", good.clone(), 415, "UnsupportedMediaType"),
        ("no protobuf", "application/vnd.kubernetes.protobuf", good.clone(), 400, "BadRequest"),
        ("deep JSON", "application/json", "[".repeat(100_000), 400, "BadRequest"),
    ] {
        let response = world.send("POST", SERVICES, content_type, body.into_bytes()).await;
        check(what, read(response).await, code, reason);
    }
    let response = world.send("POST", SERVICES, "application/yaml", good.into_bytes()).await;
    assert_eq!(response.status(), 201, "YAML is read");
}

#[tokio::test]
async fn objects_that_are_wrong_are_refused_with_their_fields() {
    let world = World::new().await;
    let create = |object: Value, query: &'static str| {
        let world = &world;
        async move { world.json("POST", &format!("{SERVICES}{query}"), &object).await }
    };
    let wrong_version = json!({"apiVersion": "v2", "kind": "Service", "metadata": {"name": "a"}});
    check("wrong version", create(wrong_version, "").await, 400, "BadRequest");
    let wrong_kind = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    check("wrong kind", create(wrong_kind, "").await, 400, "BadRequest");
    let mistyped = service("a", json!({"ports": [{"port": "80"}]}));
    check("wrong type", create(mistyped, "").await, 400, "BadRequest");
    let elsewhere =
        json!({"metadata": {"name": "a", "namespace": "other"}, "spec": {"ports": [{"port": 1}]}});
    check("wrong namespace", create(elsewhere, "").await, 400, "BadRequest");
    let versioned =
        json!({"metadata": {"name": "a", "resourceVersion": "5"}, "spec": {"ports": [{"port": 1}]}});
    check("version of a new object", create(versioned, "").await, 400, "BadRequest");
    let illegal = create(service("Not_A_Name", json!({})), "").await;
    assert_eq!(illegal.1["details"]["causes"][0]["field"], "metadata.name");
    check("illegal name", illegal, 422, "Invalid");
    let nameless = json!({"spec": {"ports": [{"port": 80}]}});
    check("no name", create(nameless, "").await, 422, "Invalid");
    let unknown = || service("a", json!({"colour": "red"}));
    check("unknown field, strict", create(unknown(), "?fieldValidation=Strict").await, 400, "BadRequest");
    check("odd validation", create(unknown(), "?fieldValidation=Sloppy").await, 422, "Invalid");
    check("odd dry run", create(unknown(), "?dryRun=Some").await, 422, "Invalid");
    let taken = create(service("kubernetes", json!({})), "").await;
    assert_eq!(taken.1["message"], "services \"kubernetes\" already exists");
    check("taken name", taken, 409, "AlreadyExists");
    let nowhere = world.json("POST", "/api/v1/namespaces/nowhere/services", &service("a", json!({}))).await;
    check("namespace that does not exist", nowhere, 404, "NotFound");
}

#[tokio::test]
async fn unknown_fields_are_dropped_and_warned_of_unless_told_otherwise() {
    let world = World::new().await;
    for (name, query, warnings) in [("warned", "", 1), ("ignored", "?fieldValidation=Ignore", 0)] {
        let object = service(name, json!({"colour": "red"}));
        let path = format!("{SERVICES}{query}");
        let response = world.send("POST", &path, "application/json", object.to_string().into_bytes()).await;
        let found: Vec<_> = response.headers().get_all("warning").iter().cloned().collect();
        assert_eq!(found.len(), warnings, "{found:?}");
        let (code, stored) = read(response).await;
        assert_eq!((code, stored["spec"].get("colour")), (201, None));
        if let [warning] = found.as_slice() {
            assert_eq!(warning, "299 - \"unknown field \\\"spec.colour\\\"\"");
        }
    }
}

#[tokio::test]
async fn queries_and_paths_that_are_wrong_are_refused() {
    let world = World::new().await;
    for (path, code, reason) in [
        ("/api/v1/pods?labelSelector=a%20in%20(b", 400, "BadRequest"),
        ("/api/v1/pods?labelSelector=-a%3Db", 400, "BadRequest"),
        ("/api/v1/pods?fieldSelector=spec.color%3Dred", 400, "BadRequest"),
        ("/api/v1/pods?limit=many", 400, "BadRequest"),
        ("/api/v1/pods?continue=%25%25", 400, "BadRequest"),
        ("/api/v1/pods?resourceVersion=abc", 400, "BadRequest"),
        ("/api/v1/pods?resourceVersion=999999999", 504, "Timeout"),
        ("/api/v1/pods?watch=true&resourceVersion=999999999", 504, "Timeout"),
        ("/api/v1/namespaces/default/services/none", 404, "NotFound"),
        ("/api/v1/namespaces/default/gizmos", 404, "NotFound"),
        ("/api/v9/pods", 404, "NotFound"),
        ("/apis/apps/v1/namespaces/default/deployments", 404, "NotFound"),
        ("/nowhere", 404, "NotFound"),
        ("/api/v1/namespaces/default/services/%00/%2e%2e", 404, "NotFound"),
        ("/openapi/v3/apis/apps/v1", 404, "NotFound"),
    ] {
        check(path, world.get(path).await, code, reason);
    }
    for (method, path) in
        [("POST", "/api/v1/services"), ("PUT", SERVICES), ("OPTIONS", SERVICES), ("POST", "/version")]
    {
        check(path, world.json(method, path, &json!({})).await, 405, "MethodNotAllowed");
    }
}

#[tokio::test]
async fn patches_that_are_wrong_are_refused() {
    let world = World::new().await;
    world.service("web", json!({})).await;
    world.config_map("c", json!({})).await;
    let web = format!("{SERVICES}/web");
    for (path, kind, patch, code, reason) in [
        (web.as_str(), "json-patch", json!([{"op": "remove", "path": "/spec/none"}]), 422, "Invalid"),
        (&web, "json-patch", json!({"op": "add"}), 400, "BadRequest"),
        (&web, "merge-patch", json!([]), 400, "BadRequest"),
        (&web, "strategic-merge-patch", json!({"spec": {"ports": [{"name": "x"}]}}), 422, "Invalid"),
        (&web, "strategic-merge-patch", json!({"spec": {"$patch": "smash"}}), 400, "BadRequest"),
        (&web, "apply-patch", json!({}), 415, "UnsupportedMediaType"),
        (&web, "merge-patch", json!({"metadata": {"resourceVersion": "1"}}), 409, "Conflict"),
        (&web, "merge-patch", json!({"metadata": {"uid": "x"}}), 422, "Invalid"),
        (&web, "merge-patch", json!({"metadata": {"namespace": "x"}}), 400, "BadRequest"),
        (&web, "merge-patch", json!({"metadata": {"name": "other"}}), 400, "BadRequest"),
        (&web, "merge-patch", json!({"spec": {"clusterIP": "10.96.0.77"}}), 422, "Invalid"),
        (&web, "merge-patch", json!({"spec": {"ports": "none"}}), 422, "Invalid"),
        ("/api/v1/namespaces/default/services/none", "merge-patch", json!({}), 404, "NotFound"),
    ] {
        check(&format!("{kind} {patch}"), world.patch(path, kind, &patch).await, code, reason);
    }
}

#[tokio::test]
async fn an_update_on_an_old_version_is_a_conflict() {
    let world = World::new().await;
    let first = world.service("web", json!({})).await;
    let path = format!("{SERVICES}/web");
    let mut labelled = first.clone();
    labelled["metadata"]["labels"] = json!({"a": "1"});
    assert_eq!(world.json("PUT", &path, &labelled).await.0, 200);
    labelled["metadata"]["labels"] = json!({"a": "2"});
    let (code, status) = world.json("PUT", &path, &labelled).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    labelled["metadata"]["resourceVersion"] = "".into();
    assert_eq!(world.json("PUT", &path, &labelled).await.0, 200, "without a version it is unconditional");
    let other = json!({"metadata": {"name": "other"}, "spec": {"ports": [{"port": 80}]}});
    assert_eq!(world.json("PUT", &path, &other).await.0, 400, "the name of the path counts");
}

#[tokio::test]
async fn a_put_creates_where_kubernetes_lets_it() {
    let world = World::new().await;
    let minimal = |kind: &store::kinds::ResourceKind| match kind.kind {
        "Service" => service("new", json!({})),
        "Event" if kind.group.is_empty() => json!({"metadata": {"name": "new"}, "involvedObject":
            {"kind": "Pod", "name": "p", "namespace": "default"}}),
        "IPAddress" => json!({"metadata": {"name": "10.96.0.77"}, "spec": {"parentRef":
            {"resource": "services", "namespace": "default", "name": "web"}}}),
        "RoleBinding" | "ClusterRoleBinding" => {
            json!({"metadata": {"name": "new"}, "roleRef": {"kind": "ClusterRole", "name": "view"}})
        }
        _ => json!({"metadata": {"name": "new"}}),
    };
    let mut creating = Vec::new();
    for kind in store::kinds::stored() {
        let prefix = if kind.group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}", kind.api_version())
        };
        let place = if kind.namespaced { "/namespaces/default" } else { "" };
        let object = minimal(kind);
        let path =
            format!("{prefix}{place}/{}/{}", kind.plural, object["metadata"]["name"].as_str().unwrap());
        let (code, answer) = world.json("PUT", &path, &object).await;
        match code {
            201 => creating.push(kind.kind),
            // What is wrong with an object that is not there does not come before its absence.
            404 => assert_eq!(answer["reason"], "NotFound", "{}", kind.kind),
            _ => panic!("{}: {answer:#}", kind.kind),
        }
    }
    assert_eq!(
        creating,
        ["Event", "Service", "Lease", "ClusterRoleBinding", "ClusterRole", "RoleBinding", "Role"]
    );
}

#[tokio::test]
async fn a_put_that_creates_is_a_create_in_all_else() {
    let world = World::new().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = |extra: Value| {
        let mut lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}});
        for (name, value) in extra.as_object().unwrap() {
            lease["metadata"][name] = value.clone();
        }
        lease
    };
    let gone = world.json("PUT", &format!("{leases}/a"), &lease(json!({"uid": "gone"}))).await;
    check("a uid matches no object", gone, 409, "Conflict");
    let (code, rehearsed) =
        world.json("PUT", &format!("{leases}/a?dryRun=All"), &lease(json!({"resourceVersion": "5"}))).await;
    assert_eq!((code, rehearsed["metadata"].get("resourceVersion")), (201, None));
    let (code, made) =
        world.json("PUT", &format!("{leases}/a"), &lease(json!({"resourceVersion": "5"}))).await;
    assert_eq!(code, 201, "{made:#}");
    assert!(made["metadata"]["uid"].is_string() && made["metadata"]["creationTimestamp"].is_string());
    let again = world.json("PUT", &format!("{leases}/a"), &lease(json!({}))).await;
    check("now it is there, and needs its version", again, 422, "Invalid");
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/nowhere/leases/a";
    check("no namespace", world.json("PUT", elsewhere, &lease(json!({}))).await, 404, "NotFound");
    let (code, service) = world.json("PUT", &format!("{SERVICES}/web"), &service("web", json!({}))).await;
    assert_eq!((code, service["spec"]["clusterIPs"].as_array().map(Vec::len)), (201, Some(1)));
    check(
        "a status",
        world.json("PUT", &format!("{SERVICES}/none/status"), &service).await,
        400,
        "BadRequest",
    );
    let patched = world.patch(&format!("{leases}/none"), "merge-patch", &json!({})).await;
    check("a patch", patched, 404, "NotFound");
}
