//! Many inputs, several algorithms, any number of threads: means, extremes and distributions.
//!
//! ```text
//! inputs -> chunks of fixed size -> threads take the next one -> tallies, added up in the order of the chunks
//! ```
//!
//! So the same sums come out, to the last bit, whoever did which chunk.

pub mod tally;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::algorithm::{Algorithm, Settings};
use crate::dataset::{Dataset, Triple};
use crate::fast::{self, Three};
use crate::input::{Input, Zone};

pub use tally::{Shape, Tally};

/// What to score.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A built-in set.
    Set(Dataset),
    /// These.
    List(&'a [Input]),
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The inputs.
    pub source: Source<'a>,
    /// The algorithms, in the order of the answer.
    pub algorithms: &'a [Algorithm],
    /// What else was chosen.
    pub settings: Settings,
    /// How many threads work; at least one does.
    pub threads: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Inputs that were scored.
    pub done: u64,
    /// Inputs that there are; more than `done` where the run was stopped.
    pub inputs: u64,
    /// One per algorithm, in their order.
    pub rows: Vec<Row>,
}

/// One algorithm over all inputs.
#[derive(Clone, Debug)]
pub struct Row {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Sums and extremes.
    pub tally: Tally,
    /// Distributions.
    pub shape: Shape,
}

/// Inputs per chunk of a built-in set, and of a list, whose inputs may take longer.
const SET_CHUNK: u64 = 1 << 16;
const LIST_CHUNK: u64 = 1 << 10;
/// Inputs that are prepared at once, so that each algorithm finds them close by.
const BLOCK: usize = 256;

impl Source<'_> {
    /// How many inputs there are.
    pub fn len(&self) -> u64 {
        match self {
            Self::Set(set) => set.len(),
            Self::List(list) => list.len() as u64,
        }
    }

    /// Whether there are none.
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

/// What a chunk gave: its place, its size, and a tally per algorithm.
type Done = (u64, u64, Vec<Tally>);

/// Runs a job. `progress` is told how many more inputs are done; setting `stop` ends the run after the chunks at hand.
pub fn run(job: &Job<'_>, stop: &AtomicBool, progress: &(dyn Fn(u64) + Sync)) -> Summary {
    let next = AtomicU64::new(0);
    let chunks = job.source.len().div_ceil(job.source.chunk());
    let done: Mutex<Vec<Done>> = Mutex::new(Vec::new());
    let shapes: Mutex<Vec<Shape>> = Mutex::new(vec![Shape::default(); job.algorithms.len()]);
    let work = || {
        let mut worker = Worker::new(job);
        while !stop.load(Ordering::Relaxed) {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                break;
            }
            let (size, tallies) = worker.chunk(chunk);
            held(&done).push((chunk, size, tallies));
            progress(size);
        }
        held(&shapes).iter_mut().zip(&worker.shapes).for_each(|(sum, shape)| sum.add(shape));
    };
    std::thread::scope(|scope| {
        (1..job.threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    summary(job, std::mem::take(&mut *held(&done)), std::mem::take(&mut *held(&shapes)))
}

/// A thread that panicked left nothing half-written: each push and addition is complete or absent.
fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn summary(job: &Job<'_>, mut done: Vec<Done>, shapes: Vec<Shape>) -> Summary {
    done.sort_by_key(|(chunk, _, _)| *chunk);
    let mut tallies = vec![Tally::default(); job.algorithms.len()];
    for (_, _, chunk) in &done {
        tallies.iter_mut().zip(chunk).for_each(|(sum, tally)| sum.add(tally));
    }
    let rows = job.algorithms.iter().zip(tallies).zip(shapes);
    Summary {
        done: done.iter().map(|(_, size, _)| size).sum(),
        inputs: job.source.len(),
        rows: rows.map(|((algorithm, tally), shape)| Row { algorithm: *algorithm, tally, shape }).collect(),
    }
}

struct Worker<'j> {
    job: &'j Job<'j>,
    shapes: Vec<Shape>,
    block: Vec<(u64, Three, Triple)>,
}

impl<'j> Worker<'j> {
    fn new(job: &'j Job<'j>) -> Self {
        let shapes = vec![Shape::default(); job.algorithms.len()];
        Self { job, shapes, block: Vec::with_capacity(BLOCK) }
    }

    fn chunk(&mut self, chunk: u64) -> (u64, Vec<Tally>) {
        let size = self.job.source.chunk();
        let start = chunk * size;
        let count = size.min(self.job.source.len() - start);
        let mut tallies = vec![Tally::default(); self.job.algorithms.len()];
        match self.job.source {
            Source::Set(set) => {
                set.for_each(start, count, |at, triple| {
                    self.block.push((at, Three::new(triple), triple));
                    if self.block.len() == BLOCK {
                        self.finish_block(set, &mut tallies);
                    }
                });
                self.finish_block(set, &mut tallies);
            }
            Source::List(list) => {
                let range = start as usize..(start + count) as usize;
                list[range].iter().for_each(|input| self.input(input, &mut tallies));
            }
        }
        (count, tallies)
    }

    fn finish_block(&mut self, set: Dataset, tallies: &mut [Tally]) {
        let settings = &self.job.settings;
        for (at, algorithm) in self.job.algorithms.iter().enumerate() {
            for (number, three, triple) in &self.block {
                let metrics = fast::measure(*algorithm, three, settings)
                    .unwrap_or_else(|| algorithm.measure(set.input(*number, *triple).zones(), settings));
                tallies[at].count(metrics.as_ref());
                self.shapes[at].count(metrics.as_ref());
            }
        }
        self.block.clear();
    }

    fn input(&mut self, input: &Input, tallies: &mut [Tally]) {
        let settings = &self.job.settings;
        let three = three(input.zones());
        for (at, algorithm) in self.job.algorithms.iter().enumerate() {
            let quick = three.as_ref().and_then(|three| fast::measure(*algorithm, three, settings));
            let metrics = quick.unwrap_or_else(|| algorithm.measure(input.zones(), settings));
            tallies[at].count(metrics.as_ref());
            self.shapes[at].count(metrics.as_ref());
        }
    }
}

/// The fast form of an input of three zones that are not too large for it.
fn three(zones: &[Zone]) -> Option<Three> {
    let [a, b, c] = zones else { return None };
    let fits = [a, b, c].iter().all(|z| z.nodes.max(z.endpoints) <= fast::LARGEST_COUNT);
    // A zone with the name of a common group would be overwritten by it; the plain form does that.
    let plain = [a, b, c].iter().all(|z| z.name != "global");
    let nodes = [a, b, c].map(|z| z.nodes as u32);
    (fits && plain).then(|| Three::new((nodes, [a, b, c].map(|z| z.endpoints as u32))))
}
