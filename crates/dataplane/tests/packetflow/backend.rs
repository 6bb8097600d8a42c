//! What a `NodeBackend` has to do, whatever its kernel: the same test on the fake kernel and on the real one.

use std::sync::{Arc, Mutex};

use dataplane::backend::{CleanupScope, NodeBackend, Reconciled};
use dataplane::nftables::apply::apply;
use dataplane::nftables::ir::NftChange;
use dataplane::nftables::render::table_id;
use dataplane::nftables::{Kernel, NftablesBackend};
use model::Family;

use super::any_backend::{assert_traced, empty_and_refill};
use super::case::scenarios;

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
        assert_eq!(backend.has_services().unwrap(), scenario.table.services().next().is_some());
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
