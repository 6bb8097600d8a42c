//! The containers of deploy/ that run our image: their commands, and the rights that their security contexts give.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{root, run};

/// A container of a workload.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    /// For messages: `zoneward-node/node`.
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) pod: Value,
    pub(crate) container: Value,
    /// The objects that came with it, for its ConfigMaps.
    pub(crate) objects: Vec<Value>,
}

fn read(folder: &Path, found: &mut Vec<Value>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("deploy/chart") {
            read(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "yaml") {
            found.extend(documents(&fs::read_to_string(&path).unwrap()));
        }
    }
}

fn documents(text: &str) -> Vec<Value> {
    let documents = text.split("\n---\n").filter(|part| part.contains("kind:"));
    let parse = |part: &str| serde_saphyr::from_str(part).unwrap_or_else(|error| panic!("{error}: {part}"));
    documents.map(parse).collect()
}

/// The node proxy of the chart with further values, as words of `--set`.
pub(crate) fn node_of_chart(values: &str) -> Role {
    let mut helm = toolbox::command("helm");
    helm.args(["template", "zoneward"]).arg(root().join("deploy/chart")).args(["--namespace", "kube-system"]);
    helm.args(["--kube-version", "1.37.0", "--set", "node.enabled=true,node.apiServer.host=localhost"]);
    helm.args(["--set", "node.config.clusterCIDR=10.244.0.0/16", "--set", values]);
    let roles = roles_of(documents(&run(&mut helm)));
    roles.into_iter().find(|role| role.name == "zoneward-node/node").unwrap()
}

/// Every object of the manifests.
fn objects() -> Vec<Value> {
    let mut found = Vec::new();
    read(&root().join("deploy"), &mut found);
    found
}

/// Every container that runs our image.
pub(crate) fn roles() -> Vec<Role> {
    let roles = roles_of(objects());
    assert!(roles.len() >= 5, "{} containers", roles.len());
    roles
}

fn roles_of(objects: Vec<Value>) -> Vec<Role> {
    let mut roles = Vec::new();
    for object in &objects {
        let pod = &object["spec"]["template"]["spec"];
        let containers = ["initContainers", "containers"].map(|field| pod[field].as_array());
        for container in containers.into_iter().flatten().flatten() {
            let image = container["image"].as_str().unwrap_or_default();
            let image = image.rsplit('/').next().unwrap_or_default();
            if image.split([':', '@']).next() != Some("zoneward") {
                continue;
            }
            let text = |value: &Value| value.as_str().unwrap_or("default").to_owned();
            let (workload, name) = (text(&object["metadata"]["name"]), text(&container["name"]));
            roles.push(Role {
                name: format!("{workload}/{name}"),
                namespace: text(&object["metadata"]["namespace"]),
                pod: pod.clone(),
                container: container.clone(),
                objects: objects.clone(),
            });
        }
    }
    roles
}

/// The one container whose arguments begin with these words and have the flag or not.
pub(crate) fn role(words: &[&str], flag: Option<&str>) -> Role {
    let fits = |role: &Role| {
        let arguments = role.arguments();
        let starts = arguments.iter().zip(words).filter(|(one, other)| one == other).count() == words.len();
        starts && arguments.iter().any(|word| word == "--init-only") == (flag == Some("--init-only"))
    };
    let mut found: Vec<Role> = roles().into_iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{words:?}: {:?}", found.iter().map(|role| &role.name).collect::<Vec<_>>());
    found.remove(0)
}

impl Role {
    /// The words after the program, whether the manifest names it or leaves it to the image.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let list = |field: &str| {
            let words = self.container[field].as_array().into_iter().flatten();
            words.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let command = list("command");
        assert!(command.first().is_none_or(|program| program == "zoneward"), "{}: {command:?}", self.name);
        command.into_iter().skip(1).chain(list("args")).collect()
    }

    /// A field of the container's security context, or of its pod's.
    fn security(&self, field: &str) -> &Value {
        let own = &self.container["securityContext"][field];
        if own.is_null() { &self.pod["securityContext"][field] } else { own }
    }

    pub(crate) fn is_privileged(&self) -> bool {
        self.security("privileged") == true
    }

    pub(crate) fn has_read_only_root(&self) -> bool {
        self.security("readOnlyRootFilesystem") == true
    }

    pub(crate) fn may_escalate(&self) -> bool {
        self.is_privileged() || self.security("allowPrivilegeEscalation") != false
    }

    /// User and group, or the image's. As the kubelet, refuses root where `runAsNonRoot` is set.
    pub(crate) fn user(&self) -> (u64, u64) {
        let user = self.security("runAsUser").as_u64().unwrap_or(65532);
        let other = if self.security("runAsUser").is_null() { 65532 } else { 0 };
        let group = self.security("runAsGroup").as_u64().unwrap_or(other);
        assert!(user != 0 || self.security("runAsNonRoot") != true, "{}: root and runAsNonRoot", self.name);
        (user, group)
    }

    pub(crate) fn has_default_seccomp(&self) -> bool {
        match self.security("seccompProfile")["type"].as_str() {
            None | Some("Unconfined") => false,
            Some("RuntimeDefault") => !self.is_privileged(),
            Some(other) => panic!("{}: seccompProfile {other} is not known here", self.name),
        }
    }

    /// What is added to and dropped from the runtime's default capabilities, with `CAP_` in front.
    pub(crate) fn capabilities(&self, change: &str) -> Vec<String> {
        let names =
            self.container["securityContext"]["capabilities"][change].as_array().into_iter().flatten();
        names.map(|name| format!("CAP_{}", name.as_str().unwrap())).collect()
    }

    /// The environment on node `n1`, with the API where the test has it.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let entries = self.container["env"].as_array().into_iter().flatten();
        let mut environment: BTreeMap<String, String> = entries
            .map(|entry| {
                let source = &entry["valueFrom"];
                let value = match (entry["value"].as_str(), source["fieldRef"]["fieldPath"].as_str()) {
                    (Some(value), _) => value,
                    (None, Some("spec.nodeName")) => "n1",
                    (None, Some("metadata.namespace")) => &self.namespace,
                    (None, Some("metadata.name")) => "pod",
                    (None, Some("status.podIP" | "status.hostIP")) => "127.0.0.1",
                    // The address of the API, which is replaced below.
                    (None, None) if source["configMapKeyRef"].is_object() => "",
                    _ => panic!("{}: env {entry} is not known here", self.name),
                };
                (entry["name"].as_str().unwrap().to_owned(), value.to_owned())
            })
            .collect();
        environment.insert("KUBERNETES_SERVICE_HOST".to_owned(), "localhost".to_owned());
        environment.insert("KUBERNETES_SERVICE_PORT".to_owned(), "6443".to_owned());
        environment
    }

    /// Where the container says that it is ready: host, port and path.
    pub(crate) fn readiness(&self) -> Option<String> {
        let probe = &self.container["readinessProbe"]["httpGet"];
        let port = match &probe["port"] {
            Value::Number(port) => port.to_string(),
            Value::String(name) => {
                let ports = self.container["ports"].as_array().into_iter().flatten();
                ports.into_iter().find(|port| port["name"] == *name)?["containerPort"].to_string()
            }
            _ => return None,
        };
        Some(format!("http://127.0.0.1:{port}{}", probe["path"].as_str()?))
    }
}
