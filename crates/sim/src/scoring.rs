//! Scores algorithms over many inputs, in parallel: means, extremes and histograms.
//!
//! ```text
//! inputs -> chunks of fixed size -> threads -> totals, summed in the order of the chunks
//! ```
//!
//! The sums do not depend on the number of threads, to the last bit.

pub mod totals;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::algorithm::{Algorithm, AlgorithmSettings};
use crate::dataset::{self, Dataset, ZoneTriple};
use crate::fast::{self, ThreeZones};
use crate::input::{SimulationInput, Zone};

pub use totals::{ScoreHistogram, ScoreTotals};

#[derive(Clone, Copy, Debug)]
pub enum InputSource<'a> {
    Set(Dataset),
    List(&'a [SimulationInput]),
}

#[derive(Clone, Copy, Debug)]
pub struct ScoringJob<'a> {
    pub source: InputSource<'a>,
    pub algorithms: &'a [Algorithm],
    pub settings: AlgorithmSettings,
    pub threads: usize,
}

#[derive(Clone, Debug)]
pub struct ScoringSummary {
    /// Number of inputs scored.
    pub done: u64,
    /// Number of inputs; more than `done` if the run was stopped.
    pub inputs: u64,
    /// In the order of the algorithms.
    pub rows: Vec<AlgorithmScores>,
}

/// Scores of one algorithm over all inputs.
#[derive(Clone, Debug)]
pub struct AlgorithmScores {
    pub algorithm: Algorithm,
    pub totals: ScoreTotals,
    pub histogram: ScoreHistogram,
}

/// Inputs per chunk of a data set, and of a list, whose inputs may be larger.
const SET_CHUNK: u64 = 1 << 16;
const LIST_CHUNK: u64 = 1 << 10;
/// Inputs that each algorithm scores in a row, so that they stay in the CPU cache.
const BLOCK: usize = 256;

impl InputSource<'_> {
    pub fn len(&self) -> u64 {
        match self {
            Self::Set(set) => set.len(),
            Self::List(list) => list.len() as u64,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn chunk(&self) -> u64 {
        match self {
            Self::Set(_) => SET_CHUNK,
            Self::List(_) => LIST_CHUNK,
        }
    }
}

/// Number and size of a chunk, and totals per algorithm.
type ScoredChunk = (u64, u64, Vec<ScoreTotals>);

/// Runs a job. Calls `progress` with the number of newly scored inputs; `stop` ends the run after the current chunks.
pub fn run(job: &ScoringJob<'_>, stop: &AtomicBool, progress: &(dyn Fn(u64) + Sync)) -> ScoringSummary {
    let next = AtomicU64::new(0);
    let chunks = job.source.len().div_ceil(job.source.chunk());
    let done: Mutex<Vec<ScoredChunk>> = Mutex::new(Vec::new());
    let histograms: Mutex<Vec<ScoreHistogram>> =
        Mutex::new(vec![ScoreHistogram::default(); job.algorithms.len()]);
    let work = || {
        let mut worker = Worker::new(job);
        while !stop.load(Ordering::Relaxed) {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                break;
            }
            let (size, totals) = worker.chunk(chunk);
            lock(&done).push((chunk, size, totals));
            progress(size);
        }
        lock(&histograms).iter_mut().zip(&worker.histograms).for_each(|(sum, histogram)| sum.add(histogram));
    };
    std::thread::scope(|scope| {
        (1..job.threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    summary(job, std::mem::take(&mut *lock(&done)), std::mem::take(&mut *lock(&histograms)))
}

/// A panicked thread leaves no partial update: each push and addition is complete or absent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn summary(
    job: &ScoringJob<'_>,
    mut done: Vec<ScoredChunk>,
    histograms: Vec<ScoreHistogram>,
) -> ScoringSummary {
    done.sort_by_key(|(chunk, _, _)| *chunk);
    let mut totals = vec![ScoreTotals::default(); job.algorithms.len()];
    for (_, _, chunk) in &done {
        totals.iter_mut().zip(chunk).for_each(|(sum, totals)| sum.add(totals));
    }
    let rows = job.algorithms.iter().zip(totals).zip(histograms);
    ScoringSummary {
        done: done.iter().map(|(_, size, _)| size).sum(),
        inputs: job.source.len(),
        rows: rows
            .map(|((algorithm, totals), histogram)| AlgorithmScores {
                algorithm: *algorithm,
                totals,
                histogram,
            })
            .collect(),
    }
}

struct Worker<'j> {
    job: &'j ScoringJob<'j>,
    histograms: Vec<ScoreHistogram>,
    block: Vec<(ThreeZones, ZoneTriple)>,
}

impl<'j> Worker<'j> {
    fn new(job: &'j ScoringJob<'j>) -> Self {
        let histograms = vec![ScoreHistogram::default(); job.algorithms.len()];
        Self { job, histograms, block: Vec::with_capacity(BLOCK) }
    }

    fn chunk(&mut self, chunk: u64) -> (u64, Vec<ScoreTotals>) {
        let size = self.job.source.chunk();
        let start = chunk * size;
        let count = size.min(self.job.source.len() - start);
        let mut totals = vec![ScoreTotals::default(); self.job.algorithms.len()];
        match self.job.source {
            InputSource::Set(set) => {
                set.for_each(start, count, |_, triple| {
                    self.block.push((ThreeZones::new(triple), triple));
                    if self.block.len() == BLOCK {
                        self.score_block(&mut totals);
                    }
                });
                self.score_block(&mut totals);
            }
            InputSource::List(list) => {
                let range = start as usize..(start + count) as usize;
                list[range].iter().for_each(|input| self.score(input.zones(), &mut totals));
            }
        }
        (count, totals)
    }

    fn score_block(&mut self, totals: &mut [ScoreTotals]) {
        let settings = &self.job.settings;
        for (at, algorithm) in self.job.algorithms.iter().enumerate() {
            for (three, triple) in &self.block {
                let metrics = fast::measure(*algorithm, three, settings)
                    .unwrap_or_else(|| algorithm.measure(&dataset::zones(*triple), settings));
                totals[at].count(metrics.as_ref());
                self.histograms[at].count(metrics.as_ref());
            }
        }
        self.block.clear();
    }

    fn score(&mut self, zones: &[Zone], totals: &mut [ScoreTotals]) {
        let settings = &self.job.settings;
        let three = three_zones(zones);
        for (at, algorithm) in self.job.algorithms.iter().enumerate() {
            let fast = three.as_ref().and_then(|three| fast::measure(*algorithm, three, settings));
            let metrics = fast.unwrap_or_else(|| algorithm.measure(zones, settings));
            totals[at].count(metrics.as_ref());
            self.histograms[at].count(metrics.as_ref());
        }
    }
}

/// The input of the fast forms, if there are three zones within their limits.
fn three_zones(zones: &[Zone]) -> Option<ThreeZones> {
    let [a, b, c] = zones else { return None };
    let fits = [a, b, c].iter().all(|z| z.nodes.max(z.endpoints) <= fast::LARGEST_COUNT);
    // The common group overwrites a zone of its name; only the plain forms do that.
    let unreserved = [a, b, c].iter().all(|z| z.name != "global");
    let nodes = [a, b, c].map(|z| z.nodes as u32);
    (fits && unreserved).then(|| ThreeZones::new((nodes, [a, b, c].map(|z| z.endpoints as u32))))
}
