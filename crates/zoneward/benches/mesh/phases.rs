//! The parts whose instructions are counted: reading 10,000 routes, the first tables, and one route's change.

use cluster::{InformerEvent, ObjectKind};
use mesh::table_cache::KINDS;
use mesh::{ProxyIdentity, ProxyRole, TableCache};

use crate::watched;
use crate::world::{Shape, gateway, routes};

pub fn run() {
    let shape = Shape { policies: routes(), rules: 1, hosts: 1 };
    println!("{} endpoints", shape.routes());
    let consumer = ProxyIdentity {
        role: ProxyRole::gateway("edge", &"default".into()).unwrap(),
        node: "n".into(),
        zone: None,
    };
    let mut state = TableCache::default();
    state.add(consumer);
    let policies = (0..shape.policies).map(|number| {
        InformerEvent::Applied(ObjectKind::MeshGatewayHttpRoute, watched(&shape.policy(number)))
    });
    phase_read(&mut state, policies.collect());
    phase_first(&mut state);
    for number in 0..10 {
        let mut changed = shape.policy(number);
        changed["spec"]["rules"][0]["default"]["filters"][0]["directResponse"]["status"] = 201.into();
        phase_change(&mut state, InformerEvent::Applied(ObjectKind::MeshGatewayHttpRoute, watched(&changed)));
    }
}

#[inline(never)]
fn phase_read(state: &mut TableCache, policies: Vec<InformerEvent>) {
    for kind in KINDS {
        state.apply(InformerEvent::ListStarted(kind));
    }
    policies.into_iter().for_each(|event| state.apply(event));
    state.apply(InformerEvent::Applied(ObjectKind::MeshGateway, watched(&gateway(8080))));
    for kind in KINDS {
        state.apply(InformerEvent::ListCompleted(kind));
    }
}

#[inline(never)]
fn phase_first(state: &mut TableCache) {
    assert_eq!(state.refresh().len(), 1);
}

#[inline(never)]
fn phase_change(state: &mut TableCache, event: InformerEvent) {
    state.apply(event);
    assert_eq!(state.refresh().len(), 1);
}
