//! A Pod as the API holds it -> [`Pod`].

use k8s_openapi::api::core::v1 as core;

use super::{Checked, key, labels, port, protocol};
use crate::address::{Addresses, parse_ip};
use crate::name::Interner;
use crate::pod::{ContainerPort, Pod, PodDetails};
use crate::uid::Uid;

/// Reads a Pod.
pub fn pod(object: &core::Pod, interner: &mut Interner) -> Checked<Pod> {
    let meta = &object.metadata;
    let spec = object.spec.as_ref();
    let status = object.status.as_ref();
    let ready = status.and_then(|s| s.conditions.iter().flatten().find(|c| c.type_ == "Ready"));
    let ips: Vec<_> = status.into_iter().flat_map(|s| s.pod_ips.iter().flatten()).collect();
    // An address that cannot be read is dropped, as Kubernetes' controller drops it.
    let addresses: Vec<_> = ips.iter().filter_map(|ip| parse_ip(&ip.ip)).collect();
    let pod_ip = status.and_then(|s| s.pod_ip.as_deref()).unwrap_or_default();
    let details = spec.map(|s| details(s, interner)).transpose()?.unwrap_or_default();
    Ok(Pod {
        key: key(meta, interner),
        uid: meta.uid.as_deref().filter(|uid| !uid.is_empty()).map(Uid::new),
        labels: labels(meta.labels.as_ref(), interner),
        node: interner.name_if_set(spec.and_then(|s| s.node_name.as_deref())),
        ips: Addresses::from_slice(&addresses),
        details: (details != PodDetails::default()).then(|| interner.details(details)),
        ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|t| t.0.into()),
        ready: ready.is_some_and(|c| c.status == "True"),
        deleting: meta.deletion_timestamp.is_some(),
        finished: matches!(status.and_then(|s| s.phase.as_deref()), Some("Failed" | "Succeeded")),
        has_ip: !pod_ip.is_empty() || !ips.is_empty(),
    })
}

fn details(spec: &core::PodSpec, interner: &mut Interner) -> Checked<PodDetails> {
    Ok(PodDetails {
        ports: named_ports(spec, interner)?.into(),
        hostname: interner.name_if_set(spec.hostname.as_deref()),
        subdomain: interner.name_if_set(spec.subdomain.as_deref()),
    })
}

/// Semantics B3: containers first, then the init containers that keep running beside them.
fn named_ports(spec: &core::PodSpec, interner: &mut Interner) -> Checked<Vec<ContainerPort>> {
    let restarted = |c: &&core::Container| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(restarted);
    let containers = spec.containers.iter().chain(sidecars).enumerate();
    let mut named = Vec::new();
    for (i, container) in containers {
        let ports = container.ports.iter().flatten().enumerate();
        for (j, p) in ports {
            let Some(name) = p.name.as_deref().filter(|n| !n.is_empty()) else { continue };
            let at = |field| format!("spec.containers[{i}].ports[{j}].{field}");
            named.push(ContainerPort {
                name: interner.name(name),
                protocol: protocol(p.protocol.as_deref(), || at("protocol"))?,
                port: port(p.container_port, || at("containerPort"))?,
            });
        }
    }
    Ok(named)
}
