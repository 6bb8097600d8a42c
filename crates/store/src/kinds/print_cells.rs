//! Computed print columns: counts, ports, states.

use model::Timestamp;
use serde_json::Value;

use crate::meta::at;

const NONE: &str = "<none>";

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

fn items<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at(object, path).as_array().map_or(&[], Vec::as_slice)
}

fn or(words: Vec<String>, nothing: &str) -> Value {
    if words.is_empty() { nothing.into() } else { words.join(",").into() }
}

fn or_word(word: &str, nothing: &str) -> Value {
    if word.is_empty() { nothing.into() } else { word.into() }
}

/// A duration in its two largest units: `5m`, `3h20m`, `12d`.
pub(crate) fn age(seconds: i64) -> String {
    let (minute, hour, day, year) = (60, 3_600, 86_400, 31_536_000);
    let two = |big: i64, name: &str, small: i64, rest: &str| {
        let remainder = seconds % big / small;
        let tail = if remainder == 0 { String::new() } else { format!("{remainder}{rest}") };
        format!("{}{name}{tail}", seconds / big)
    };
    match seconds {
        ..0 => "0s".to_owned(),
        s if s < 2 * minute => format!("{s}s"),
        s if s < 10 * minute => two(minute, "m", 1, "s"),
        s if s < 3 * hour => format!("{}m", s / minute),
        s if s < 8 * hour => two(hour, "h", minute, "m"),
        s if s < 2 * day => format!("{}h", s / hour),
        s if s < 8 * day => two(day, "d", hour, "h"),
        s if s < 2 * year => format!("{}d", s / day),
        s if s < 8 * year => two(year, "y", day, "d"),
        s => format!("{}y", s / year),
    }
}

/// The time since a field's time.
pub(crate) fn since(object: &Value, path: &str, now: i64) -> Value {
    since_time(text(object, path), now)
}

/// The time since a time.
pub(super) fn since_time(time: &str, now: i64) -> Value {
    match Timestamp::parse(time) {
        Some(then) => age(Timestamp::from_seconds(now).seconds_since(then) as i64).into(),
        None => "<unknown>".into(),
    }
}

pub(super) fn data_count(object: &Value, _: i64) -> Value {
    let count = |path| at(object, path).as_object().map_or(0, serde_json::Map::len);
    (count("data") + count("binaryData")).into()
}

pub(super) fn secrets_count(account: &Value, _: i64) -> Value {
    items(account, "secrets").len().into()
}

/// `ClusterRole/view`.
pub(super) fn role_reference(binding: &Value, _: i64) -> Value {
    format!("{}/{}", text(binding, "roleRef.kind"), text(binding, "roleRef.name")).into()
}

fn subjects(binding: &Value, kind: &str) -> Value {
    let named = items(binding, "subjects").iter().filter(|subject| subject["kind"] == kind);
    let shown = named.map(|subject| match (kind, text(subject, "namespace")) {
        ("ServiceAccount", namespace) => format!("{namespace}/{}", text(subject, "name")),
        _ => text(subject, "name").to_owned(),
    });
    shown.collect::<Vec<String>>().join(", ").into()
}

pub(super) fn user_subjects(binding: &Value, _: i64) -> Value {
    subjects(binding, "User")
}

pub(super) fn group_subjects(binding: &Value, _: i64) -> Value {
    subjects(binding, "Group")
}

pub(super) fn service_account_subjects(binding: &Value, _: i64) -> Value {
    subjects(binding, "ServiceAccount")
}

pub(super) fn external_ip(service: &Value, _: i64) -> Value {
    let mut shown: Vec<String> = Vec::new();
    match text(service, "spec.type") {
        "ExternalName" => return or_word(text(service, "spec.externalName"), NONE),
        "LoadBalancer" => {
            for ingress in items(service, "status.loadBalancer.ingress") {
                let (ip, host) = (text(ingress, "ip"), text(ingress, "hostname"));
                shown.push(if ip.is_empty() { host } else { ip }.to_owned());
            }
        }
        _ => {}
    }
    shown.extend(items(service, "spec.externalIPs").iter().filter_map(Value::as_str).map(str::to_owned));
    let pending = text(service, "spec.type") == "LoadBalancer";
    or(shown, if pending { "<pending>" } else { NONE })
}

pub(super) fn service_ports(service: &Value, _: i64) -> Value {
    let show = |port: &Value| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        match port["nodePort"].as_u64().filter(|number| *number != 0) {
            Some(node_port) => format!("{}:{node_port}/{protocol}", port["port"]),
            None => format!("{}/{protocol}", port["port"]),
        }
    };
    or(items(service, "spec.ports").iter().map(show).collect(), NONE)
}

pub(super) fn selector(service: &Value, _: i64) -> Value {
    let pairs = at(service, "spec.selector").as_object();
    let mut pairs: Vec<String> = pairs
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    or(pairs, NONE)
}

/// Entries of a list that are shown before the rest is counted.
const SHOWN: usize = 3;

fn shortened(words: Vec<String>, nothing: &str) -> Value {
    if words.len() <= SHOWN {
        return or(words, nothing);
    }
    format!("{} + {} more...", words[..SHOWN].join(","), words.len() - SHOWN).into()
}

pub(super) fn slice_ports(slice: &Value, _: i64) -> Value {
    let show = |port: &Value| match port["port"].as_u64() {
        Some(number) => number.to_string(),
        None => "*".to_owned(),
    };
    shortened(items(slice, "ports").iter().map(show).collect(), "<unset>")
}

pub(super) fn endpoints(slice: &Value, _: i64) -> Value {
    let addresses = items(slice, "endpoints").iter().flat_map(|endpoint| items(endpoint, "addresses"));
    shortened(addresses.filter_map(Value::as_str).map(str::to_owned).collect(), "<unset>")
}

pub(super) fn pod_ready(pod: &Value, _: i64) -> Value {
    let ready = items(pod, "status.containerStatuses").iter().filter(|status| status["ready"] == true);
    format!("{}/{}", ready.count(), items(pod, "spec.containers").len()).into()
}

pub(super) fn pod_status(pod: &Value, _: i64) -> Value {
    if at(pod, "metadata.deletionTimestamp").is_string() {
        return "Terminating".into();
    }
    for status in items(pod, "status.containerStatuses") {
        for state in ["state.waiting.reason", "state.terminated.reason"] {
            let reason = text(status, state);
            if !reason.is_empty() {
                return reason.into();
            }
        }
    }
    let reason = text(pod, "status.reason");
    or_word(if reason.is_empty() { text(pod, "status.phase") } else { reason }, "Unknown")
}

pub(super) fn pod_restarts(pod: &Value, _: i64) -> Value {
    let counts = items(pod, "status.containerStatuses").iter().filter_map(|s| s["restartCount"].as_u64());
    counts.fold(0u64, u64::saturating_add).to_string().into()
}

pub(super) fn pod_ip(pod: &Value, _: i64) -> Value {
    let first = items(pod, "status.podIPs").first().map_or("", |ip| text(ip, "ip"));
    or_word(if first.is_empty() { text(pod, "status.podIP") } else { first }, NONE)
}

pub(super) fn readiness_gates(pod: &Value, _: i64) -> Value {
    let gates = items(pod, "spec.readinessGates");
    if gates.is_empty() {
        return NONE.into();
    }
    let holds = |gate: &&Value| {
        let conditions = items(pod, "status.conditions").iter();
        conditions.clone().any(|c| c["type"] == gate["conditionType"] && c["status"] == "True")
    };
    format!("{}/{}", gates.iter().filter(holds).count(), gates.len()).into()
}

pub(super) fn node_status(node: &Value, _: i64) -> Value {
    let ready = items(node, "status.conditions").iter().find(|condition| condition["type"] == "Ready");
    let word = match ready.map(|condition| &condition["status"]) {
        Some(status) if status == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = at(node, "spec.unschedulable") == &Value::Bool(true);
    if cordoned { format!("{word},SchedulingDisabled").into() } else { word.into() }
}

pub(super) fn node_roles(node: &Value, _: i64) -> Value {
    let labels = at(node, "metadata.labels").as_object();
    let mut roles: Vec<String> = Vec::new();
    for (key, value) in labels.into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()) {
            roles.push(role.to_owned());
        } else if key == "kubernetes.io/role" {
            roles.extend(value.as_str().filter(|role| !role.is_empty()).map(str::to_owned));
        }
    }
    roles.sort();
    roles.dedup();
    or(roles, NONE)
}

pub(super) fn node_version(node: &Value, _: i64) -> Value {
    text(node, "status.nodeInfo.kubeletVersion").into()
}

fn node_address(node: &Value, kind: &str) -> Value {
    let found = items(node, "status.addresses").iter().find(|address| address["type"] == kind);
    or_word(found.map_or("", |address| text(address, "address")), NONE)
}

pub(super) fn internal_ip(node: &Value, _: i64) -> Value {
    node_address(node, "InternalIP")
}

pub(super) fn node_external_ip(node: &Value, _: i64) -> Value {
    node_address(node, "ExternalIP")
}

pub(super) fn os_image(node: &Value, _: i64) -> Value {
    or_word(text(node, "status.nodeInfo.osImage"), "<unknown>")
}

pub(super) fn kernel_version(node: &Value, _: i64) -> Value {
    or_word(text(node, "status.nodeInfo.kernelVersion"), "<unknown>")
}

pub(super) fn container_runtime(node: &Value, _: i64) -> Value {
    or_word(text(node, "status.nodeInfo.containerRuntimeVersion"), "<unknown>")
}

pub(super) fn cidrs(cidr: &Value, _: i64) -> Value {
    let cidrs = items(cidr, "spec.cidrs").iter().filter_map(Value::as_str).map(str::to_owned);
    or(cidrs.collect(), NONE)
}

pub(super) fn parent_ref(ip: &Value, _: i64) -> Value {
    let parent = at(ip, "spec.parentRef");
    let part = |name: &str| parent[name].as_str().unwrap_or_default();
    let mut resource = part("resource").to_owned();
    if !part("group").is_empty() {
        resource = format!("{resource}.{}", part("group"));
    }
    let words = [resource.as_str(), part("namespace"), part("name")];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("/").into()
}

pub(super) fn last_seen(event: &Value, now: i64) -> Value {
    for path in ["series.lastObservedTime", "lastTimestamp", "eventTime", "metadata.creationTimestamp"] {
        if at(event, path).is_string() {
            return since(event, path, now);
        }
    }
    "<unknown>".into()
}

pub(super) fn first_seen(event: &Value, now: i64) -> Value {
    let path = if at(event, "firstTimestamp").is_string() { "firstTimestamp" } else { "eventTime" };
    since(event, path, now)
}

pub(super) fn event_object(event: &Value, _: i64) -> Value {
    let (kind, name) = (text(event, "involvedObject.kind"), text(event, "involvedObject.name"));
    format!("{}/{name}", kind.to_lowercase()).into()
}

pub(super) fn event_source(event: &Value, _: i64) -> Value {
    let (component, host) = (text(event, "source.component"), text(event, "source.host"));
    let component = if component.is_empty() { text(event, "reportingComponent") } else { component };
    if host.is_empty() { component.into() } else { format!("{component}, {host}").into() }
}

pub(super) fn event_count(event: &Value, _: i64) -> Value {
    let series = at(event, "series.count").as_u64();
    series.or(event["count"].as_u64()).unwrap_or(1).into()
}

pub(super) fn validations(policy: &Value, _: i64) -> Value {
    items(policy, "spec.validations").len().into()
}

pub(super) fn param_kind(policy: &Value, _: i64) -> Value {
    let (version, kind) = (text(policy, "spec.paramKind.apiVersion"), text(policy, "spec.paramKind.kind"));
    if kind.is_empty() { "<unset>".into() } else { format!("{version}/{kind}").into() }
}

pub(super) fn param_ref(binding: &Value, _: i64) -> Value {
    let (namespace, name) = (text(binding, "spec.paramRef.namespace"), text(binding, "spec.paramRef.name"));
    match (namespace, name) {
        (_, "") => "<unset>".into(),
        ("", name) => name.into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ages_are_short_and_lose_precision_as_they_grow() {
        for (seconds, shown) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (301, "5m1s"),
            (3_599, "59m"),
            (4 * 3_600, "4h"),
            (4 * 3_600 + 660, "4h11m"),
            (30 * 3_600, "30h"),
            (3 * 86_400 + 7_200, "3d2h"),
            (400 * 86_400, "400d"),
            (3 * 31_536_000, "3y"),
        ] {
            assert_eq!(age(seconds), shown, "{seconds}");
        }
    }

    #[test]
    fn a_service_shows_its_ports_and_what_is_pending() {
        let service = json!({"spec": {"type": "LoadBalancer", "ports": [
            {"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}});
        assert_eq!(service_ports(&service, 0), "80:30080/TCP,53/UDP");
        assert_eq!(external_ip(&service, 0), "<pending>");
        assert_eq!(selector(&service, 0), "<none>");
    }

    #[test]
    fn many_endpoints_are_counted_instead_of_listed() {
        let endpoint = |ip: &str| json!({"addresses": [ip]});
        let all = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"].map(endpoint);
        let slice = json!({"endpoints": all});
        assert_eq!(endpoints(&slice, 0), "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more...");
        assert_eq!(endpoints(&json!({}), 0), "<unset>");
    }
}
