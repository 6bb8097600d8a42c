//! What is scored: the nodes and endpoints of each zone, under a name.
//!
//! Limits are checked where an input is made, so that no algorithm has to fear an overflow.

pub mod csv;

use std::fmt;

/// The largest number of nodes or endpoints of a zone; sums and products of more would not fit.
pub const LARGEST_COUNT: u64 = 10_000_000;
/// The largest number of zones.
pub const MOST_ZONES: usize = 100;

/// A zone of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// Its nodes; the traffic that it sends is proportional to them.
    pub nodes: u64,
    /// Its endpoints.
    pub endpoints: u64,
}

/// One case to score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    id: String,
    zones: Vec<Zone>,
}

/// An input that cannot be scored, and why. The others are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The input's name, as far as it could be read.
    pub id: String,
    /// Line and column, from 1, where the input came from a text.
    pub at: Option<(usize, usize)>,
    /// What is wrong, and what to write instead.
    pub reason: String,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.at {
            write!(f, "line {line}, column {column}: ")?;
        }
        match self.id.is_empty() {
            true => f.write_str(&self.reason),
            false => write!(f, "{}: {}", self.id, self.reason),
        }
    }
}

impl Input {
    /// An input whose zones are unlike in name and small enough, in any order.
    pub fn new(id: &str, mut zones: Vec<Zone>) -> Result<Self, Rejection> {
        let reject = |reason: String| Err(Rejection { id: id.to_owned(), at: None, reason });
        if zones.is_empty() {
            return reject("it has no zones: give at least one".to_owned());
        }
        if zones.len() > MOST_ZONES {
            return reject(format!("it has {} zones, and {MOST_ZONES} is the most", zones.len()));
        }
        // Simulator 4: in the order of the names' bytes, so that zone10 comes before zone2.
        zones.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = zones.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return reject(format!("zone {} is there twice: rename or remove one", pair[0].name));
        }
        if let Some(zone) = zones.iter().find(|z| z.nodes.max(z.endpoints) > LARGEST_COUNT) {
            return reject(format!("zone {}: {LARGEST_COUNT} nodes or endpoints is the most", zone.name));
        }
        Ok(Self { id: id.to_owned(), zones })
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its zones in the order of their names.
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }
}

/// The share of traffic that each zone sends, and what follows from it (simulator 3 and 4).
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// All endpoints.
    pub total: u64,
    /// Nodes of the zone by all nodes.
    pub ratio: Vec<f64>,
    /// Endpoints that the zone would have if they followed the traffic: the ratio, rounded, times the total, rounded.
    pub expected: Vec<f64>,
}

impl Shares {
    pub(crate) fn of(zones: &[Zone]) -> Self {
        let total: u64 = zones.iter().map(|z| z.endpoints).sum();
        let nodes: u64 = zones.iter().map(|z| z.nodes).sum();
        let ratio = |z: &Zone| if nodes == 0 { 0.0 } else { z.nodes as f64 / nodes as f64 };
        let ratio: Vec<f64> = zones.iter().map(ratio).collect();
        let expected = ratio.iter().map(|r| r * total as f64).collect();
        Self { total, ratio, expected }
    }
}
