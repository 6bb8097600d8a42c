//! One endpoint replaced, added, removed, among this many Services, on a kept socket.

use std::time::{Duration, Instant};

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::apply;
use dataplane::nftables::render::{RenderedChange, Renderer};
use model::forward::{ForwardedEndpoint, Frontend};

use crate::load::phase_load;
use crate::usage::{Cost, cost};
use crate::world::{Shape, World};

/// How often each kind of change is made.
pub(crate) const CHANGES: usize = 1_000;

/// A kind of change.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Replaced,
    Added,
    Removed,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Replaced, Kind::Added, Kind::Removed];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Replaced => "replaced",
            Kind::Added => "added",
            Kind::Removed => "removed",
        }
    }

    fn change(self, turn: usize, new: ForwardedEndpoint, endpoints: &mut Vec<ForwardedEndpoint>) {
        let at = turn % endpoints.len();
        match self {
            Kind::Replaced => endpoints[at] = new,
            Kind::Added => endpoints.push(new),
            Kind::Removed => drop(endpoints.remove(at)),
        }
    }
}

/// What the changes of a kind took, each on its own and all together.
pub(crate) struct Timed {
    /// From two lists of frontends to changes.
    pub(crate) renders: Vec<Duration>,
    /// From changes to the kernel's answer.
    pub(crate) commits: Vec<Duration>,
    pub(crate) rendering: Cost,
    pub(crate) committing: Cost,
    /// What was put off until after the changes, on the clock.
    pub(crate) sweep: Duration,
}

/// Loads a node with this many Services and makes the changes of each kind.
pub(crate) fn run(services: usize, shape: Shape) -> Vec<(Kind, Timed)> {
    let mut world = World::of(services, shape);
    let mut kernel = NetlinkSocket::open().expect("a netlink socket");
    let (mut renderer, _) = phase_load(&mut kernel, &world);
    sweep(&mut renderer, &mut kernel);
    Kind::ALL.map(|kind| (kind, time(kind, &mut world, &mut renderer, &mut kernel))).into()
}

fn time(kind: Kind, world: &mut World, renderer: &mut Renderer, kernel: &mut NetlinkSocket) -> Timed {
    let news = new_frontends(kind, world);
    // All edits first, then all commits, so that the processor time of each part is one plain difference.
    let mut renders = Vec::with_capacity(CHANGES);
    let render_all = || {
        let each = |(service, new): &(usize, Vec<Frontend>)| {
            let start = Instant::now();
            let edit = phase_one_change(renderer, world, *service, new);
            renders.push(start.elapsed());
            edit
        };
        news.iter().map(each).collect::<Vec<RenderedChange>>()
    };
    let (edits, rendering) = cost(render_all);
    let mut commits = Vec::with_capacity(CHANGES);
    let commit_all = || {
        for edit in &edits {
            let RenderedChange::Changes(changes) = edit else { panic!("no set is outgrown by one endpoint") };
            let start = Instant::now();
            apply(kernel, changes).expect("the kernel takes it");
            commits.push(start.elapsed());
        }
    };
    let ((), committing) = cost(commit_all);
    for (service, new) in news {
        world.table.replace(&world.keys[service].clone(), new);
    }
    renders.sort();
    commits.sort();
    let sweep = sweep(renderer, kernel);
    Timed { renders, commits, rendering, committing, sweep }
}

pub(crate) fn sweep(renderer: &mut Renderer, kernel: &mut NetlinkSocket) -> Duration {
    let start = Instant::now();
    loop {
        let changes = renderer.maintenance();
        if changes.is_empty() {
            return start.elapsed();
        }
        apply(kernel, &changes).expect("the kernel takes it");
    }
}

/// The frontends that Services spread over the whole world change to.
pub(crate) fn new_frontends(kind: Kind, world: &mut World) -> Vec<(usize, Vec<Frontend>)> {
    let turn = |turn: usize| {
        let service = turn * world.keys.len() / CHANGES;
        let new = world.new_pod();
        (service, world.changed(service, |endpoints| kind.change(turn, new, endpoints)))
    };
    (0..CHANGES).map(turn).collect()
}

/// The edit of one changed Service.
#[inline(never)]
pub(crate) fn phase_one_change(
    renderer: &mut Renderer,
    world: &World,
    service: usize,
    new: &[Frontend],
) -> RenderedChange {
    let old = world.table.frontends(&world.keys[service]);
    renderer.change(&[(old, new)])
}
