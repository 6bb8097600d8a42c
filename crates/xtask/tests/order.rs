//! The linker script of release builds, held against the linker of this machine: the tests build no release, and a script
//! that is not read would show only when somebody follows the README.

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = "fn main() { println!(\"{:?}\", std::env::args().skip(1).collect::<Vec<_>>()); }";

#[test]
fn program_is_linked_in_the_order_of_the_script_and_runs() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zoneward/order.ld");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("order");
    std::fs::create_dir_all(&folder).expect("the target directory can be written");
    let (source, binary) = (folder.join("program.rs"), folder.join("program"));
    std::fs::write(&source, PROGRAM).expect("the source is written");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "-O", "-o"]).arg(&binary).arg(&source);
    rustc.arg(format!("-Clink-arg=-Wl,-T,{}", script.display()));
    let built = rustc.output().expect("the compiler that builds this test is there");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = Command::new(&binary).arg("hello").output().expect("the program starts").stdout;
    assert_eq!(String::from_utf8_lossy(&said), "[\"hello\"]\n");
    let content = std::fs::read(&binary).expect("the program can be read");
    let section = b"\0.text.used\0";
    assert!(
        content.windows(section.len()).any(|at| at == section),
        "the script named no function of the program"
    );
}
