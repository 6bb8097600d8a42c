//! What a `NodeBackend` has to do over iptables, whatever its kernel: the same test on the fake and on both real flavours.

use std::sync::{Arc, Mutex};

use dataplane::backend::{CleanupScope, NodeBackend, Reconciled, TracedVerdict};
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::commands::IptablesCommands;
use dataplane::iptables::render::KernelFeatures;
use model::Family;

use super::any_backend::{assert_traced, empty_and_refill};
use super::case::scenarios_of;

/// The verdict of a case.
pub(crate) fn verdict(word: &str) -> TracedVerdict {
    match word {
        "DNAT" => TracedVerdict::Dnat,
        "REJECT" => TracedVerdict::Reject,
        "DROP" => TracedVerdict::Drop,
        "ACCEPT" => TracedVerdict::Accept,
        other => panic!("unknown verdict {other}"),
    }
}

pub(crate) fn loads_changes_repairs_traces_and_cleans_up(commands: impl IptablesCommands + Send + 'static) {
    let commands = Arc::new(Mutex::new(commands));
    let mut other = commands.clone();
    let mut backend = IptablesBackend::probe(Box::new(commands), KernelFeatures::default());
    for (number, scenario) in scenarios_of("iptables").iter().enumerate().step_by(3) {
        let loaded = backend.load(&scenario.table).unwrap();
        assert_eq!(loaded.is_initial, number == 0, "{}", scenario.id);
        assert_traced(&mut backend, scenario);
        assert_eq!(
            backend.load(&scenario.table).unwrap().transactions,
            0,
            "{}: it reads back equal",
            scenario.id
        );
        assert_eq!(backend.reconcile(&scenario.table).unwrap(), Reconciled::default());
        let flush = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
        other.restore(Family::V4, flush).unwrap();
        let repaired = backend.reconcile(&scenario.table).unwrap();
        assert!(repaired.transactions > 0 && !repaired.is_initial, "{}: {repaired:?}", scenario.id);
        assert_eq!(backend.reconcile(&scenario.table).unwrap(), Reconciled::default());
        empty_and_refill(&mut backend, &scenario.table);
        assert_traced(&mut backend, scenario);
        assert_eq!(backend.load(&scenario.table).unwrap().transactions, 0, "{}: changes add up", scenario.id);
    }
    let total: usize = backend.rule_counts().iter().map(|count| count.total).sum();
    assert!(total > 0);
    let listed = backend.cleanup(CleanupScope::Zoneward, true).unwrap();
    let names: Vec<&str> = listed.iter().map(|item| item.name.as_str()).collect();
    assert!(names.contains(&"IPv4 nat KUBE-SERVICES"), "{names:?}");
    let deleted = backend.cleanup(CleanupScope::Zoneward, false).unwrap();
    assert!(deleted.len() == listed.len() && deleted.iter().all(|item| item.error.is_none()), "{deleted:?}");
    assert!(backend.cleanup(CleanupScope::AllProxies, false).unwrap().is_empty());
    assert!(backend.trace(&[], &[]).is_err(), "no chain is left");
}
