//! The fuzzer: libFuzzer's options as arguments, the target's name in ZONEWARD_FUZZ_TARGET. Built by `cargo xtask`,
//! which instruments our crates.
#![no_main]
#![allow(unsafe_code, reason = "the entry that libFuzzer calls is an exported symbol")]

use std::sync::LazyLock;

use fuzz::{FuzzTarget, TARGETS, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("ZONEWARD_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("set ZONEWARD_FUZZ_TARGET to one of {}", names.join(", "));
        std::process::exit(2)
    })
});

fuzz_target!(
    init: {
        if TARGET.catches_panics {
            // libFuzzer's hook aborts before a panic can be caught.
            std::panic::set_hook(Box::new(|_| {}));
        }
    },
    |input: &[u8]| {
        if input.len() <= TARGET.max_len {
            (TARGET.run)(input);
        }
    }
);
