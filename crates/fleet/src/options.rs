//! What a seed expands into: the size of the cluster, the length of the phases, and which faults happen how often.

use model::random::Random;

use crate::sabotage::Sabotage;

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    pub zones: usize,
    pub nodes: usize,
    /// Services and Pods at the start; later ones come and go.
    pub services: usize,
    pub pods: usize,
    /// Simulated milliseconds with faults and users. A shorter prefix of the same run has a smaller number here.
    pub fault_ms: u64,
    /// Mean time between two actions of users and kubelets.
    pub action_ms: u64,
    /// The longest step of a party while no message is on its way.
    pub step_ms: u64,
    pub faults: Faults,
    /// Users of routes, and the L7 control plane that publishes them.
    pub has_routes: bool,
    /// Users who choose Spill and other mechanisms by annotation.
    pub has_distributions: bool,
    /// Users of ZoneDrains. Never with wall clocks that are set: when a drain is over would not be known.
    pub has_drains: bool,
    /// A restarted controller may be of another version.
    pub has_upgrades: bool,
    /// For tests of the checks.
    pub sabotage: Option<Sabotage>,
}

/// Faults in thousandths of requests, or as a mean time between two in milliseconds; 0 for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Requests that never arrive.
    pub lost_requests: usize,
    /// Requests that are handled, and whose response never arrives.
    pub lost_responses: usize,
    pub duplicates: usize,
    /// 429, 500 or 503 from a proxy on the way.
    pub refused: usize,
    /// 410 for watches and lists.
    pub gone: usize,
    pub slow: usize,
    pub cut_watch_ms: usize,
    pub partition_ms: usize,
    pub crash_ms: usize,
    pub api_crash_ms: usize,
    pub kernel_ms: usize,
    pub flush_ms: usize,
    pub wall_jump_ms: usize,
    /// Parties' clocks run up to so many thousandths slower or faster.
    pub drift: usize,
}

impl Faults {
    /// Whether a write can happen although its sender does not know: its response is lost, it arrives twice, or another
    /// leader begins while it is on its way.
    pub fn may_repeat_writes(&self) -> bool {
        *self != self.without_repeated_writes()
    }

    fn without_repeated_writes(self) -> Self {
        let (lost_responses, duplicates, partition_ms) = (0, 0, 0);
        let (crash_ms, api_crash_ms, drift) = (0, 0, 0);
        Self { lost_responses, duplicates, partition_ms, crash_ms, api_crash_ms, drift, ..self }
    }
}

impl Options {
    /// Each kind of fault is off in half of all seeds: rare faults are not hidden by frequent ones. In every fourth seed no
    /// write can happen twice, which allows stricter checks.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::seeded(seed ^ 0x706c_616e);
        let mut some = |most: usize| if random.below(2) == 0 { 0 } else { 1 + random.below(most) };
        let faults = Faults {
            lost_requests: some(60),
            lost_responses: some(60),
            duplicates: some(40),
            refused: some(80),
            gone: some(100),
            slow: some(150),
            cut_watch_ms: some(6_000),
            partition_ms: some(30_000),
            crash_ms: some(20_000),
            api_crash_ms: some(30_000),
            kernel_ms: some(2_000),
            flush_ms: some(30_000),
            wall_jump_ms: some(30_000),
            drift: some(150),
        };
        let faults = if seed % 4 == 3 { faults.without_repeated_writes() } else { faults };
        Self {
            seed,
            zones: 1 + random.below(3),
            nodes: 2 + random.below(5),
            services: 2 + random.below(6),
            pods: 4 + random.below(16),
            fault_ms: 1_000 * (20 + random.below(100) as u64),
            action_ms: 50 + random.below(800) as u64,
            step_ms: 20 + random.below(230) as u64,
            faults,
            has_routes: seed.is_multiple_of(3),
            has_distributions: seed.is_multiple_of(2),
            has_drains: seed % 5 < 3 && faults.wall_jump_ms == 0,
            has_upgrades: seed % 7 < 3,
            sabotage: None,
        }
    }

    /// The size of the goal: 3 zones, 30 nodes, 50 Services, an hour, a change every second.
    pub fn hour(seed: u64) -> Self {
        let (zones, nodes, services, pods) = (3, 30, 50, 200);
        let (fault_ms, action_ms, step_ms) = (3_600_000, 1_000, 250);
        Self { zones, nodes, services, pods, fault_ms, action_ms, step_ms, ..Self::of(seed) }
    }

    /// Whether the result is compared with that of an undisturbed run of the final objects.
    pub fn compares_undisturbed(&self) -> bool {
        self.seed % 8 == 5
    }

    /// The same run without faults.
    pub fn without_faults(self) -> Self {
        Self { faults: Faults::default(), ..self }
    }
}
