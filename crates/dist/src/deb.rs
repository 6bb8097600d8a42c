//! The Debian package: an `ar` archive of a control tar and a data tar. It depends on nothing, since the program is static.
//! Checksums of its files (md5sums) are left to dpkg, which makes them when it installs.

use crate::archive::{FolderEntries, Packed, ar, gzip, tar};
use crate::contents::{PackageContents, UNITS};
use crate::source_date::SourceDate;

/// An address that no mail reaches: reports go to the repository.
const MAINTAINER: &str = "Zoneward maintainers <maintainers@zoneward.invalid>";

const DESCRIPTION: &str = "\
topology-aware Service networking for Kubernetes
 Zoneward replaces kube-proxy and the EndpointSlice controller of a cluster, or
 runs a small Kubernetes API with both on one machine. Traffic stays in its zone
 as far as that overloads no endpoint.
 .
 The package has systemd units for the roles up, node and controller; none is
 enabled. The program is also a plugin of kubectl: kubectl zoneward.";

/// Why lintian's objections do not apply.
const LINTIAN_OVERRIDES: &str = "\
# Static by intent, and at a random address (static PIE): one program for every distribution, and for images without one.
zoneward: shared-library-lacks-prerequisites [usr/bin/zoneward]
# Units that an operator has enabled leave no dangling link; nothing else would remove it.
zoneward: maintainer-script-calls-systemctl [prerm:*]
";

/// Files that dpkg keeps when an operator has changed them, and where they come from in deploy/systemd.
fn configuration() -> Vec<(String, String)> {
    let flags = UNITS.map(|unit| (format!("etc/default/{unit}"), format!("{unit}.default")));
    let node = ("etc/zoneward/node.yaml".to_owned(), "zoneward-node.conf".to_owned());
    flags.into_iter().chain([node]).collect()
}

/// The file of the package.
pub fn file_name(contents: &PackageContents) -> String {
    format!("zoneward_{}_{}.deb", contents.version, contents.architecture)
}

/// The package.
pub fn pack(contents: &PackageContents) -> anyhow::Result<Vec<u8>> {
    let data = data(contents)?;
    let control = control(contents, &data)?;
    let date = contents.date;
    let data = gzip(&tar("./", &data, FolderEntries::Listed, date)?)?;
    let control = gzip(&tar("./", &control, FolderEntries::Listed, date)?)?;
    // The order is part of the format.
    Ok(ar(&[("debian-binary", b"2.0\n"), ("control.tar.gz", &control), ("data.tar.gz", &data)], date))
}

fn data(contents: &PackageContents) -> anyhow::Result<Vec<Packed>> {
    let doc = "usr/share/doc/zoneward";
    let mut files = vec![
        Packed::program("usr/bin/zoneward", contents.program.clone()),
        Packed::link("usr/bin/kubectl-zoneward", "zoneward"),
        Packed::file("usr/share/bash-completion/completions/zoneward", contents.pages.bash.clone()),
        Packed::file("usr/share/zsh/vendor-completions/_zoneward", contents.pages.zsh.clone()),
        Packed::file("usr/share/fish/vendor_completions.d/zoneward.fish", contents.pages.fish.clone()),
        Packed::link("usr/share/man/man1/kubectl-zoneward.1.gz", "zoneward.1.gz"),
        Packed::file(format!("{doc}/copyright"), copyright()),
        Packed::file(format!("{doc}/changelog.gz"), gzip(changelog(contents).as_bytes())?),
        Packed::file(format!("{doc}/THIRD-PARTY-LICENSES.txt.gz"), gzip(contents.third_party.as_bytes())?),
        Packed::file(format!("{doc}/zoneward.cdx.json.gz"), gzip(contents.sbom.as_bytes())?),
        Packed::file("usr/share/lintian/overrides/zoneward", LINTIAN_OVERRIDES),
    ];
    for (name, page) in &contents.pages.manual {
        files.push(Packed::file(format!("usr/share/man/man1/{name}.gz"), gzip(page)?));
    }
    for unit in UNITS {
        let name = format!("{unit}.service");
        files.push(Packed::file(format!("usr/lib/systemd/system/{name}"), contents.systemd.file(&name)?));
    }
    for (path, source) in configuration() {
        files.push(Packed::file(path, contents.systemd.file(&source)?));
    }
    Ok(files)
}

fn control(contents: &PackageContents, data: &[Packed]) -> anyhow::Result<Vec<Packed>> {
    let kibibytes: u64 = data.iter().map(|file| file.size().div_ceil(1024).max(1)).sum();
    let fields = format!(
        "Package: zoneward\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kibibytes}\n\
         Section: net\nPriority: optional\nDescription: {DESCRIPTION}\n",
        debian_version(&contents.version),
        contents.architecture
    );
    let configuration: String = configuration().iter().map(|(path, _)| format!("/{path}\n")).collect();
    Ok(vec![
        Packed::file("control", fields),
        Packed::file("conffiles", configuration),
        Packed::program("postinst", include_str!("deb/postinst")),
        Packed::program("prerm", include_str!("deb/prerm")),
        Packed::program("postrm", include_str!("deb/postrm")),
    ])
}

/// A pre-release sorts before its release: `1.0.0-rc.1` is `1.0.0~rc.1`.
fn debian_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

fn copyright() -> String {
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: zoneward\n\n\
         Files: *\nCopyright: 2026 the authors of Zoneward\nLicense: Apache-2.0\n\
         Comment: {}\n\nLicense: Apache-2.0\n On Debian systems, the text of the Apache License 2.0 is in\n \
         /usr/share/common-licenses/Apache-2.0.\n",
        "The program contains the libraries that are listed, with their licences, in\n THIRD-PARTY-LICENSES.txt.gz in this folder."
    )
}

fn changelog(contents: &PackageContents) -> String {
    format!(
        "zoneward ({}) unstable; urgency=medium\n\n  * Changes are listed in CHANGELOG.md of the repository.\n\n -- {MAINTAINER}  {}\n",
        debian_version(&contents.version),
        rfc2822(contents.date)
    )
}

fn rfc2822(date: SourceDate) -> String {
    let seconds = i64::try_from(date.epoch()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_versions_are_those_of_debian() {
        assert_eq!(rfc2822(SourceDate::new(1_794_874_012)), "Tue, 17 Nov 2026 00:06:52 +0000");
        assert_eq!(debian_version("1.0.0-rc.1"), "1.0.0~rc.1");
    }
}
