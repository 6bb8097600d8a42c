//! The scenarios, in a demo of their own: fresh Services and Envoys for each, so that none has learnt anything before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::agent::{Agent, AgentLine};
use crate::api::Api;
use crate::envoy;
use crate::place::{Competitor, Place, ZONES, clients, servers};
use crate::score::{MINUTES, Recorded, ScoredServer};
use crate::server::unix_second;

/// How long it takes until the API and the files of Envoys say that a server is gone, or back.
const NOTICED_AFTER: Duration = Duration::from_secs(2);
/// At equal load a server uses this share of its capacity.
const UTILISATION: f64 = 0.6;
const PATIENCE: Duration = Duration::from_secs(120);
/// The output of agents is looked at this often.
const TICK: Duration = Duration::from_millis(100);

/// What all scenarios have in common.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Seconds of a minute.
    pub minute: u64,
    /// Seconds over which load is averaged.
    pub window: u64,
    /// Connections per second of all zones, to each competitor.
    pub connections: f64,
}

/// Demand and servers, minute by minute.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// Percent of the connections by zone.
    demand: [[f64; ZONES.len()]; MINUTES],
    /// The zone whose servers are off.
    lost: [Option<usize>; MINUTES],
}

const USUAL: [f64; ZONES.len()] = [60.0, 30.0, 10.0];
/// The third zone has the fewest servers.
const MOVED: [f64; ZONES.len()] = [10.0, 30.0, 60.0];

pub const SCENARIOS: [Scenario; 3] = [
    Scenario { name: "demand 60/30/10", demand: [USUAL; MINUTES], lost: [None; MINUTES] },
    Scenario { name: "demand moves to zone-c", demand: [USUAL, MOVED, MOVED], lost: [None; MINUTES] },
    Scenario { name: "servers of zone-c are lost", demand: [USUAL; MINUTES], lost: [None, Some(2), None] },
];

impl Measurement {
    pub fn description(&self) -> String {
        let servers = servers();
        let by_zone = [0, 1, 2].map(|zone| servers.iter().filter(|server| server.zone == zone).count());
        format!(
            "{} connections/s to each of {} competitors, {by_zone:?} servers by zone with a capacity of {:.1}/s each; \
             load is the mean of {} s",
            self.connections,
            Competitor::ALL.len(),
            self.capacity(),
            self.window
        )
    }

    fn capacity(&self) -> f64 {
        self.connections / servers().len() as f64 / UTILISATION
    }
}

/// The demo with its servers. Dropping it ends and removes everything.
pub struct World {
    measurement: Measurement,
    folder: PathBuf,
    api: Api,
    lines: Receiver<AgentLine>,
    sender: Sender<AgentLine>,
    servers: Vec<(Place, Agent)>,
    demo: Option<Agent>,
    scenarios: usize,
}

impl World {
    pub fn start(measurement: &Measurement) -> Self {
        let name = format!("spill-live-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        let (sender, lines) = channel();
        let data = folder.join("demo");
        let mut command = guarded(env!("CARGO_BIN_EXE_zoneward").as_ref());
        command
            .args(["demo", "--keep", "--bare", "--data-dir"])
            .arg(&data)
            .env("PATH", toolbox::search_path());
        let demo = Some(Agent::start("demo", command, sender.clone()));
        let api = Api { socket: data.join("data/api.sock") };
        let measurement = measurement.clone();
        let mut world =
            Self { measurement, folder, api, lines, sender, servers: Vec::new(), demo, scenarios: 0 };
        world.wait_for_line("the demo", 1, |line| line.text.starts_with("Everything keeps running"));
        let capacity = world.measurement.capacity().to_string();
        for place in servers() {
            world.api.label(&place.pod);
            let mut command = world.within(&place.pod);
            command.arg(std::env::current_exe().unwrap()).args(["serve", &capacity]);
            let agent = Agent::start(&place.pod, command, world.sender.clone());
            world.servers.push((place, agent));
        }
        world
    }

    /// A command in the namespace of a pod; the program comes next.
    fn within(&self, pod: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zoneward"));
        command.args(["demo", "exec", pod, "--data-dir"]).arg(self.folder.join("demo")).arg("--");
        command
    }

    fn wait_for_line(&self, what: &str, count: usize, is_wanted: impl Fn(&AgentLine) -> bool) {
        let (start, mut found) = (Instant::now(), 0);
        while found < count {
            let left = PATIENCE.checked_sub(start.elapsed());
            let line = left.and_then(|left| self.lines.recv_timeout(left).ok());
            let line = line.unwrap_or_else(|| panic!("{what}: not ready; see {}", self.folder.display()));
            found += usize::from(is_wanted(&line));
        }
    }

    /// Runs a scenario for all competitors at once.
    pub fn record(&mut self, scenario: &Scenario) -> Vec<(Competitor, Recorded)> {
        let spill =
            json!({"zoneward.dev/traffic-distribution": "Spill", "zoneward.dev/spill-demand": "measured"});
        self.scenarios += 1;
        // The controller remembers the demand of a Service by its name.
        let [same_zone, measured] =
            ["same-zone", "spill"].map(|name| format!("live-{name}-{}", self.scenarios));
        let services = [
            (Competitor::PreferSameZone, &same_zone, json!({}), Some("PreferSameZone")),
            (Competitor::SpillMeasured, &measured, spill, None),
        ];
        let mut targets = Vec::new();
        for (competitor, name, annotations, distribution) in &services {
            let port = competitor.server_port();
            targets.push(format!("{}:80", self.api.create_service(name, port, annotations, *distribution)));
        }
        self.until_endpoints(&[&same_zone, &measured]);
        let envoys = self.start_envoys();
        targets.extend(
            [Competitor::ZoneAware, Competitor::LoadAware].map(|c| format!("127.0.0.1:{}", c.envoy_port())),
        );
        let mut connecting = self.start_clients(&targets.join(" "));
        let recorded = self.follow(scenario, &measured, &mut connecting);
        drop(connecting);
        drop(envoys);
        services.iter().for_each(|(_, name, ..)| self.api.delete_service(name));
        Competitor::ALL.into_iter().zip(recorded).collect()
    }

    fn until_endpoints(&self, services: &[&str]) {
        let start = Instant::now();
        while services.iter().any(|name| self.api.slices(name).0 < self.servers.len()) {
            assert!(start.elapsed() < PATIENCE, "no slices; see {}", self.folder.display());
            std::thread::sleep(TICK);
        }
    }

    fn start_envoys(&self) -> Vec<Agent> {
        let proxies = clients();
        envoy::write_endpoints(&servers(), &self.folder);
        let start = |own: &Place| {
            let file = self.folder.join(format!("{}.json", own.pod));
            fs::write(&file, envoy::bootstrap(own, &proxies, &self.folder).to_string()).unwrap();
            let log = fs::File::create(self.folder.join(format!("{}.log", own.pod))).unwrap();
            let mut command = self.within(&own.pod);
            command.arg(std::env::current_exe().unwrap()).arg("guard").arg(toolbox::path("envoy"));
            command.args(["--concurrency", "1", "--disable-hot-restart", "-l", "warning", "-c"]).arg(file);
            command.stderr(log);
            Agent::start(&format!("envoy-{}", own.pod), command, self.sender.clone())
        };
        proxies.iter().map(start).collect()
    }

    /// Returns once every client has reached every competitor.
    fn start_clients(&self, targets: &str) -> Vec<(Place, Agent)> {
        let start = |place: Place| {
            let mut command = self.within(&place.pod);
            command.arg(std::env::current_exe().unwrap()).args(["connect", ZONES[place.zone]]);
            let mut agent = Agent::start(&place.pod, command, self.sender.clone());
            agent.tell(&format!("targets {targets}"));
            (place, agent)
        };
        let agents: Vec<(Place, Agent)> = clients().into_iter().map(start).collect();
        self.wait_for_line("the clients", agents.len(), |line| line.text == "ready");
        agents
    }

    /// Lets clients connect, turns servers off and on, and collects what all count.
    fn follow(
        &mut self,
        scenario: &Scenario,
        measured: &str,
        connecting: &mut [(Place, Agent)],
    ) -> Vec<Recorded> {
        let Measurement { minute, window, .. } = self.measurement;
        let start = unix_second() + 1;
        while unix_second() < start {
            std::thread::sleep(Duration::from_millis(5));
        }
        let is_lost = |zone: usize, at: usize| scenario.lost[at] == Some(zone);
        let lost = |place: &Place| {
            let at = (0..MINUTES).find(|at| is_lost(place.zone, *at))?;
            Some(start + at as u64 * minute..start + (at as u64 + 1) * minute)
        };
        let servers =
            self.servers.iter().map(|(place, _)| ScoredServer { zone: place.zone, lost: lost(place) });
        let blank = Recorded {
            start,
            minute,
            window,
            capacity: self.measurement.capacity(),
            servers: servers.collect(),
            ..Default::default()
        };
        let mut all = vec![blank; Competitor::ALL.len()];
        let (mut lost_before, mut plan) = (None, PlanWrites::new(&self.api, measured));
        for at in 0..MINUTES {
            self.set_demand(&scenario.demand[at], connecting);
            let (change, began) = (lost_before != scenario.lost[at], Instant::now());
            if change {
                self.switch(lost_before, "on");
                self.switch(scenario.lost[at], "off");
            }
            lost_before = scenario.lost[at];
            let mut is_noticed = !change;
            while unix_second() < start + (at as u64 + 1) * minute {
                plan.look(&self.api);
                if !is_noticed && began.elapsed() >= NOTICED_AFTER {
                    self.notice(scenario.lost[at]);
                    is_noticed = true;
                }
                self.collect(&mut all);
            }
        }
        self.set_demand(&[0.0; ZONES.len()], connecting);
        // The last connections, and their counts.
        let end = Instant::now();
        while end.elapsed() < Duration::from_secs(3) {
            self.collect(&mut all);
        }
        all[Competitor::SpillMeasured as usize].writes = plan.writes;
        all
    }

    /// Both clients of a zone have half of its connections.
    fn set_demand(&self, percent: &[f64; ZONES.len()], connecting: &mut [(Place, Agent)]) {
        for (place, agent) in connecting {
            agent.tell(&format!("rate {}", self.measurement.connections * percent[place.zone] / 100.0 / 2.0));
        }
    }

    fn switch(&mut self, zone: Option<usize>, state: &str) {
        let inside = self.servers.iter_mut().filter(|(place, _)| Some(place.zone) == zone);
        inside.for_each(|(_, agent)| agent.tell(state));
    }

    /// Tells the API and the Envoys which servers are there.
    fn notice(&self, lost: Option<usize>) {
        let (gone, there): (Vec<Place>, Vec<Place>) =
            servers().into_iter().partition(|place| Some(place.zone) == lost);
        gone.iter().for_each(|place| self.api.set_ready(&place.pod, false));
        envoy::write_endpoints(&there, &self.folder);
        there.iter().for_each(|place| self.api.set_ready(&place.pod, true));
    }

    /// Takes the lines of one tick.
    fn collect(&self, all: &mut [Recorded]) {
        let end = Instant::now() + TICK;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let Ok(line) = self.lines.recv_timeout(left) else { return };
            let words: Vec<&str> = line.text.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words.as_slice() {
                ["served", ..] => {
                    let server = self.servers.iter().position(|(place, _)| place.pod == line.agent).unwrap();
                    let at = (server, number(1), number(3) as usize);
                    *all[number(2) as usize].served.entry(at).or_default() += number(4);
                }
                ["sent", ..] => {
                    all[number(2) as usize].answered += number(3);
                    all[number(2) as usize].failed += number(4);
                }
                _ => {}
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.servers.clear();
        self.demo = None;
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A command that ends with its standard input; its words come next.
fn guarded(program: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("guard").arg(program);
    command
}

/// Counts changes of what slices say about Spill. Two within a second count as one; there are at least 30 s between them.
struct PlanWrites {
    service: String,
    before: String,
    writes: u64,
    next: Instant,
}

impl PlanWrites {
    fn new(api: &Api, service: &str) -> Self {
        let before = api.slices(service).1;
        Self { service: service.to_owned(), before, writes: 0, next: Instant::now() }
    }

    fn look(&mut self, api: &Api) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + Duration::from_secs(1);
        let now = api.slices(&self.service).1;
        if now != self.before {
            self.writes += 1;
            println!("  written: {now}");
            self.before = now;
        }
    }
}
