//! `kubectl debug` with copies and nodes, from the functions kubectl_debug of kubectl's own suite (`test/cmd/debug.sh`);
//! ephemeral containers are refused.

use crate::kubectl::session;
use session::Session;

const PROBED: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: target, labels: {run: target}, annotations: {test: test}}
spec:
  initContainers: [{name: init, image: busybox}]
  containers:
  - name: target
    image: nginx
    livenessProbe: {httpGet: {path: /healthz, port: 8080}}
    readinessProbe: {httpGet: {path: /healthz, port: 8080}}
    startupProbe: {httpGet: {path: /healthz, port: 8080}}
";

const RESTRICTED: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: target}
spec:
  securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: target
    image: busybox
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

const BY_COPY: &str = "-it --copy-to=target-copy --image=busybox --container=debug-container --attach=false";

fn field(kubectl: &Session, object: &str, path: &str) -> String {
    kubectl.run(&format!("get {object} -o jsonpath={{{path}}}"))
}

#[test]
fn debug_says_that_ephemeral_containers_are_disabled() {
    let kubectl = Session::new();
    kubectl.run("run target --image=nginx");
    let refused = kubectl.fails("debug target --image=busybox --attach=false -c debug-container");
    let why = "pods/ephemeralcontainers is not served: no kubelet runs containers here";
    assert!(refused.contains("ephemeral containers are disabled for this cluster"), "{refused}");
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn debug_copies_a_pod_in_a_restricted_namespace() {
    let kubectl = Session::new();
    kubectl.run("create namespace strict");
    kubectl.run("label namespace strict pod-security.kubernetes.io/enforce=restricted");
    for manifest in
        [RESTRICTED.to_owned(), RESTRICTED.replace("RuntimeDefault", "Localhost, localhostProfile: a")]
    {
        kubectl.run_with("create -n strict -f -", &[], &manifest);
        kubectl.run(&format!("debug target -n strict {BY_COPY} --profile=restricted"));
        let copied = field(&kubectl, "pod/target-copy -n strict", ".spec.containers[*].name");
        assert_eq!(copied, "target debug-container");
        kubectl.run("delete pods -n strict target target-copy --now");
    }
}

#[test]
fn debug_warns_that_a_user_who_is_not_root_cannot_use_its_rights() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], RESTRICTED);
    let (out, err, good) = kubectl.output(&format!("debug target {BY_COPY} --profile=netadmin"), &[], "");
    assert!(good && err.contains("Non-root user is configured for the entire target Pod"), "{out}{err}");
}

#[test]
fn debug_copies_a_pod_with_or_without_its_labels_and_probes() {
    let kubectl = Session::new();
    let copied = |path: &str| field(&kubectl, "pod/target-copy", path);
    let probes = || copied(".spec.containers[*]['livenessProbe','readinessProbe','startupProbe']");
    kubectl.run_with("create -f -", &[], PROBED);
    kubectl.run(&format!("debug target {BY_COPY}"));
    assert_eq!(copied(".metadata['labels','annotations']"), "");
    assert_eq!(copied(".spec.containers[*]['name','image']"), "target debug-container nginx busybox");
    assert_eq!((probes().as_str(), copied(".spec.initContainers[*].image").as_str()), ("", "busybox"));
    assert_eq!(copied(".spec.containers[1].securityContext.capabilities.add"), r#"["SYS_PTRACE"]"#);
    assert_eq!(copied(".spec.shareProcessNamespace"), "true");
    kubectl.run("delete pod target-copy --now");
    let keep = "--keep-labels=true --keep-annotations=true --keep-liveness=true --keep-readiness=true \
        --keep-startup=true --keep-init-containers=false";
    kubectl.run(&format!("debug target {BY_COPY} {keep}"));
    assert_eq!(copied(".metadata.labels.run"), "target");
    assert_eq!(copied(".metadata.annotations.test"), "test");
    assert_eq!(probes().matches("/healthz").count(), 3);
    assert_eq!(copied(".spec.initContainers"), "");
    kubectl.run("delete pod target-copy --now");
    // Another image in the same container, of a Pod in the cluster or in a file.
    let image = "--image=busybox --container=target --copy-to=target-copy";
    let dumped = kubectl.run("get pod/target -o yaml");
    for (debug, input) in [("debug target", ""), ("debug -f -", &dumped)] {
        kubectl.run_with(&format!("{debug} {image} -- sleep 1m"), &[], input);
        assert_eq!(copied(".spec.containers[*]['name','image']"), "target busybox");
        kubectl.run("delete pod target-copy --now");
    }
    kubectl.run(&format!("debug target {BY_COPY} --replace"));
    assert_eq!(kubectl.run("get pods -o name"), "pod/target-copy\n");
}

#[test]
fn debug_of_a_node_makes_a_pod_on_it() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], "apiVersion: v1\nkind: Node\nmetadata: {name: box}\n");
    for (profile, host) in [
        ("legacy", "true true true"),
        ("general", "true true true"),
        ("baseline", ""),
        ("restricted", ""),
        ("netadmin", "true true true"),
    ] {
        let debug = format!("debug node/box --profile={profile} --image=busybox --attach=false -- true");
        let said = kubectl.run(&debug);
        let name = kubectl.run("get pods -o name");
        let name = name.trim();
        assert!(said.contains(name.trim_start_matches("pod/")), "{said}");
        assert_eq!(field(&kubectl, name, ".spec['nodeName']"), "box");
        let found = field(&kubectl, name, ".spec['hostIPC','hostNetwork','hostPID']");
        assert_eq!(found, host, "{profile}");
        kubectl.run(&format!("delete {name} --now"));
    }
}
