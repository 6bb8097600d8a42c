//! More calls of kubectl's own suite: `kubectl apply` of several files, by selector, with prune, by kustomize and from
//! client-side to server-side apply, with served kinds only (the functions kubectl_apply and kubectl_server_side_apply).

use crate::kubectl::session;
use session::Session;

fn pod(namespace: &str, name: &str, labels: &str) -> String {
    let namespace = if namespace.is_empty() { String::new() } else { format!("namespace: {namespace}, ") };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{{namespace}name: {name}, labels: {{{labels}}}}}\n\
         spec: {{containers: [{{name: pause, image: 'pause:1'}}]}}\n---\n"
    )
}

fn config_map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n---\n")
}

fn field(kubectl: &Session, object: &str, path: &str) -> String {
    kubectl.run(&format!("get {object} -o jsonpath={{{path}}}"))
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[test]
fn a_dry_run_changes_nothing() {
    let kubectl = Session::new();
    let dry_runs = |manifest: &str| {
        for dry_run in ["client", "server"] {
            kubectl.run_with(&format!("apply --dry-run={dry_run} -f -"), &[], manifest);
        }
    };
    dry_runs(&pod("", "a", "v: one"));
    assert_eq!(kubectl.run("get pods -o name"), "");
    kubectl.apply(&pod("", "a", "v: one"));
    let version = || field(&kubectl, "pod a", ".metadata.resourceVersion");
    let before = version();
    dry_runs(&pod("", "a", "v: two"));
    assert_eq!((version(), field(&kubectl, "pod a", ".metadata.labels.v")), (before, "one".to_owned()));
}

#[test]
fn a_selector_leaves_out_the_rest_of_the_file() {
    let kubectl = Session::new();
    let both = pod("", "taken", "apply: 'true'") + &pod("", "left", "apply: 'false'");
    kubectl.run_with("apply -l apply=true -f -", &[], &both);
    assert_eq!(kubectl.run("get pods -o name"), "pod/taken\n");
    assert!(kubectl.fails("get pod left").contains("pods \"left\" not found"));
    let refused = kubectl.fails_with("apply -n foo -f -", &pod("shop", "a", ""));
    let wanted = "the namespace from the provided object \"shop\" does not match the namespace \"foo\"";
    assert!(refused.contains(wanted), "{refused}");
}

#[test]
fn null_is_a_default_and_stays_one() {
    let kubectl = Session::new();
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    image: i\n    \
        terminationMessagePolicy: null\n    resources: {requests: {memory: 64Mi, cpu: null}}\n";
    for _ in 0..2 {
        kubectl.apply(manifest);
        let has = |path: &str| field(&kubectl, "pod a", &format!(".spec.containers[0]{path}"));
        assert_eq!(has(".resources.requests"), r#"{"memory":"64Mi"}"#);
        assert_eq!(has(".terminationMessagePolicy"), "File");
    }
}

#[test]
fn the_rest_of_a_file_is_applied_if_one_object_fails() {
    let kubectl = Session::new();
    let late = pod("late", "a", "") + "apiVersion: v1\nkind: Namespace\nmetadata: {name: late}\n";
    let refused = kubectl.fails_with("apply -f -", &late);
    assert!(refused.contains("namespaces \"late\" not found"), "{refused}");
    assert!(kubectl.fails("get pod a -n late").contains("pods \"a\" not found"));
    kubectl.apply(&late);
    assert_eq!(kubectl.run("get pods -n late -o name"), "pod/a\n");
    kubectl.run_with("delete -f -", &[], &late);

    let unknown =
        config_map("foo", "a: b") + "apiVersion: example.com/v1\nkind: Bogus\nmetadata: {name: foo}\n";
    let refused = kubectl.fails_with("apply -f -", &unknown);
    assert!(refused.contains("no matches for kind \"Bogus\" in version \"example.com/v1\""), "{refused}");
    assert_eq!(kubectl.run("get configmaps foo -o name"), "configmap/foo\n");
    let definition =
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.b}\n";
    let refused = kubectl.fails_with("apply -f -", definition);
    assert!(refused.contains("no matches for kind \"CustomResourceDefinition\""), "{refused}");
}

#[test]
fn prune_removes_what_is_left_out_in_every_namespace_of_the_file() {
    let kubectl = Session::new();
    kubectl.run("create namespace nsb");
    let (a, b) = (pod("", "a", "group: x"), pod("nsb", "b", "group: x"));
    let pods = |namespace: &str| kubectl.run(&format!("get pods -n {namespace} -o name"));
    let allowed = "--prune-allowlist core/v1/Pod";
    let refused = kubectl.fails_with("apply --prune -f -", &a);
    assert!(
        refused.contains("all resources selected for prune without explicitly passing --all"),
        "{refused}"
    );
    kubectl.run_with("apply -n nsb -l group=x -f -", &[], &a);
    kubectl.run_with(&format!("apply -n nsb --prune -l group=x {allowed} -f -"), &[], &b);
    assert_eq!(pods("nsb"), "pod/b\n");
    kubectl.run_with(&format!("apply --all --prune {allowed} -f -"), &[], &(a.clone() + &b));
    assert_eq!((pods("default"), pods("nsb")), ("pod/a\n".to_owned(), "pod/b\n".to_owned()));
    // A list of kinds that does not name Pods leaves them.
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: s, labels: {group: x}}\nspec: {ports: [{port: 80}]}\n";
    let services = "apply --prune -l group=x --prune-allowlist core/v1/Service -f -";
    kubectl.run_with(services, &[], service);
    assert_eq!(pods("default"), "pod/a\n");
    kubectl.run_with(&format!("apply --prune -l group=x {allowed} -f -"), &[], service);
    assert_eq!(pods("default"), "");
    // Not the namespace of the file alone, but each where an applied object is.
    kubectl.run_with("apply -n nsb -f -", &[], &a);
    kubectl.run_with(&format!("apply --prune --all {allowed} -f -"), &[], &b);
    assert_eq!(pods("nsb"), "pod/b\n");
    // The list that kubectl has by default names kinds that are not served.
    let refused = kubectl.fails_with("apply --prune -l group=x -f -", &b);
    assert!(refused.contains("no matches for kind \"Endpoints\" in version \"v1\""), "{refused}");
}

#[test]
fn kustomize_makes_what_is_applied_read_and_deleted() {
    let kubectl = Session::new();
    let folder = kubectl.folder().join("kustomize");
    std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{error}"));
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap_or_else(|error| panic!("{error}"));
    };
    write("kustomization.yaml", "namePrefix: test-\nresources: [map.yaml, service.yaml]\n");
    write("map.yaml", &config_map("the-map", "a: b"));
    write(
        "service.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: the-service}\nspec: {ports: [{port: 80}]}\n",
    );
    let folder = folder.display();
    for flag in ["-k", "--kustomize"] {
        kubectl.run(&format!("apply {flag} {folder}"));
        let names = kubectl.run(&format!("get {flag} {folder} -o name"));
        assert_eq!(names, "configmap/test-the-map\nservice/test-the-service\n");
        kubectl.run(&format!("delete {flag} {folder}"));
        assert_eq!(kubectl.run("get services,configmaps -o name"), "service/kubernetes\n");
    }
}

#[test]
fn server_side_apply_with_the_manager_of_client_side_apply_ends_its_annotation() {
    let kubectl = Session::new();
    let apply = |server_side: bool, data: &str| {
        let words = format!("apply --server-side={server_side} --field-manager=myfm -f -");
        kubectl.run_with(&words, &[], &config_map("m", data))
    };
    let data = || field(&kubectl, "configmap m", ".data");
    let is_annotated = || kubectl.run("get configmap m -o yaml").contains(LAST_APPLIED);
    assert_eq!(apply(false, "key: one, legacy: two"), "configmap/m created\n");
    assert!(is_annotated());
    assert_eq!(apply(true, "key: one, legacy: two"), "configmap/m serverside-applied\n");
    assert!(!is_annotated());
    apply(true, "key: two");
    assert_eq!(data(), r#"{"key":"two"}"#);
    let annotated =
        config_map("m", "key: two, new: value").replace("name: m", "name: m, annotations: {note: x}");
    let words = "diff --server-side --field-manager=myfm -f -";
    let (out, err, same) = kubectl.output(words, &[], &annotated);
    assert!(!same && out.contains("+  new: value") && out.contains("+    note: x"), "{out}{err}");
}
