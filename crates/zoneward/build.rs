//! Tells the linker which functions to put next to each other in an optimised binary; `order.ld` says why.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=order.ld");
    println!("cargo::rerun-if-env-changed=ZONEWARD_LINK_ORDER");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    // The script names ELF sections. GNU ld and lld read it; with a linker that does not, it can be left out.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") && !is("ZONEWARD_LINK_ORDER", "off") {
        let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{folder}/order.ld");
    }
}
