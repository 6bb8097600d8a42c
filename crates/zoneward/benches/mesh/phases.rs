//! The parts whose instructions are counted: reading 10,000 routes, the first tables, and one route's change.

use cluster::{ResourceKind, WatchEvent};
use mesh::state::KINDS;
use mesh::{Consumer, Role, State};
use plan::FeatureGates;

use crate::watched;
use crate::world::{Shape, gateway, routes};

pub fn run() {
    let shape = Shape { policies: routes(), rules: 1, hosts: 1 };
    println!("{} endpoints", shape.routes());
    let consumer =
        Consumer { role: Role::gateway("edge", &"default".into()).unwrap(), node: "n".into(), zone: None };
    let mut state = State::new(FeatureGates::default());
    state.follow(consumer);
    let policies = (0..shape.policies)
        .map(|number| WatchEvent::Applied(ResourceKind::GatewayHttpRoute, watched(&shape.policy(number))));
    phase_read(&mut state, policies.collect());
    phase_first(&mut state);
    for number in 0..10 {
        let mut changed = shape.policy(number);
        changed["spec"]["rules"][0]["default"]["filters"][0]["directResponse"]["status"] = 201.into();
        phase_change(&mut state, WatchEvent::Applied(ResourceKind::GatewayHttpRoute, watched(&changed)));
    }
}

#[inline(never)]
fn phase_read(state: &mut State, policies: Vec<WatchEvent>) {
    for kind in KINDS {
        state.take(WatchEvent::ListStarted(kind));
    }
    policies.into_iter().for_each(|event| state.take(event));
    state.take(WatchEvent::Applied(ResourceKind::Gateway, watched(&gateway(8080))));
    for kind in KINDS {
        state.take(WatchEvent::ListCompleted(kind));
    }
}

#[inline(never)]
fn phase_first(state: &mut State) {
    assert_eq!(state.refresh().len(), 1);
}

#[inline(never)]
fn phase_change(state: &mut State, event: WatchEvent) {
    state.take(event);
    assert_eq!(state.refresh().len(), 1);
}
