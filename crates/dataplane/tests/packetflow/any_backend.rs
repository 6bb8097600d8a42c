//! What is expected of every `NodeBackend`.

use dataplane::backend::{NodeBackend, TracedVerdict};
use model::ForwardingTable;
use model::forward::PacketVerdict;

use super::case::Scenario;

/// Every packet of the case fares as the table decides.
pub(crate) fn assert_traced(backend: &mut dyn NodeBackend, scenario: &Scenario) {
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
pub(crate) fn empty_and_refill(backend: &mut dyn NodeBackend, table: &ForwardingTable) {
    let gone: Vec<_> = table.services().map(|(_, frontends)| (frontends, &[][..])).collect();
    backend.change(&ForwardingTable::new(table.node.clone()), &gone).unwrap();
    assert!(!backend.has_services().unwrap());
    let added: Vec<_> = table.services().map(|(_, frontends)| (&[][..], frontends)).collect();
    backend.change(table, &added).unwrap();
    while backend.maintain().unwrap() {}
}
