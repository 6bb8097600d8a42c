//! Tests of what the layout promises by itself; packets are tested in tests/packetflow*.rs.

use std::collections::{BTreeMap, BTreeSet};

use super::chain_class::{Ending, Role};
use super::*;
use crate::nftables::ir::{Expr, NftName, NftVerdict};

/// Classes of all kinds, with slots and seconds at the edges of what fits.
fn classes() -> Vec<ChainClass> {
    let mut endings = vec![Ending::Reject, Ending::Drop];
    endings.extend([1, 2, 255, 256, 16_383, 65_536, (1 << 26) - 1].map(Ending::Send));
    for slots in [1, 2, 255, 256] {
        endings.extend([1, 59, 60, 10_800, 86_400].map(|seconds| Ending::Sticky(slots, seconds)));
    }
    for slots in [257, 258, 16_383] {
        endings.extend([60, 120, 10_800, 86_400].map(|seconds| Ending::Sticky(slots, seconds)));
    }
    let mut classes = Vec::new();
    for lookup in FrontendLookup::ALL {
        for role in [Role::ClusterIp, Role::External, Role::ExternalLocal, Role::Inside] {
            for restricted in [false, true] {
                classes.extend(endings.iter().map(|ending| ChainClass {
                    lookup,
                    role,
                    restricted,
                    ending: *ending,
                }));
            }
        }
    }
    classes
}

#[test]
fn no_two_classes_have_the_same_number() {
    let classes = classes();
    let numbers: BTreeSet<u32> = classes.iter().map(ChainClass::value).collect();
    assert_eq!(numbers.len(), classes.len());
}

#[test]
fn classes_that_share_a_chain_differ_in_nothing_that_it_does() {
    let node = NodeRules::default();
    let sizes = SetSizes::default();
    let rules_of = Rules { node: &node, sizes: &sizes, family: Family::V4 };
    let mut rules_by_chain: BTreeMap<NftName, Vec<NftRule>> = BTreeMap::new();
    for class in classes() {
        // A cluster IP is never found by a node port.
        let Some(chain) = class
            .chain()
            .filter(|_| class.lookup == FrontendLookup::Address || class.role != Role::ClusterIp)
        else {
            continue;
        };
        let rules = rules_of.class(&class);
        assert_eq!(*rules_by_chain.entry(chain.clone()).or_insert_with(|| rules.clone()), rules, "{chain}");
    }
}

/// A packet that meets a commit may find its class, but no endpoint behind the slot.
#[test]
fn no_chain_of_a_class_passes_a_packet_on() {
    let (node, sizes) = (NodeRules::default(), SetSizes::default());
    let rules_of = Rules { node: &node, sizes: &sizes, family: Family::V4 };
    for class in classes() {
        let last = rules_of.class(&class).pop().expect("a chain has rules");
        let ends = matches!(&last.exprs[..], [Expr::Verdict(NftVerdict::Drop | NftVerdict::Goto(_))]);
        assert!(ends, "{class:?}: {last:?}");
    }
}

#[test]
fn rules_use_only_sets_that_are_there_and_registers_that_exist() {
    let node = NodeRules::default();
    let sizes = SetSizes::default();
    for family in FAMILIES {
        let table = base_table(&node, &sizes, family);
        let rules_of = Rules { node: &node, sizes: &sizes, family };
        let of_classes = classes().into_iter().flat_map(|class| rules_of.class(&class));
        let rules = table.chains.values().flat_map(|chain| chain.rules.clone()).chain(of_classes);
        for expr in rules.flat_map(|rule| rule.exprs) {
            match &expr {
                Expr::Lookup { set, .. }
                | Expr::LookupMap { set, .. }
                | Expr::LookupVerdict { set, .. }
                | Expr::Dynset { set, .. } => assert!(table.sets.contains_key(set), "{set}"),
                Expr::Payload { dreg, len, .. } => assert!(usize::from(dreg.0) + *len as usize / 4 <= 16),
                _ => {}
            }
        }
    }
}

#[test]
fn names_say_what_a_set_is_and_how_large() {
    let mut sizes = SetSizes::default();
    let endpoints = SetName::Endpoints(FrontendLookup::NodePort, ClientScope::Inside);
    assert_eq!(sizes.name(Family::V4, endpoints), "node-port-endpoints-inside-1k");
    sizes.make_room(Family::V4, endpoints, 100_000);
    assert_eq!(sizes.name(Family::V4, endpoints), "node-port-endpoints-inside-256k");
    assert_eq!(sizes.name(Family::V6, endpoints), "node-port-endpoints-inside-1k");
    assert!(sizes.fits(Family::V4, endpoints, 262_144) && !sizes.fits(Family::V4, endpoints, 262_145));
    let names: BTreeSet<&str> = SetName::all().iter().map(|set| set.stem()).collect();
    assert_eq!(names.len(), SetName::all().len());
}

#[test]
fn unequal_shares_of_a_few_endpoints_keep_the_seconds_of_affinity() {
    let endings = [256, 257].map(|slots| Ending::Sticky(slots - 1, 7).with(slots));
    assert_eq!(endings, [Ending::Sticky(256, 7), Ending::Sticky(257, 60)]);
}
