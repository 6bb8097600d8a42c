//! A start over rules that are already there: what the kernel holds is read and compared with what it should hold.
//!
//! The kernel's part is a dump that nobody decodes. It begins each piece of a dump at the first element of the set and
//! skips those that were sent, so that its cost grows with the square of a set's size; 32 KiB is the longest piece.

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply_diff_at_once, read_and_compare};
use dataplane::nftables::render::{Renderer, render_to_compare, table_id};
use dataplane::nftables::{DumpRequest, Kernel};
use model::Family;

use crate::load::phase_load;
use crate::memory::status;
use crate::usage::{Cost, cost};
use crate::world::World;

/// What a start over existing rules took.
pub(crate) struct Restarted {
    /// The kernel's dump alone.
    pub(crate) dump: Cost,
    /// Dump, decoding, rendering and comparing.
    pub(crate) all: Cost,
    /// The most memory of the process.
    pub(crate) most: usize,
}

/// Loads a node with this many Services, and starts over it.
pub(crate) fn run(services: usize) -> Restarted {
    let mut world = World::new(services);
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    phase_load(&mut kernel, &world);
    let (_, dump) = cost(|| bare_dump(&mut kernel, &world));
    // One endpoint was replaced while nobody looked.
    let new = world.new_pod();
    let frontends = world.changed(services / 2, |endpoints| endpoints[0] = new);
    world.table.replace(&world.keys[services / 2].clone(), frontends);
    let (_, all) = cost(|| start_over(&mut kernel, &world));
    Restarted { dump, all, most: status("VmHWM") }
}

/// Asks for all elements and looks at none.
fn bare_dump(kernel: &mut NetlinkSocket, world: &World) -> usize {
    let mut bytes = 0;
    let (_, program) = Renderer::start(&world.table);
    for (table, content) in program.tables {
        for set in content.sets.into_keys() {
            let query = DumpRequest::Elements(table.clone(), set);
            kernel.each(&query, &mut |raw| bytes += raw.bytes.len()).expect("the kernel shows it");
        }
    }
    bytes
}

fn start_over(kernel: &mut NetlinkSocket, world: &World) -> Renderer {
    let ours = [Family::V4, Family::V6].map(table_id);
    let mut renderer = Renderer::new(&world.table);
    let beside = read_and_compare(kernel, &ours, &mut || render_to_compare(&mut renderer, &world.table))
        .expect("the kernel shows it");
    assert!(beside.problems.is_empty(), "all of it is ours");
    let done = apply_diff_at_once(kernel, &beside.held, &beside.wanted).expect("the kernel takes it");
    assert_eq!(done, Some(1), "something changed");
    renderer
}
