//! The fake kernel behaves: it keeps what it is sent, refuses what the kernel refuses, and follows packets.

use crate::refusals;
use crate::sample;
use std::net::SocketAddr;

use dataplane::backend::TracedVerdict;
use dataplane::nfnetlink::NetlinkError;
use dataplane::nftables::Kernel;
use dataplane::nftables::apply::{apply, initial_load_groups, load, read};
use dataplane::nftables::fake::FakeKernel;
use dataplane::nftables::fake::{FaultyKernel, KernelFault};
use dataplane::nftables::ir::{
    ChainSpec, Comment, Data, Element, IntervalEncoding, KeyBuilder, NftChange, Ruleset,
};
use dataplane::nftables::trace::{NodeAddresses, TracedPacket};
use nix::errno::Errno;
use sample::{ip4, ip6};

fn loaded() -> FakeKernel {
    let mut kernel = FakeKernel::new();
    load(&mut kernel, initial_load_groups(&sample::program())).unwrap_or_else(|error| panic!("{error}"));
    kernel
}

fn ours(kernel: &mut dyn Kernel) -> Ruleset {
    let (program, problems) = read(kernel, &[ip4(), ip6()]).unwrap();
    assert_eq!(problems, []);
    program
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn packet(src: &str, dst: &str) -> TracedPacket {
    TracedPacket::new(6, address(src), address(dst))
}

fn frontend() -> KeyBuilder {
    KeyBuilder::new().address("172.30.0.1".parse().unwrap()).protocol(6).port(80)
}

fn refused(kernel: &mut dyn Kernel, changes: &[NftChange]) -> (Errno, String) {
    let error = apply(kernel, changes).unwrap_err();
    (error.cause.errno().unwrap(), error.to_string())
}

#[test]
fn it_holds_what_it_was_sent_and_shows_it_again() {
    let mut kernel = loaded();
    assert!(*kernel.ruleset() == sample::program());
    assert!(ours(&mut kernel) == sample::program());
}

#[test]
fn packet_to_a_service_goes_to_each_endpoint_with_equal_chance() {
    let kernel = loaded();
    for (src, dst, endpoints) in [
        ("10.9.0.1:4000", "172.30.0.1:80", ["10.1.0.1:8080", "10.1.0.2:8080"]),
        ("[fd00:9::1]:4000", "[fd00:30::1]:80", ["[fd00:10::1]:8080", "[fd00:10::2]:8080"]),
    ] {
        // The sample lets only these sources through its forward chain, and remembers them.
        let answer = kernel.evaluate(&packet(src, dst), &NodeAddresses::default()).unwrap();
        assert_eq!(
            answer.verdict,
            TracedVerdict::Drop,
            "the sample's source ranges look after DNAT, so nothing passes"
        );
        let tried: Vec<SocketAddr> = answer.paths.iter().map(|path| path.destination).collect();
        assert_eq!(tried, endpoints.map(address));
        assert!(answer.paths.iter().all(|path| path.weight == 0.5));
    }
}

#[test]
fn steps_name_rules_and_the_service_of_the_elements_found() {
    let kernel = loaded();
    let answer =
        kernel.evaluate(&packet("10.9.0.1:4000", "172.30.0.1:80"), &NodeAddresses::default()).unwrap();
    let lines: Vec<String> = answer.paths[0]
        .steps
        .iter()
        .map(|step| {
            let rule = step.rule.as_ref().map_or("", |comment| comment.as_str());
            let found: Vec<&str> =
                step.found.iter().filter_map(|(_, comment)| comment.as_ref()).map(Comment::as_str).collect();
            format!("{:?} {} {rule}: {} [{}]", step.hook, step.chain, step.did, found.join(" "))
        })
        .collect();
    expect_test::expect![[r#"
        Prerouting nat-prerouting all that comes in: jump to services []
        Prerouting services which Service: mark 0x102 [default/web:http]
        Prerouting services how many endpoints: go to n-2 []
        Prerouting n-2 one of two, by chance: dnat to 10.1.0.1:8080 [default/web:http]
        Forward filter-forward only new connections:  []
        Forward filter-forward sources that may: drop []"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn packet_for_the_node_itself_meets_input_and_not_forward() {
    let kernel = loaded();
    let node = NodeAddresses { addresses: vec!["192.168.0.1".parse().unwrap()] };
    let answer = kernel.evaluate(&packet("10.9.0.1:4000", "192.168.0.1:22"), &node).unwrap();
    assert_eq!(answer.verdict, TracedVerdict::Untouched);
    assert!(answer.paths[0].steps.iter().any(|step| step.did == "return"));
}

#[test]
fn established_packet_is_not_translated() {
    let kernel = loaded();
    let established = TracedPacket { established: true, ..packet("10.9.0.1:4000", "172.30.0.1:80") };
    let answer = kernel.evaluate(&established, &NodeAddresses::default()).unwrap();
    assert!(answer.endpoints.is_empty());
}

#[test]
fn marked_packet_is_masqueraded_unless_it_was_dropped() {
    let mut kernel = FakeKernel::new();
    let mut program = sample::program();
    program.tables.get_mut(&ip4()).unwrap().chains.remove("filter-forward");
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    let marked = TracedPacket { mark: 0x4000, ..packet("10.9.0.1:4000", "10.8.0.1:80") };
    let answer = kernel.evaluate(&marked, &NodeAddresses::default()).unwrap();
    assert!(answer.masquerade);
    assert_eq!(answer.verdict, TracedVerdict::Accept);
}

#[test]
fn what_rules_remember_is_seen_by_the_next_packet() {
    let mut kernel = FakeKernel::new();
    let mut program = sample::program();
    let forward = program.tables.get_mut(&ip4()).unwrap().chains.get_mut("filter-forward").unwrap();
    // Only the rule that remembers.
    forward.rules.retain(|rule| rule.comment == Some(Comment::new("who went where")));
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    let packet = packet("10.9.0.1:4000", "172.30.0.1:80");
    let answer = kernel.evaluate(&packet, &NodeAddresses::default()).unwrap();
    assert_eq!(answer.affinity, Some(60_000));
    assert!(kernel.ruleset().tables[&ip4()].sets["affinity"].elements.is_empty(), "asking changes nothing");
    kernel.send(&packet, &NodeAddresses::default(), |_| 1);
    let updates = &kernel.ruleset().tables[&ip4()].sets["affinity"].elements;
    let key = KeyBuilder::new().mark(0x102).address("10.9.0.1".parse().unwrap()).bytes();
    assert_eq!(updates.keys().cloned().collect::<Vec<_>>(), [key]);
}

#[test]
fn refused_change_is_named_and_nothing_of_its_transaction_is_done() {
    let mut kernel = loaded();
    let before = kernel.ruleset().clone();
    let table = ip4();
    let web = Element::entry(frontend().bytes(), Data::Value(KeyBuilder::new().mark(7).bytes()));
    let (errno, text) = refused(
        &mut kernel,
        &[
            NftChange::AddChain { table: table.clone(), chain: "new".into(), spec: ChainSpec::default() },
            NftChange::AddElements {
                table: table.clone(),
                set: "frontends".into(),
                ranges: IntervalEncoding::None,
                elements: vec![web.with_comment(&Comment::new("default/web:http"))],
            },
        ],
    );
    assert_eq!(errno, Errno::EEXIST);
    expect_test::expect!["cannot add 1 element (default/web:http) to ip zoneward frontends: EEXIST: File exists; it exists with other content: another program may have added it; the old rules stay in force"].assert_eq(&text);
    assert!(*kernel.ruleset() == before);
}

#[test]
fn element_with_other_data_is_replaced_within_one_transaction() {
    let mut kernel = loaded();
    let change =
        |mark: u32| Element::entry(frontend().bytes(), Data::Value(KeyBuilder::new().mark(mark).bytes()));
    let (table, set, ranges) = (ip4(), "frontends".into(), IntervalEncoding::None);
    let delete = NftChange::DeleteElements {
        table: table.clone(),
        set: arcstr::ArcStr::clone(&set),
        ranges,
        elements: vec![Element::member(frontend().bytes())],
    };
    let add =
        NftChange::AddElements { table: table.clone(), set: set.clone(), ranges, elements: vec![change(9)] };
    apply(&mut kernel, &[delete, add]).unwrap();
    let found = &kernel.ruleset().tables[&table].sets[&set].elements[&frontend().bytes()];
    assert_eq!(found.data, change(9).value.data);
}

#[test]
fn what_the_kernel_refuses_is_refused_with_its_numbers() {
    let mut kernel = loaded();
    for (what, changes, errno) in refusals::all() {
        assert_eq!(refused(&mut kernel, &changes).0, errno, "{what}");
        assert!(*kernel.ruleset() == sample::program(), "{what}");
    }
}

#[test]
fn full_set_refuses_one_more() {
    let mut kernel = FakeKernel::new();
    let mut program = sample::program();
    program.tables.get_mut(&ip4()).unwrap().sets.get_mut("frontends").unwrap().spec.size = Some(1);
    load(&mut kernel, initial_load_groups(&program)).unwrap();
    let more = KeyBuilder::new().address("172.30.0.2".parse().unwrap()).protocol(6).port(80).bytes();
    let element = Element::entry(more, Data::Value(KeyBuilder::new().mark(1).bytes()));
    let set = "frontends".into();
    let add =
        NftChange::AddElements { table: ip4(), set, ranges: IntervalEncoding::None, elements: vec![element] };
    assert_eq!(refused(&mut kernel, &[add]).0, Errno::ENFILE);
}

#[test]
fn initial_load_fits_small_buffers_and_adds_base_chain_rules_last() {
    let mut kernel = FakeKernel::new().with_longest_batch(6_000);
    let program = sample::program();
    let transactions = load(&mut kernel, initial_load_groups(&program)).unwrap();
    assert!(transactions > 2, "{transactions}");
    assert!(*kernel.ruleset() == program);
    let last = initial_load_groups(&program).last().unwrap();
    assert!(last.iter().all(|change| matches!(change, NftChange::AddRule { .. })));
    let count = initial_load_groups(&program).count();
    let early = initial_load_groups(&program).take(count - 1).flatten();
    assert!(
        early
            .into_iter()
            .all(|change| !matches!(change, NftChange::AddRule { chain, .. } if chain.contains("nat-")))
    );
}

#[test]
fn group_that_fits_no_buffer_is_refused_with_advice() {
    let mut kernel = FakeKernel::new().with_longest_batch(600);
    let error = load(&mut kernel, initial_load_groups(&sample::program())).unwrap_err();
    assert!(matches!(error.cause, NetlinkError::TooLong { .. }), "{error}");
    assert!(error.to_string().contains("net.core.wmem_max"), "{error}");
}

#[test]
fn passing_faults_are_survived_and_lasting_ones_leave_the_old_rules() {
    let add = [NftChange::AddChain { table: ip4(), chain: "new".into(), spec: ChainSpec::default() }];
    for fault in [
        KernelFault::Refuse { errno: Errno::EINTR, message: 1 },
        KernelFault::Send(Errno::ENOBUFS),
        KernelFault::Send(Errno::EINTR),
        KernelFault::LoseBatch,
    ] {
        let mut kernel = FaultyKernel::new(loaded(), &[fault]);
        apply(&mut kernel, &add).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(kernel.is_spent());
    }
    let mut kernel = FaultyKernel::new(loaded(), &[KernelFault::Refuse { errno: Errno::EBUSY, message: 1 }]);
    let error = apply(&mut kernel, &add).unwrap_err();
    assert!(!error.is_uncertain());
    assert!(error.to_string().starts_with("cannot add chain ip zoneward new: EBUSY"), "{error}");
    assert!(*kernel.kernel.ruleset() == sample::program());
}

#[test]
fn lost_answer_is_reported_as_uncertain_when_the_tables_changed() {
    let add = [NftChange::AddChain { table: ip4(), chain: "new".into(), spec: ChainSpec::default() }];
    let mut kernel = FaultyKernel::new(loaded(), &[KernelFault::LoseReply]);
    let error = apply(&mut kernel, &add).unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    assert!(ours(&mut kernel).tables[&ip4()].chains.contains_key("new"), "it was done after all");
}

#[test]
fn broken_dumps_are_read_again() {
    for fault in [
        KernelFault::InterruptDump,
        KernelFault::CutDump,
        KernelFault::RefuseDump(Errno::EINTR),
        KernelFault::RefuseDump(Errno::ENOBUFS),
        KernelFault::RefuseDump(Errno::ENOENT),
    ] {
        let mut kernel = FaultyKernel::new(loaded(), &[fault, fault]);
        assert!(ours(&mut kernel) == sample::program(), "{fault:?}");
    }
    let mut kernel = FaultyKernel::new(loaded(), &[KernelFault::InterruptDump; 20]);
    let error = read(&mut kernel, &[ip4()]).unwrap_err();
    assert_eq!(error.to_string(), "cannot read tables from the kernel: the tables changed during the dump");
    let mut kernel = FaultyKernel::new(loaded(), &[KernelFault::RefuseDump(Errno::EPERM)]);
    assert!(read(&mut kernel, &[ip4()]).unwrap_err().to_string().contains("NET_ADMIN"));
}

#[test]
fn arbitrary_bytes_are_refused_without_a_panic() {
    let mut kernel = loaded();
    let bytes: Vec<u8> =
        (0..4_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for start in 0..200 {
        assert!(kernel.transact(&bytes[start..]).is_err());
    }
    assert!(*kernel.ruleset() == sample::program());
}
