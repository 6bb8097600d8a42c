//! The measurements one after the other, and what they say beside their goals.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::changes::{CHANGES, Kind, Timed};
use crate::kubeproxy::Layout;
use crate::memory::Held;
use crate::packets::{self, CONNECTIONS, Rounds, Way, What};
use crate::restart::Restarted;
use crate::usage::{Cost, ms, percentile, us};
use crate::world::{ENDPOINTS, Shape};

/// A part; whether it may take minutes.
type Section = fn(bool);

/// The parts by name.
pub(crate) const SECTIONS: [(&str, Section); 5] = [
    ("load", loads),
    ("changes", all_changes),
    ("restart", all_restarts),
    ("memory", all_memory),
    ("connections", all_connections),
];

const SIZES: [usize; 3] = [1_000, 10_000, 50_000];
/// A load of milliseconds is easily disturbed; kube-proxy's of the same Services has as many.
const PASSES_OF_SHORT: usize = 7;
const PASSES: usize = 3;
/// The kernel takes a namespace down behind our back; what comes next should not share a processor with that.
const SETTLE: Duration = Duration::from_secs(2);

/// The parts that were asked for, or all.
pub(crate) fn run(words: &[&str]) {
    let long = words.contains(&"--kube-proxy-10000");
    let all = !SECTIONS.iter().any(|(name, _)| words.contains(name));
    for (name, section) in SECTIONS.iter().filter(|(name, _)| all || words.contains(name)) {
        println!("\n-- {name}");
        section(long);
    }
}

fn measurement(name: &str, number: usize) -> Command {
    let own = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(own);
    command.args(["--child", name, &number.to_string()]);
    command
}

/// A measurement that prints its own rows.
fn show(name: &str, number: usize) {
    std::thread::sleep(SETTLE);
    let status = measurement(name, number).status().expect("this program starts");
    assert!(status.success(), "the measurement {name} {number} failed");
}

/// What a measurement cost, and its other figures.
type Measured = (Cost, Vec<usize>);

/// A load right after one that is not counted. After a rest the caches are cold, and so are the kernel's stocks of
/// memory: a load of milliseconds would be measured by that, one of a second would not.
fn pass(name: &str, number: usize) -> Measured {
    std::thread::sleep(SETTLE);
    let first = loaded_and_kept(name, number);
    let measured = once(name, number);
    let_go(first);
    measured
}

/// A load that stays in the kernel, so that no processor is busy with taking it down.
fn loaded_and_kept(name: &str, number: usize) -> Child {
    let mut command = measurement(name, number);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this program starts");
    let mut figures = String::new();
    let stdout = child.stdout.as_mut().expect("it was asked for");
    BufReader::new(stdout).read_line(&mut figures).expect("the measurement prints its figures");
    assert!(!figures.is_empty(), "the measurement {name} {number} failed");
    child
}

/// Ends a process that keeps a load: it waits for the end of its input.
fn let_go(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("it was started here");
}

fn once(name: &str, number: usize) -> Measured {
    let mut command = measurement(name, number);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("this program starts");
    assert!(output.status.success(), "the measurement {name} {number} failed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let figures: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [wall, user, system, more @ ..] = &figures[..] else { panic!("unreadable: {text}") };
    let micros = |figure: &u64| Duration::from_micros(*figure);
    let cost = Cost { wall: micros(wall), user: micros(user), system: micros(system) };
    (cost, more.iter().map(|figure| *figure as usize).collect())
}

/// Several measurements in turns, so that what else the machine does meets all of them; the middle pass of each. Not the
/// best one: a virtual machine that shares its processors is told too little time now and then, as well as too much.
fn in_turns(what: &[(&str, usize)], passes: usize) -> Vec<Measured> {
    let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); what.len()];
    for _ in 0..passes {
        for (all, (name, number)) in measured.iter_mut().zip(what) {
            all.push(pass(name, *number));
        }
    }
    let middle = |mut all: Vec<Measured>| {
        all.sort_by_key(|(cost, _)| cost.cpu());
        all.swap_remove(passes / 2)
    };
    measured.into_iter().map(middle).collect()
}

fn goal(is_met: bool) -> &'static str {
    if is_met { "met" } else { "MISSED" }
}

fn loads(long: bool) {
    println!(
        "{ENDPOINTS} endpoints for each Service; in turns, each after one that is not counted; the median of {PASSES}, of {PASSES_OF_SHORT} at {};\nfloor: as many elements into one map\n",
        SIZES[0]
    );
    println!("Services | what               | elements |   CPU ms (user + system) |  wall ms | ratio, goal");
    let row = |services: usize, what: &str, elements: &str, cost: &Cost, ratio: &str| {
        let (cpu, user, system) = (ms(cost.cpu()), ms(cost.user), ms(cost.system));
        println!(
            "{services:>8} | {what:<18} | {elements:>8} | {cpu:>9.1} ({user:>6.1} + {system:>6.1}) | {:>8.1} | {ratio}",
            ms(cost.wall)
        );
    };
    let kinds = SIZES.map(|services| (services, Shape::Ipv4));
    for (services, shape) in kinds.into_iter().chain([(10_000, Shape::Ipv6), (10_000, Shape::Sticky)]) {
        let name = |what: &str| format!("{what}/{}", shape.as_str());
        let (name_of_ours, name_of_floor) = (name("ours"), name("floor"));
        let elements = pass(&name_of_ours, services).1[0];
        let mut what = vec![(&*name_of_ours, services), (&*name_of_floor, elements)];
        let is_short = services == SIZES[0];
        if is_short {
            what.extend(Layout::ALL.map(|layout| (layout.measurement(), services)));
        }
        let mut measured = in_turns(&what, if is_short { PASSES_OF_SHORT } else { PASSES });
        let mut theirs = measured.split_off(2);
        if shape == Shape::Ipv4 && services == SIZES[1] && long {
            std::thread::sleep(SETTLE);
            theirs = Layout::ALL.map(|layout| once(layout.measurement(), services)).into();
        }
        let [(ours, figures), (floor, _)] = &measured[..] else { panic!("two measurements") };
        let [_, transactions, own, swept] = figures[..] else { panic!("four figures") };
        let count = elements.to_string();
        row(services, &format!("floor, {}", shape.as_str()), &count, floor, "1.00 x floor");
        let ratio = ours.cpu().as_secs_f64() / floor.cpu().as_secs_f64();
        let said = format!("{ratio:.2} x floor, goal 2: {}", goal(ratio <= 2.0));
        row(services, &format!("ours, {}", shape.as_str()), &count, ours, &said);
        let [own, swept] = [own, swept].map(|micros| micros as f64 / 1e3);
        println!(
            "         |   {transactions} transactions; rendering and writing messages alone: {own:.1} ms; counts made ready after it: {swept:.1} ms"
        );
        for (layout, (theirs, _)) in Layout::ALL.into_iter().zip(&theirs) {
            let (what, said) = beside(layout, theirs, ours, floor);
            row(services, what, "", theirs, &said);
        }
    }
}

/// A layout of kube-proxy's, and how our load compares with it. The goal is for the one with chains for endpoints; the
/// other one is printed because newer versions have it.
fn beside(layout: Layout, theirs: &Cost, ours: &Cost, floor: &Cost) -> (&'static str, String) {
    let of = |cost: &Cost| theirs.cpu().as_secs_f64() / cost.cpu().as_secs_f64();
    let (of_ours, of_floor) = (of(ours), of(floor));
    let compared = format!("ours is 1/{of_ours:.0} of it");
    match layout {
        Layout::Chains => {
            let is_met = goal(of_ours >= 100.0);
            let said = format!("{compared}, goal 1/100: {is_met}; the floor itself is 1/{of_floor:.0}");
            ("kube-proxy's, nft", said)
        }
        Layout::Maps => {
            ("newer kube-proxy's", format!("{compared}, no goal; the floor itself is 1/{of_floor:.0}"))
        }
    }
}

fn all_changes(_: bool) {
    println!("one endpoint of a Service with {ENDPOINTS}, {CHANGES} times each, on the kept socket\n");
    println!(
        "Services | shape    | endpoint | commit us: p50     p99     max | render us: p50    p99 | CPU us: commit  render | sweep ms | goal p99 1 ms"
    );
    SIZES.iter().for_each(|services| show("changes", *services));
    [Shape::Ipv6, Shape::Sticky]
        .iter()
        .for_each(|shape| show(&format!("changes/{}", shape.as_str()), 10_000));
    println!(
        "\nsweep: once after all of them, not in any change's way: counts are made ready that are new as neighbours"
    );
}

/// A row of one kind of change.
pub(crate) fn change(services: usize, shape: Shape, kind: Kind, timed: &Timed) {
    let of = |times: &[Duration], thousandths| us(percentile(times, thousandths));
    let each = |cost: &Cost| us(cost.cpu()) / CHANGES as f64;
    println!(
        "{services:>8} | {:<8} | {:<8} | {:>14.1} {:>7.1} {:>7.1} | {:>14.1} {:>6.1} | {:>14.1} {:>7.1} | {:>8.2} | {}",
        shape.as_str(),
        kind.as_str(),
        of(&timed.commits, 500),
        of(&timed.commits, 990),
        of(&timed.commits, 1000),
        of(&timed.renders, 500),
        of(&timed.renders, 990),
        each(&timed.committing),
        each(&timed.rendering),
        ms(timed.sweep),
        goal(percentile(&timed.commits, 990) <= Duration::from_millis(1)),
    );
}

fn all_restarts(_: bool) {
    println!("a start over rules that are there, one endpoint of which is another one now\n");
    println!("Services | what                      | CPU ms (user + system)      |  wall ms | ratio, goal");
    SIZES.iter().for_each(|services| show("restart", *services));
}

/// The rows of a start over existing rules.
pub(crate) fn restart(services: usize, restarted: &Restarted) {
    let row = |what: &str, cost: &Cost, said: &str| {
        let (cpu, user, system) = (ms(cost.cpu()), ms(cost.user), ms(cost.system));
        println!(
            "{services:>8} | {what:<25} | {cpu:>9.1} ({user:>6.1} + {system:>7.1}) | {:>8.1} | {said}",
            ms(cost.wall)
        );
    };
    row("the kernel's dump alone", &restarted.dump, "1.00");
    let ratio = restarted.all.cpu().as_secs_f64() / restarted.dump.cpu().as_secs_f64();
    let is_met = goal(restarted.all.wall <= Duration::from_secs(2));
    let goal = if services <= 10_000 { format!(", goal 2 s: {is_met}") } else { String::new() };
    let most = restarted.most as f64 / 1e6;
    row("read, render, compare", &restarted.all, &format!("{ratio:.2}, at most {most:.1} MB{goal}"));
}

fn all_memory(_: bool) {
    println!("a process that holds table and renderer and has loaded 10,000 Services x {ENDPOINTS}\n");
    show("memory", 10_000);
}

/// What a process holds.
pub(crate) fn memory(held: &Held) {
    let mb = |bytes: usize| bytes as f64 / 1e6;
    let (resident, most) = (mb(held.resident), mb(held.most));
    println!("resident (VmRSS)        {resident:>6.1} MB, goal under 40: {}", goal(resident < 40.0));
    println!("most ever (VmHWM)       {most:>6.1} MB, goal under 40: {}", goal(most < 40.0));
    println!("before there was a node {:>6.1} MB", mb(held.before));
    println!("of it the table         {:>6.1} MB", mb(held.table));
    println!("      the renderer      {:>6.1} MB", mb(held.renderer));
}

fn all_connections(_: bool) {
    let (services, rounds) = (packets::SERVICES, packets::ROUNDS);
    println!(
        "{services} Services loaded; {rounds} rounds of {CONNECTIONS} connections for each way, in turns\n"
    );
    println!(
        "connection      | way                      | CPU us: best median | ratio to direct with conntrack"
    );
    show("connections", 0);
}

/// The rows of connections.
pub(crate) fn connections(measured: &[Rounds]) {
    for rounds in measured {
        let base = measured.iter().find(|r| r.what == rounds.what && r.way == Way::DirectWithConntrack);
        let base = base.expect("every way was measured");
        let best = |rounds: &Rounds| us(rounds.costs[0].cpu());
        let median = |rounds: &Rounds| us(rounds.costs[rounds.costs.len() / 2].cpu());
        let (of_best, of_median) = (best(rounds) / best(base), median(rounds) / median(base));
        let said = match rounds.way {
            Way::ThroughVip => format!(", goal 1.15: {}", goal(of_best <= 1.15)),
            _ => String::new(),
        };
        let name = match rounds.what {
            What::Bare => "open and close",
            What::Exchange => "request, answer",
        };
        println!(
            "{name:<15} | {:<24} | {:>12.2} {:>6.2} | {of_best:.3} (of medians {of_median:.3}){said}",
            rounds.way.as_str(),
            best(rounds),
            median(rounds),
        );
    }
}
