//! The packages of a real build, read, installed and run by the programs that users have. The build takes minutes, so these
//! are not part of the ordinary run: `cargo xtask test --extended --only packages`.

pub(crate) mod build;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use build::{Scratch, packages, root, run, succeed, text};
use dist::{checksums, contents};

/// The one package whose name has this start and end.
fn package(start: &str, end: &str) -> PathBuf {
    let matches = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(start) && name.ends_with(end)
    };
    let files = fs::read_dir(packages()).expect("the folder of packages").flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = files.filter(matches).collect();
    assert_eq!(found.len(), 1, "{start}*{end}: {found:?}");
    found.into_iter().next().expect("one")
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages").join(name)
}

/// Unpacks the tar file; its folder.
fn unpacked(scratch: &Scratch) -> PathBuf {
    let file = package("zoneward-", ".tar.gz");
    run(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&scratch.0));
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    scratch.path(name.trim_end_matches(".tar.gz"))
}

#[test]
fn static_program_resolves_names_in_a_root_without_a_system() {
    let scratch = Scratch::new("root");
    let jail = scratch.path("root");
    fs::create_dir_all(jail.join("etc")).expect("a folder");
    let program = unpacked(&scratch).join("zoneward");
    fs::copy(&program, jail.join("zoneward")).expect("a copy");
    fs::write(jail.join("etc/resolv.conf"), "nameserver 127.0.0.1\n").expect("a file");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-eu"]).arg(script("empty_root.sh"));
    command.env("PATH", toolbox::search_path()).env("program", &program).env("root", &jail);
    command.env("data", scratch.path("data")).env("dns", script("dns.py"));
    let said = text(&succeed(command.env("resolved", scratch.path("resolved"))));
    let (by_dns, rest) = said.split_once("== nsswitch.conf without dns").expect("three parts");
    assert!(by_dns.contains("web"), "{said}");
    let (_, asked) = rest.split_once("== asked").expect("three parts");
    assert!(asked.contains("kubernetes.default.svc"), "{said}");
    assert!(!asked.contains("localhost"), "/etc/hosts comes first: {said}");
}

#[test]
fn tarball_has_program_pages_completions_licences_and_sbom() {
    let scratch = Scratch::new("tar");
    let folder = unpacked(&scratch);
    for name in [
        "LICENSE",
        "THIRD-PARTY-LICENSES.txt",
        "zoneward.cdx.json",
        "completions/zoneward.bash",
        "completions/_zoneward",
        "completions/zoneward.fish",
        "man/man1/zoneward.1",
        "man/man1/zoneward-trace-packet.1",
        "systemd/zoneward-node.service",
        "systemd/zoneward-node.conf",
    ] {
        assert!(folder.join(name).metadata().is_ok_and(|file| file.len() > 100), "{name}");
    }
    assert_eq!(fs::read_link(folder.join("kubectl-zoneward")).expect("a link"), Path::new("zoneward"));
    let version = run(Command::new(folder.join("zoneward")).arg("--version"));
    assert_eq!(version.trim(), format!("zoneward {}", env!("CARGO_PKG_VERSION")));
    let version = run(Command::new(folder.join("zoneward")).args(["version", "--client", "-o", "json"]));
    let version: serde_json::Value = serde_json::from_str(&version).expect("JSON");
    let commit = version["client"]["commit"].as_str().expect("a commit");
    assert!(commit.len() >= 40 && commit != "unknown", "{version}");
    let alone = package("zoneward-", &format!("-linux-{}", architecture()));
    assert_eq!(fs::read(alone).expect("a file"), fs::read(folder.join("zoneward")).expect("a file"));
}

#[test]
fn every_component_of_the_sbom_has_its_licence_in_the_list() {
    let sbom: serde_json::Value =
        serde_json::from_slice(&fs::read(package("zoneward-", ".cdx.json")).expect("a file")).expect("JSON");
    let scratch = Scratch::new("licences");
    let licences = fs::read_to_string(unpacked(&scratch).join("THIRD-PARTY-LICENSES.txt")).expect("a file");
    let components = sbom["components"].as_array().expect("components");
    assert!(components.len() > 100, "{}", components.len());
    for component in components {
        let (name, version) = (&component["name"], &component["version"]);
        let label = format!("{} {}", name.as_str().expect("a name"), version.as_str().expect("a version"));
        let line = licences.lines().find(|line| line.starts_with(&format!("{label} ")));
        let licence = component["licenses"][0]["expression"].as_str().expect("an expression");
        assert!(line.is_some_and(|line| line.contains(licence)), "{label}: {line:?}");
    }
    for name in ["glibc", "rust-std", "ring", "tokio", "libmimalloc-sys"] {
        assert!(components.iter().any(|component| component["name"] == name), "{name}");
    }
    // Used by tests, build scripts and developers only.
    for name in ["proptest", "expect-test", "cc", "dist", "zoneward"] {
        assert!(components.iter().all(|component| component["name"] != name), "{name}");
    }
    assert!(licences.contains("GNU LESSER GENERAL PUBLIC LICENSE"), "glibc is linked statically");
}

#[test]
fn sbom_is_valid_by_the_schema_of_cyclonedx() {
    let mut python = toolbox::command("python3-cyclonedx");
    let said = run(python.arg(script("validate_sbom.py")).arg(package("zoneward-", ".cdx.json")));
    assert!(said.starts_with("valid 1.6"), "{said}");
}

#[test]
fn kubectl_runs_the_program_as_its_plugin() {
    let scratch = Scratch::new("kubectl");
    let folder = unpacked(&scratch);
    let kubectl = |words: &[&str]| {
        let mut command = toolbox::command("kubectl");
        command.args(words).env("PATH", &folder).env("HOME", &scratch.0).env_remove("KUBECONFIG");
        command
    };
    let plugins = run(&mut kubectl(&["plugin", "list"]));
    assert!(plugins.contains(&folder.join("kubectl-zoneward").display().to_string()), "{plugins}");
    let help = run(&mut kubectl(&["zoneward", "--help"]));
    assert!(help.contains("Usage: kubectl zoneward <COMMAND>"), "{help}");
    let help = run(&mut kubectl(&["zoneward", "plan", "slices", "--help"]));
    assert!(help.contains("Usage: kubectl zoneward plan slices"), "{help}");
    assert!(help.contains("\n  kubectl zoneward plan slices -f cluster.yaml"), "{help}");
    let shop = root().join("examples/shop").display().to_string();
    let plan =
        run(&mut kubectl(&["zoneward", "trace", "select", "-f", &shop, "--node", "node-a1", "-o", "json"]));
    assert!(plan.contains("cart"), "{plan}");
    let wrong = kubectl(&["zoneward", "frobnicate"]).output().expect("kubectl runs");
    assert_eq!(wrong.status.code(), Some(2), "exit codes pass through kubectl: {}", text(&wrong));
    let own = run(Command::new(folder.join("zoneward")).arg("--help"));
    assert!(own.contains("Usage: zoneward <COMMAND>"), "{own}");
}

/// dpkg on a root of its own, as root of a user namespace. Scripts see DPKG_ROOT and leave this machine's systemd alone.
fn dpkg(scratch: &Scratch, words: &[&str]) -> String {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--"]).arg(toolbox::path("dpkg"));
    command.arg(format!("--root={}", scratch.path("system").display()));
    command.args(["--force-script-chrootless", "--force-confold", "--log=/dev/null"]).args(words);
    text(&succeed(command.env("PATH", toolbox::search_path()).env("DEBIAN_FRONTEND", "noninteractive")))
}

#[test]
fn deb_installs_keeps_changed_configuration_and_purges() {
    let scratch = Scratch::new("dpkg");
    let system = scratch.path("system");
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(system.join("var/lib/dpkg").join(folder)).expect("a folder");
    }
    fs::write(system.join("var/lib/dpkg/status"), "").expect("a file");
    let deb = package("zoneward_", ".deb").display().to_string();
    dpkg(&scratch, &["--install", &deb]);
    let status = dpkg(&scratch, &["--status", "zoneward"]);
    assert!(status.contains("Status: install ok installed"), "{status}");
    let version = run(Command::new(system.join("usr/bin/kubectl-zoneward")).arg("--version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    assert!(!system.join("etc/systemd").exists(), "no unit is enabled");
    assert_eq!(dpkg(&scratch, &["--verify", "zoneward"]), "", "files are as they were packed");

    let flags = system.join("etc/default/zoneward-node");
    fs::write(&flags, "ZONEWARD_NODE_ARGS=\"--v=2\"\n").expect("a file");
    dpkg(&scratch, &["--install", &deb]);
    assert!(fs::read_to_string(&flags).expect("a file").contains("--v=2"), "an upgrade keeps configuration");
    dpkg(&scratch, &["--remove", "zoneward"]);
    assert!(flags.is_file() && !system.join("usr/bin/zoneward").exists(), "removal keeps configuration");
    dpkg(&scratch, &["--purge", "zoneward"]);
    assert!(!flags.exists() && !system.join("etc/zoneward").exists(), "purge does not");
}

#[test]
fn deb_lists_fields_configuration_and_owners() {
    let deb = package("zoneward_", ".deb");
    let info = run(toolbox::command("dpkg-deb").arg("--info").arg(&deb));
    for field in ["Package: zoneward", &format!("Architecture: {}", architecture()), "Section: net"] {
        assert!(info.contains(field), "{field}: {info}");
    }
    assert!(!info.contains("Depends:"), "a static program needs nothing: {info}");
    let conffiles = run(toolbox::command("dpkg-deb").arg("--info").arg(&deb).arg("conffiles"));
    assert_eq!(conffiles.lines().count(), contents::UNITS.len() + 1, "{conffiles}");
    let listing = run(toolbox::command("dpkg-deb").arg("--contents").arg(&deb));
    assert!(listing.lines().all(|line| line.contains(" root/root ")), "{listing}");
    assert!(listing.contains("./usr/bin/kubectl-zoneward -> zoneward"), "{listing}");
    for path in ["./usr/share/doc/zoneward/copyright", "./usr/share/man/man1/zoneward-up.1.gz"] {
        assert!(listing.contains(path), "{path}: {listing}");
    }
}

/// Exposure by unit as the documentation has it: `| zoneward-up.service | 1.8 |`.
fn documented_exposure(unit: &str) -> f64 {
    let page = fs::read_to_string(root().join("docs/reference/packages.md")).expect("the page");
    let (_, table) = page.split_once("| unit | exposure |").expect("a table of exposures");
    let row = table.lines().find(|line| line.starts_with(&format!("| `{unit}.service` |")));
    let cell = row.and_then(|row| row.split('|').nth(2)).unwrap_or_else(|| panic!("no row for {unit}"));
    cell.trim().parse().unwrap_or_else(|error| panic!("{unit}: {cell}: {error}"))
}

#[test]
fn units_are_valid_and_at_most_as_exposed_as_documented() {
    let scratch = Scratch::new("units");
    run(toolbox::command("dpkg-deb").arg("-x").arg(package("zoneward_", ".deb")).arg(&scratch.0));
    for unit in contents::UNITS {
        let file = scratch.path(&format!("usr/lib/systemd/system/{unit}.service"));
        // The programs of the units are those of the package, not of this machine.
        let text_of_unit = fs::read_to_string(&file).expect("a unit");
        let local = text_of_unit
            .replace("/usr/bin/zoneward", &scratch.path("usr/bin/zoneward").display().to_string());
        let verified = scratch.path(&format!("{unit}.service"));
        fs::write(&verified, local).expect("a file");
        let mut verify = toolbox::command("systemd-analyze");
        let said =
            text(&succeed(verify.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&verified)));
        assert!(!said.contains(unit), "{said}");
        let mut score = toolbox::command("systemd-analyze");
        let said = run(score.args(["security", "--offline=true", "--no-pager"]).arg(&file));
        let line = said.lines().find(|line| line.contains("Overall exposure level")).expect("a score");
        let level = line.split(": ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
        let level: f64 = level.parse().expect("a number");
        assert!(level <= documented_exposure(unit), "{unit}: {line}");
    }
}

#[test]
fn commands_of_units_are_understood_by_the_program() {
    let scratch = Scratch::new("commands");
    let program = unpacked(&scratch).join("zoneward");
    for unit in contents::UNITS {
        let file = root().join(format!("deploy/systemd/{unit}.service"));
        let text_of_unit = fs::read_to_string(file).expect("a unit");
        let lines = text_of_unit.lines().filter_map(|line| line.strip_prefix("ExecStart"));
        for line in lines {
            let (_, words) = line.split_once("/usr/bin/zoneward ").expect("our program");
            // `--help` after all flags is an error only if a flag before it is unknown.
            let words = words.split(' ').filter(|word| !word.starts_with("$ZONEWARD_"));
            run(Command::new(&program).args(words).arg("--help"));
        }
    }
}

#[test]
fn checksums_cover_every_package() {
    let said = run(Command::new("sha256sum")
        .args(["--check", "--strict", checksums::CHECKSUMS])
        .current_dir(packages()));
    for name in [".deb: OK", ".tar.gz: OK", ".cdx.json: OK"] {
        assert!(said.contains(name), "{name}: {said}");
    }
}

#[test]
fn openssl_signs_the_checksums_and_finds_a_change() {
    let scratch = Scratch::new("sign");
    fs::copy(packages().join(checksums::CHECKSUMS), scratch.path(checksums::CHECKSUMS)).expect("a copy");
    let (key, public) = (scratch.path("key.pem"), scratch.path("public.pem"));
    run(toolbox::command("openssl")
        .args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"])
        .arg(&key));
    run(toolbox::command("openssl").args(["ec", "-pubout", "-in"]).arg(&key).arg("-out").arg(&public));
    let openssl = toolbox::path("openssl");
    let sign = format!("'{}' dgst -sha256 -sign key.pem -out SHA256SUMS.sig", openssl.display());
    let signatures = checksums::sign(&scratch.0, &sign).expect("signed");
    assert_eq!(signatures, [scratch.path("SHA256SUMS.sig")]);
    let verify = || {
        let mut command = toolbox::command("openssl");
        command.args(["dgst", "-sha256", "-verify"]).arg(&public).arg("-signature").arg(&signatures[0]);
        command.arg(scratch.path(checksums::CHECKSUMS));
        command
    };
    assert!(run(&mut verify()).contains("Verified OK"));
    fs::write(scratch.path(checksums::CHECKSUMS), "changed").expect("a file");
    assert!(!verify().output().expect("openssl runs").status.success());
    let error = checksums::sign(&scratch.0, "false").expect_err("the command fails");
    assert!(error.to_string().contains("--sign-with"), "{error}");
}
