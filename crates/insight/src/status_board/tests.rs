//! The budget of evaluations: which Services use it, and when nothing is left.

use fixtures::{node, object};
use serde_json::json;

use super::*;

/// Headless Services, then one that nodes proxy.
fn snapshot(headless: usize) -> Snapshot {
    let mut snapshot = fixtures::snapshot([node("n", "a")]);
    let services = (0..headless).map(|number| (format!("a-{number:03}"), "None"));
    for (name, ip) in services.chain([("web".to_owned(), "10.0.0.1")]) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "d"},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}]}});
        snapshot.apply(object(&service));
    }
    snapshot
}

#[test]
fn services_that_nodes_do_not_proxy_use_the_budget_once() {
    let (snapshot, rows) = (snapshot(25), BTreeMap::new());
    let web = ServiceKey::new(&"d".into(), &"web".into());
    let mut evaluations = Evaluations::new(plan::PlanningConfig::without_flags());
    let left: Vec<usize> = (0..4).map(|_| evaluations.refresh(&snapshot, &rows, None, 10)).collect();
    assert_eq!(left, [16, 6, 0, 0]);
    assert!(evaluations.get(&web).is_some());
    evaluations.forget(&web);
    assert!(evaluations.get(&web).is_none());
    assert_eq!(evaluations.refresh(&snapshot, &rows, None, 10), 0);
    assert!(evaluations.get(&web).is_some());
}
