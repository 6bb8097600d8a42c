//! The real kubectl, unmodified, against the API on loopback: what a person does in a day.
//!
//! `cargo xtask test` installs it below the target directory. Without it these tests fail and say so.

pub(crate) mod session;

use crate::served;
use session::Session;

const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const NODE_AND_POD: &str = "\
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Pod
metadata: {name: p1, labels: {app: web}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'example.com/web:1', ports: [{containerPort: 8080}]}]
";

const CONFIG_MAP: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: NAME}, data: {a: '1'}}\n";

#[test]
fn apply_get_and_describe_show_what_kubectl_users_know() {
    let kubectl = Session::new();
    assert_eq!(kubectl.apply(SERVICE), "service/web created\n");
    assert_eq!(kubectl.apply(SERVICE), "service/web unchanged\n");
    let changed = SERVICE.replace("port: 80,", "port: 81,");
    assert_eq!(kubectl.apply(&changed), "service/web configured\n");
    assert_eq!(
        kubectl.run("get svc web -o jsonpath={.spec.ports[*].port}"),
        "81",
        "the old port is replaced"
    );
    let wide = kubectl.run("get service web -o wide");
    assert!(wide.starts_with("NAME   TYPE        CLUSTER-IP"), "{wide}");
    assert!(wide.contains("SELECTOR") && wide.contains("app=web") && wide.contains("81/TCP"), "{wide}");
    let yaml = kubectl.run("get svc web -o yaml");
    assert!(yaml.contains("  internalTrafficPolicy: Cluster\n") && yaml.contains("  - IPv4\n"), "{yaml}");
    assert!(kubectl.run("get svc -l app=web --no-headers").starts_with("web "));
    assert_eq!(kubectl.run("get svc -l app!=web,component!=apiserver --no-headers"), "");
    assert!(kubectl.run("get svc --field-selector metadata.name=web --no-headers").starts_with("web "));
    let described = kubectl.run("describe svc web");
    for part in ["Selector:", "app=web", "Port:", "http  81/TCP", "TargetPort:", "8080/TCP", "Endpoints:"] {
        assert!(described.contains(part), "{part}: {described}");
    }
    let all = kubectl.run("get svc,servicecidr,ipaddress -A");
    assert!(all.contains("10.96.0.0/16,fd00:10:96::/112") && all.contains("services/default/web"), "{all}");
}

#[test]
fn long_lists_come_in_chunks() {
    let kubectl = Session::new();
    let many: Vec<String> = (0..23).map(|i| CONFIG_MAP.replace("NAME", &format!("c{i:02}"))).collect();
    kubectl.apply(&many.join("---\n"));
    let listed = kubectl.run("get configmaps --chunk-size=5 --no-headers");
    assert_eq!(listed.lines().count(), 23, "{listed}");
}

#[test]
fn label_annotate_patch_edit_and_replace_change_objects() {
    let kubectl = Session::new();
    kubectl.apply(SERVICE);
    kubectl.apply(NODE_AND_POD);
    kubectl.apply(&CONFIG_MAP.replace("NAME", "c"));
    assert_eq!(kubectl.run("label svc web tier=front"), "service/web labeled\n");
    assert_eq!(kubectl.run("annotate node n1 note=x"), "node/n1 annotated\n");
    assert_eq!(kubectl.run("label svc web tier-"), "service/web unlabeled\n");
    kubectl.run(r#"patch svc web -p {"spec":{"ports":[{"port":443,"name":"https"}]}}"#);
    assert_eq!(kubectl.run("get svc web -o jsonpath={.spec.ports[*].port}"), "443 80");
    kubectl.run(r#"patch configmap c --type=merge -p {"data":{"b":"2"}}"#);
    kubectl.run(r#"patch configmap c --type=json -p [{"op":"remove","path":"/data/a"}]"#);
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data}"), r#"{"b":"2"}"#);
    let status = r#"patch pod p1 --subresource=status -p {"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}"#;
    kubectl.run(status);
    assert_eq!(kubectl.run("wait pod/p1 --for=condition=Ready --timeout=5s"), "pod/p1 condition met\n");
    assert!(kubectl.run("get pods -o wide --no-headers").contains("Running"));
    assert_eq!(
        kubectl.run_with("edit svc web", &[("EDITOR", "sed -i s/8080/9090/")], ""),
        "service/web edited\n"
    );
    assert!(kubectl.run("get svc web -o yaml").contains("targetPort: 9090"));
    let yaml = kubectl.run("get cm c -o yaml").replace("\"2\"", "\"3\"");
    assert_eq!(kubectl.run_with("replace -f -", &[], &yaml), "configmap/c replaced\n");
    assert_eq!(kubectl.run("get cm c -o jsonpath={.data.b}"), "3");
}

#[test]
fn a_watch_tells_what_happens() {
    let kubectl = Session::new();
    let watch = kubectl.start("get configmaps -w --output-watch-events --no-headers");
    kubectl.apply(&CONFIG_MAP.replace("NAME", "c"));
    kubectl.run("label cm c a=b");
    kubectl.run("delete cm c");
    let seen = watch.wait_for("DELETED");
    let words: Vec<&str> = seen.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(words, ["ADDED", "MODIFIED", "DELETED"], "{seen}");
}

#[test]
fn explain_and_api_resources_know_the_kinds() {
    let kubectl = Session::new();
    let explained = kubectl.run("explain service.spec.trafficDistribution");
    assert!(explained.contains("FIELD: trafficDistribution <string>"), "{explained}");
    assert!(kubectl.run("explain endpointslice.endpoints.hints").contains("forZones"));
    assert!(kubectl.run("explain meshhttproute").contains("GROUP:      zoneward.dev"));
    let kinds = kubectl.run("api-resources -o name");
    for name in [
        "services",
        "endpointslices.discovery.k8s.io",
        "meshhttproutes.zoneward.dev",
        "leases.coordination.k8s.io",
    ] {
        assert!(kinds.lines().any(|line| line == name), "{name}: {kinds}");
    }
}

#[test]
fn delete_waits_until_it_is_done() {
    let kubectl = Session::new();
    kubectl.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    kubectl.run_with("apply -n shop -f -", &[], SERVICE);
    assert_eq!(kubectl.run("delete namespace shop"), "namespace \"shop\" deleted\n");
    assert_eq!(kubectl.run("get ns -o jsonpath={.items[*].metadata.name}"), "default kube-system");
    kubectl.apply(NODE_AND_POD);
    kubectl.run("delete pod p1 --wait=false");
    kubectl.run("wait pod/p1 --for=delete --timeout=5s");
    assert!(kubectl.fails("get pod p1").contains("NotFound"));
}

#[test]
fn mistakes_are_explained() {
    let kubectl = Session::new();
    let unknown = SERVICE.replace("selector:", "selektor:");
    let refused = kubectl.fails_with("apply -f -", &unknown);
    assert!(refused.contains("strict decoding error: unknown field \"spec.selektor\""), "{refused}");
    let warned = kubectl.output("apply --validate=warn -f -", &[], &unknown);
    assert!(warned.1.contains("Warning: unknown field"), "{}", warned.1);
    let close = SERVICE
        .replace("spec:\n", "spec:\n  trafficDistribution: PreferClose\n")
        .replace("name: web,", "name: near,");
    let warned = kubectl.output("apply -f -", &[], &close);
    assert!(warned.1.contains("PreferClose is deprecated"), "{}", warned.1);
    let invalid = kubectl.fails_with("apply -f -", &SERVICE.replace("name: web,", "name: Web_1,"));
    assert!(invalid.contains("is invalid") && invalid.contains("metadata.name"), "{invalid}");
    let immutable = kubectl.fails(r#"patch svc web --type=merge -p {"spec":{"clusterIP":"10.96.0.9"}}"#);
    assert!(immutable.contains("is invalid"), "{immutable}");
    let token = kubectl.fails("create token nobody");
    assert!(token.contains("serviceaccounts \"nobody\" not found"), "{token}");
    let reader = kubectl.as_reader();
    assert!(reader.run("get svc web --no-headers").starts_with("web "));
    assert!(reader.fails("delete svc web").contains("Forbidden"));
    assert!(reader.fails("get secrets").contains("Forbidden"));
}

#[test]
fn a_rehearsal_on_the_server_changes_nothing() {
    let kubectl = Session::new();
    let said = kubectl.run_with("apply --dry-run=server -f -", &[], SERVICE);
    assert_eq!(said, "service/web created (server dry run)\n");
    assert!(kubectl.fails("get svc web").contains("NotFound"));
    kubectl.apply(SERVICE);
    let diff = kubectl.output("diff -f -", &[], &SERVICE.replace("port: 80,", "port: 81,"));
    assert!(diff.0.contains("+  - name: http\n") || diff.0.contains("+    port: 81"), "{}", diff.0);
}
