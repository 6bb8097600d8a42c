//! Any sequence of changes leaves what a fresh start would make.

use crate::packetflow::node;
use crate::packetflow::world;
use std::collections::BTreeSet;

use dataplane::nftables::apply::{apply_diff_at_once, initial_load_groups, load, read_and_compare};
use dataplane::nftables::diff::diff;
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::ir::{
    Chain, Expr, IntervalEncoding, NftChange, NftVerdict, RulePosition, Ruleset, Set, Table,
};
use dataplane::nftables::render::{RenderedChange, Renderer, render, render_to_compare, table_id};
use model::{Family, ServiceKey, Snapshot};
use plan::forward::{NodeConfig, table};
use proptest::prelude::*;

use node::Node;
use world::{Spec, World};

/// What a kernel would make of the changes, with its refusals as panics.
fn apply(program: &mut Ruleset, changes: &[NftChange]) {
    for change in changes {
        apply_one(program, change);
    }
}

fn apply_one(program: &mut Ruleset, change: &NftChange) {
    match change {
        NftChange::AddTable { table, comment } => {
            program
                .tables
                .entry(table.clone())
                .or_insert_with(|| Table { comment: comment.clone(), ..Table::default() });
        }
        NftChange::DeleteTable { table } => drop(program.tables.remove(table).expect("the table is there")),
        NftChange::AddChain { table, chain, spec } => {
            let chains = &mut program.tables.get_mut(table).expect("a table").chains;
            let found =
                chains.entry(chain.clone()).or_insert_with(|| Chain { spec: spec.clone(), rules: vec![] });
            assert_eq!(found.spec, *spec);
        }
        NftChange::FlushChain { table, chain } => {
            let chains = &mut program.tables.get_mut(table).expect("a table").chains;
            chains.get_mut(chain).expect("a chain").rules.clear();
        }
        NftChange::DeleteChain { table, chain } => {
            let table = program.tables.get_mut(table).expect("a table");
            assert!(!ways(table).contains(chain.as_str()), "{chain} is still in use");
            table.chains.remove(chain).expect("the chain is there");
        }
        NftChange::AddSet { table, set, spec } => {
            let sets = &mut program.tables.get_mut(table).expect("a table").sets;
            assert!(sets.insert(set.clone(), Set::empty(spec.clone())).is_none());
        }
        NftChange::FlushSet { table, set } => {
            let sets = &mut program.tables.get_mut(table).expect("a table").sets;
            sets.get_mut(set).expect("a set").elements.clear();
        }
        NftChange::DeleteSet { table, set } => {
            drop(program.tables.get_mut(table).expect("a table").sets.remove(set).expect("the set is there"));
        }
        NftChange::AddElements { table, set, elements, ranges } => {
            let set = program.tables.get_mut(table).expect("a table").sets.get_mut(set).expect("a set");
            assert_eq!(set.spec.ranges(), *ranges);
            for element in elements {
                let old = set.elements.insert(element.key.clone(), element.value.clone());
                assert!(old.is_none(), "an element twice");
            }
            assert!(set.spec.size.is_none_or(|size| set.elements.len() <= size as usize), "too many");
        }
        NftChange::DeleteElements { table, set, elements, .. } => {
            let set = program.tables.get_mut(table).expect("a table").sets.get_mut(set).expect("a set");
            for element in elements {
                assert_eq!(set.elements.remove(&element.key), Some(element.value.clone()));
            }
        }
        NftChange::AddRule { table, chain, rule, position } => {
            assert_eq!(*position, RulePosition::Last);
            let chains = &mut program.tables.get_mut(table).expect("a table").chains;
            chains.get_mut(chain).expect("a chain").rules.push(rule.clone());
        }
        NftChange::ReplaceRule { .. } | NftChange::DeleteRule { .. } => {
            panic!("only where handles are known")
        }
    }
}

/// Every chain that something leads to.
fn ways(table: &Table) -> BTreeSet<String> {
    use dataplane::nftables::ir::Data;
    let rules = table.chains.values().flat_map(|c| &c.rules).flat_map(|r| &r.exprs);
    let by_rule = rules.filter_map(|e| if let Expr::Verdict(v) = e { Some(v) } else { None });
    let values = table.sets.values().flat_map(|s| s.elements.values());
    let by_element = values.filter_map(|v| if let Some(Data::Verdict(v)) = &v.data { Some(v) } else { None });
    let targets = by_rule.chain(by_element).filter_map(|v| match v {
        NftVerdict::Jump(name) | NftVerdict::Goto(name) => Some(name.to_string()),
        _ => None,
    });
    targets.collect()
}

fn loaded(program: &Ruleset) -> Ruleset {
    let mut kernel = Ruleset::default();
    let difference = diff(&Ruleset::default(), program);
    assert!(difference.later.is_empty());
    apply(&mut kernel, &difference.now);
    kernel
}

/// A node, and the kernel as it would be.
struct Machine {
    node: Node,
    kernel: Ruleset,
}

impl Machine {
    fn start(world: &World) -> Machine {
        let (node, program) = Node::start(&world.snapshot(), world.config());
        Machine { node, kernel: loaded(&program) }
    }

    fn sync(&mut self, key: &ServiceKey, snapshot: &Snapshot) {
        match self.node.sync(key, snapshot) {
            RenderedChange::Changes(changes) => apply(&mut self.kernel, &changes),
            RenderedChange::Outgrown => {
                assert!(!self.kernel.tables.contains_key(&table_id(Family::V6)), "small sets do not grow");
                let difference = diff(&self.kernel, &self.node.whole());
                apply(&mut self.kernel, &difference.now);
                apply(&mut self.kernel, &difference.later);
            }
        }
    }

    fn sweep(&mut self) {
        for _ in 0..3 {
            let changes = self.node.renderer.maintenance();
            apply(&mut self.kernel, &changes);
        }
        assert_eq!(self.node.renderer.maintenance(), [], "nothing is left to do");
    }

    fn check(&self, world: &World) {
        let (fresh, _) = table(&world.snapshot(), self.node.config());
        assert_eq!(*self.node.table(), fresh);
        assert_eq!(self.kernel, render(&fresh, self.node.renderer.sizes()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_read_beside_the_wanted_is_what_differs(mut old in world::world(), mut new in world::world()) {
        // The ranges of both families are known, so that either program has both tables.
        (old.settings.gates.service_cidrs, new.settings.gates.service_cidrs) = (true, true);
        let [old, wanted] = [old, new].map(|world| table(&world.snapshot(), &world.config()).0);
        let (old, new) = (Renderer::start(&old).1, Renderer::start(&wanted).1);
        let ids: Vec<_> = new.tables.keys().cloned().collect();
        let mut kernel = FakeKernel::new();
        let empty = read_and_compare(&mut kernel, &ids, &mut || panic!("nothing to compare with")).unwrap();
        prop_assert!(empty.held.tables.is_empty());
        load(&mut kernel, initial_load_groups(&old)).unwrap();
        let same = read_and_compare(&mut kernel, &ids, &mut || old.clone().into()).unwrap();
        prop_assert!(diff(&same.held, &same.wanted).is_empty());
        let left = |program: &Ruleset| {
            let sets = program.tables.values().flat_map(|table| table.sets.values());
            sets.filter(|set| set.spec.ranges() == IntervalEncoding::None).map(|set| set.elements.len()).sum::<usize>()
        };
        prop_assert_eq!((left(&same.held), left(&same.wanted)), (0, 0), "what is the same is not held");
        let beside = read_and_compare(&mut kernel, &ids, &mut || new.clone().into()).unwrap();
        let packed = &mut || render_to_compare(&mut Renderer::new(&wanted), &wanted);
        let packed = read_and_compare(&mut kernel, &ids, packed).unwrap();
        prop_assert!(packed.held == beside.held && packed.wanted == beside.wanted, "packed elements differ");
        prop_assert!(beside.problems.is_empty());
        prop_assert!(apply_diff_at_once(&mut kernel, &beside.held, &beside.wanted).unwrap().is_some());
        prop_assert!(*kernel.ruleset() == new);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_one_by_one_leave_what_a_fresh_start_would_make(
        mut world in world::world(),
        edits in proptest::collection::vec((world::spec(), any::<bool>()), 1..6),
    ) {
        let mut machine = Machine::start(&world);
        for (spec, stays) in edits {
            let name = Spec::name(&spec);
            world.services.retain(|s| s.name() != name);
            if stays {
                world.services.push(spec);
            }
            let key = ServiceKey::new(&"ns".into(), &name.as_str().into());
            machine.sync(&key, &world.snapshot());
            machine.sweep();
            machine.check(&world);
        }
    }

    #[test]
    fn a_difference_applied_gives_the_other_program(old in world::world(), new in world::world()) {
        let program = |world: &World| Renderer::start(&table(&world.snapshot(), &world.config()).0).1;
        let (old, new) = (program(&old), program(&new));
        let mut kernel = loaded(&old);
        prop_assert_eq!(&kernel, &old);
        let difference = diff(&old, &new);
        apply(&mut kernel, &difference.now);
        apply(&mut kernel, &difference.later);
        prop_assert_eq!(kernel, new);
        prop_assert!(diff(&old, &old).is_empty());
    }
}

#[test]
fn a_set_that_outgrows_its_size_is_filled_beside_the_old_one() {
    let spec = |count: u16| {
        let endpoints: Vec<_> = (0..count)
            .map(|i| serde_json::json!({"addresses": [format!("10.2.{}.{}", i / 250, i % 250)]}))
            .collect();
        vec![
            serde_json::json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "big", "namespace": "ns"},
                "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80}]},
            }),
            fixtures::slice("ns", "big-1", "big", serde_json::json!({"name": "", "port": 80}), &endpoints),
        ]
    };
    let config = NodeConfig::without_flags("".into());
    let table_of = |count| {
        let snapshot = fixtures::snapshot(spec(count));
        table(&snapshot, &config).0
    };
    let (small, large) = (table_of(500), table_of(3000));
    let key = ServiceKey::new(&"ns".into(), &"big".into());
    let (mut renderer, program) = Renderer::start(&small);
    let mut kernel = loaded(&program);
    assert_eq!(renderer.change(&[(small.frontends(&key), large.frontends(&key))]), RenderedChange::Outgrown);
    let whole = renderer.render_all(&large);
    let difference = diff(&kernel, &whole);
    let names: Vec<String> = difference
        .later
        .iter()
        .map(|change| match change {
            NftChange::DeleteSet { set, .. } => set.to_string(),
            NftChange::DeleteChain { chain, .. } => chain.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["endpoints-1k", "cluster-ip-499", "cluster-ip-500", "cluster-ip-501"]);
    apply(&mut kernel, &difference.now);
    apply(&mut kernel, &difference.later);
    assert_eq!(kernel, whole);
    let table = kernel.tables.values().next().expect("a table");
    assert_eq!(table.sets["endpoints-8k"].elements.len(), 3000);
}
