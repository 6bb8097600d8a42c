//! kubectl with several objects at once, with kinds and paths that are not served, and with the columns of our own kinds.

use crate::kubectl::session;
use session::Session;

const LIST: &str = "\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: c}
  data: {a: '1'}
- apiVersion: v1
  kind: Service
  metadata: {name: web}
  spec: {ports: [{port: 80, targetPort: http}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: p}
  spec: {containers: [{name: c, image: 'example.com/web:1', resources: {limits: {cpu: 1, memory: 64Mi}}}]}
- apiVersion: zoneward.dev/v1alpha1
  kind: MeshHTTPRoute
  metadata: {name: r}
  spec:
    targetRef: {kind: MeshService, name: web}
    to:
    - targetRef: {kind: MeshService, name: web}
      rules:
      - matches: [{path: {type: Prefix, value: /}}]
        default: {backendRefs: [{kind: MeshService, name: web, weight: 1}]}
";

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}}}
";

#[test]
fn a_list_is_created_applied_and_replaced() {
    let kubectl = Session::new();
    let created = kubectl.run_with("create -f -", &[], LIST);
    let route = "meshhttproute.zoneward.dev/r";
    assert_eq!(
        created,
        format!("configmap/c created\nservice/web created\npod/p created\n{route} created\n")
    );
    let changed = LIST.replace("'1'", "'2'");
    kubectl.apply(&changed);
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data.a}"), "2");
    let all = kubectl.run("get cm,svc,meshhttproutes -o json");
    let replaced = kubectl.run_with("replace -f -", &[], &all);
    assert!(
        replaced.contains("configmap/c replaced") && replaced.contains(&format!("{route} replaced")),
        "{replaced}"
    );
}

#[test]
fn a_mistake_in_a_list_is_found_before_anything_is_sent() {
    let kubectl = Session::new();
    let refused = kubectl.fails_with("create -f -", &LIST.replace("targetPort:", "tragetPort:"));
    assert!(refused.contains("unknown field \"tragetPort\""), "{refused}");
    assert!(kubectl.fails("get cm c").contains("NotFound"));
}

#[test]
fn several_objects_are_edited_at_once() {
    let kubectl = Session::new();
    kubectl.apply(LIST);
    let edited = kubectl.run_with(
        "edit cm/c svc/web",
        &[("EDITOR", "sed -i -e 's/a: \"1\"/a: \"9\"/' -e 's/port: 80/port: 81/'")],
        "",
    );
    assert!(edited.contains("configmap/c edited"), "{edited}");
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data.a}"), "9");
    assert_eq!(kubectl.run("get svc web -o jsonpath={.spec.ports[0].port}"), "81");
}

#[test]
fn a_kind_that_is_not_served_matches_nothing() {
    let kubectl = Session::new();
    for words in ["create -f -", "apply -f -", "replace -f -", "delete -f -"] {
        let said = kubectl.fails_with(words, DEPLOYMENT);
        assert!(
            said.contains("no matches for kind \"Deployment\" in version \"apps/v1\""),
            "{words}: {said}"
        );
    }
    let indented = DEPLOYMENT.replace('\n', "\n  ");
    let said = kubectl.fails_with("create -f -", &format!("{LIST}- {}\n", indented.trim_end()));
    assert!(said.contains("no matches for kind \"Deployment\""), "{said}");
}

#[test]
fn routes_are_shown_with_the_columns_of_their_definition() {
    let kubectl = Session::new();
    kubectl.apply(LIST);
    kubectl.run(
        r#"patch mhr r --subresource=status --type=merge -p {"status":{"conditions":[{"type":"Accepted","status":"True","reason":"Accepted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#,
    );
    let shown = kubectl.run("get meshhttproutes");
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        ["NAME", "TARGET", "NAME", "ACCEPTED", "RESOLVEDREFS", "PROGRAMMED", "AGE"],
        "{shown}"
    );
    assert_eq!(lines[1][..4], ["r", "MeshService", "web", "True"], "{shown}");
}

#[test]
fn fields_of_a_pod_are_read_in_version_1_unless_another_is_named() {
    let kubectl = Session::new();
    let pod = "\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: example.com/web:1
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
";
    kubectl.apply(pod);
    let version = "get pod p -o jsonpath={.spec.containers[0].env[0].valueFrom.fieldRef.apiVersion}";
    assert_eq!(kubectl.run(version), "v1");
    assert_eq!(kubectl.apply(pod), "pod/p unchanged\n");
}
