//! kube-proxy comes back over the chains of our mode iptables, and cleans them up: what it leaves is removed, and nothing
//! of kube-proxy's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use dataplane::backend::{CleanupScope, NodeBackend};
use dataplane::iptables::IptablesBackend;
use dataplane::iptables::fake::FakeIptables;
use dataplane::iptables::names::{OWNER, is_service_chain};
use dataplane::iptables::render::KernelFeatures;
use dataplane::iptables::ruleset::IptablesRuleset;
use model::forward::{ForwardingMode, NodeRules};
use model::{Family, ForwardingTable};

fn recorded(file: &str) -> IptablesRuleset {
    let path = format!("{}/tests/kube_proxy_back/{file}", env!("CARGO_MANIFEST_DIR"));
    IptablesRuleset::parse(Family::V4, &std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A node with recorded rules, and a backend for them.
fn node(file: &str) -> (Arc<Mutex<FakeIptables>>, IptablesBackend) {
    let rules = [recorded(file), IptablesRuleset::new(Family::V6)];
    let fake = Arc::new(Mutex::new(FakeIptables::with_rules(rules)));
    let backend = IptablesBackend::new(Box::new(fake.clone()), KernelFeatures::default());
    (fake, backend)
}

/// Chains of a table, without the built-in ones.
fn chains(rules: &IptablesRuleset, table: &str) -> BTreeSet<String> {
    let chains = rules.tables[table].chains.iter().filter(|(_, chain)| chain.policy.is_none());
    chains.map(|(name, _)| name.to_string()).collect()
}

/// Those of Services in filter, where kube-proxy has none.
fn trees(rules: &IptablesRuleset) -> BTreeSet<String> {
    chains(rules, "filter").into_iter().filter(|chain| is_service_chain(chain)).collect()
}

#[test]
fn kube_proxy_takes_the_chains_over_and_leaves_trees_that_nothing_refers_to() {
    let rules = recorded("started.save");
    assert!(!chains(&rules, "nat").contains(OWNER), "they are kube-proxy's then");
    assert!(chains(&rules, "nat").iter().all(|chain| !chain.starts_with("KUBE-SVC-IP-")));
    let trees = trees(&rules);
    assert!(!trees.is_empty());
    let mut others =
        rules.tables["filter"].chains.iter().filter(|(name, _)| !trees.contains(&name.to_string()));
    let mut targets =
        others.by_ref().flat_map(|(_, chain)| chain.rules.iter().filter_map(|rule| rule.chain()));
    assert!(!targets.any(|target| trees.contains(target)), "no packet meets them");
}

#[test]
fn cleanup_removes_the_trees_and_leaves_the_rules_of_kube_proxy() {
    let (fake, mut backend) = node("started.save");
    let before = recorded("started.save");
    let removed = backend.cleanup(CleanupScope::Zoneward, false).unwrap();
    let removed: BTreeSet<String> = removed.into_iter().map(|item| item.name).collect();
    let expected = trees(&before).into_iter().map(|chain| format!("IPv4 filter {chain}")).collect();
    assert_eq!(removed, expected);
    let mut wanted = before.clone();
    let trees = trees(&before);
    let filter = wanted.tables.get_mut("filter").unwrap();
    filter.chains.retain(|name, _| !trees.contains(&name.to_string()));
    assert_eq!(fake.lock().unwrap().ruleset(Family::V4).to_save(false), wanted.to_save(false));
}

#[test]
fn after_cleanup_by_kube_proxy_ours_leaves_nothing() {
    let (fake, mut backend) = node("cleaned-up.save");
    assert!(!trees(&recorded("cleaned-up.save")).is_empty());
    backend.cleanup(CleanupScope::Zoneward, false).unwrap();
    let rules = fake.lock().unwrap().ruleset(Family::V4).clone();
    for table in ["nat", "mangle"] {
        assert_eq!(chains(&rules, table), BTreeSet::new(), "{table}");
    }
    assert_eq!(chains(&rules, "filter"), BTreeSet::from(["KUBE-FIREWALL".to_owned()]), "the kubelet's");
}

#[test]
fn ours_takes_the_chains_back() {
    let (fake, mut backend) = node("started.save");
    let node = NodeRules { mode: ForwardingMode::Iptables, ..NodeRules::default() };
    backend.load(&ForwardingTable::new(node.clone())).unwrap();
    let (fresh, mut other) = {
        let rules = [IptablesRuleset::new(Family::V4), IptablesRuleset::new(Family::V6)];
        let fake = Arc::new(Mutex::new(FakeIptables::with_rules(rules)));
        let backend = IptablesBackend::new(Box::new(fake.clone()), KernelFeatures::default());
        (fake, backend)
    };
    other.load(&ForwardingTable::new(node)).unwrap();
    for table in ["nat", "filter", "mangle"] {
        let of = |fake: &Arc<Mutex<FakeIptables>>| chains(fake.lock().unwrap().ruleset(Family::V4), table);
        assert_eq!(of(&fake), of(&fresh), "{table}: as on a node without kube-proxy");
    }
}
