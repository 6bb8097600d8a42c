//! What happened, in order: a hash over all of it, and the last lines for a reader.

use std::collections::VecDeque;
use std::fmt;

/// Lines that are kept for a failure.
const KEPT: usize = 400;

#[derive(Debug, Default)]
pub(crate) struct Story {
    hash: u64,
    events: u64,
    lines: VecDeque<String>,
    /// Prints every line, for `--trace`.
    pub is_traced: bool,
}

impl Story {
    /// Adds an event of a party at a simulated millisecond.
    pub(crate) fn note(&mut self, now: u64, party: &str, event: fmt::Arguments<'_>) {
        let line = format!("{:>9.3} {party:<12} {event}", now as f64 / 1_000.0);
        // FNV-1a.
        let start = if self.events == 0 { 0xcbf2_9ce4_8422_2325 } else { self.hash };
        self.hash =
            line.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        self.events += 1;
        if self.is_traced {
            println!("{line}");
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The hash of all events: equal in two runs of a seed.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The last events.
    pub(crate) fn last(&self, lines: usize) -> Vec<String> {
        self.lines.iter().skip(self.lines.len().saturating_sub(lines)).cloned().collect()
    }
}
