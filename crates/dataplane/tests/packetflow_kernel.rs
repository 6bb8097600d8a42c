//! The rendered program on the real kernel: it loads, reads back equal, nft lists it, and the packets of the
//! packet-flow cases, sent for real between namespaces, fare as expected.

mod associations;
mod churn;
mod classes;
mod cluster;
mod counts;
mod large;
mod random;
mod trouble;

use crate::namespace;
use crate::packetflow::addresses;
use crate::packetflow::backend;
use crate::packetflow::case;
use crate::packetflow::connect;
use crate::packetflow::node;
use crate::packetflow::sctp;
use crate::packetflow::site;
use crate::packetflow::traffic;
use crate::packetflow::world;
use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply, initial_load_groups, load, read, read_and_compare};
use dataplane::nftables::diff::diff;
use dataplane::nftables::ir::Ruleset;
use dataplane::nftables::render::{Renderer, table_id};
use model::Family;

#[test]
fn backend_loads_changes_repairs_traces_and_cleans_up() {
    toolbox::in_own_namespaces!();
    backend::backend_loads_changes_repairs_traces_and_cleans_up(NetlinkSocket::open().unwrap());
}

#[test]
fn packets_sent_for_real_fare_as_the_cases_say() {
    toolbox::in_own_namespaces!();
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut before = Ruleset::default();
    traffic::packets_fare_as_the_cases_say(40, |scenario| {
        let (_, program) = Renderer::start(&scenario.table);
        if before.tables.is_empty() {
            load(&mut kernel, initial_load_groups(&program)).unwrap();
        } else {
            let difference = diff(&before, &program);
            apply(&mut kernel, &difference.now).unwrap();
            apply(&mut kernel, &difference.later).unwrap();
        }
        before = program;
    });
}

fn held(kernel: &mut NetlinkSocket) -> Ruleset {
    let (program, problems) = read(kernel, &[table_id(Family::V4), table_id(Family::V6)]).unwrap();
    assert_eq!(problems, []);
    program
}

fn assert_same(id: &str, held: &Ruleset, wanted: &Ruleset) {
    for (table, content) in &wanted.tables {
        let other = &held.tables[table];
        for (name, chain) in &content.chains {
            assert_eq!(other.chains.get(name), Some(chain), "{id}: {table} {name}");
        }
        for (name, set) in &content.sets {
            assert_eq!(other.sets.get(name), Some(set), "{id}: {table} {name}");
        }
    }
    assert!(held == wanted, "{id}: there is more than was sent");
}

#[test]
fn kernel_takes_every_program_and_gives_it_back() {
    toolbox::in_own_namespaces!();
    let mut kernel = NetlinkSocket::open().unwrap();
    let mut before = Ruleset::default();
    for (i, scenario) in case::scenarios().iter().enumerate() {
        let (_, program) = Renderer::start(&scenario.table);
        if i == 0 {
            load(&mut kernel, initial_load_groups(&program)).unwrap();
        } else {
            let difference = diff(&before, &program);
            apply(&mut kernel, &difference.now).unwrap();
            apply(&mut kernel, &difference.later).unwrap();
        }
        before = held(&mut kernel);
        assert_same(&scenario.id, &before, &program);
        assert!(diff(&before, &program).is_empty());
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let beside = read_and_compare(&mut kernel, &ours, &mut || program.clone().into()).unwrap();
        assert!(diff(&beside.held, &beside.wanted).is_empty(), "{}", scenario.id);
        let sets = [&beside.held, &beside.wanted]
            .into_iter()
            .flat_map(|p| p.tables.values())
            .flat_map(|t| t.sets.values());
        let plain = sets.filter(|set| set.spec.ranges() == dataplane::nftables::ir::IntervalEncoding::None);
        assert_eq!(plain.map(|set| set.elements.len()).sum::<usize>(), 0, "{}: all is the same", scenario.id);
    }
}

#[test]
fn nft_lists_everything_in_words_of_services() {
    toolbox::in_own_namespaces!();
    let mut kernel = NetlinkSocket::open().unwrap();
    let scenarios = case::scenarios();
    let scenario =
        scenarios.iter().find(|s| s.id.contains("masquerade")).expect("a case with three Services");
    load(&mut kernel, initial_load_groups(&Renderer::start(&scenario.table).1)).unwrap();
    let listing = namespace::run("nft", &["list", "ruleset"]);
    if std::env::var_os("ZONEWARD_SHOW").is_some() {
        println!("{listing}");
    }
    for words in
        ["ns1/svc1:p80", "ns2/svc2:p80", "masquerade fully-random", "map @endpoints-1k", "vmap @verdicts-1k"]
    {
        assert!(listing.contains(words), "{words} is missing in:\n{listing}");
    }
}
