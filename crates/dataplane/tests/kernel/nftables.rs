//! nf_tables: what we send is what the kernel holds, and what nft prints.

use dataplane::nftables::apply::{load, read};
use dataplane::nftables::ir::Program;
use dataplane::nftables::netlink::{Kernel, Socket};

use super::namespace::{run, run_with};
use super::sample;

pub(crate) const TESTS: &[super::Test] = &[
    ("kernel_holds_what_was_sent", kernel_holds_what_was_sent),
    (
        "nft_lists_what_was_sent_and_reads_its_listing_again",
        nft_lists_what_was_sent_and_reads_its_listing_again,
    ),
];

fn open() -> Socket {
    Socket::open().unwrap()
}

fn read_ours(kernel: &mut dyn Kernel) -> Program {
    let (program, problems) = read(kernel, &[sample::ip4(), sample::ip6()]).unwrap();
    assert_eq!(problems, []);
    program
}

/// Compares two programs piece by piece, so that a failure can be read.
fn assert_same(held: &Program, wanted: &Program) {
    for (id, table) in &wanted.tables {
        let other = held.tables.get(id).unwrap_or_else(|| panic!("{id} is missing"));
        for (name, chain) in &table.chains {
            assert_eq!(other.chains.get(name), Some(chain), "{id} {name}");
        }
        for (name, set) in &table.sets {
            assert_eq!(other.sets.get(name), Some(set), "{id} {name}");
        }
    }
    assert!(held == wanted, "there is more than was sent");
}

fn kernel_holds_what_was_sent() {
    let mut kernel = open();
    let program = sample::program();
    load(&mut kernel, &program).unwrap_or_else(|error| panic!("{error}"));
    assert_same(&read_ours(&mut kernel), &program);
}

fn nft_lists_what_was_sent_and_reads_its_listing_again() {
    let mut kernel = open();
    load(&mut kernel, &sample::program()).unwrap();
    let listing = run("nft", &["list", "ruleset"]);
    run("nft", &["flush", "ruleset"]);
    run_with("nft", &["-f", "-"], &listing);
    assert_eq!(run("nft", &["list", "ruleset"]), listing);
    let rules = run("nft", &["list", "chain", "ip", "zoneward", "filter-forward"]);
    println!("{rules}");
}
