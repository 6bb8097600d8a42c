//! Any sequence of changes leaves the real kernel as a fresh start would, and others' tables as they were.
//!
//! ```text
//! random Service comes, changes, goes -> Renderer::change -> apply, now and then with a fault -> what packets meet
//!                          sweeps, now and then a whole difference ------> all of it
//! ```
//!
//! Two things may differ from a fresh start by design. Between a change and the sweeps after it, classes that the
//! next change may need are not ready yet, and those that nothing needs are still there: until then only the part
//! that packets can meet is compared. And sets never shrink before the next start: the fresh program is rendered with
//! the sizes that the running node has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dataplane::nfnetlink::NetlinkSocket;
use dataplane::nftables::apply::{apply, initial_load_groups, load, read};
use dataplane::nftables::diff::diff;
use dataplane::nftables::fake::{FaultyKernel, KernelFault};
use dataplane::nftables::ir::{Data, Expr, NftChange, NftName, NftVerdict, Ruleset, Set, Table};
use dataplane::nftables::render::{RenderedChange, render, table_id};
use model::{Family, ServiceKey};
use plan::forward::table;

use super::cluster::{Cluster, Dice, Event};
use super::namespace::{run, run_with};
use super::node::Node;
use super::trouble::{Trouble, dump_faults, meddle, trouble};
use super::{assert_same, held};

/// Changes of one round.
const STEPS: usize = 16;

/// Others' tables, with names like ours.
const FOREIGN: &str = r#"
table inet zoneward {
    map services-1k {
        type ipv4_addr . inet_proto . inet_service : mark
        elements = { 10.96.0.1 . tcp . 80 comment "of the family inet" : 0x00000003 }
    }
    chain services {
        ip daddr . meta l4proto . th dport vmap { 10.96.0.1 . tcp . 80 : accept }
    }
}
table ip kube-proxy {
    set cluster-ips {
        type ipv4_addr
        elements = { 10.96.0.1, 10.96.0.2 }
    }
    chain services {
        ip daddr @cluster-ips tcp dport 80 counter dnat to 10.1.0.1:8080
    }
    chain nat-output {
        type nat hook output priority -90; policy accept;
        ip daddr 192.0.2.200 jump services
    }
}
table ip6 firewall {
    chain in {
        type filter hook input priority 10; policy accept;
        iifname "eth0" tcp dport 22 limit rate 5/second counter log prefix "ssh: " accept
    }
}
"#;

/// Those tables as nft shows them, with the kernel's numbers of everything.
fn foreign() -> String {
    let tables = [["inet", "zoneward"], ["ip", "kube-proxy"], ["ip6", "firewall"]];
    tables.map(|[family, name]| run("nft", &["-a", "list", "table", family, name])).concat()
}

/// A node on the real kernel, by one kept socket.
struct Machine {
    node: Node,
    cluster: Cluster,
    /// Absent only while it is lent out.
    socket: Option<NetlinkSocket>,
    /// How often something happened.
    tally: Tally,
}

/// What happened, and how often.
type Tally = BTreeMap<&'static str, usize>;

impl Machine {
    fn start(socket: NetlinkSocket, tally: Tally, dice: &mut Dice) -> Machine {
        let cluster = Cluster::new(dice);
        let (node, program) = Node::start(&cluster.snapshot(), cluster.config());
        let mut machine = Machine { node, cluster, socket: Some(socket), tally };
        load(machine.socket(), initial_load_groups(&program)).unwrap();
        assert_same("start", &machine.held(), &program);
        machine
    }

    fn socket(&mut self) -> &mut NetlinkSocket {
        self.socket.as_mut().expect("nobody has it")
    }

    fn note(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    fn held(&mut self) -> Ruleset {
        held(self.socket())
    }

    /// What a fresh start would make of the cluster, in sets of today's sizes.
    fn fresh(&self) -> Ruleset {
        let (fresh, _) = table(&self.cluster.snapshot(), self.node.config());
        assert_eq!(*self.node.table(), fresh, "the node knows what there is");
        render(&fresh, self.node.renderer.sizes())
    }

    /// Does something with a kernel that fails in this way.
    fn with_faults<T>(
        &mut self,
        faults: &[KernelFault],
        task: impl FnOnce(&mut FaultyKernel<NetlinkSocket>) -> T,
    ) -> T {
        let mut faulty = FaultyKernel::new(self.socket.take().expect("nobody has it"), faults);
        let done = task(&mut faulty);
        assert!(faulty.is_spent(), "{faults:?} did not happen");
        self.socket = Some(faulty.kernel);
        done
    }

    /// One transaction. Whether the kernel now holds what the node believes; if not, it holds what it held before.
    fn commit(&mut self, changes: &[NftChange], trouble: &Trouble) -> bool {
        if changes.is_empty() {
            return true;
        }
        if let Trouble::Stranger(deed) = trouble {
            let before = self.held();
            meddle(&mut NetlinkSocket::open().unwrap(), &before, *deed);
            let before = self.held();
            if let Err(error) = apply(self.socket(), changes) {
                self.note("refused by the kernel itself");
                assert!(!error.is_uncertain(), "{error}");
                assert_same("refused by the kernel itself", &self.held(), &before);
            }
            return false;
        }
        let before = (!trouble.passes()).then(|| self.held());
        let faults = trouble.faults();
        match self.with_faults(&faults, |kernel| apply(kernel, changes)) {
            Ok(()) => {
                assert!(trouble.passes(), "{trouble:?} did not fail");
                self.note(if *trouble == Trouble::None { "done" } else { "done after a disturbance" });
                true
            }
            Err(error) => {
                assert!(!trouble.passes(), "{trouble:?}: {error}");
                self.note(if error.is_uncertain() { "answer lost" } else { "refused" });
                assert_eq!(error.is_uncertain(), *trouble == Trouble::AnswerLost, "{error}");
                if let Some(before) = before.filter(|_| !error.is_uncertain()) {
                    assert_same("a failed transaction", &self.held(), &before);
                }
                false
            }
        }
    }

    /// Reads what the kernel holds, and makes of it what it should hold.
    fn put_right(&mut self, dice: &mut Dice) {
        let ours = [table_id(Family::V4), table_id(Family::V6)];
        let faults = dice.one(dump_faults());
        let (now, problems) = self.with_faults(&faults, |kernel| read(kernel, &ours)).unwrap();
        assert_eq!(problems, []);
        let whole = self.node.whole();
        let difference = diff(&now, &whole);
        apply(self.socket(), &difference.now).unwrap();
        apply(self.socket(), &difference.later).unwrap();
        assert_same("put right", &self.held(), &whole);
        assert_same("put right", &whole, &self.fresh());
    }

    fn step(&mut self, dice: &mut Dice) {
        let key = match self.cluster.change(dice) {
            Event::Service(name) => ServiceKey::new(&"ns".into(), &name.as_str().into()),
            Event::Settings => {
                self.note("settings changed");
                self.node.rebuild(&self.cluster.snapshot(), self.cluster.config());
                return self.put_right(dice);
            }
        };
        let is_right = match self.node.sync(&key, &self.cluster.snapshot()) {
            RenderedChange::Changes(changes) => self.commit(&changes, &dice.one(trouble())),
            RenderedChange::Outgrown => {
                self.note("set outgrown");
                false
            }
        };
        if !is_right {
            return self.put_right(dice);
        }
        assert_same("what packets meet", &met(self.held()), &met(self.fresh()));
        for _ in 0..dice.below(3) {
            let changes = self.node.renderer.maintenance();
            if !self.commit(&changes, &dice.one(trouble())) {
                return self.put_right(dice);
            }
        }
    }

    /// Everything that waits is done; then nothing is different from a start.
    fn finish(mut self) -> (NetlinkSocket, Tally) {
        for _ in 0..3 {
            let changes = self.node.renderer.maintenance();
            apply(self.socket(), &changes).unwrap();
        }
        assert_eq!(self.node.renderer.maintenance(), [], "nothing is left to do");
        let (grown, fresh) = (self.held(), self.fresh());
        assert_same("at the end", &grown, &fresh);
        self.leave();
        load(self.socket(), initial_load_groups(&fresh)).unwrap();
        assert_same("a fresh start", &self.held(), &grown);
        self.leave();
        (self.socket.take().expect("nobody has it"), self.tally)
    }

    fn leave(&mut self) {
        let delete =
            [Family::V4, Family::V6].map(|family| NftChange::DeleteTable { table: table_id(family) });
        apply(self.socket(), &delete).unwrap();
        assert!(self.held().tables.is_empty());
    }
}

/// The part of a program that packets can meet: the classes that frontends have, and the chains on the way.
fn met(mut program: Ruleset) -> Ruleset {
    program.tables.values_mut().for_each(keep_what_is_met);
    program
}

fn keep_what_is_met(table: &mut Table) {
    for side in ["", "-inside"] {
        let is = |name: &NftName, stem: &str| {
            let rest = name.strip_prefix(&format!("{stem}{side}-"));
            rest.is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit()))
        };
        let frontends = table.sets.iter().filter(|(name, _)| is(name, "services") || is(name, "node-ports"));
        let classes: BTreeSet<_> = frontends
            .flat_map(|(_, set)| set.elements.values())
            .filter_map(
                |value| if let Some(Data::Value(class)) = &value.data { Some(class.clone()) } else { None },
            )
            .collect();
        let mut verdicts: Vec<&mut Set> =
            table.sets.iter_mut().filter(|(name, _)| is(name, "verdicts")).map(|(_, set)| set).collect();
        assert_eq!(verdicts.len(), 1, "one map of verdicts for each side");
        verdicts[0].elements.retain(|key, _| classes.contains(key));
    }
    let by_map =
        table.sets.values().flat_map(|set| set.elements.values()).filter_map(|value| match &value.data {
            Some(Data::Verdict(verdict)) => target(verdict),
            _ => None,
        });
    let bases =
        table.chains.iter().filter(|(_, chain)| chain.spec.base.is_some()).map(|(name, _)| name.clone());
    let mut open: Vec<NftName> = bases.chain(by_map).collect();
    let mut reached: BTreeSet<NftName> = BTreeSet::new();
    while let Some(name) = open.pop() {
        let rules = table.chains[&name].rules.iter().flat_map(|rule| &rule.exprs);
        if reached.insert(name) {
            open.extend(rules.filter_map(|e| if let Expr::Verdict(v) = e { target(v) } else { None }));
        }
    }
    table.chains.retain(|name, _| reached.contains(name));
}

fn target(verdict: &NftVerdict) -> Option<NftName> {
    match verdict {
        NftVerdict::Jump(chain) | NftVerdict::Goto(chain) => Some(chain.clone()),
        _ => None,
    }
}

/// One cluster from its start to its end.
fn round(seed: u64, socket: NetlinkSocket, tally: Tally) -> (NetlinkSocket, Tally) {
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let others = foreign();
    let mut machine = Machine::start(socket, tally, &mut dice);
    for _ in 0..STEPS {
        machine.step(&mut dice);
    }
    let finished = machine.finish();
    assert_eq!(foreign(), others, "others' tables");
    finished
}

/// Rounds with one kept socket; `ZONEWARD_SEED` runs one alone.
fn rounds(mut go_on: impl FnMut(u64) -> bool) -> Tally {
    run_with("nft", &["-f", "-"], FOREIGN);
    let (mut socket, mut tally) = (NetlinkSocket::open().unwrap(), Tally::new());
    if let Some(seed) = std::env::var("ZONEWARD_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return round(seed, socket, tally).1;
    }
    let mut seed = 0;
    while go_on(seed) {
        (socket, tally) = round(seed, socket, tally);
        seed += 1;
    }
    println!("{seed} rounds of {STEPS} changes: {tally:?}");
    tally
}

#[test]
fn changes_one_by_one_leave_the_kernel_as_a_fresh_start_would() {
    toolbox::in_own_namespaces!();
    let tally = rounds(|seed| seed < 6);
    // All of these, or the rounds say too little.
    let all = ["done", "done after a disturbance", "refused", "refused by the kernel itself", "answer lost"];
    for what in all.iter().chain(&["settings changed", "set outgrown"]) {
        assert!(tally.contains_key(what), "{what} is missing in {tally:?}");
    }
}

/// The same for ten seconds, or as many as ZONEWARD_SOAK_SECONDS says.
#[test]
fn soak_changes_and_faults_leave_the_kernel_as_a_fresh_start_would() {
    toolbox::in_own_namespaces!();
    let seconds = std::env::var("ZONEWARD_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let end = Instant::now() + Duration::from_secs(seconds);
    rounds(|_| Instant::now() < end);
}
