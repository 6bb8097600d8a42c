//! `cargo xtask test --extended --only accelerator`: the tests of the eBPF accelerator in virtual machines, on the kernels of
//! two Debian releases: what one kernel's verifier takes, another's may refuse.

use std::path::{Path, PathBuf};

use crate::Stop;
use crate::vm::{self, Initramfs, failed, name_of, read, tools_bin};
use crate::{report, shell, tools};

/// The release after the one whose packages this machine has.
const NEXT_RELEASE: &str = "trixie";
/// Without the soak: an emulated machine is too slow for its times.
const TESTS: [&str; 4] = [
    "connections_of_the_cases_fare_as_without_it",
    "sockets_reach_endpoints_see_the_cluster_ip_and_are_counted",
    "only_sockets_of_the_node_are_taken_where_that_is_wanted",
    "a_restart_takes_over_and_growth_replaces_the_maps",
];

/// Builds the test program, packs and boots it with each kernel.
pub(crate) fn run() -> Result<(), Stop> {
    let programs = vm::build(&["dataplane"], &["accelerator_kernel"])?;
    let here = tools::unpacked();
    for folder in [here, next_release()?] {
        let (kernel, version) = vm::kernel(&folder)?;
        report::say(&format!("Linux {version}"));
        let archive = pack(&folder, &version, &programs[0])?;
        vm::boot(&kernel, &archive)?;
    }
    Ok(())
}

fn pack(folder: &Path, version: &str, program: &Path) -> Result<PathBuf, Stop> {
    let mut image = Initramfs::default();
    let modules = vm::modules(folder, version, &vm::NFTABLES)?;
    for module in &modules {
        image.file(&format!("/modules/{}", name_of(module)), &read(module)?, 0o644);
    }
    image.file("/bin/busybox", &read(&tools::unpacked().join("bin/busybox"))?, 0o755);
    image.program("/vm/debug/accelerator_kernel", program)?;
    image.program("/vm/tools/bin/ip", &tools_bin("ip")?)?;
    let vectors = shell::root().join("vectors/packetflow-nftables.json");
    image.file(&vectors.display().to_string(), &read(&vectors)?, 0o644);
    image.folder(&shell::root().join("crates/dataplane").display().to_string());
    let tests: Vec<String> = TESTS
        .iter()
        .map(|test| format!("echo {test} && /vm/debug/accelerator_kernel --exact {test}"))
        .collect();
    let commands =
        format!("$b mount -t cgroup2 cgroup /sys/fs/cgroup\n$b ip link set lo up\n{}", tests.join(" && "));
    image.file("/init", vm::init(&modules, &commands).as_bytes(), 0o755);
    let archive = shell::target_dir().join("accelerator-vm.cpio");
    std::fs::write(&archive, image.bytes()).map_err(|error| failed(&archive, &error))?;
    Ok(archive)
}

/// The kernel of the next release, unpacked. Its packages are listed apart: those of this machine stay as they are.
fn next_release() -> Result<PathBuf, Stop> {
    let place = shell::tools().folder().join(format!("debian-{NEXT_RELEASE}"));
    let folder = place.join("root");
    if folder.join("boot").is_dir() {
        return Ok(folder);
    }
    for part in ["lists/partial", "cache/archives/partial", "root/usr/lib"] {
        std::fs::create_dir_all(place.join(part)).map_err(|error| failed(&place, &error))?;
    }
    let list = place.join("sources.list");
    let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let line = format!("deb [signed-by={key}] {} {NEXT_RELEASE} main\n", debian_archive()?);
    std::fs::write(&list, line).map_err(|error| failed(&list, &error))?;
    let apt = |program: &str, words: &[&str]| {
        let mut apt = shell::program(program);
        apt.arg("-q").arg("-o").arg(format!("Dir::Etc::SourceList={}", list.display()));
        apt.args(["-o", "Dir::Etc::SourceParts=/dev/null"]);
        apt.arg("-o").arg(format!("Dir::State::Lists={}", place.join("lists").display()));
        apt.arg("-o").arg(format!("Dir::Cache={}", place.join("cache").display()));
        apt.args(words).current_dir(&place);
        apt
    };
    let advice = "only Debian's packages are known; is its mirror reachable?";
    shell::run(&mut apt("apt-get", &["update"]), "apt-get update", advice)?;
    let package = vm::kernel_package(&mut apt("apt-cache", &["depends", vm::KERNEL_PACKAGE]))?;
    shell::run(&mut apt("apt-get", &["download", &package]), "apt-get download", advice)?;
    let files = std::fs::read_dir(&place).into_iter().flatten().flatten().map(|file| file.path());
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "deb")) {
        let mut unpack = shell::program("dpkg-deb");
        shell::run(unpack.arg("-x").arg(&file).arg(&folder), "unpacking the kernel", advice)?;
    }
    // Where depmod looks, and as it reads them.
    let link = folder.join("lib");
    if !link.exists() {
        std::os::unix::fs::symlink("usr/lib", &link).map_err(|error| failed(&link, &error))?;
    }
    let mut find = shell::program("find");
    find.arg(folder.join("usr/lib/modules")).args(["-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"]);
    shell::run(&mut find, "unpacking kernel modules", "on Debian xz comes with xz-utils")?;
    Ok(folder)
}

/// Where this machine gets Debian's packages: the archive has all releases.
fn debian_archive() -> Result<String, Stop> {
    let mut ask = shell::program("apt-get");
    ask.args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
        "Label: Debian",
    ]);
    let advice = "it reads the sources of apt; run `apt-get update` first";
    let archives = shell::capture(&mut ask, "apt-get indextargets", advice)?;
    let none = || Stop::Failed("apt has no source with the packages of Debian: add one".to_string());
    archives.lines().next().map(str::to_string).ok_or_else(none)
}
