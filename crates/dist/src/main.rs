//! The program behind `cargo xtask dist`: builds, packs, and says what it made.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use dist::compile::{BuildFolders, Profile};
use dist::contents::{PackageContents, Pages, SystemdFiles};
use dist::image::ImageVariant;
use dist::source_date::SourceDate;
use dist::target::Target;
use dist::{chart, checksums, compile, deb, debian, dependencies, image, licences, sbom};

/// Build the packages of Zoneward: static binary, tar.gz, deb, image, chart, SBOM, checksums
///
/// Two builds of one commit with one toolchain give the same bytes. SOURCE_DATE_EPOCH overrides the date of the commit;
/// CARGO_TARGET_DIR is honoured. The image `VERSION-iptables` has
/// iptables from packages of Debian 12, which apt-get downloads.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask dist", bin_name = "cargo xtask dist")]
struct DistArgs {
    /// Profile of the build; packages to publish have `dist`
    #[arg(long, value_enum, default_value = "dist")]
    profile: ProfileArg,
    /// Target, x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu; repeatable [default: this machine's]
    #[arg(long = "target", value_name = "TRIPLE")]
    targets: Vec<String>,
    /// Static program to pack instead of building one: that of CI's tests
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "targets"])]
    program: Option<PathBuf>,
    /// Output directory; created if missing [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Command that signs: run by the shell in the output directory, with SHA256SUMS as its last word, such as
    /// 'gpg --armor --detach-sign'
    #[arg(long, value_name = "COMMAND")]
    sign_with: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProfileArg {
    Dist,
    Quick,
    Release,
}

impl From<ProfileArg> for Profile {
    fn from(arg: ProfileArg) -> Self {
        match arg {
            ProfileArg::Dist => Profile::Dist,
            ProfileArg::Quick => Profile::Quick,
            ProfileArg::Release => Profile::Release,
        }
    }
}

fn main() -> ExitCode {
    match make(&DistArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dist: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn make(args: &DistArgs) -> anyhow::Result<()> {
    let root = root();
    let folders = BuildFolders { target: target_dir(&root), root };
    let out = args.out.clone().unwrap_or_else(|| folders.target.join("dist"));
    let out = std::path::absolute(&out).with_context(|| format!("--out {}", out.display()))?;
    let made = run(args, &folders, &out)?;
    heading(&format!("{} files in {}", made.len(), out.display()));
    for name in made {
        let size = std::fs::metadata(out.join(&name)).map_or(0, |file| file.len());
        println!("{:>9.2} MB  {name}", size as f64 / 1e6);
    }
    Ok(())
}

/// Makes everything; answers with the names of the files.
fn run(args: &DistArgs, folders: &BuildFolders, out: &Path) -> anyhow::Result<Vec<String>> {
    let variable = std::env::var("SOURCE_DATE_EPOCH").ok();
    let date = SourceDate::of(&folders.root, variable.as_deref())?;
    let targets = match args.targets.as_slice() {
        [] => vec![Target::host(&folders.root)?],
        given => given.iter().map(|triple| Target::parse(triple)).collect::<anyhow::Result<Vec<_>>>()?,
    };
    // Before the first build: a missing linker should not be found out after ten minutes.
    targets.iter().try_for_each(|target| target.check_installed(&folders.root))?;
    if compile::has_uncommitted_changes(&folders.root) {
        println!("warning: uncommitted changes: these packages cannot be built again from a commit");
    }
    std::fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let profile = Profile::from(args.profile);
    let mut programs = Vec::new();
    for target in &targets {
        let program = match &args.program {
            Some(program) => compile::check_program(program).map(|()| program.clone())?,
            None => build(folders, profile, target, date)?,
        };
        programs.push((target, program));
    }
    let pages = pages(folders, &programs)?;
    let mut release = Release { out, names: Vec::new() };
    let mut contents = Vec::new();
    for (target, program) in &programs {
        contents.push(pack(&mut release, folders, target, program, &pages, date)?);
    }
    let version = env!("CARGO_PKG_VERSION");
    heading("images");
    for variant in ImageVariant::ALL {
        release.write(variant.file_name(version), &image::pack(&contents, variant)?)?;
    }
    let folder = folders.root.join(chart::FOLDER);
    heading("chart");
    release.write(chart::file_name(version), &chart::pack(&folder, version, date)?)?;
    finish(release, args.sign_with.as_deref())
}

fn build(
    folders: &BuildFolders,
    profile: Profile,
    target: &Target,
    date: SourceDate,
) -> anyhow::Result<PathBuf> {
    heading(&format!("build for {} (profile {})", target.triple(), profile.name()));
    println!(
        "A static binary and the libraries that it uses. The first time this takes {} on two cores.",
        profile.duration()
    );
    let start = Instant::now();
    let program = compile::build(folders, profile, target, date)?;
    println!("built in {} s", start.elapsed().as_secs());
    Ok(program)
}

/// From a program that runs here; if none does, from another build.
fn pages(folders: &BuildFolders, programs: &[(&Target, PathBuf)]) -> anyhow::Result<Pages> {
    let scratch = folders.target.join("dist-pages");
    if let Some((_, program)) = programs.iter().find(|(target, _)| target.runs_here()) {
        return Pages::of(program, &scratch);
    }
    let date = SourceDate::of(&folders.root, None)?;
    let host = Target::host(&folders.root)?;
    println!("manual pages and completions come from a build for this machine");
    Pages::of(&build(folders, Profile::Quick, &host, date)?, &scratch)
}

/// Writes the files of one target; answers with what is in them.
fn pack(
    release: &mut Release<'_>,
    folders: &BuildFolders,
    target: &Target,
    program: &Path,
    pages: &Pages,
    date: SourceDate,
) -> anyhow::Result<PackageContents> {
    heading(&format!("packages for {}", target.architecture()));
    let bill = dependencies::read(&folders.root, target)?;
    let packages = debian::read(&folders.root, &folders.target.join("dist-debian"), target.architecture())?;
    let mut iptables_bill = bill.clone();
    iptables_bill.add(debian::components(&packages));
    let licence = folders.root.join("LICENSE");
    let contents = PackageContents {
        version: bill.version.clone(),
        architecture: target.architecture().to_owned(),
        date,
        program: std::fs::read(program).with_context(|| format!("reading {}", program.display()))?,
        pages: pages.clone(),
        licence: std::fs::read(&licence).with_context(|| format!("reading {}", licence.display()))?,
        third_party: licences::render(&bill)?,
        sbom: sbom::render(&bill, date)?,
        iptables_sbom: sbom::render(&iptables_bill, date)?,
        debian: packages,
        systemd: SystemdFiles::read(&folders.root)?,
    };
    println!(
        "{} libraries, {} manual pages, {} packages of Debian for iptables",
        bill.libraries.len(),
        contents.pages.manual.len(),
        contents.debian.len()
    );
    let name = contents.name();
    release.write_program(name.clone(), &contents.program)?;
    release.write(format!("{name}.cdx.json"), contents.sbom.as_bytes())?;
    release.write(format!("{name}.tar.gz"), &contents.tarball()?)?;
    release.write(deb::file_name(&contents), &deb::pack(&contents)?)?;
    Ok(contents)
}

/// The output directory, and the names of what was written there.
struct Release<'a> {
    out: &'a Path,
    names: Vec<String>,
}

impl Release<'_> {
    fn write(&mut self, name: String, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.out.join(&name);
        std::fs::write(&file, bytes).with_context(|| format!("writing {}", file.display()))?;
        self.names.push(name);
        Ok(())
    }

    fn write_program(&mut self, name: String, bytes: &[u8]) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let file = self.out.join(&name);
        self.write(name, bytes)?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, mode).with_context(|| format!("writing {}", file.display()))
    }
}

/// Checksums of everything, and their signature.
fn finish(release: Release<'_>, sign_with: Option<&str>) -> anyhow::Result<Vec<String>> {
    checksums::write(release.out, &release.names)?;
    let mut names = release.names;
    names.push(checksums::CHECKSUMS.to_owned());
    if let Some(command) = sign_with {
        heading("signature");
        let signatures = checksums::sign(release.out, command)?;
        let signatures = signatures.iter().filter_map(|file| file.file_name());
        names.extend(signatures.map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(names)
}

fn heading(text: &str) {
    println!("\n== {text}");
}

/// The root of the repository: crates/dist is two folders below it.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.ancestors().nth(2).map_or_else(|| manifest.clone(), Path::to_path_buf)
}

fn target_dir(root: &Path) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => std::path::absolute(&folder).unwrap_or_else(|_| PathBuf::from(folder)),
        None => root.join("target"),
    }
}
