//! nf_tables: what we send is what the kernel holds, and what nft prints.

use std::net::IpAddr;
use std::time::Instant;

use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{apply, check_support, initial_load_groups, load, read};
use dataplane::nftables::encode::Batch;
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::ir::{Comment, Data, Element, IntervalEncoding, KeyBuilder, NftChange, Ruleset};
use dataplane::nftables::{DumpRequest, Kernel};

use super::refusals;
use super::sample::{self, ip4, ip6};
use crate::namespace::{run, run_with};

fn open() -> NetlinkSocket {
    NetlinkSocket::open().unwrap()
}

fn read_ours(kernel: &mut dyn Kernel) -> Ruleset {
    let (program, problems) = read(kernel, &[sample::ip4(), sample::ip6()]).unwrap();
    assert_eq!(problems, []);
    program
}

/// Compares two programs piece by piece, so that a failure can be read.
fn assert_same(held: &Ruleset, wanted: &Ruleset) {
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

/// In an empty kernel and beside tables of the same names; the fake does as the kernel does.
#[test]
fn checking_for_support_changes_nothing() {
    toolbox::in_own_namespaces!();
    let program = sample::program();
    let mut kernels: [Box<dyn Kernel>; 2] = [Box::new(open()), Box::new(FakeKernel::new())];
    for kernel in &mut kernels {
        let kernel = &mut **kernel;
        let generation = kernel.generation().unwrap();
        check_support(kernel, &program).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(kernel.generation().unwrap(), generation);
        assert!(read_ours(kernel).tables.is_empty());
        load(kernel, initial_load_groups(&program)).unwrap();
        let generation = kernel.generation().unwrap();
        check_support(kernel, &program).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(kernel.generation().unwrap(), generation);
        assert_same(&read_ours(kernel), &program);
        // A rule that uses a set which is not there.
        let mut broken = program.clone();
        broken.tables.values_mut().for_each(|table| table.sets.clear());
        let error = check_support(kernel, &broken).unwrap_err();
        assert!(error.change.is_some(), "{error}");
        assert_same(&read_ours(kernel), &program);
    }
}

#[test]
fn kernel_holds_what_was_sent() {
    toolbox::in_own_namespaces!();
    let mut kernel = open();
    let program = sample::program();
    load(&mut kernel, initial_load_groups(&program)).unwrap_or_else(|error| panic!("{error}"));
    assert_same(&read_ours(&mut kernel), &program);
}

#[test]
fn nft_lists_what_was_sent_and_reads_its_listing_again() {
    toolbox::in_own_namespaces!();
    let mut kernel = open();
    load(&mut kernel, initial_load_groups(&sample::program())).unwrap();
    let listing = run("nft", &["list", "ruleset"]);
    run("nft", &["flush", "ruleset"]);
    run_with("nft", &["-f", "-"], &listing);
    assert_eq!(run("nft", &["list", "ruleset"]), listing);
    let chain = run("nft", &["list", "chain", "ip", "zoneward", "filter-forward"]);
    let rules: Vec<&str> = chain.lines().filter_map(|line| line.strip_prefix("\t\t")).collect();
    expect_test::expect![[r#"
        comment "where packets come in"
        type filter hook forward priority filter; policy accept;
        ct state new counter packets 0 bytes 0 comment "only new connections"
        ip daddr . meta l4proto . th dport . ip saddr != @allowed-sources drop comment "sources that may"
        update @affinity { meta mark . ip saddr timeout 1m : ct mark } comment "who went where"
        delete @affinity { meta mark . ip saddr : ct mark } comment "who is gone"
        ip daddr @service-cidrs reject comment "no such Service"
        iifname @pod-bridges accept comment "from pods"
        tcp dport 30000-32767 reject with tcp reset comment "node ports without Service"
        ct original ip daddr 172.30.0.1 counter packets 0 bytes 0 comment "what was asked for"
    "#]]
    .assert_eq(&(rules.join("\n") + "\n"));
}

#[test]
fn kernel_refuses_what_the_fake_refuses() {
    toolbox::in_own_namespaces!();
    let mut kernel = open();
    load(&mut kernel, initial_load_groups(&sample::program())).unwrap();
    for (what, changes, errno) in refusals::all() {
        let error = apply(&mut kernel, &changes).unwrap_err();
        assert_eq!(error.cause.errno(), Some(errno), "{what}: {error}");
    }
    assert_same(&read_ours(&mut kernel), &sample::program());
}

/// What others have, in forms that we do not use ourselves.
const FOREIGN: &str = r#"
table inet firewall {
    set blocked {
        type ether_addr . ipv4_addr
        flags interval
    }
    counter seen {
    }
    chain in {
        type filter hook input priority 10; policy accept;
        iifname "eth0" tcp flags & (fin | syn) == fin | syn counter name "seen" log prefix "odd: " limit rate 5/second drop
    }
}
table ip zoneward-of-someone-else {
    chain services {
        ip daddr 172.30.0.1 accept
    }
}
table netdev ingress {
}
"#;

#[test]
fn foreign_tables_stay_untouched() {
    toolbox::in_own_namespaces!();
    run_with("nft", &["-f", "-"], FOREIGN);
    let foreign = run("nft", &["list", "ruleset"]);
    let mut kernel = open();
    load(&mut kernel, initial_load_groups(&sample::program())).unwrap();
    assert_same(&read_ours(&mut kernel), &sample::program());
    let delete = [ip4(), ip6()].map(|table| NftChange::DeleteTable { table });
    apply(&mut kernel, &delete).unwrap();
    assert_eq!(run("nft", &["list", "ruleset"]), foreign);
}

/// The sample with so many Services of two endpoints each.
fn many(services: u32) -> Ruleset {
    let mut program = sample::program();
    let table = program.tables.get_mut(&ip4()).unwrap();
    for name in ["frontends", "endpoints"] {
        table.sets.get_mut(name).unwrap().spec.size = Some(services * 4);
    }
    for number in 0..services {
        let vip = IpAddr::from((0xac1f_0000 + number).to_be_bytes());
        let comment = Comment::new(&format!("ns/service-{number}:http"));
        let frontend = || KeyBuilder::new().address(vip).protocol(6).port(80);
        let mut insert = |set: &str, element: Element| {
            let element = element.with_comment(&comment);
            table.sets.get_mut(set).unwrap().elements.insert(element.key, element.value);
        };
        insert(
            "frontends",
            Element::entry(frontend().bytes(), Data::Value(KeyBuilder::new().mark(2).bytes())),
        );
        for index in 0..2 {
            let endpoint = IpAddr::from((0x0a00_0000 + number * 2 + index).to_be_bytes());
            let data = KeyBuilder::new().address(endpoint).port(8080).bytes();
            insert("endpoints", Element::entry(frontend().index(index).bytes(), Data::Value(data)));
        }
    }
    program
}

/// A socket whose buffer is as small as a user namespace's by default.
struct Narrow(NetlinkSocket);

impl Kernel for Narrow {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        assert!(batch.len() <= self.longest_batch(), "{} bytes", batch.len());
        self.0.transact(batch)
    }
    fn dump(&mut self, query: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        self.0.dump(query)
    }
    fn generation(&mut self) -> Result<u32, NetlinkError> {
        self.0.generation()
    }
    fn longest_batch(&self) -> usize {
        212_960
    }
}

#[test]
fn large_load_is_split_to_fit_the_buffers() {
    toolbox::in_own_namespaces!();
    let program = many(10_000);
    let limit = open().longest_batch();
    for mut kernel in [Box::new(open()) as Box<dyn Kernel>, Box::new(Narrow(open()))] {
        let start = Instant::now();
        let transactions =
            load(&mut *kernel, initial_load_groups(&program)).unwrap_or_else(|error| panic!("{error}"));
        println!(
            "30,000 elements: {transactions} transactions, {:?}; the socket takes {limit}",
            start.elapsed()
        );
        assert!(transactions > 1 || limit > 1 << 20);
        assert_same(&read_ours(&mut *kernel), &program);
        run("nft", &["flush", "ruleset"]);
    }
}

/// One byte more than the socket says, and one that just fits: the limit is the kernel's.
#[test]
fn longest_batch_is_the_kernels_own_limit() {
    toolbox::in_own_namespaces!();
    let mut kernel = open();
    let limit = kernel.longest_batch();
    // Messages that no kernel knows fill the batch; whether they are refused does not matter, only whether they go out.
    let padding = |len: usize| {
        let mut batch = Batch::of(&[NftChange::AddTable { table: ip4(), comment: None }], 1).bytes().to_vec();
        batch.resize(len, 0);
        batch
    };
    let fits = kernel.transact(&padding(limit));
    assert!(!matches!(fits, Err(NetlinkError::TooLong { .. })), "{fits:?}");
    assert!(matches!(kernel.transact(&padding(limit + 1)), Err(NetlinkError::TooLong { .. })));
}

/// Random elements come and go, on the real kernel and on the fake; all three stay the same.
#[test]
fn changes_one_by_one_leave_what_a_fresh_start_leaves() {
    toolbox::in_own_namespaces!();
    let (mut kernel, mut fake) = (open(), FakeKernel::new());
    let mut program = sample::program();
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    load(&mut fake, initial_load_groups(&program)).unwrap();
    let mut seed = 7u32;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    for _ in 0..300 {
        let (table, set) = (ip4(), arcstr::literal!("frontends"));
        let vip = IpAddr::from((0xac1f_0000 + random(20)).to_be_bytes());
        let key = KeyBuilder::new().address(vip).protocol(17).port(53).bytes();
        let element = Element::entry(key.clone(), Data::Value(KeyBuilder::new().mark(random(3)).bytes()));
        let elements = &mut program.tables.get_mut(&table).unwrap().sets.get_mut(&set).unwrap().elements;
        let mut changes = Vec::new();
        let ranges = IntervalEncoding::None;
        if elements.remove(&key).is_some() {
            let gone = vec![Element::member(key.clone())];
            changes.push(NftChange::DeleteElements {
                table: table.clone(),
                set: set.clone(),
                ranges,
                elements: gone,
            });
        }
        if random(3) > 0 {
            elements.insert(key, element.value.clone());
            let new = vec![element];
            changes.push(NftChange::AddElements { table, set, ranges, elements: new });
        }
        apply(&mut kernel, &changes).unwrap();
        apply(&mut fake, &changes).unwrap();
    }
    assert_same(&read_ours(&mut kernel), &program);
    assert_same(fake.ruleset(), &program);
}
