//! What a `NodeBackend` has to do, whatever its kernel: the same test on the fake kernel and on the real one.

use std::sync::{Arc, Mutex};

use dataplane::backend::{CleanupScope, NodeBackend, Reconciled, TracedVerdict};
use dataplane::nftables::apply::apply;
use dataplane::nftables::ir::NftChange;
use dataplane::nftables::render::table_id;
use dataplane::nftables::{Kernel, NftablesBackend};
use model::forward::PacketVerdict;
use model::{Family, ForwardingTable};

use super::case::{Scenario, scenarios};

/// Every packet of the case fares as the table decides.
fn assert_traced(backend: &mut NftablesBackend, scenario: &Scenario) {
    let packets: Vec<_> = scenario.flows.iter().map(|flow| flow.packet.clone()).collect();
    let traces = backend.trace(&packets, &scenario.table.node.addresses).unwrap();
    for (packet, trace) in packets.iter().zip(traces) {
        let verdict = match scenario.table.decide(packet).verdict {
            PacketVerdict::Send(_) => TracedVerdict::Dnat,
            PacketVerdict::Reject => TracedVerdict::Reject,
            PacketVerdict::Drop => TracedVerdict::Drop,
            PacketVerdict::Accept => TracedVerdict::Accept,
            PacketVerdict::Untouched => TracedVerdict::Untouched,
        };
        assert_eq!(trace.verdict, verdict, "{}: {packet:?} {trace:#?}", scenario.id);
        assert!(!trace.steps.is_empty() || verdict == TracedVerdict::Untouched, "{trace:#?}");
    }
}

/// Deletes all Services and adds them again, as changes.
fn empty_and_refill(backend: &mut NftablesBackend, table: &ForwardingTable) {
    let gone: Vec<_> = table.services().map(|(_, frontends)| (frontends, &[][..])).collect();
    backend.change(&ForwardingTable::new(table.node.clone()), &gone).unwrap();
    assert!(!backend.has_services().unwrap());
    let added: Vec<_> = table.services().map(|(_, frontends)| (&[][..], frontends)).collect();
    backend.change(table, &added).unwrap();
    assert_eq!(backend.has_services().unwrap(), table.services().next().is_some());
    while backend.maintain().unwrap() {}
}

pub(crate) fn backend_loads_changes_repairs_traces_and_cleans_up(kernel: impl Kernel + Send + 'static) {
    let kernel = Arc::new(Mutex::new(kernel));
    let mut other = kernel.clone();
    let mut backend = NftablesBackend::new(Box::new(kernel));
    for (number, scenario) in scenarios().iter().take(12).enumerate() {
        let loaded = backend.load(&scenario.table).unwrap();
        assert_eq!(loaded.is_initial, number == 0, "{}", scenario.id);
        assert_traced(&mut backend, scenario);
        while backend.maintain().unwrap() {}
        assert_eq!(backend.reconcile(&scenario.table).unwrap(), Reconciled::default());
        let chain = NftChange::FlushChain { table: table_id(Family::V4), chain: "services".into() };
        apply(&mut other, &[chain]).unwrap();
        let repaired = backend.reconcile(&scenario.table).unwrap();
        assert!(repaired.transactions > 0 && !repaired.is_initial, "{}: {repaired:?}", scenario.id);
        empty_and_refill(&mut backend, &scenario.table);
        assert_traced(&mut backend, scenario);
    }
    let listed = backend.cleanup(CleanupScope::AllProxies, true).unwrap();
    let names: Vec<&str> = listed.iter().map(|item| item.name.as_str()).collect();
    assert!(names.contains(&"ip zoneward"), "{names:?}");
    let deleted = backend.cleanup(CleanupScope::AllProxies, false).unwrap();
    assert!(deleted.len() == listed.len() && deleted.iter().all(|item| item.error.is_none()), "{deleted:?}");
    assert!(backend.cleanup(CleanupScope::AllProxies, false).unwrap().is_empty());
    assert!(backend.trace(&[], &[]).is_err(), "no table is left");
}
