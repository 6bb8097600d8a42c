//! A broken invariant.

use std::fmt;

/// Which of the invariants in docs/benchmarks/simulation.md is broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant {
    pub number: u8,
    pub text: String,
}

impl BrokenInvariant {
    pub fn new(number: u8, text: impl Into<String>) -> Self {
        Self { number, text: text.into() }
    }
}

impl fmt::Display for BrokenInvariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.number, self.text)
    }
}
