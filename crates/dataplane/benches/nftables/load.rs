//! The full load: our program of a node with this many Services, and beside it the floor, as many elements into one
//! map through the same socket.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use dataplane::nfnetlink::{NetlinkError, NetlinkSocket};
use dataplane::nftables::apply::{apply, load};
use dataplane::nftables::ir::{
    Data, DataType, Element, FieldType, IntervalEncoding, KeyBuilder, NftChange, NftFamily, Ruleset, SetSpec,
    TableId,
};
use dataplane::nftables::render::{Renderer, initial_load};
use dataplane::nftables::{DumpRequest, Kernel};

use crate::changes;
use crate::usage::{self, Cost};
use crate::world::{PORT, Shape, TARGET_PORT, World, cluster_ip, pod};

const TCP: u8 = 6;
const ELEMENTS_PER_CHANGE: usize = 500;
const GROUPS_PER_TRANSACTION: usize = 5;

/// What a load took, and how much it was.
pub(crate) struct Loaded {
    pub(crate) cost: Cost,
    /// The part of our own side, without a kernel.
    pub(crate) own: Cost,
    /// What is made ready after it, not in its way.
    pub(crate) swept: Duration,
    pub(crate) elements: usize,
    pub(crate) transactions: usize,
}

/// Renders and loads a node with this many Services into the kernel of this namespace.
pub(crate) fn ours(services: usize, shape: Shape) -> Loaded {
    let world = World::of(services, shape);
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    let ((mut renderer, transactions), cost) = usage::cost(|| phase_load(&mut kernel, &world));
    let swept = changes::sweep(&mut renderer, &mut kernel);
    let (_, own) = usage::cost(|| phase_load(&mut Sink::default(), &world));
    let elements = elements_of(&Renderer::start(&world.table).1);
    Loaded { cost, own, swept, elements, transactions }
}

/// Renders and loads a node's table as a stream; the renderer stays for changes.
#[inline(never)]
pub(crate) fn phase_load(kernel: &mut dyn Kernel, world: &World) -> (Renderer, usize) {
    let mut renderer = Renderer::new(&world.table);
    let sent = load(kernel, initial_load(&mut renderer, &world.table)).expect("the kernel takes it");
    (renderer, sent)
}

/// Loads so many elements into one map of a declared size, and does nothing else.
pub(crate) fn floor(elements: usize, shape: Shape) -> Loaded {
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    let groups = one_map(elements, shape);
    // In transactions as large as ours: with one for all, the kernel's own list of changes outgrows the caches.
    let transactions: Vec<Vec<NftChange>> =
        groups.chunks(GROUPS_PER_TRANSACTION).map(<[_]>::concat).collect();
    let loading =
        || transactions.iter().for_each(|changes| apply(&mut kernel, changes).expect("the kernel takes it"));
    let ((), cost) = usage::cost(loading);
    let transactions = transactions.len();
    Loaded { cost, own: Cost::default(), swept: Duration::ZERO, elements, transactions }
}

/// The changes that make one map, ready to be written as messages.
fn one_map(elements: usize, shape: Shape) -> Vec<Vec<NftChange>> {
    let (family, address) = match shape {
        Shape::Ipv6 => (NftFamily::Ip6, FieldType::Ipv6Addr),
        _ => (NftFamily::Ip, FieldType::Ipv4Addr),
    };
    let (table, port) = (TableId::new(family, "floor"), FieldType::InetService);
    let key = [address, FieldType::InetProto, port, FieldType::Mark];
    let size = u32::try_from(elements.next_power_of_two()).ok();
    let spec = SetSpec { size, ..SetSpec::map(&key, DataType::Fields(vec![address, port])) };
    let name = dataplane::nftables::ir::NftName::from("all");
    let mut groups = vec![vec![
        NftChange::AddTable { table: table.clone(), comment: None },
        NftChange::AddSet { table: table.clone(), set: name.clone(), spec },
    ]];
    let numbers: Vec<usize> = (0..elements).collect();
    for numbers in numbers.chunks(ELEMENTS_PER_CHANGE) {
        let elements = numbers.iter().map(|number| element(shape, *number)).collect();
        let (table, set, ranges) = (table.clone(), name.clone(), IntervalEncoding::None);
        groups.push(vec![NftChange::AddElements { table, set, ranges, elements }]);
    }
    groups
}

/// An element like those of our largest map.
fn element(shape: Shape, number: usize) -> Element {
    let address = |ip: Ipv4Addr| KeyBuilder::new().address(shape.address(ip));
    let key = address(cluster_ip(number / 10)).protocol(TCP).port(PORT).mark((number % 10) as u32);
    Element::entry(key.bytes(), Data::Value(address(pod(number)).port(TARGET_PORT).bytes()))
}

/// How many elements a program has.
fn elements_of(program: &Ruleset) -> usize {
    program.tables.values().flat_map(|table| table.sets.values()).map(|set| set.elements.len()).sum()
}

/// A kernel that takes everything and does nothing, to see what our side costs.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) bytes: usize,
}

impl Kernel for Sink {
    fn transact(&mut self, batch: &[u8]) -> Result<(), NetlinkError> {
        self.bytes += black_box(batch).len();
        Ok(())
    }

    fn dump(&mut self, _: &DumpRequest) -> Result<Vec<u8>, NetlinkError> {
        Ok(Vec::new())
    }

    fn generation(&mut self) -> Result<u32, NetlinkError> {
        Ok(1)
    }

    fn longest_batch(&self) -> usize {
        8 << 20
    }
}
