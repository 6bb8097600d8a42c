//! Endpoints that are not where traffic is: the workload to change, and the YAML for it.
//!
//! Where zones send about the same, a topology spread constraint is enough. Where they do not, an even spread would be
//! wrong again, and a Deployment per zone with replicas by demand is better.

use model::{Name, Pod, Service};
use sim::whatif::Answer;

use crate::input::World;

/// What stands behind the pods of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
}

/// The workload behind a Service by the owners of its pods: the first that one names.
pub(super) fn owner(service: &Service, world: &World) -> Option<Owner> {
    let selector = service.selector.as_ref()?;
    let pods = world.snapshot.pods_selected(&service.key.namespace, selector);
    pods.iter().find_map(|pod| owner_of(pod, world.pod_owners.get(&pod.key)?))
}

/// A ReplicaSet is named after its Deployment and the hash that its pods carry as a label.
fn owner_of(pod: &Pod, (kind, name): &(Name, Name)) -> Option<Owner> {
    if kind != "ReplicaSet" {
        return Some(Owner { kind: kind.to_string(), name: name.to_string() });
    }
    let deployment = match pod.labels.value("pod-template-hash") {
        Some(hash) => name.strip_suffix(hash.as_str())?.strip_suffix('-')?,
        None => name.rsplit_once('-')?.0,
    };
    Some(Owner { kind: "Deployment".to_owned(), name: deployment.to_owned() })
}

/// What would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// As many endpoints in each zone.
    Spread,
    /// Endpoints in proportion to what each zone sends.
    PerZone,
}

/// What an even spread must keep in zone to be recommended.
const GOOD_ENOUGH: f64 = 0.9;

impl Placement {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Spread => "topology-spread",
            Self::PerZone => "deployment-per-zone",
        }
    }

    /// What would help, and the share of traffic that Spill could keep in zone then.
    pub(super) fn choose(answer: &Answer) -> (Self, f64) {
        let sending = answer.shares.iter().filter(|(_, share)| *share > 0.0);
        let all = answer.endpoints_by_zone.values().sum::<usize>();
        let kept = |counts: &[usize]| -> f64 {
            let kept = sending.clone().zip(counts);
            kept.map(|((_, share), count)| share.min(*count as f64 / all.max(1) as f64)).sum()
        };
        let zones = sending.clone().count().max(1);
        let even: Vec<usize> = (0..zones).map(|at| all / zones + usize::from(at < all % zones)).collect();
        let fitting: Vec<usize> = replicas(answer).into_iter().map(|(_, count)| count).collect();
        let (even, fitting) = (kept(&even), kept(&fitting));
        match even >= GOOD_ENOUGH || fitting - even < 0.05 {
            true => (Self::Spread, even),
            false => (Self::PerZone, fitting),
        }
    }

    /// YAML that makes it so.
    pub(super) fn yaml(self, service: &Service, answer: &Answer, owner: Option<&Owner>) -> String {
        match self {
            Self::Spread => spread(service, owner),
            Self::PerZone => per_zone(service, answer, owner),
        }
    }
}

/// The endpoints that there are, by what each zone sends: whole ones, and the rest where most is missing.
fn replicas(answer: &Answer) -> Vec<(&Name, usize)> {
    let all = answer.endpoints_by_zone.values().sum::<usize>();
    let sending: Vec<&(Name, f64)> = answer.shares.iter().filter(|(_, share)| *share > 0.0).collect();
    let wanted = |share: f64| share * all as f64;
    let mut counts: Vec<(&Name, usize)> =
        sending.iter().map(|(zone, share)| (zone, wanted(*share).floor() as usize)).collect();
    let given: usize = counts.iter().map(|(_, count)| count).sum();
    let mut order: Vec<usize> = (0..sending.len()).collect();
    order.sort_by(|a, b| wanted(sending[*b].1).fract().total_cmp(&wanted(sending[*a].1).fract()));
    order.iter().take(all.saturating_sub(given)).for_each(|at| counts[*at].1 += 1);
    counts
}

const UNKNOWN: &str = "FILL-IN";

fn head(service: &Service, owner: Option<&Owner>) -> String {
    let (kind, name) = match owner {
        Some(owner) => (owner.kind.as_str(), owner.name.as_str()),
        None => ("Deployment", UNKNOWN),
    };
    let unknown = match owner {
        Some(_) => String::new(),
        None => {
            format!("# The input has no pods that name their owner: put the workload's name for {UNKNOWN}.\n")
        }
    };
    format!(
        "{unknown}apiVersion: apps/v1\nkind: {kind}\nmetadata:\n  name: {name}\n  namespace: {}\n",
        service.key.namespace
    )
}

fn labels(service: &Service, indent: usize) -> String {
    let pairs = service.selector.iter().flat_map(|selector| selector.iter());
    pairs.map(|(key, value)| format!("{:indent$}{key}: {value:?}\n", "")).collect()
}

/// A part of the workload that `kubectl apply --server-side` and `kubectl patch --patch-file` take.
fn spread(service: &Service, owner: Option<&Owner>) -> String {
    format!(
        "---\n# A patch: kubectl apply --server-side, or kubectl patch --patch-file.\n{}spec:\n  template:\n    spec:\n      \
         topologySpreadConstraints:\n        - maxSkew: 1\n          topologyKey: topology.kubernetes.io/zone\n          \
         whenUnsatisfiable: ScheduleAnyway\n          labelSelector:\n            matchLabels:\n{}",
        head(service, owner),
        labels(service, 14)
    )
}

/// A Deployment for each zone; what the pods run is to be copied from the present one.
fn per_zone(service: &Service, answer: &Answer, owner: Option<&Owner>) -> String {
    let base = owner.map_or(UNKNOWN, |owner| owner.name.as_str());
    let mut yaml = format!(
        "---\n# A sketch: one Deployment per zone in the place of {base}. Copy its containers into each template.\n"
    );
    for (at, (zone, count)) in replicas(answer).into_iter().enumerate() {
        let separator = if at == 0 { "" } else { "---\n" };
        yaml += &format!(
            "{separator}apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {base}-{zone}\n  namespace: {}\n\
             spec:\n  replicas: {count}\n  selector:\n    matchLabels:\n{}      zone: {:?}\n  template:\n    metadata:\n      \
             labels:\n{}        zone: {:?}\n    spec:\n      affinity:\n        nodeAffinity:\n          \
             requiredDuringSchedulingIgnoredDuringExecution:\n            nodeSelectorTerms:\n              \
             - matchExpressions:\n                  - {{key: topology.kubernetes.io/zone, operator: In, values: [{:?}]}}\n      \
             containers: []\n",
            service.key.namespace,
            labels(service, 6),
            zone.as_str(),
            labels(service, 8),
            zone.as_str(),
            zone.as_str()
        );
    }
    yaml
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
            owner_of(&pod(labels), &(Name::new(kind), Name::new(name)))
                .map(|o| format!("{} {}", o.kind, o.name))
        };
        let hash = [("pod-template-hash", "5d9")];
        assert_eq!(owned(&hash, "ReplicaSet", "cart-5d9").as_deref(), Some("Deployment cart"));
        assert_eq!(owned(&[], "ReplicaSet", "big-cart-5d9").as_deref(), Some("Deployment big-cart"));
        assert_eq!(owned(&hash, "ReplicaSet", "other"), None, "not of this hash");
        assert_eq!(owned(&[], "StatefulSet", "db").as_deref(), Some("StatefulSet db"));
    }

    #[test]
    fn replicas_follow_demand_and_add_up() {
        let zones = [("a", 0.6), ("b", 0.3), ("c", 0.1)];
        let answer = Answer {
            current: plan::hints::Mechanism::None,
            shares: zones.iter().map(|(zone, share)| (Name::new(zone), *share)).collect(),
            endpoints_by_zone: [(Name::new("c"), 7)].into(),
            outcomes: Vec::new(),
        };
        let counts: Vec<usize> = replicas(&answer).into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [4, 2, 1]);
        let (placement, kept) = Placement::choose(&answer);
        assert_eq!(placement, Placement::PerZone);
        assert!(kept > 0.9, "{kept}");
    }
}
