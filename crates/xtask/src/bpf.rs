//! `cargo xtask bpf`: compiles the eBPF program of the accelerator with Debian's clang. The object is in the repository, so
//! that a build needs no clang; where clang is, the two are compared byte by byte.

use std::path::{Path, PathBuf};

use crate::Stop;
use crate::{report, shell, tools};

const SOURCE: &str = "accelerator.c";
const OBJECT: &str = "accelerator.o";
/// Checksums of both, in the format of sha256sum; a test of crate dataplane checks them without clang.
const CHECKSUMS: &str = "accelerator.sha256";

/// Compiles, and replaces the object or compares it.
pub(crate) fn run(may_install: bool, check: bool) -> Result<(), Stop> {
    report::heading("bpf: the eBPF object is what clang makes of its source");
    tools::ensure(&[tools::CLANG], may_install)?;
    compile(check)
}

/// The same with clang in its place.
pub(crate) fn compile(check: bool) -> Result<(), Stop> {
    let folder = folder()?;
    let built = build(&folder)?;
    let object = folder.join(OBJECT);
    if check {
        let held = std::fs::read(&object).unwrap_or_default();
        return match read(&built)? == held {
            true => Ok(()),
            false => Err(Stop::Failed(format!(
                "{} is not what clang makes of {SOURCE}: run `cargo xtask bpf`",
                object.display()
            ))),
        };
    }
    std::fs::copy(&built, &object).map_err(|error| failed(&object, &error))?;
    let mut sums = shell::program("sha256sum");
    sums.args([SOURCE, OBJECT]).current_dir(&folder);
    let sums = shell::capture(&mut sums, "sha256sum", "it is part of coreutils")?;
    let path = folder.join(CHECKSUMS);
    std::fs::write(&path, sums).map_err(|error| failed(&path, &error))?;
    report::say(&format!("{} is written", object.display()));
    Ok(())
}

/// Where the program and its object are.
fn folder() -> Result<PathBuf, Stop> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataplane/bpf");
    std::fs::canonicalize(&folder).map_err(|error| failed(&folder, &error))
}

/// The object, without debug information but with the types that the kernel needs. Its bytes do not depend on where the
/// repository is.
fn build(folder: &Path) -> Result<PathBuf, Stop> {
    let out = shell::target_dir().join("bpf");
    std::fs::create_dir_all(&out).map_err(|error| failed(&out, &error))?;
    let built = out.join(OBJECT);
    let bin = shell::tools().bin();
    let mut clang = shell::program(bin.join("clang-14"));
    clang.args(["-target", "bpf", "-mcpu=v2", "-O2", "-g", "-ffreestanding", "-Wall", "-Wextra", "-Werror"]);
    clang.arg(format!("-fdebug-prefix-map={}=.", folder.display()));
    clang.args(["-c", SOURCE, "-o"]).arg(&built).current_dir(folder);
    shell::run(&mut clang, "clang", "see the errors above")?;
    let mut strip = shell::program(bin.join("llvm-strip-14"));
    shell::run(strip.arg("-g").arg(&built), "llvm-strip", "see the errors above")?;
    Ok(built)
}

fn read(path: &Path) -> Result<Vec<u8>, Stop> {
    std::fs::read(path).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{}: {error}", path.display()))
}
