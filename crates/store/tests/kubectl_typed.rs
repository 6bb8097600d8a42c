//! The commands of kubectl that send typed objects (protobuf), ask about the caller, or tell events; and those for
//! kinds that are not served, which say so.

use crate::kubectl::session;
use session::Session;

#[test]
fn create_run_and_expose_make_objects_out_of_words() {
    let kubectl = Session::new();
    assert_eq!(kubectl.run("create namespace shop"), "namespace/shop created\n");
    assert_eq!(
        kubectl.run("create configmap c -n shop --from-literal=a=1 --from-literal=b=zwei"),
        "configmap/c created\n"
    );
    assert_eq!(kubectl.run("get cm c -n shop -o jsonpath={.data}"), r#"{"a":"1","b":"zwei"}"#);
    kubectl.run("create secret generic s --from-literal=password=geheim");
    assert_eq!(kubectl.run("get secret s -o jsonpath={.data.password}"), "Z2VoZWlt");
    assert_eq!(kubectl.run("get secret s -o jsonpath={.type}"), "Opaque");
    kubectl.run("create service clusterip web --tcp=80:8080");
    assert_eq!(
        kubectl.run("get svc web -o jsonpath={.spec.ports[0].port},{.spec.ports[0].targetPort},{.spec.type}"),
        "80,8080,ClusterIP"
    );
    kubectl.run("create service nodeport np --tcp=80:http --node-port=30123");
    assert_eq!(
        kubectl.run("get svc np -o jsonpath={.spec.ports[0].nodePort},{.spec.ports[0].targetPort}"),
        "30123,http"
    );
    kubectl.run("create service clusterip headless --clusterip=None");
    kubectl.run("create service externalname out --external-name example.com");
    assert_eq!(kubectl.run("get svc out -o jsonpath={.spec.externalName}"), "example.com");
    assert_eq!(
        kubectl.run("run p --image=example.com/web:1 --port=8080 --labels=app=p --env=A=b"),
        "pod/p created\n"
    );
    let pod = kubectl.run("get pod p -o jsonpath={.spec.containers[0]}");
    for part in [
        r#""image":"example.com/web:1""#,
        r#""env":[{"name":"A","value":"b"}]"#,
        r#""containerPort":8080"#,
        r#""imagePullPolicy":"IfNotPresent""#,
    ] {
        assert!(pod.contains(part), "{part}: {pod}");
    }
    assert_eq!(kubectl.run("expose pod p --name=front --port=80"), "service/front exposed\n");
    assert_eq!(
        kubectl.run("get svc front -o jsonpath={.spec.selector},{.spec.ports[0].targetPort}"),
        r#"{"app":"p"},80"#
    );
    assert!(kubectl.fails("create namespace shop").contains("AlreadyExists"));
    assert!(kubectl.fails("create service nodeport other --tcp=80 --node-port=30123").contains("is invalid"));
    let said = kubectl.run("create configmap d --from-literal=a=1 --dry-run=server");
    assert_eq!(said, "configmap/d created (server dry run)\n");
    assert!(kubectl.fails("get cm d").contains("NotFound"));
}

const NODE: &str = "{apiVersion: v1, kind: Node, metadata: {name: n1}}\n";

#[test]
fn nodes_are_cordoned_tainted_and_let_go() {
    let kubectl = Session::new();
    kubectl.apply(NODE);
    assert_eq!(kubectl.run("cordon n1"), "node/n1 cordoned\n");
    assert_eq!(kubectl.run("get node n1 -o jsonpath={.spec.unschedulable}"), "true");
    assert_eq!(kubectl.run("get nodes --field-selector spec.unschedulable=true -o name"), "node/n1\n");
    assert_eq!(kubectl.run("uncordon n1"), "node/n1 uncordoned\n");
    assert_eq!(kubectl.run("taint node n1 role=gpu:NoSchedule"), "node/n1 tainted\n");
    assert_eq!(
        kubectl.run("get node n1 -o jsonpath={.spec.taints}"),
        r#"[{"effect":"NoSchedule","key":"role","value":"gpu"}]"#
    );
    assert_eq!(kubectl.run("taint node n1 role-"), "node/n1 untainted\n");
    assert_eq!(kubectl.run("get node n1 -o jsonpath={.spec.taints}"), "");
}

#[test]
fn auth_tells_both_users_the_truth_about_themselves() {
    let kubectl = Session::new();
    let who = kubectl.run("auth whoami");
    assert!(who.contains("kubernetes-admin") && who.contains("system:masters"), "{who}");
    assert_eq!(kubectl.run("auth can-i delete secrets"), "yes\n");
    assert!(kubectl.run("auth can-i --list").contains("*.*"));
    let reader = kubectl.as_reader();
    let who = reader.run("auth whoami");
    assert!(who.contains("zoneward-reader") && who.contains("zoneward:readers"), "{who}");
    for (words, answer) in [
        ("get services", "yes\n"),
        ("watch endpointslices.discovery.k8s.io -A", "yes\n"),
        ("list secrets", "no"),
        ("delete services", "no"),
        ("get /healthz", "yes\n"),
    ] {
        let (said, _, good) = reader.output(&format!("auth can-i {words}"), &[], "");
        assert!(said.starts_with(answer) && good == (answer == "yes\n"), "{words}: {said}");
    }
    let list = reader.run("auth can-i --list");
    assert!(list.contains("services") && !list.contains("secrets"), "{list}");
    assert!(kubectl.fails("get svc --as=jane").contains("User \"jane\" cannot list resource \"services\""));
}

const EVENT: &str = "\
apiVersion: v1
kind: Event
metadata: {name: web.1, namespace: default}
involvedObject: {apiVersion: v1, kind: Service, name: web, namespace: default}
reason: TopologyAwareHintsEnabled
message: hints were given
type: Normal
count: 3
source: {component: zoneward}
firstTimestamp: 2026-01-01T00:00:00Z
lastTimestamp: 2026-01-01T00:01:00Z
";

#[test]
fn events_are_told_by_both_commands_and_in_both_groups() {
    let kubectl = Session::new();
    kubectl.run_with("create -f -", &[], EVENT);
    for words in ["events", "get events", "get events.v1.events.k8s.io", "events --for=service/web"] {
        let told = kubectl.run(words);
        assert!(
            told.contains("hints were given") && told.contains("TopologyAwareHintsEnabled"),
            "{words}: {told}"
        );
    }
    assert_eq!(kubectl.run("get events.v1.events.k8s.io web.1 -o jsonpath={.note}"), "hints were given");
    let selected = kubectl
        .run("get events --field-selector involvedObject.name=web,reason=TopologyAwareHintsEnabled -o name");
    assert_eq!(selected, "event/web.1\n");
    assert!(kubectl.run("describe svc kubernetes").contains("Events:"));
}

#[test]
fn what_is_not_served_says_so() {
    let kubectl = Session::new();
    kubectl.apply(NODE);
    for words in [
        "scale deployment web --replicas=2",
        "rollout status deployment/web",
        "rollout restart deployment/web",
        "autoscale deployment web --max=2",
        "create deployment web --image=example.com/web:1",
        "logs p",
        "top node",
    ] {
        let said = kubectl.fails(words);
        assert!(
            [
                "the server doesn't have a resource type",
                "not served here",
                "could not find the requested resource",
                "not found",
                "no matches for",
                "Metrics API not available"
            ]
            .iter()
            .any(|known| said.contains(known)),
            "{words}: {said}"
        );
    }
}

/// `describe` lists EndpointSlices with a typed client, which prefers protobuf: client-go decodes what we encode.
#[test]
fn describe_reads_endpoints_from_a_list_in_protobuf() {
    let kubectl = Session::new();
    kubectl.run("create service clusterip web --tcp=80:8080");
    kubectl.apply(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n\
         addressType: IPv4\nports: [{name: 80-8080, protocol: TCP, port: 8080}]\nendpoints:\n\
         - {addresses: [10.1.0.1], conditions: {ready: true}, zone: a, hints: {forZones: [{name: a}]}}\n\
         - {addresses: [10.1.0.2], conditions: {ready: true}, targetRef: {kind: Pod, name: p, namespace: default}}\n\
         - {addresses: [10.1.0.3], conditions: {ready: false}}\n",
    );
    let described = kubectl.run("describe svc web");
    let endpoints =
        described.lines().find(|line| line.starts_with("Endpoints:")).expect("a line of endpoints");
    assert!(endpoints.ends_with(" 10.1.0.1:8080,10.1.0.2:8080"), "{described}");
}
