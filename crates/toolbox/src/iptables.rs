//! The programs of iptables by name: one file per flavour, which acts by the name that it is called by.

use std::path::Path;

/// Both flavours, as they are in the names of programs.
pub const FLAVOURS: [&str; 2] = ["nft", "legacy"];

/// The file of a flavour.
pub fn multi_program(flavour: &str) -> String {
    format!("xtables-{flavour}-multi")
}

/// Names of a flavour's program that change, list and load rules of both families.
pub fn names(flavour: &str) -> Vec<String> {
    let families = ["iptables", "ip6tables"].into_iter();
    families
        .flat_map(|family| ["", "-save", "-restore"].map(|action| format!("{family}-{flavour}{action}")))
        .collect()
}

/// Whether a file of a package is an extension (a match or target), which the programs load by name.
pub fn is_extension(file: &Path) -> bool {
    let folder = file.parent().and_then(Path::file_name);
    folder.is_some_and(|folder| folder == "xtables") && file.extension().is_some_and(|ending| ending == "so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flavour_has_six_names() {
        assert_eq!(
            names("nft"),
            [
                "iptables-nft",
                "iptables-nft-save",
                "iptables-nft-restore",
                "ip6tables-nft",
                "ip6tables-nft-save",
                "ip6tables-nft-restore"
            ]
        );
        assert_eq!(multi_program("legacy"), "xtables-legacy-multi");
        assert!(is_extension(Path::new("/usr/lib/x86_64-linux-gnu/xtables/libxt_bpf.so")));
        assert!(!is_extension(Path::new("/usr/lib/x86_64-linux-gnu/libxtables.so.12")));
    }
}
