//! The workload behind a Service, and YAML that moves its pods.
//!
//! A Deployment per zone needs a pod template, derived from an existing pod without the fields that the cluster sets.
//! Without such a pod, or images, the YAML has placeholders and a comment.

use model::{Name, Pod, Service, annotation};
use serde_json::{Map, Value, json};

use cluster::input::LoadedObjects;
use sim::what_if::quoted;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) name: String,
    /// One of its pods as JSON.
    pod: Value,
}

impl Workload {
    /// Whether the pod template is complete.
    pub(super) fn is_complete(&self) -> bool {
        with_images(template(&self.pod)).1
    }
}

/// The first workload that owns pods of a Service.
pub(super) fn workload(service: &Service, loaded: &LoadedObjects) -> Option<Workload> {
    let selector = service.selector.as_ref()?;
    let pods = loaded.snapshot.pods_selected(&service.key.namespace, selector);
    pods.iter().find_map(|pod| {
        let owner = loaded.pod_owners.get(&pod.key)?;
        let (kind, name) = controller(pod, owner)?;
        let owner = (pod.key.namespace.clone(), owner.0.clone(), owner.1.clone());
        Some(Workload { kind, name, pod: loaded.sample_pods.get(&owner)?.clone() })
    })
}

/// A ReplicaSet is named after its Deployment and the pod template hash.
fn controller(pod: &Pod, (kind, name): &(Name, Name)) -> Option<(String, String)> {
    if kind != "ReplicaSet" {
        return Some((kind.to_string(), name.to_string()));
    }
    let deployment = match pod.labels.value(TEMPLATE_HASH) {
        Some(hash) => name.strip_suffix(hash.as_str())?.strip_suffix('-')?,
        None => name.rsplit_once('-')?.0,
    };
    Some(("Deployment".to_owned(), deployment.to_owned()))
}

const PLACEHOLDER: &str = "FILL-IN";
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The topology spread constraint of a workload.
fn spread_spec(service: &Service) -> Value {
    let constraint = json!({
        "maxSkew": 1,
        "topologyKey": annotation::ZONE,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(service)},
    });
    json!({"template": {"spec": {"topologySpreadConstraints": [constraint]}}})
}

/// The command that spreads the pods of a workload.
pub(super) fn spread_command(service: &Service, workload: &Workload) -> String {
    let (kind, name) = (workload.kind.to_lowercase(), &workload.name);
    let patch = json!({"spec": spread_spec(service)});
    let patch = quoted(&patch.to_string());
    format!(
        "kubectl patch {} {} -n {} \\\n  -p {patch}",
        quoted(&kind),
        quoted(name),
        quoted(&service.key.namespace)
    )
}

/// A patch for `kubectl apply --server-side` and `kubectl patch --patch-file`.
pub(super) fn spread(service: &Service, workload: Option<&Workload>) -> String {
    let (kind, name) = workload.map_or(("Deployment", PLACEHOLDER), |w| (w.kind.as_str(), w.name.as_str()));
    let patch = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": service.key.namespace.as_str()},
        "spec": spread_spec(service),
    });
    let unknown = match workload {
        Some(_) => String::new(),
        None => {
            format!(
                "# The input has no pods with an owner: replace {PLACEHOLDER} with the name of the workload.\n"
            )
        }
    };
    format!(
        "---\n# A patch: kubectl apply --server-side, or kubectl patch --patch-file.\n{unknown}{}",
        yaml(&patch)
    )
}

/// One Deployment per zone.
pub(super) fn per_zone(
    service: &Service,
    replicas: &[(&Name, usize)],
    workload: Option<&Workload>,
) -> String {
    let base = workload.map_or(PLACEHOLDER, |workload| workload.name.as_str());
    let template = workload.map_or_else(|| json!({"spec": {}}), |workload| template(&workload.pod));
    let (template, is_complete) = with_images(template);
    let namespace = service.key.namespace.as_str();
    let mut text = format!("---\n# One Deployment per zone, replacing {base}.\n");
    text += &match is_complete {
        true => format!(
            "# The template is that of a pod of {base}, without annotations. When they are ready:\n\
             # kubectl delete deployment {base} -n {namespace}\n"
        ),
        false => format!(
            "# Incomplete: the input has no pod template. Replace each {PLACEHOLDER} before applying.\n"
        ),
    };
    let deployments = replicas.iter().map(|(zone, count)| {
        let mut template = template.clone();
        template["metadata"]["labels"][annotation::ZONE] = zone.as_str().into();
        selector(service).into_iter().for_each(|(key, value)| template["metadata"]["labels"][key] = value);
        template["spec"]["nodeSelector"][annotation::ZONE] = zone.as_str().into();
        let mut labels = selector(service);
        labels.insert(annotation::ZONE.to_owned(), zone.as_str().into());
        yaml(&json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": format!("{base}-{zone}"), "namespace": namespace},
            "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template},
        }))
    });
    text + &deployments.collect::<Vec<_>>().join("---\n")
}

fn selector(service: &Service) -> Map<String, Value> {
    let pairs = service.selector.iter().flat_map(|selector| selector.iter());
    pairs.map(|(key, value)| (key.to_string(), value.as_str().into())).collect()
}

fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("JSON without floats is always YAML")
}

/// The pod template of a pod: without fields set by admission, scheduler and controllers, and without constraints
/// that conflict with its zone.
fn template(pod: &Value) -> Value {
    let mut labels = pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.remove(TEMPLATE_HASH);
    let mut spec = pod["spec"].as_object().cloned().unwrap_or_default();
    for filled_in in ["nodeName", "serviceAccount", "priority", "preemptionPolicy"] {
        spec.remove(filled_in);
    }
    let is_token =
        |volume: &Value| volume["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    let is_eviction = |toleration: &Value| {
        let key = toleration["key"].as_str().unwrap_or_default();
        matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
    };
    without(&mut spec, "volumes", is_token);
    without(&mut spec, "tolerations", is_eviction);
    without(&mut spec, "topologySpreadConstraints", |constraint| {
        constraint["topologyKey"] == annotation::ZONE
    });
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        containers
            .filter_map(Value::as_object_mut)
            .for_each(|container| without(container, "volumeMounts", is_token));
    }
    json!({"metadata": {"labels": labels}, "spec": spec})
}

/// Removes items of a list, and the list if it becomes empty.
fn without(object: &mut Map<String, Value>, list: &str, goes: impl Fn(&Value) -> bool) {
    let Some(items) = object.get_mut(list).and_then(Value::as_array_mut) else { return };
    items.retain(|item| !goes(item));
    if items.is_empty() {
        object.remove(list);
    }
}

/// The template with placeholders for unknown images, and whether it has none.
fn with_images(mut template: Value) -> (Value, bool) {
    let Some(spec) = template["spec"].as_object_mut() else { return (template, false) };
    let mut is_complete =
        spec.get("containers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    if !is_complete {
        spec.insert("containers".to_owned(), json!([{"name": PLACEHOLDER}]));
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if container["image"].as_str().is_none_or(str::is_empty) {
                container["image"] = PLACEHOLDER.into();
                is_complete = false;
            }
        }
    }
    (template, is_complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_is_known_by_its_replica_set() {
        let pod = |labels: &[(&str, &str)]| Pod {
            key: model::ObjectKey::new(&Name::new("shop"), &Name::new("cart-5d9-x")),
            uid: None,
            labels: labels.iter().copied().collect(),
            node: None,
            ips: None,
            details: None,
            ready_since: None,
            ready: true,
            deleting: false,
            finished: false,
            has_ip: true,
        };
        let owned = |labels: &[(&str, &str)], kind: &str, name: &str| {
            controller(&pod(labels), &(Name::new(kind), Name::new(name)))
                .map(|(kind, name)| format!("{kind} {name}"))
        };
        let hash = [(TEMPLATE_HASH, "5d9")];
        assert_eq!(owned(&hash, "ReplicaSet", "cart-5d9").as_deref(), Some("Deployment cart"));
        assert_eq!(owned(&[], "ReplicaSet", "big-cart-5d9").as_deref(), Some("Deployment big-cart"));
        assert_eq!(owned(&hash, "ReplicaSet", "other"), None, "not of this hash");
        assert_eq!(owned(&[], "StatefulSet", "db").as_deref(), Some("StatefulSet db"));
    }

    #[test]
    fn a_template_has_nothing_that_the_cluster_filled_in() {
        let mount = json!({"name": "kube-api-access-x2", "mountPath": "/var/run/secrets"});
        let pod = json!({
            "metadata": {"labels": {"app": "w", (TEMPLATE_HASH): "5d9"}},
            "spec": {
                "nodeName": "n1", "serviceAccount": "w", "serviceAccountName": "w", "priority": 0,
                "volumes": [{"name": "kube-api-access-x2"}, {"name": "data"}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready"}],
                "topologySpreadConstraints": [{"topologyKey": annotation::ZONE}, {"topologyKey": "rack"}],
                "containers": [{"name": "c", "image": "i", "volumeMounts": [mount]}],
            },
        });
        let wanted = json!({
            "metadata": {"labels": {"app": "w"}},
            "spec": {
                "serviceAccountName": "w",
                "volumes": [{"name": "data"}],
                "topologySpreadConstraints": [{"topologyKey": "rack"}],
                "containers": [{"name": "c", "image": "i"}],
            },
        });
        assert_eq!(template(&pod), wanted);
        assert!(with_images(wanted).1);
        let (blank, is_complete) = with_images(json!({"spec": {"containers": [{"name": "c"}]}}));
        assert_eq!(
            (blank["spec"]["containers"][0]["image"].as_str(), is_complete),
            (Some(PLACEHOLDER), false)
        );
    }
}
