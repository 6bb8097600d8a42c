//! Fuzz targets: one function per parser that reads from a socket or file.
//!
//! ```text
//! corpus/NAME/* -> target -> asserts: round trips, agreement of two implementations, bounds
//!      ^              ^
//!      |              +--- tests/corpus.rs, in every `cargo xtask test`: the corpus, and changes of it, without a fuzzer
//!      +---- libFuzzer (src/main.rs): `cargo xtask soak fuzz`
//! ```
//!
//! A target panics if a property does not hold. Time and memory of one input are bounded by the fuzzer.

mod cel;
mod http_edge;
mod journal;
mod netlink;
mod objects;
mod patches;
mod protobuf;
mod requests;
mod watches;

/// A parser under test.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Also the name of its folder in `corpus`.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Longest input in bytes.
    pub max_len: usize,
    /// The parser catches panics of a library: they are its errors, not findings.
    pub catches_panics: bool,
}

pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "cel", run: cel::run, max_len: 512, catches_panics: true },
    FuzzTarget { name: "http", run: http_edge::run, max_len: 2_048, catches_panics: false },
    FuzzTarget { name: "journal", run: journal::run, max_len: 8_192, catches_panics: false },
    FuzzTarget { name: "netlink", run: netlink::run, max_len: 4_096, catches_panics: false },
    FuzzTarget { name: "objects", run: objects::run, max_len: 4_096, catches_panics: false },
    FuzzTarget { name: "patches", run: patches::run, max_len: 2_048, catches_panics: false },
    FuzzTarget { name: "protobuf", run: protobuf::run, max_len: 4_096, catches_panics: false },
    FuzzTarget { name: "requests", run: requests::run, max_len: 1_024, catches_panics: false },
    FuzzTarget { name: "watches", run: watches::run, max_len: 4_096, catches_panics: false },
];

/// The target of a name.
pub fn target(name: &str) -> Option<FuzzTarget> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
