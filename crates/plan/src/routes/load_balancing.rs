//! Which MeshLoadBalancing settings a proxy uses for a Service: each field from the policy of highest precedence that has
//! it.
//!
//! ```text
//! policies of the client's and of the Service's namespace -> those that select the client and name the Service
//!   -> by targetRef, then by to.targetRef, then the client's namespace, then the oldest -> field by field
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{
    EffectiveLoadBalancing, FieldOrigin, LoadBalancing, MeshLoadBalancing, PolicyTarget, RouteTable,
    ToLoadBalancing,
};
use model::{Name, Notice, ObjectKey, ServiceKey, Snapshot, annotation};

use super::mesh_client::MeshClient;
use super::policy_attachment::precedence;
use crate::capacity::has_slow_start;
use crate::feature_gates::FeatureGates;
use crate::select::why_localities_are_idle;

/// The proxy that requests come from.
#[derive(Clone, Copy, Debug)]
pub enum PolicyConsumer<'a> {
    Client(&'a MeshClient),
    /// A MeshGateway, or a Gateway of the Gateway API.
    Gateway(&'a ObjectKey),
}

impl PolicyConsumer<'_> {
    fn namespace(&self) -> &Name {
        match self {
            Self::Client(client) => &client.namespace,
            Self::Gateway(key) => &key.namespace,
        }
    }

    /// Whether the targetRef of a policy in `namespace` selects it.
    fn is_selected(&self, target: &PolicyTarget, namespace: &Name) -> bool {
        match (self, target) {
            (Self::Client(client), target) => client.is_selected(target, namespace),
            (Self::Gateway(_), PolicyTarget::Mesh) => true,
            (Self::Gateway(key), PolicyTarget::Gateway(name, _)) => {
                key.namespace == *namespace && key.name == *name
            }
            (Self::Gateway(_), _) => false,
        }
    }
}

/// The settings of a proxy for a Service, with Notices about fields that exclude each other; `None` without a policy.
pub fn load_balancing(
    snapshot: &Snapshot,
    consumer: PolicyConsumer<'_>,
    service: &ServiceKey,
) -> Option<(EffectiveLoadBalancing, Vec<Notice>)> {
    let sources = sources(snapshot, consumer, service);
    if sources.is_empty() {
        return None;
    }
    let (mut settings, mut origins) = (LoadBalancing::default(), Vec::new());
    for (policy, i, to) in sources {
        for field in settings.fill(&to.settings) {
            let place = format!("spec.to[{i}].default");
            origins.push(FieldOrigin { field, policy: policy.object(), place });
        }
    }
    let mut notices = Vec::new();
    // Validation refuses both in one policy; two policies may have one each.
    if settings.hash_on().is_some()
        && settings.slow_start.take().is_some()
        && let Some(at) = origins.iter().position(|origin| origin.field == "slowStart")
    {
        let FieldOrigin { field, policy, place } = origins.remove(at);
        let why = "another policy sets the algorithm to RingHash or Maglev, which exclude slow start";
        let message = format!("{place}.{field}: no effect on Service {service}: {why}");
        notices.push(Notice::new(policy, "NoEffect", message));
    }
    origins.sort_by_key(|origin| origin.field);
    if origins.is_empty() {
        return None;
    }
    Some((EffectiveLoadBalancing { settings, origins: origins.into() }, notices))
}

/// Notices about fields that have no effect on a Service, because of the Service.
pub fn idle_fields(snapshot: &Snapshot, service: &ServiceKey, found: &EffectiveLoadBalancing) -> Vec<Notice> {
    let all = [idle_localities(snapshot, service, found), idle_slow_start(snapshot, service, found)];
    all.into_iter().flatten().collect()
}

/// The zones, because the Service keeps traffic in a scope.
fn idle_localities(
    snapshot: &Snapshot,
    service: &ServiceKey,
    found: &EffectiveLoadBalancing,
) -> Option<Notice> {
    let origin = found.origins.iter().find(|origin| origin.field == "localities")?;
    let (object, slices) = (snapshot.service(service)?, snapshot.slices(service));
    let why = why_localities_are_idle(object, slices, FeatureGates::OF_PROXIES)?;
    let message = format!(
        "{}.localities: no effect on Service {service}: {why}, and no policy takes traffic out of that; remove one of both",
        origin.place
    );
    Some(Notice::new(origin.policy.clone(), "NoEffect", message))
}

/// The slow start, because the Service has one.
fn idle_slow_start(
    snapshot: &Snapshot,
    service: &ServiceKey,
    found: &EffectiveLoadBalancing,
) -> Option<Notice> {
    let origin = found.origins.iter().find(|origin| origin.field == "slowStart")?;
    has_slow_start(snapshot.slices(service)).then(|| {
        let message = format!(
            "{}.slowStart: no effect on Service {service}: its endpoints start slowly by the Service's annotation {}, and proxies add no second slow start; remove one of both",
            origin.place,
            annotation::SLOW_START
        );
        Notice::new(origin.policy.clone(), "NoEffect", message)
    })
}

type PolicyEntry<'s> = (&'s MeshLoadBalancing, usize, &'s ToLoadBalancing);

/// The entries for a Service, highest precedence first.
fn sources<'s>(
    snapshot: &'s Snapshot,
    consumer: PolicyConsumer<'_>,
    service: &ServiceKey,
) -> Vec<PolicyEntry<'s>> {
    let own = consumer.namespace();
    // Seed 004: consumer and producer, but never traffic between two other namespaces.
    let namespaces: BTreeSet<&Name> = [own, &service.namespace].into();
    let policies = namespaces.into_iter().flat_map(|namespace| snapshot.load_balancing_policies(namespace));
    let selected =
        policies.filter(|policy| consumer.is_selected(&policy.target, &policy.identity.key.namespace));
    let mut entries: Vec<PolicyEntry<'s>> = selected
        .flat_map(|policy| policy.to.iter().enumerate().map(move |(i, to)| (policy, i, to)))
        .filter(|(_, _, to)| to.service.as_ref().is_none_or(|to| to == service))
        .collect();
    entries.sort_by_cached_key(|(policy, i, to)| {
        let key = &policy.identity.key;
        let (kind, ..) = precedence(&policy.target, key);
        // Semantics 1.3: within one policy, lower entries override upper ones.
        (kind, to.service.is_none(), key.namespace != *own, policy.identity.age_order(), Reverse(*i))
    });
    entries
}

/// The settings of a proxy, by Service.
pub type LoadBalancingByService = BTreeMap<ServiceKey, Arc<EffectiveLoadBalancing>>;

/// The settings for every Service that a table leads to. Unchanged values are those of `before`.
pub fn all_load_balancing(
    table: &RouteTable,
    before: &LoadBalancingByService,
    snapshot: &Snapshot,
    consumer: PolicyConsumer<'_>,
) -> (LoadBalancingByService, Vec<Notice>) {
    let (mut all, mut notices) = (BTreeMap::new(), Vec::new());
    if snapshot.all_load_balancing_policies().next().is_none() {
        return (all, notices);
    }
    let outbounds = table.outbounds().map(|outbound| outbound.service.clone());
    let services: BTreeSet<ServiceKey> =
        table.backends().into_iter().map(|id| id.service).chain(outbounds).collect();
    for service in services {
        let Some((found, more)) = load_balancing(snapshot, consumer, &service) else { continue };
        notices.extend(more);
        let known = before.get(&service).filter(|known| ***known == found);
        let found = known.cloned().unwrap_or_else(|| Arc::new(found));
        all.insert(service, found);
    }
    (all, notices)
}

/// Adds the settings to a new table.
pub fn set_load_balancing(
    table: &mut RouteTable,
    snapshot: &Snapshot,
    consumer: PolicyConsumer<'_>,
) -> Vec<Notice> {
    let (all, mut notices) = all_load_balancing(table, &BTreeMap::new(), snapshot, consumer);
    notices.extend(all.iter().flat_map(|(service, found)| idle_fields(snapshot, service, found)));
    table.set_load_balancing(all);
    notices
}

#[cfg(test)]
mod tests {
    use model::{Interner, parse};
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(policies: &[Value]) -> Snapshot {
        let (mut snapshot, mut interner) = (Snapshot::default(), Interner::default());
        for policy in policies {
            let (object, notices) = parse::object(policy, &mut interner);
            assert_eq!(notices, [], "{policy}");
            snapshot.apply(object.expect("a known kind"));
        }
        snapshot
    }

    fn policy(namespace: &str, name: &str, created: &str, target: Value, to: Value, default: Value) -> Value {
        json!({"apiVersion": "zoneward.dev/v1alpha1", "kind": "MeshLoadBalancing",
            "metadata": {"namespace": namespace, "name": name, "creationTimestamp": created},
            "spec": {"targetRef": target, "to": [{"targetRef": to, "default": default}]}})
    }

    fn client(namespace: &str, service: &str) -> MeshClient {
        let tags = model::Labels::EMPTY;
        MeshClient { namespace: namespace.into(), services: vec![service.into()], tags }
    }

    fn effective(policies: &[Value], client: &MeshClient) -> (Value, Vec<String>, Vec<Notice>) {
        let service = ServiceKey::new(&"shop".into(), &"backend".into());
        let found = load_balancing(&snapshot(policies), PolicyConsumer::Client(client), &service);
        let Some((found, notices)) = found else { return (Value::Null, Vec::new(), Vec::new()) };
        let from =
            found.origins.iter().map(|o| format!("{} {}/{}", o.field, o.policy.namespace, o.policy.name));
        (found.settings.value(), from.collect(), notices)
    }

    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2026-02-01T00:00:00Z";

    fn threshold(percent: u8) -> Value {
        json!({"panicThreshold": percent})
    }

    #[test]
    fn each_field_comes_from_the_most_specific_policy_that_has_it() {
        let backend = json!({"kind": "MeshService", "name": "backend"});
        let owner = policy(
            "shop",
            "owner",
            OLD,
            json!({"kind": "Mesh"}),
            backend.clone(),
            json!({"panicThreshold": 10, "slowStart": {"window": "30s"}, "circuitBreakers": {"maxRetries": 7}}),
        );
        let consumer = policy(
            "shop",
            "consumer",
            NEW,
            json!({"kind": "MeshService", "name": "front"}),
            backend,
            threshold(20),
        );
        let (settings, from, notices) =
            effective(&[owner.clone(), consumer.clone()], &client("shop", "front"));
        let wanted = json!({"panicThreshold": 20, "slowStart": {"window": "30s"}, "circuitBreakers": {"maxRetries": 7}});
        assert_eq!((settings, notices), (wanted, Vec::new()));
        assert_eq!(
            from,
            ["circuitBreakers shop/owner", "panicThreshold shop/consumer", "slowStart shop/owner"]
        );
        let (settings, ..) = effective(&[owner, consumer], &client("shop", "other"));
        assert_eq!(settings["panicThreshold"], 10);
    }

    #[test]
    fn of_equals_the_consumer_wins_then_the_oldest() {
        let everyone = || json!({"kind": "Mesh"});
        let to = |namespace: &str| json!({"kind": "MeshService", "name": "backend", "namespace": namespace});
        let newer = policy("shop", "a", NEW, everyone(), to("shop"), threshold(1));
        let older = policy("shop", "b", OLD, everyone(), to("shop"), threshold(2));
        let consumer = policy("web", "c", NEW, everyone(), to("shop"), threshold(3));
        let third = policy("other", "d", OLD, everyone(), to("shop"), threshold(4));
        let all = [newer, older, consumer, third];
        assert_eq!(effective(&all, &client("shop", "front")).0, threshold(2), "the oldest");
        assert_eq!(effective(&all, &client("web", "front")).0, threshold(3), "the client's namespace");
        assert_eq!(effective(&all[3..], &client("web", "front")).0, Value::Null, "neither namespace");
    }

    #[test]
    fn a_named_service_wins_over_all_services() {
        let everyone = || json!({"kind": "Mesh"});
        let named = json!({"kind": "MeshService", "name": "backend"});
        let all = policy("shop", "all", OLD, everyone(), everyone(), threshold(1));
        let one = policy("shop", "one", NEW, everyone(), named, threshold(2));
        assert_eq!(effective(&[all.clone(), one], &client("shop", "front")).0, threshold(2));
        assert_eq!(effective(&[all], &client("web", "front")).0, threshold(1), "as producer");
    }

    #[test]
    fn slow_start_of_one_policy_gives_way_to_the_hash_of_another() {
        let named = || json!({"kind": "MeshService", "name": "backend"});
        let slow = policy(
            "shop",
            "slow",
            OLD,
            json!({"kind": "Mesh"}),
            named(),
            json!({"slowStart": {"window": "30s"}}),
        );
        let hash = json!({"algorithm": {"type": "Maglev", "hashOn": {"type": "SourceIP"}}});
        let hash =
            policy("shop", "hash", NEW, json!({"kind": "MeshService", "name": "front"}), named(), hash);
        let (settings, from, notices) = effective(&[slow, hash], &client("shop", "front"));
        assert_eq!(from, ["algorithm shop/hash"]);
        assert_eq!(settings["slowStart"], Value::Null);
        assert!(notices[0].message.starts_with("spec.to[0].default.slowStart: no effect"), "{notices:?}");
    }

    #[test]
    fn a_gateway_has_its_own_policies_and_those_of_the_mesh() {
        let named = || json!({"kind": "MeshService", "name": "backend"});
        let limited = json!({"rateLimit": {"requests": 5}, "panicThreshold": 1});
        let mesh = policy("shop", "mesh", OLD, json!({"kind": "Mesh"}), named(), limited);
        let gateway = json!({"kind": "MeshGateway", "name": "edge"});
        let edge = policy("shop", "edge", NEW, gateway, named(), threshold(2));
        let snapshot = snapshot(&[mesh, edge]);
        let service = ServiceKey::new(&"shop".into(), &"backend".into());
        let at = |name: &str| {
            let key = ObjectKey::new(&"shop".into(), &name.into());
            load_balancing(&snapshot, PolicyConsumer::Gateway(&key), &service).expect("a policy").0.settings
        };
        let limit = json!({"requests": 5, "interval": "1s"});
        assert_eq!(at("edge").value(), json!({"rateLimit": limit, "panicThreshold": 2}));
        assert_eq!(at("other").value(), json!({"rateLimit": limit, "panicThreshold": 1}));
    }
    #[test]
    fn localities_without_effect_are_reported_while_the_service_keeps_traffic_in_a_scope() {
        let zones = json!({"localities": [{"priorities": [{"zones": [{"name": "b"}]}]}]});
        let named = json!({"kind": "MeshService", "name": "backend"});
        let zones = policy("shop", "zones", OLD, json!({"kind": "Mesh"}), named, zones);
        let notice = |spec: Value, mechanism: Value| {
            let service = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "shop", "name": "backend",
                    "annotations": {"endpointslice.kubernetes.io/same-zone": "Require"}}, "spec": spec});
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"namespace": "shop", "name": "backend-1", "annotations": mechanism,
                    "labels": {"kubernetes.io/service-name": "backend"}},
                "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.1"], "zone": "a"}]});
            let snapshot = snapshot(&[zones.clone(), service, slice]);
            let service = ServiceKey::new(&"shop".into(), &"backend".into());
            let client = client("shop", "front");
            let (found, _) = load_balancing(&snapshot, PolicyConsumer::Client(&client), &service)?;
            idle_localities(&snapshot, &service, &found)
                .map(|notice| format!("{} {}", notice.reason, notice.message))
        };
        let ports = json!([{"port": 80}]);
        let require = json!({"zoneward.dev/mechanism": "RequireZone"});
        assert_eq!(
            notice(json!({"ports": ports}), require).unwrap(),
            "NoEffect spec.to[0].default.localities: no effect on Service shop/backend: it requires endpoints of the \
             same zone, and no policy takes traffic out of that; remove one of both"
        );
        let local = notice(json!({"ports": ports, "internalTrafficPolicy": "Local"}), json!({})).unwrap();
        assert!(local.contains("internalTrafficPolicy is Local"), "{local}");
        assert_eq!(notice(json!({"ports": ports}), json!({})), None, "the slices do not require it yet");
    }

    #[test]
    fn slow_start_of_a_policy_has_no_effect_beside_that_of_the_service() {
        let named = json!({"kind": "MeshService", "name": "backend"});
        let slow = json!({"slowStart": {"window": "30s"}});
        let slow = policy("shop", "slow", OLD, json!({"kind": "Mesh"}), named, slow);
        let notices = |annotations: Value| -> Vec<String> {
            let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"namespace": "shop", "name": "backend-1", "annotations": annotations,
                    "labels": {"kubernetes.io/service-name": "backend"}},
                "ports": [{"port": 80}], "endpoints": [{"addresses": ["10.0.0.1"]}]});
            let snapshot = snapshot(&[slow.clone(), slice]);
            let service = ServiceKey::new(&"shop".into(), &"backend".into());
            let client = client("shop", "front");
            let found = load_balancing(&snapshot, PolicyConsumer::Client(&client), &service);
            let (found, _) = found.expect("the policy");
            let notices = idle_fields(&snapshot, &service, &found);
            notices.iter().map(|notice| format!("{} {}", notice.reason, notice.message)).collect()
        };
        assert_eq!(notices(json!({})), [""; 0]);
        let text = &notices(json!({"zoneward.dev/warming": "60s 10.0.0.1=1794923382"}))[0];
        assert!(
            text.starts_with("NoEffect spec.to[0].default.slowStart: no effect on Service shop/backend"),
            "{text}"
        );
        assert_eq!(
            notices(json!({"zoneward.dev/warming": "soon"})),
            [""; 0],
            "not readable: nothing starts slowly"
        );
    }
}
