//! Calls of kubectl's own suite, with manifests of our own: the functions server_side_apply, apply, diff, pod, service,
//! cluster_management, lists, create_error and local_proxy of Kubernetes' `test/cmd`, as far as they need served kinds only.
//! Those of `kubectl debug` are in `kubectl_debug.rs`, the rest of apply in `kubectl_apply.rs`.

use crate::kubectl::session;
use std::io::{Read, Write};
use std::net::TcpStream;

use session::Session;

fn pod(label: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, labels: {{name: {label}}}}}\n\
         spec: {{containers: [{{name: pause, image: '{image}'}}]}}\n"
    )
}

fn config_map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings}}\ndata: {{{data}}}\n")
}

fn managers(kubectl: &Session, object: &str) -> String {
    kubectl.run(&format!(
        "get {object} --show-managed-fields -o jsonpath={{.metadata.managedFields[*].manager}}"
    ))
}

fn field(kubectl: &Session, object: &str, path: &str) -> String {
    kubectl.run(&format!("get {object} -o jsonpath={{{path}}}"))
}

#[test]
fn server_side_apply_creates_changes_and_shares() {
    let kubectl = Session::new();
    let first = pod("one", "pause:1");
    let said = kubectl.run_with("apply --server-side --dry-run=server -f -", &[], &first);
    assert_eq!(said, "pod/web serverside-applied (server dry run)\n");
    assert!(kubectl.fails("get pod web").contains("NotFound"));
    let said = kubectl.run_with("apply --server-side -f -", &[], &first);
    assert_eq!(said, "pod/web serverside-applied\n");
    assert_eq!(managers(&kubectl, "pod web"), "kubectl");
    assert!(!kubectl.run("get pod web -o yaml").contains("managedFields"));

    let version = field(&kubectl, "pod web", ".metadata.resourceVersion");
    kubectl.run_with("apply --server-side --dry-run=server -f -", &[], &pod("two", "pause:1"));
    kubectl.run_with("apply --server-side -f -", &[], &first);
    assert_eq!(field(&kubectl, "pod web", ".metadata.resourceVersion"), version, "nothing changed");

    let refused =
        kubectl.fails_with("apply --server-side --field-manager=other -f -", &pod("two", "pause:1"));
    assert!(
        refused.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .metadata.labels.name")
            && refused.contains("--force-conflicts"),
        "{refused}"
    );
    let force = "apply --server-side --field-manager=other --force-conflicts -f -";
    kubectl.run_with(force, &[], &pod("two", "pause:1"));
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "two");
    assert_eq!(managers(&kubectl, "pod web"), "kubectl other");

    let status = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nstatus:\n  conditions:\n  \
        - {type: example.io/Foo, status: 'True', message: m, reason: r}\n";
    kubectl.run_with("apply --server-side --subresource=status --field-manager=other -f -", &[], status);
    assert_eq!(field(&kubectl, "pod web", ".status.conditions[*].type"), "example.io/Foo");
    let subresources =
        "get pod web --show-managed-fields -o jsonpath={.metadata.managedFields[*].subresource}";
    assert_eq!(kubectl.run(subresources), "status");

    let unknown = first.replace("spec:", "colour: red\nspec:");
    let refused = kubectl.fails_with("apply --server-side --validate=false -f -", &unknown);
    assert!(refused.contains(".colour: field not declared in schema"), "{refused}");
}

#[test]
fn client_side_apply_is_upgraded_and_used_again() {
    let kubectl = Session::new();
    kubectl.apply(&pod("one", "pause:1"));
    assert_eq!(managers(&kubectl, "pod web"), "kubectl-client-side-apply");
    let other = "apply --server-side --field-manager=not-kubectl -f -";
    assert!(kubectl.fails_with(other, &pod("two", "pause:1")).contains("conflict"));
    kubectl.run_with("apply --server-side -f -", &[], &pod("two", "pause:1"));
    let last = kubectl.run("apply view-last-applied pod/web -o json");
    assert!(last.contains("\"name\": \"two\""), "{last}");
    kubectl.run_with("apply --server-side -f -", &[], &pod("three", "pause:1"));
    assert!(kubectl.run("apply view-last-applied pod/web -o json").contains("\"name\": \"three\""));
    kubectl.apply(&pod("four", "pause:1"));
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "four");

    // Fields of client-side apply can be removed by server-side apply, and the other way round.
    let data = || field(&kubectl, "configmap settings", ".data");
    kubectl.apply(&config_map("key: value, legacy: unused"));
    kubectl.run_with("apply --server-side -f -", &[], &config_map("key: value, legacy: unused"));
    kubectl.run_with("apply --server-side -f -", &[], &config_map("key: value, ssa: new"));
    assert_eq!(data(), r#"{"key":"value","ssa":"new"}"#);
    kubectl.apply(&config_map("key: value, csa: new"));
    assert_eq!(data(), r#"{"csa":"new","key":"value"}"#);
    kubectl.run_with("apply --server-side -f -", &[], &config_map("key: value, ssa: new"));
    assert_eq!(data(), r#"{"key":"value","ssa":"new"}"#);
    let diff = kubectl.output("diff --server-side -f -", &[], &config_map("key: value, ssa: newer"));
    assert!(diff.0.contains("+  ssa: newer") && !diff.2, "{diff:?}");
}

#[test]
fn diff_shows_what_an_apply_would_change() {
    let kubectl = Session::new();
    let (live, changed) = (pod("one", "pause:1"), pod("one", "pause:2"));
    for server_side in ["", " --server-side"] {
        let diff = |manifest: &str| kubectl.output(&format!("diff{server_side} -f -"), &[], manifest);
        let (out, err, same) = diff(&live);
        assert!(!same && out.contains("+  name: web"), "{out}{err}");
        assert!(kubectl.fails("get pod web").contains("NotFound"));
        kubectl.run_with(&format!("apply{server_side} -f -"), &[], &live);
        let version = field(&kubectl, "pod web", ".metadata.resourceVersion");
        let (out, err, same) = diff(&live);
        assert!(same, "{out}{err}");
        let (out, err, same) = diff(&changed);
        assert!(!same && out.contains("+  - image: pause:2"), "{out}{err}");
        assert_eq!(field(&kubectl, "pod web", ".metadata.resourceVersion"), version);
        kubectl.run("delete pod web --grace-period=0 --force");
    }
    let invalid = kubectl.fails_with("diff -f -", &live.replace("name: pause,", "name: ,"));
    assert!(invalid.contains("spec.containers[0].name"), "{invalid}");
}

#[test]
fn every_command_of_kubectl_is_a_manager_of_its_own() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], &pod("one", "pause:1"));
    kubectl.run("label pod web a=b");
    kubectl.run("annotate pod web a=b");
    kubectl.run(r#"patch pod web -p {"spec":{"containers":[{"name":"pause","image":"pause:2"}]}}"#);
    kubectl.run("set image pod/web pause=pause:3");
    let all = managers(&kubectl, "pod web");
    for manager in ["kubectl-create", "kubectl-label", "kubectl-annotate", "kubectl-set"] {
        assert!(all.contains(manager), "{manager}: {all}");
    }
    assert!(!all.contains("kubectl-patch"), "the image has another owner now: {all}");
    kubectl.run("create service clusterip web --tcp=80:80");
    kubectl.run("set selector service web role=padawan");
    assert_eq!(managers(&kubectl, "service web"), "kubectl-create kubectl-set");
    let stale = kubectl.fails("set selector service web role=master --resource-version=1");
    assert!(stale.contains("Conflict"), "{stale}");
    kubectl.run_with(
        "create -f -",
        &[],
        "apiVersion: v1\nkind: Node\nmetadata: {name: box, labels: {a: b}}\n",
    );
    kubectl.run("taint node box dedicated=foo:PreferNoSchedule");
    assert!(managers(&kubectl, "node box").contains("kubectl-taint"));
    // What is read can be created again.
    let dumped = kubectl.run("get pod web -o yaml --show-managed-fields");
    kubectl.run("delete pod web --grace-period=0 --force");
    kubectl.run_with("create -f -", &[], &dumped);
    assert_eq!(managers(&kubectl, "pod web"), "kubectl-create");
}

#[test]
fn a_kind_that_is_not_served_is_refused_by_name() {
    let kubectl = Session::new();
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  \
        metadata: {name: listed}\n  spec: {ports: [{port: 80}]}\n- apiVersion: apps/v1\n  kind: Deployment\n  \
        metadata: {name: listed}\n";
    let refused = kubectl.fails_with("create -f -", list);
    assert!(refused.contains("no matches for kind \"Deployment\" in version \"apps/v1\""), "{refused}");
    assert_eq!(field(&kubectl, "service listed", ".metadata.name"), "listed");
    let refused = kubectl.fails("get deployments");
    assert!(refused.contains("doesn't have a resource type \"deployments\""), "{refused}");
    let refused = kubectl.fails_with(
        "apply --server-side -f -",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\n",
    );
    assert!(refused.contains("no matches for kind \"Deployment\""), "{refused}");
}

#[test]
fn drain_evicts_and_cordon_marks_the_node() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], "apiVersion: v1\nkind: Node\nmetadata: {name: box}\n");
    for (name, label) in [("one", "a"), ("two", "b")] {
        let pod = pod(label, "pause:1").replace("name: web", &format!("name: {name}"));
        kubectl.run_with("create -f -", &[], &pod.replace("spec: {", "spec: {nodeName: box, "));
    }
    let unschedulable = || field(&kubectl, "node box", ".spec.unschedulable");
    for dry_run in ["client", "server"] {
        kubectl.run(&format!("cordon box --dry-run={dry_run}"));
        kubectl.run(&format!("drain box --force --dry-run={dry_run}"));
        assert_eq!(unschedulable(), "");
    }
    let drain = "drain box --force --pod-selector name=a --grace-period=1";
    let drained = kubectl.run(drain);
    assert!(drained.contains("evicting pod default/one") && !drained.contains("two"), "{drained}");
    assert_eq!(field(&kubectl, "pod two", ".metadata.deletionTimestamp"), "");
    assert_eq!(unschedulable(), "true");
    kubectl.run("uncordon box");
    assert_eq!(unschedulable(), "");
    assert!(kubectl.run("uncordon box --dry-run=server").contains("already uncordoned"));
    assert!(kubectl.fails("drain box --selector a=b").contains("cannot specify both a node name"));
    assert!(kubectl.fails("cordon").contains("error: USAGE: cordon NODE"));
}

#[test]
fn apply_prunes_and_goes_on_after_an_error() {
    let kubectl = Session::new();
    let labelled = |name: &str| {
        pod("x", "pause:1").replace("name: web, labels: {", &format!("name: {name}, labels: {{group: a, "))
    };
    kubectl.apply(&labelled("one"));
    // The kinds that kubectl prunes by default are not all served.
    let prune = "apply --prune -l group=a --prune-allowlist core/v1/Pod -f -";
    kubectl.run_with(prune, &[], &labelled("two"));
    assert_eq!(kubectl.run("get pods -o name"), "pod/two\n");
    let three = format!("{}---\n{}---\n{}", labelled("a"), labelled("B"), labelled("c"));
    let refused = kubectl.fails_with("apply -f -", &three);
    assert!(refused.contains("The Pod \"B\" is invalid"), "{refused}");
    assert_eq!(kubectl.run("get pods -o name"), "pod/a\npod/c\npod/two\n");
    kubectl.run_with("create -f -", &[], &labelled("made"));
    for (dry_run, annotated) in [(" --dry-run=server", false), ("", true)] {
        let set = format!("apply set-last-applied{dry_run} --create-annotation=true -f -");
        kubectl.run_with(&set, &[], &labelled("made"));
        assert_eq!(kubectl.run("get pod made -o yaml").contains("last-applied-configuration"), annotated);
    }
    let service = |ip: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
        )
    };
    kubectl.apply(&service("10.96.0.11"));
    let refused = kubectl.fails_with("apply -f -", &service("10.96.0.12"));
    assert!(refused.contains("may not change once set"), "{refused}");
    kubectl.run_with("apply --force -f -", &[], &service("10.96.0.12"));
    assert_eq!(field(&kubectl, "service a", ".spec.clusterIP"), "10.96.0.12");
}

#[test]
fn a_local_proxy_passes_requests_on() {
    let kubectl = Session::new();
    for prefix in ["", "/custom"] {
        let words = if prefix.is_empty() { "proxy --port=0" } else { "proxy --port=0 --api-prefix=/custom" };
        let proxy = kubectl.start(words);
        let said = proxy.wait_for("Starting to serve on");
        let address = said.split_whitespace().last().unwrap();
        for (path, code) in [
            ("/api/kubernetes", "404"),
            ("/api/v1/namespaces", "200"),
            ("/apis", "200"),
            ("/apis/discovery.k8s.io/", "200"),
            ("/apis/apps/", "404"),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET {prefix}{path} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer.split(' ').nth(1), Some(code), "{prefix}{path}: {answer}");
        }
    }
}

/// The names of all pods, with these flags.
fn pods(kubectl: &Session, flags: &str) -> String {
    kubectl.run(&format!("get pods{flags} -o jsonpath={{.items[*].metadata.name}}"))
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn pods_are_described_selected_and_deleted() {
    let kubectl = Session::new();
    let manifest = pod("one", "pause:1");
    kubectl.run_with("create -f -", &[], &manifest);
    for object in ["pod web", "pod/web", "pods/web"] {
        assert_eq!(kubectl.run(&format!("get {object} -o go-template={{{{.metadata.name}}}}")), "web");
    }
    let described = kubectl.run("describe pod web");
    assert_has(&described, &["Name:", "Image:", "Node:", "Labels:", "Status:", "Events:"]);
    assert!(!kubectl.run("describe pods --show-events=false --chunk-size=1").contains("Events:"));
    assert_eq!(pods(&kubectl, " --field-selector metadata.name=web"), "web");
    assert_eq!(pods(&kubectl, " --field-selector status.phase=Pending"), "web");
    kubectl.fails("delete pods");
    kubectl.fails("delete --all pods -l name=one");
    let dumped = kubectl.run("get pod web -o yaml");
    for delete in [
        "pod web --now",
        "pod web --grace-period=0",
        "pods -l name=one --grace-period=0 --force",
        "pods --all --grace-period=0 --force",
    ] {
        assert_eq!(pods(&kubectl, ""), "web", "before delete {delete}");
        kubectl.run(&format!("delete {delete}"));
        assert_eq!(pods(&kubectl, ""), "", "after delete {delete}");
        kubectl.run_with("create -f -", &[], &dumped);
    }
    kubectl.run_with("delete -f - --grace-period=0 --force", &[], &manifest);
    let two = format!("{manifest}---\n{}", manifest.replace("name: web", "name: other"));
    kubectl.run_with("create -f -", &[], &two);
    kubectl.run("delete pods web other --grace-period=0 --force");
    assert_eq!(pods(&kubectl, ""), "");
}

#[test]
fn describe_says_where_variables_come_from() {
    let kubectl = Session::new();
    for dry_run in ["client", "server"] {
        kubectl.run(&format!("create secret generic s --from-literal=key-1=v --dry-run={dry_run}"));
    }
    kubectl.run("create secret generic s --from-literal=key-1=v --type=test-type");
    assert_eq!(field(&kubectl, "secret s", ".type"), "test-type");
    kubectl.run("create configmap c --from-literal=key-2=v");
    let env = "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: key-1}}}, \
        {name: B, valueFrom: {configMapKeyRef: {name: c, key: key-2}}}, \
        {name: C, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]";
    let manifest = pod("one", "pause:1").replace("image: 'pause:1'", &format!("image: 'pause:1', {env}"));
    kubectl.run_with("create -f -", &[], &manifest);
    let described = kubectl.run("describe pods");
    assert_has(
        &described,
        &[
            "<set to the key 'key-1' in secret 's'>",
            "<set to the key 'key-2' of config map 'c'>",
            "(v1:metadata.name)",
        ],
    );
    // Kinds that the same function needs, and that are not served.
    let refused = kubectl.fails("create pdb a --selector=app=a --min-available=1");
    assert_has(&refused, &["poddisruptionbudget", "could not find the requested resource"]);
    let refused = kubectl.fails("create priorityclass a");
    assert_has(&refused, &["priorityclass", "could not find the requested resource"]);
    assert!(kubectl.fails("get rc").contains("doesn't have a resource type \"rc\""));
}

#[test]
fn labels_and_annotations_are_set_overwritten_and_tried() {
    let kubectl = Session::new();
    let manifest = pod("one", "pause:1");
    kubectl.run_with("create -f -", &[], &manifest);
    for dry_run in ["client", "server"] {
        kubectl.run(&format!("label pods web new=x --dry-run={dry_run}"));
        kubectl.run(&format!("annotate pods web empty= --dry-run={dry_run}"));
    }
    let labels = || field(&kubectl, "pod web", ".metadata.labels");
    let annotations = || field(&kubectl, "pod web", ".metadata.annotations");
    assert_eq!((labels().as_str(), annotations().as_str()), (r#"{"name":"one"}"#, ""));
    kubectl.run("label pods web new=x empty=");
    assert_eq!(labels(), r#"{"empty":"","name":"one","new":"x"}"#);
    kubectl.run("annotate pods web empty=");
    kubectl.run_with("annotate -f - a=live", &[], &manifest);
    let said = kubectl.run_with("annotate --local -f - a=local -o yaml", &[], &manifest);
    assert!(said.contains("a: local"), "{said}");
    assert_eq!(annotations(), r#"{"a":"live","empty":""}"#);
    let said = kubectl.run_with("label --local --overwrite -f - name=local -o yaml", &[], &manifest);
    assert!(said.contains("name: local"), "{said}");
    assert!(kubectl.fails("label pods web name=two").contains("already has a value"));
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "one");
    kubectl.run("label --overwrite pods --all name=two");
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "two");
    kubectl.run("delete pods -lnew=x --grace-period=0 --force");
    assert_eq!(pods(&kubectl, ""), "");
}

#[test]
fn patches_are_of_all_types_and_conditional() {
    let kubectl = Session::new();
    let manifest = pod("one", "pause:1");
    kubectl.run_with("create -f -", &[], &manifest);
    let patch = r#"patch --local -f - -p {"spec":{"restartPolicy":"Never"}} -o yaml"#;
    let local = kubectl.run_with(patch, &[], &manifest);
    assert!(local.contains("restartPolicy: Never"), "{local}");
    let refused = kubectl.fails(r#"patch pod web -p {"metadata":{"labels":"invalid"}}"#);
    assert!(refused.contains("metadata.labels: cannot restore map from string"), "{refused}");
    let same = kubectl.run(r#"patch pod web -p {"metadata":{"labels":{"name":"one"}}}"#);
    assert!(same.contains("patched (no change)"), "{same}");
    let image = || field(&kubectl, "pod web", ".spec.containers[*].image");
    let body = |image: &str, more: &str| {
        format!(r#"{{"spec":{{"containers":[{{"name":"pause","image":"{image}"}}]}}{more}}}"#)
    };
    kubectl.run(&format!("patch pod web -p {}", body("pause:2", "")));
    assert_eq!(image(), "pause:2");
    assert!(managers(&kubectl, "pod web").contains("kubectl-patch"));
    let replace = r#"[{"op":"replace","path":"/spec/containers/0/image","value":"pause:3"}]"#;
    kubectl.run(&format!("patch pod web --type=json -p {replace}"));
    for dry_run in ["client", "server"] {
        kubectl.run(&format!("patch pod web --dry-run={dry_run} -p {}", body("pause:4", "")));
    }
    assert_eq!(image(), "pause:3");
    let yaml = "spec:\n  containers:\n  - name: pause\n    image: pause:5\n";
    kubectl.run_with("patch pod web --patch-file=/dev/stdin", &[], yaml);
    assert_eq!(image(), "pause:5");
    kubectl.run_with(&format!("patch -f - -p {}", body("pause:6", "")), &[], &manifest);
    assert_eq!(image(), "pause:6");
    let version = field(&kubectl, "pod web", ".metadata.resourceVersion");
    let with = |version: &str| format!(r#","metadata":{{"resourceVersion":"{version}"}}"#);
    kubectl.run(&format!("patch pod web -p {}", body("pause:7", &with(&version))));
    let stale = kubectl.fails(&format!("patch pod web -p {}", body("pause:8", &with(&version))));
    assert!(stale.contains("please apply your changes to the latest version and try again"), "{stale}");
    assert_eq!(image(), "pause:7");
}

#[test]
fn replace_and_edit_change_pods_and_nodes() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], &pod("one", "pause:1"));
    let renamed = kubectl.run("get pod web -o json").replace("\"pause\"", "\"other\"");
    kubectl.run_with("replace --force --grace-period=0 -f -", &[], &renamed);
    assert_eq!(field(&kubectl, "pod web", ".spec.containers[*].name"), "other");
    assert!(managers(&kubectl, "pod web").contains("kubectl-replace"));
    for flag in ["--grace-period=1", "--timeout=1s"] {
        let refused = kubectl.fails_with(&format!("replace {flag} -f -"), &renamed);
        assert!(refused.contains("must have --force specified"), "{refused}");
    }
    let node = |more: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: box{more}}}\n");
    kubectl.run_with("create -f -", &[], &node(""));
    let annotated = node(", annotations: {a: b}, resourceVersion: '0'");
    for (flag, annotation) in [(" --dry-run=server", ""), (" --dry-run=client", ""), ("", "b")] {
        kubectl.run_with(&format!("replace{flag} -f -"), &[], &annotated);
        assert_eq!(field(&kubectl, "node box", ".metadata.annotations.a"), annotation);
    }
    let edit = "edit pods/web --output-patch=true";
    let said = kubectl.run_with(edit, &[("EDITOR", "sed -i s/pause:1/pause:2/")], "");
    assert!(said.contains("Patch:"), "{said}");
    assert_eq!(field(&kubectl, "pod web", ".spec.containers[*].image"), "pause:2");
    assert!(managers(&kubectl, "pod web").contains("kubectl-edit"));
    let (out, err, _) = kubectl.output("edit pod/web --windows-line-endings", &[("EDITOR", "cat")], "");
    assert!(out.contains("name: web\r\n") && err.contains("Edit cancelled"), "{out}{err}");
    assert!(kubectl.output("edit ns", &[("EDITOR", "cat")], "").0.contains("kind: List"));
}

#[test]
fn create_edits_before_it_sends() {
    let kubectl = Session::new();
    let two = "apiVersion: v1\nkind: Service\nmetadata: {name: mock}\nspec: {ports: [{port: 99}]}\n---\n\
        apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mock}\n";
    kubectl.run_with("create --edit -f -", &[("EDITOR", "sed -i s/mock/modified/g")], two);
    assert_eq!(
        kubectl.run("get service,configmap modified -o name"),
        "service/modified\nconfigmap/modified\n"
    );
    assert!(managers(&kubectl, "service modified").contains("kubectl-create"));
    let said = kubectl.output("create --edit -f -", &[("EDITOR", "cat")], &pod("one", "pause:1"));
    assert!(said.1.contains("Edit cancelled"), "{said:?}");
    assert_eq!(pods(&kubectl, ""), "");
}

#[test]
fn only_apply_begins_the_annotation_of_client_side_apply() {
    let kubectl = Session::new();
    let last = || {
        field(
            &kubectl,
            "pod web",
            r".metadata.annotations.kubectl\.kubernetes\.io/last-applied-configuration",
        )
    };
    let replace = |from: &str, to: &str| {
        let changed = kubectl.run("get pod web -o yaml").replace(from, to);
        kubectl.run_with("replace -f -", &[], &changed);
    };
    kubectl.run_with("create -f -", &[], &pod("one", "pause:1"));
    replace("name: one", "name: two");
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "two");
    assert_eq!(last(), "");
    kubectl.apply(&pod("three", "pause:1"));
    assert!(last().contains(r#""name":"three""#), "{}", last());
    replace("three", "four");
    assert_eq!(field(&kubectl, "pod web", ".metadata.labels.name"), "four");
    assert!(last().contains(r#""name":"four""#), "{}", last());
}

fn service(name: &str, selector: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n\
         spec: {{selector: {{{selector}}}, ports: [{{port: 80}}]}}\n"
    )
}

#[test]
fn services_are_described_selected_and_made_again() {
    let kubectl = Session::new();
    let manifest = service("web", "role: master");
    kubectl.run_with("create -f -", &[], &manifest);
    let parts =
        ["Name:", "Labels:", "Selector:", "IP:", "Port:", "Endpoints:", "Session Affinity:", "Events:"];
    assert_has(&kubectl.run("describe services web"), &parts);
    assert!(!kubectl.run("describe services --show-events=false --chunk-size=1").contains("Events:"));
    let selector = || field(&kubectl, "service web", ".spec.selector");
    for flag in ["--local", "--dry-run=client", "--dry-run=server"] {
        let set = format!("set selector -f - role=padawan {flag} -o yaml");
        assert!(kubectl.run_with(&set, &[], &manifest).contains("role: padawan"));
        assert_eq!(selector(), r#"{"role":"master"}"#);
    }
    kubectl.fails("set selector services web role=padawan --local -o yaml");
    kubectl.run_with("set selector -f - role=padawan", &[], &manifest);
    assert_eq!(selector(), r#"{"role":"padawan"}"#);
    let version = field(&kubectl, "service web", ".metadata.resourceVersion");
    kubectl.run(&format!("set selector services web a=b --resource-version={version}"));
    assert_eq!(selector(), r#"{"a":"b"}"#);
    let dumped = kubectl.run("get service web -o json");
    kubectl.run("delete service web");
    kubectl.run_with("create -f -", &[], &dumped);
    let same = kubectl.run("get service web -o json");
    kubectl.run_with("replace -f -", &[], &same);
    kubectl.run_with("create -f -", &[], &service("other", "a: b"));
    let columns =
        kubectl.run("get services -o custom-columns=NAME:.metadata.name,RSRC:.metadata.resourceVersion");
    assert_has(&columns, &["NAME", "RSRC", "web", "other"]);
    kubectl.run("delete services web other");
    assert_eq!(kubectl.run("get services -o name"), "service/kubernetes\n");
}

#[test]
fn run_and_expose_make_services() {
    let kubectl = Session::new();
    let create = "create service externalname beep --external-name bar.com";
    let run = "run web --image=nginx --port=80 --expose";
    for dry_run in ["client", "server"] {
        kubectl.run(&format!("{create} --dry-run={dry_run}"));
        kubectl.run(&format!("{run} --dry-run={dry_run}"));
    }
    assert_eq!(kubectl.run("get services -o name"), "service/kubernetes\n");
    kubectl.run(create);
    kubectl.run(run);
    assert_eq!(field(&kubectl, "service web", ".spec.ports[0].port"), "80");
    assert_eq!(managers(&kubectl, "pod web"), "kubectl-run");
    let overrides = r#"--overrides={"metadata":{"annotations":{"zone-context":"work"}}}"#;
    let expose = "expose pod web --port=1000 --target-port=80 --type=NodePort --name=exposed";
    kubectl.run(&format!("{expose} {overrides}"));
    assert_eq!(field(&kubectl, "service exposed", ".metadata.annotations"), r#"{"zone-context":"work"}"#);
    assert_eq!(managers(&kubectl, "service exposed"), "kubectl-expose");
    kubectl.run("expose service web --port=443 --name=again");
    assert_eq!(field(&kubectl, "service again", ".spec.ports[0].port"), "443");
    kubectl.run("expose service web --name=same");
    assert_eq!(field(&kubectl, "service same", ".spec.ports[0].port"), "80");
    kubectl.run_with("create -f -", &[], "apiVersion: v1\nkind: Node\nmetadata: {name: box}\n");
    assert!(kubectl.fails("expose nodes box").contains("cannot expose"));
    let long = "n".repeat(64);
    let refused = kubectl.fails(&format!("expose pod web --port=1 --name={long}"));
    assert!(refused.contains("metadata.name"), "{refused}");
    kubectl.run("delete service exposed web again same beep");
}

#[test]
fn taints_are_tried_set_and_removed_and_nodes_are_drained_in_chunks() {
    let kubectl = Session::new();
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: box, labels: {test: label}}\n";
    kubectl.run_with("create -f -", &[], node);
    let taints = || field(&kubectl, "node box", ".spec.taints[*]['key','value','effect']");
    for (words, left) in [
        ("--dry-run=client dedicated=foo:PreferNoSchedule", ""),
        ("--dry-run=server dedicated=foo:PreferNoSchedule", ""),
        ("dedicated=foo:PreferNoSchedule", "dedicated foo PreferNoSchedule"),
        ("dedicated-", ""),
        ("dedicated:PreferNoSchedule", "dedicated PreferNoSchedule"),
        ("--dry-run=server dedicated-", "dedicated PreferNoSchedule"),
        ("dedicated-", ""),
    ] {
        kubectl.run(&format!("taint node box {words}"));
        assert_eq!(taints(), left, "{words}");
    }
    for name in ["one", "two"] {
        let pod = pod("a", "pause:1").replace("name: web", &format!("name: {name}"));
        kubectl.run_with("create -f -", &[], &pod.replace("spec: {", "spec: {nodeName: box, "));
    }
    let drain =
        "--v=6 drain --force --pod-selector name=a --selector test=label --chunk-size=1 --dry-run=client";
    let (out, err, good) = kubectl.output(drain, &[], "");
    assert!(good, "{out}{err}");
    assert_has(&err, &["/v1/nodes?labelSelector=test%3Dlabel&limit=1", "/v1/pods?continue="]);
    assert_has(&out, &["evicting pod default/one", "evicting pod default/two"]);
    assert!(kubectl.fails("cordon --selector=").contains("must provide one or more resources"));
    assert!(!kubectl.run("cordon --selector invalid=label").contains("cordoned"));
    assert!(kubectl.run("cordon --selector test=label").contains("node/box cordoned"));
}

#[test]
fn diff_shows_what_a_prune_would_remove() {
    let kubectl = Session::new();
    let member = |name: &str| {
        pod("x", "pause:1").replace("name: web, labels: {", &format!("name: {name}, labels: {{group: a, "))
    };
    kubectl.apply(&member("one"));
    let diff = |flags: &str| kubectl.output(&format!("diff{flags} -l group=a -f -"), &[], &member("two"));
    let prune = " --prune --prune-allowlist core/v1/Pod";
    assert!(!diff("").0.contains("name: one"));
    assert!(diff(prune).0.contains("-  name: one"), "{:?}", diff(prune));
    kubectl.run_with(&format!("apply{prune} -l group=a -f -"), &[], &member("two"));
    let (out, err, same) = diff(prune);
    assert!(same, "{out}{err}");
    // Objects of several kinds with one name.
    let config_map = config_map("a: b").replace("settings", "two");
    let both = format!("{}---\n{config_map}", member("two").replace("pause:1", "pause:2"));
    let (out, err, _) = kubectl.output("diff -f -", &[("KUBECTL_EXTERNAL_DIFF", "find")], &both);
    assert!(out.contains("v1.Pod.default.two") && out.contains("v1.ConfigMap.default.two"), "{out}{err}");
}

#[test]
fn create_says_what_it_wants() {
    let kubectl = Session::new();
    kubectl.fails("create");
    // A file is sent as it is, YAML as JSON.
    let raw = "create --raw /api/v1/namespaces -f -";
    let refused = kubectl.fails_with(raw, &pod("one", "pause:1"));
    assert!(refused.contains("the object provided is unrecognized (must be of type Namespace)"), "{refused}");
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}"#;
    let refused = kubectl.fails_with(raw, json);
    assert!(refused.contains("Pod in version \"v1\" cannot be handled as a Namespace"), "{refused}");
    let refused = kubectl.fails_with(&format!("{raw} --edit"), "");
    assert!(refused.contains("--raw and --edit are mutually exclusive"), "{refused}");
}

#[test]
fn changes_are_recorded_and_large_numbers_stay_exact() {
    let kubectl = Session::new();
    let exact = "spec: {activeDeadlineSeconds: 2147483647, restartPolicy: Never, securityContext: \
        {supplementalGroups: [0, 1000030003, 2147483647]}, ";
    kubectl.run_with("create -f -", &[], &pod("one", "pause:1").replace("spec: {", exact));
    kubectl.run(r#"patch pod web -p {"metadata":{"annotations":{"patched":"yes"}}}"#);
    kubectl.run("label pods web labelled=yes");
    kubectl.run("annotate pods web annotated=yes");
    assert_eq!(field(&kubectl, "pod web", ".spec.activeDeadlineSeconds"), "2147483647");
    let groups = field(&kubectl, "pod web", ".spec.securityContext.supplementalGroups");
    assert_eq!(groups, "[0,1000030003,2147483647]");
    let cause = || field(&kubectl, "pod web", r".metadata.annotations.kubernetes\.io/change-cause");
    for (label, record, recorded) in [("a", true, "a=true"), ("b", false, "a=true"), ("c", true, "c=true")] {
        kubectl.run(&format!("label pods web {label}=true --record={record}"));
        assert!(cause().contains(recorded), "{}", cause());
    }
    let refused = kubectl.fails("delete --all pods -l labelled=yes");
    assert!(refused.contains("setting 'all' parameter but found a non empty selector"), "{refused}");
    let two = "drain box --force --skip-wait-for-delete-timeout=1";
    kubectl.run_with("create -f -", &[], "apiVersion: v1\nkind: Node\nmetadata: {name: box}\n");
    kubectl.run(&format!("{two} --disable-eviction --dry-run=server"));
    kubectl.run(&format!("{two} --pod-selector name!=one"));
}
