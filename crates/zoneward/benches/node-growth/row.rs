//! The figures of one number of Services, and the tables of all.

use std::time::Duration;

pub(crate) const CHANGES: usize = 2_000;
/// Goals at 10,000 Services of ten endpoints, in kB.
const GOAL_RESIDENT: u64 = 50_000;
const GOAL_PRIVATE: u64 = 35_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) load_cpu: Duration,
    pub(crate) change_p50: Duration,
    pub(crate) change_p99: Duration,
    pub(crate) change_cpu: Duration,
}

/// Memory in kB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) services: usize,
    pub(crate) cold_cpu: Duration,
    pub(crate) restart_cpu: Duration,
    pub(crate) resident: u64,
    pub(crate) private: u64,
    /// The most that a start over its own rules had.
    pub(crate) restart_peak: u64,
    pub(crate) rest_after_changes: u64,
    pub(crate) change_p50: Duration,
    pub(crate) change_p99: Duration,
    pub(crate) change_cpu: Duration,
    pub(crate) floor: Floor,
}

impl Row {
    /// For the process that prints the tables.
    pub(crate) fn line(&self) -> String {
        let us = |time: Duration| time.as_micros() as u64;
        let floor = &self.floor;
        let words = [
            self.services as u64,
            us(self.cold_cpu),
            us(self.restart_cpu),
            self.resident,
            self.private,
            self.restart_peak,
            self.rest_after_changes,
            us(self.change_p50),
            us(self.change_p99),
            us(self.change_cpu),
            us(floor.load_cpu),
            us(floor.change_p50),
            us(floor.change_p99),
            us(floor.change_cpu),
        ];
        words.map(|word| word.to_string()).join(" ")
    }

    pub(crate) fn parse(line: &str) -> Row {
        let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        let services = next() as usize;
        let (cold_cpu, restart_cpu) = (Duration::from_micros(next()), Duration::from_micros(next()));
        let [resident, private, restart_peak, rest_after_changes] = [next(), next(), next(), next()];
        let mut time = || Duration::from_micros(next());
        let [change_p50, change_p99, change_cpu] = [time(), time(), time()];
        let floor = Floor { load_cpu: time(), change_p50: time(), change_p99: time(), change_cpu: time() };
        Row {
            services,
            cold_cpu,
            restart_cpu,
            resident,
            private,
            restart_peak,
            rest_after_changes,
            change_p50,
            change_p99,
            change_cpu,
            floor,
        }
    }
}

/// Of sorted times.
pub(crate) fn percentile(times: &[Duration], share: f64) -> Duration {
    times[((times.len() as f64 * share) as usize).min(times.len() - 1)]
}

pub(crate) fn print(rows: &[Row]) {
    let first = rows[0];
    println!("Loads; ratios to the first row are per Service:");
    println!(
        "| Services x 10 | cold start, CPU-s | to first row | to floor | floor, CPU-s | restart, CPU-s | to first row |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let scale = first.services as f64 / row.services as f64;
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            row.services,
            row.cold_cpu.as_secs_f64(),
            ratio(row.cold_cpu, first.cold_cpu) * scale,
            ratio(row.cold_cpu, row.floor.load_cpu),
            row.floor.load_cpu.as_secs_f64(),
            row.restart_cpu.as_secs_f64(),
            ratio(row.restart_cpu, first.restart_cpu) * scale,
        );
    }
    println!("\nMemory; the ratio to the first row is per Service, private alone:");
    println!(
        "| Services x 10 | at rest, MB | private, MB | to first row | peak of a restart, MB | to rest | after {CHANGES} changes, MB |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        println!(
            "| {} | {:.1} | {:.1} | {:.2} | {:.1} | {:.2} | {:.1} |",
            row.services,
            megabytes(row.resident),
            megabytes(row.private),
            row.private as f64 / first.private as f64 * first.services as f64 / row.services as f64,
            megabytes(row.restart_peak),
            row.restart_peak as f64 / row.resident as f64,
            megabytes(row.rest_after_changes),
        );
    }
    println!("\nOne change, from the API's answer until the kernel's commit, {CHANGES} changes:");
    println!(
        "| Services x 10 | p50, ms | p99, ms | p99 to first row | p99 to floor | CPU, ms | to first row | to floor | floor p50, p99, CPU, ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let floor = &row.floor;
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.1} | {:.2} | {:.2} | {:.1} | {:.2}, {:.2}, {:.2} |",
            row.services,
            ms(row.change_p50),
            ms(row.change_p99),
            ratio(row.change_p99, first.change_p99),
            ratio(row.change_p99, floor.change_p99),
            ms(row.change_cpu),
            ratio(row.change_cpu, first.change_cpu),
            ratio(row.change_cpu, floor.change_cpu),
            ms(floor.change_p50),
            ms(floor.change_p99),
            ms(floor.change_cpu),
        );
    }
    goals(rows);
}

fn goals(rows: &[Row]) {
    println!();
    let of = |services: usize| rows.iter().find(|row| row.services == services);
    if let Some(row) = of(10_000) {
        let (resident, private) = (row.resident <= GOAL_RESIDENT, row.private <= GOAL_PRIVATE);
        println!(
            "at 10,000: resident at most 50 MB {}, private at most 35 MB {}",
            met(resident),
            met(private)
        );
        if let Some(last) = of(100_000) {
            let (p99, cpu) = (ratio(last.change_p99, row.change_p99), ratio(last.change_cpu, row.change_cpu));
            println!(
                "one change, 100,000 to 10,000: p99 {p99:.2}, CPU {cpu:.2}; goal 1.5 {}",
                met(p99 <= 1.5)
            );
        }
    }
    let peak = rows.iter().map(|row| row.restart_peak as f64 / row.resident as f64).fold(0.0, f64::max);
    println!("peak of a restart to memory at rest, worst row: {peak:.2}; goal 1.2 {}", met(peak <= 1.2));
}

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "not met" }
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64().max(1e-9)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn megabytes(kilobytes: u64) -> f64 {
    kilobytes as f64 / 1e3
}
