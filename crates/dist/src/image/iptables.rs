//! The layer with the programs of iptables for mode iptables: both flavours, their extensions and libraries, from
//! Debian's packages. It depends on nothing else, so registries and nodes keep it from release to release.

use anyhow::ensure;
use toolbox::iptables;

use crate::archive::{FolderEntries, Packed, tar};
use crate::debian::UnpackedPackage;
use crate::source_date::SourceDate;

/// One date for all releases: that of the commit would make each layer another one.
const DATE: SourceDate = SourceDate::new(0);

/// What the copyright files of the packages refer to.
const LICENCES: [(&str, &[u8]); 2] =
    [("GPL-2", include_bytes!("licences/GPL-2")), ("LGPL-2.1", include_bytes!("licences/LGPL-2.1"))];

/// The layer as a tar file.
pub(super) fn layer(packages: &[UnpackedPackage]) -> anyhow::Result<Vec<u8>> {
    let mut files =
        LICENCES.map(|(name, text)| Packed::file(format!("usr/share/common-licenses/{name}"), text)).to_vec();
    for package in packages {
        let name = &package.pin.name;
        let taken: Vec<&Packed> = package.files.iter().filter(|file| is_needed(name, file.path())).collect();
        ensure!(
            taken.len() > 1,
            "package {name} of Debian has nothing that the image of mode iptables needs"
        );
        files.extend(taken.into_iter().cloned());
    }
    for flavour in iptables::FLAVOURS {
        for program in iptables::names(flavour) {
            let place = format!("usr/sbin/{program}");
            ensure!(files.iter().any(|file| file.path() == place), "no package of Debian has {place}");
        }
    }
    tar("", &files, FolderEntries::Listed, DATE)
}

/// Whether a file of a package belongs into the image.
fn is_needed(package: &str, path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if path == format!("usr/share/doc/{package}/copyright") {
        return true;
    }
    match package {
        "iptables" => {
            let is_program = |flavour: &str| {
                name == iptables::multi_program(flavour) || iptables::names(flavour).iter().any(|n| n == name)
            };
            folder == "usr/sbin" && iptables::FLAVOURS.into_iter().any(is_program)
                || iptables::is_extension(path.as_ref())
        }
        // The loader, in its folder and where programs ask for it; two extensions compute with floating point numbers.
        "libc6" => name.starts_with("ld-linux") || ["libc.so.6", "libm.so.6"].contains(&name),
        _ => folder.starts_with("usr/lib/") && name.contains(".so."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_extensions_and_libraries_are_taken() {
        for (package, path, expected) in [
            ("iptables", "usr/sbin/ip6tables-legacy-restore", true),
            ("iptables", "usr/sbin/xtables-nft-multi", true),
            ("iptables", "usr/sbin/ebtables-nft", false),
            ("iptables", "usr/lib/aarch64-linux-gnu/xtables/libxt_bpf.so", true),
            ("iptables", "usr/share/doc/iptables/copyright", true),
            ("iptables", "usr/share/man/man8/iptables.8.gz", false),
            ("libc6", "lib64/ld-linux-x86-64.so.2", true),
            ("libc6", "lib/ld-linux-aarch64.so.1", true),
            ("libc6", "lib/x86_64-linux-gnu/libm.so.6", true),
            ("libc6", "lib/x86_64-linux-gnu/libresolv.so.2", false),
            ("libmnl0", "usr/lib/x86_64-linux-gnu/libmnl.so.0.2.0", true),
            ("libmnl0", "usr/share/doc/libmnl0/changelog.Debian.gz", false),
        ] {
            assert_eq!(is_needed(package, path), expected, "{package}: {path}");
        }
    }
}
