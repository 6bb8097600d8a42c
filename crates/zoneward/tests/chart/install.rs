//! The chart and the manifests, applied: `kubectl apply --dry-run=server` of every value set, and `helm install`,
//! `upgrade` and `uninstall`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::chart::api::TestApi;
use crate::chart::helm::{ValueSet, chart, fail, helm, root, succeed, value_sets};

fn kubectl(api: &TestApi) -> Command {
    let mut command = toolbox::command("kubectl");
    command.env("HOME", &api.folder).arg("--kubeconfig").arg(&api.kubeconfig);
    command
}

fn on(api: &TestApi, words: &[&str]) -> Command {
    let mut command = helm();
    command.arg("--kubeconfig").arg(&api.kubeconfig).args(["--namespace", "kube-system"]).args(words);
    command
}

fn apply(api: &TestApi, file: &Path) -> String {
    // The other kinds are not in the OpenAPI document; the server checks their fields.
    let mut command = kubectl(api);
    command.args(["apply", "--dry-run=server", "--validate=false", "-o", "name", "-f"]).arg(file);
    succeed(&mut command)
}

#[test]
fn the_api_takes_every_object_of_every_value_set() {
    let api = TestApi::start("chart-apply");
    // A dry run of a Namespace does not make it.
    for name in ["zoneward-leases", "zoneward-node-lease"] {
        api.create("/api/v1/namespaces", serde_json::json!({"metadata": {"name": name}}));
    }
    for set in value_sets() {
        let objects = set.objects();
        let file = api.folder.join(format!("{}.json", set.name));
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        fs::write(&file, list.to_string()).unwrap();
        assert_eq!(apply(&api, &file).lines().count(), objects.len(), "{}", set.name);
    }
    assert_eq!(api.count(), 0, "a dry run keeps nothing");
}

#[test]
fn the_folders_of_plain_manifests_can_be_applied() {
    let api = TestApi::start("chart-plain");
    api.create("/api/v1/namespaces", serde_json::json!({"metadata": {"name": "zoneward-node-lease"}}));
    for folder in ["crds", "controller", "node", "mesh"] {
        // Kustomizations in these folders must not be taken for manifests.
        let said = apply(&api, &root().join("deploy").join(folder));
        assert!(said.lines().count() >= 4, "{folder}: {said}");
    }
}

const CONTROLLER: &str = "/apis/apps/v1/namespaces/kube-system/deployments/zoneward-controller";
const NODE: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/zoneward-node";
const GATEWAYS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/meshgateways.zoneward.dev";

fn arguments(deployment: &Value) -> String {
    deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
}

#[test]
fn install_upgrade_and_uninstall() {
    let api = TestApi::start("chart-install");
    let chart = chart().display().to_string();
    let said = succeed(&mut on(&api, &["install", "zoneward", &chart, "--dry-run=server"]));
    assert!(said.contains("controller: coexist"), "the notes: {said}");
    assert_eq!(api.count(), 0, "a dry run keeps nothing");

    let said = succeed(&mut on(&api, &["install", "zoneward", &chart]));
    assert!(said.contains("controller: coexist") && said.contains("node proxy: off"), "{said}");
    let controller = api.find(CONTROLLER).expect("the controller");
    assert!(arguments(&controller).contains("--coexist"));
    assert!(api.find(NODE).is_none() && api.find(GATEWAYS).is_some());

    let canary = ValueSet::named("canary").file.display().to_string();
    let words = ["upgrade", "zoneward", &chart, "--values", &canary, "--set", "controller.mode=takeover"];
    let said = succeed(&mut on(&api, &words));
    assert!(said.contains("zoneward.dev/proxy=zoneward"), "{said}");
    assert!(!arguments(&api.find(CONTROLLER).unwrap()).contains("--coexist"));
    let node = api.find(NODE).expect("the node proxy");
    assert_eq!(node["spec"]["template"]["spec"]["nodeSelector"]["zoneward.dev/proxy"], "zoneward");

    let said = fail(&mut on(&api, &["upgrade", "zoneward", &chart, "--set", "node.enabled=true"]));
    assert!(said.contains("node.apiServer.host is required"), "{said}");
    assert!(api.find(NODE).is_some(), "a refused upgrade changes nothing");

    // The way back: nodes first, then all but the definitions.
    succeed(&mut on(&api, &["upgrade", "zoneward", &chart, "--reuse-values", "--set", "node.enabled=false"]));
    assert!(api.find(NODE).is_none() && api.find(CONTROLLER).is_some());
    succeed(&mut on(&api, &["uninstall", "zoneward"]));
    assert!(api.find(CONTROLLER).is_none());
    assert!(api.find(GATEWAYS).is_some(), "routes and gateways survive an uninstall");
    assert_eq!(api.count(), 7, "only the definitions are left");

    // A second installation takes them over again.
    succeed(&mut on(&api, &["install", "zoneward", &chart]));
    assert!(api.find(CONTROLLER).is_some());
}
