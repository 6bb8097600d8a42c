//! Virtual machines for tests of kernels that this machine does not run. The test programs are the whole system: an
//! initramfs with them, their libraries, `ip` and kernel modules.
//!
//! ```text
//! Debian's kernel package -> modules --\
//! cargo build -> test program, libraries -+-> initramfs -> qemu, emulated -> serial console -> result
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::Stop;
use crate::{report, shell, suite, tools};

/// Depends on the package of Debian's current kernel. Its kernels for clouds are small and have what tests need.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
/// How long a machine may run: boot, tests and power-off.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Modules of nftables and of virtual interfaces, besides those that these need.
pub(crate) const NFTABLES: [&str; 21] = [
    "veth",
    "nf_conntrack",
    "nf_conntrack_netlink",
    "nf_nat",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "nft_masq",
    "nft_redir",
    "nft_ct",
    "nft_fib",
    "nft_fib_ipv4",
    "nft_fib_ipv6",
    "nft_hash",
    "nft_numgen",
    "nft_limit",
    "nft_log",
    "nft_reject",
    "nft_reject_ipv4",
    "nft_reject_ipv6",
    "nft_reject_inet",
];
/// What the init program prints last, if the tests passed.
const PASSED: &str = "tests: exit code 0";

pub(crate) fn failed(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{}: {error}", path.display()))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Stop> {
    std::fs::read(path).map_err(|error| failed(path, &error))
}

/// A program without its debug information, which is larger than the rest.
fn stripped(program: &Path) -> Result<Vec<u8>, Stop> {
    let to = shell::target_dir().join("vm.stripped");
    let mut strip = shell::program("strip");
    shell::run(strip.arg("-o").arg(&to).arg(program), "strip", "it comes with the linker, in binutils")?;
    let bytes = read(&to);
    let _ = std::fs::remove_file(&to);
    bytes
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(crate) fn tools_bin(program: &str) -> Result<PathBuf, Stop> {
    let missing = || Stop::Failed(format!("{program} is missing: run `cargo xtask tools`"));
    shell::tools().find(program).ok_or_else(missing)
}

/// The test programs of packages, from the build of all tests: each package alone has other features of what it needs.
pub(crate) fn build(packages: &[&str]) -> Result<Vec<PathBuf>, Stop> {
    let mut cargo = shell::cargo(&[
        "test",
        "--profile",
        suite::PROFILE,
        "--workspace",
        "--no-run",
        "--message-format=json",
    ]);
    suite::as_tested(&mut cargo)?;
    let messages = shell::capture(&mut cargo, "building the tests", "see the compiler errors above")?;
    let find = |package: &&str| {
        test_program(&messages, package)
            .ok_or_else(|| Stop::Failed(format!("cargo does not name the test program of {package}")))
    };
    packages.iter().map(find).collect()
}

/// The executable in cargo's message about the tests of a package.
fn test_program(messages: &str, package: &str) -> Option<PathBuf> {
    let source = format!("crates/{package}/tests/main.rs\"");
    let message = messages.lines().find(|line| line.contains(&source))?;
    let (_, rest) = message.split_once("\"executable\":\"")?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}

/// The kernel that Debian's package has, downloaded if it is not there yet, and its version.
pub(crate) fn kernel(folder: &Path) -> Result<(PathBuf, String), Stop> {
    let found = || {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder.join("boot"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|f| f.path())
            .collect();
        files.retain(|file| name_of(file).starts_with("vmlinuz-") && name_of(file).contains("-cloud-"));
        files.sort();
        let file = files.pop()?;
        let version = name_of(&file).trim_start_matches("vmlinuz-").to_owned();
        Some((file, version))
    };
    if let Some(found) = found() {
        return Ok(found);
    }
    let package = kernel_package()?;
    tools::unpack(&[package.as_str()])?;
    found().ok_or_else(|| Stop::Failed(format!("{package} has no kernel for clouds")))
}

/// The package that [`KERNEL_PACKAGE`] depends on, by what apt-cache says.
fn kernel_package() -> Result<String, Stop> {
    let mut ask = shell::program("apt-cache");
    ask.args(["depends", KERNEL_PACKAGE]);
    let listing = shell::capture(&mut ask, "apt-cache", "only Debian's packages are known")?;
    let package = listing.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    match package.map(str::trim).filter(|package| package.starts_with("linux-image-")) {
        Some(package) => Ok(package.to_owned()),
        None => Err(Stop::Failed(format!("{KERNEL_PACKAGE} depends on no kernel; run `apt-get update`"))),
    }
}

/// The files of the modules, each after those that it needs.
pub(crate) fn modules(folder: &Path, version: &str, wanted: &[&str]) -> Result<Vec<PathBuf>, Stop> {
    let place = folder.join("lib/modules").join(version);
    let mut depmod = shell::program(folder.join("bin/busybox"));
    let what = "listing what kernel modules need";
    shell::run(depmod.args(["depmod", "-b"]).arg(folder).arg(version), what, "see the output above")?;
    let listing = String::from_utf8_lossy(&read(&place.join("modules.dep"))?).into_owned();
    let needs: BTreeMap<String, (PathBuf, Vec<String>)> = listing
        .lines()
        .filter_map(|line| {
            let (file, needed) = line.split_once(':')?;
            let needed = needed.split_whitespace().map(|file| module_name(Path::new(file))).collect();
            Some((module_name(Path::new(file)), (place.join(file), needed)))
        })
        .collect();
    let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
    for module in wanted {
        add_module(module, &needs, &mut seen, &mut order);
    }
    Ok(order)
}

fn module_name(file: &Path) -> String {
    name_of(file).split('.').next().unwrap_or_default().replace('-', "_")
}

/// A module that is not there is part of the kernel itself.
fn add_module(
    name: &str,
    needs: &BTreeMap<String, (PathBuf, Vec<String>)>,
    seen: &mut BTreeSet<String>,
    order: &mut Vec<PathBuf>,
) {
    let Some((file, needed)) = needs.get(name) else { return };
    if seen.insert(name.to_owned()) {
        needed.iter().for_each(|needed| add_module(needed, needs, seen, order));
        order.push(file.clone());
    }
}

/// The init program: inserts modules, reads a random byte, runs the commands until one fails, and powers off. Static programs
/// wait until the kernel has entropy, and in a machine without devices nothing but such a read makes it gather any.
pub(crate) fn init(modules: &[PathBuf], commands: &str) -> String {
    let insert: String =
        modules.iter().map(|module| format!("$b insmod /modules/{}\n", name_of(module))).collect();
    format!(
        "#!/bin/busybox sh\n\
         b=/bin/busybox\n\
         $b mkdir -p /proc /sys /dev /tmp /run\n\
         $b mount -t proc proc /proc\n\
         $b mount -t sysfs sys /sys\n\
         $b mount -t devtmpfs dev /dev\n\
         {insert}\
         $b dd if=/dev/random of=/dev/null bs=1 count=1\n\
         export RUST_BACKTRACE=0\n\
         {commands}\n\
         echo \"tests: exit code $?\"\n\
         $b poweroff -f\n"
    )
}

/// Boots, prints the console, and counts the tests that passed.
pub(crate) fn boot(kernel: &Path, archive: &Path) -> Result<u64, Stop> {
    let share = tools::unpacked().join("usr/share");
    let mut qemu = shell::program(tools_bin("qemu-system-x86_64")?);
    for place in ["qemu", "seabios"] {
        qemu.arg("-L").arg(share.join(place));
    }
    qemu.args([
        "-M",
        "pc",
        "-accel",
        "tcg",
        "-smp",
        "1",
        "-m",
        "2048",
        "-nographic",
        "-nic",
        "none",
        "-no-reboot",
    ]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(archive);
    qemu.args(["-append", "console=ttyS0 no_timer_check panic=-1 quiet mitigations=off"]);
    let start = Instant::now();
    let mut child = qemu
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Stop::Failed(format!("qemu could not be started: {error}")))?;
    let console = child.stdout.take();
    let (line_to, lines) = std::sync::mpsc::channel::<String>();
    std::thread::spawn(move || {
        for line in BufReader::new(console.expect("it was asked for")).split(b'\n').map_while(Result::ok) {
            if line_to.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
        }
    });
    let (mut has_passed, mut tests) = (false, Vec::new());
    while let Ok(line) = lines.recv_timeout(TIMEOUT.saturating_sub(start.elapsed())) {
        has_passed |= line.contains(PASSED);
        tests.extend(tests_passed(&line));
        report::say(&line);
    }
    let is_late = start.elapsed() >= TIMEOUT;
    let _ = child.kill();
    let _ = child.wait();
    match has_passed {
        // A filter that matches nothing passes.
        true if tests.contains(&0) => {
            Err(Stop::Failed("a test program in the virtual machine ran no test".to_owned()))
        }
        true => Ok(tests.iter().sum()),
        false if is_late => {
            Err(Stop::Failed(format!("the virtual machine took more than {} s", TIMEOUT.as_secs())))
        }
        false => {
            Err(Stop::Failed("the tests in the virtual machine failed: see the console above".to_owned()))
        }
    }
}

/// The number in `test result: ok. 2 passed; 0 failed; ...`.
fn tests_passed(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("test result: ok. ")?;
    rest.split_once(" passed")?.0.parse().ok()
}

/// An archive in the format that the kernel unpacks (cpio newc).
#[derive(Default)]
pub(crate) struct Initramfs {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    files: BTreeSet<String>,
}

impl Initramfs {
    /// A program, and the libraries that it is linked with, where it looks for them. Returns the libraries.
    pub(crate) fn program(&mut self, place: &str, file: &Path) -> Result<Vec<PathBuf>, Stop> {
        let file = std::fs::canonicalize(file).map_err(|error| failed(file, &error))?;
        self.file(place, &stripped(&file)?, 0o755);
        let mut ldd = shell::program("ldd");
        let listing = shell::capture(ldd.arg(&file), "listing libraries", "is ldd installed?")?;
        let libraries = listing.split_whitespace().filter(|word| word.starts_with('/'));
        for library in libraries.clone().filter(|library| !self.files.contains(*library)).collect::<Vec<_>>()
        {
            self.file(library, &read(Path::new(library))?, 0o755);
        }
        Ok(libraries.map(PathBuf::from).collect())
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        if self.files.insert(path.to_owned()) {
            self.entry(path.trim_start_matches('/'), target.as_bytes(), 0o120_777);
        }
    }

    pub(crate) fn file(&mut self, path: &str, content: &[u8], mode: u32) {
        if let Some((folder, _)) = path.rsplit_once('/') {
            self.folder(folder);
        }
        if self.files.insert(path.to_owned()) {
            self.entry(path.trim_start_matches('/'), content, 0o100_000 | mode);
        }
    }

    pub(crate) fn folder(&mut self, path: &str) {
        if path.is_empty() || !self.folders.insert(path.to_owned()) {
            return;
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(path.trim_start_matches('/'), &[], 0o040_755);
    }

    fn entry(&mut self, name: &str, content: &[u8], mode: u32) {
        let number = self.files.len() + self.folders.len();
        let fields = [number, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", &[], 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_that_of_the_tests_of_its_package() {
        let messages = concat!(
            r#"{"target":{"src_path":"/z/crates/a/src/lib.rs"},"executable":"/t/deps/a-1"}"#,
            "\n",
            r#"{"target":{"src_path":"/z/crates/b/tests/main.rs"},"executable":"/t/deps/main-2"}"#,
            "\n",
            r#"{"target":{"src_path":"/z/crates/a/tests/main.rs"},"executable":"/t/deps/main-3"}"#,
        );
        assert_eq!(test_program(messages, "a"), Some(PathBuf::from("/t/deps/main-3")));
        assert_eq!(test_program(messages, "c"), None);
    }

    #[test]
    fn tests_are_counted_by_the_result_of_their_program() {
        assert_eq!(tests_passed("test result: ok. 12 passed; 0 failed; 0 ignored"), Some(12));
        assert_eq!(tests_passed("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn modules_come_after_those_that_they_need() {
        let entry = |name: &str, needs: &[&str]| {
            (
                name.to_owned(),
                (PathBuf::from(format!("{name}.ko")), needs.iter().map(|n| (*n).to_owned()).collect()),
            )
        };
        let needs = BTreeMap::from([entry("a", &["b", "c"]), entry("b", &["c"]), entry("c", &[])]);
        let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
        add_module("a", &needs, &mut seen, &mut order);
        add_module("built_in", &needs, &mut seen, &mut order);
        assert_eq!(order, ["c.ko", "b.ko", "a.ko"].map(PathBuf::from));
        assert_eq!(module_name(Path::new("net/nf-conntrack.ko.xz")), "nf_conntrack");
    }

    #[test]
    fn archives_have_folders_before_files_and_end_with_a_trailer() {
        let mut image = Initramfs::default();
        image.file("/a/b/c", b"text", 0o644);
        let bytes = image.bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let at = |name: &str| text.find(name).unwrap_or_else(|| panic!("{name}: {text}"));
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0") && at("a/b/c\0") < at("TRAILER!!!"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
