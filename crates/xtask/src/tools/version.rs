//! Versions as programs print them.

/// A version by its first three numbers; what follows them (a date, a commit) does not matter to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) [u64; 3]);

impl Version {
    /// The first word that reads as a version in what `--version` prints.
    pub(crate) fn find(text: &str) -> Option<Version> {
        // valgrind writes `valgrind-3.19.0`, Envoy `COMMIT/1.40.0/Clean`, systemd `systemd 252 (252.38-1)`, others
        // `cargo-nextest 0.9.143` or `v1.2.3`.
        let ends_a_word = |letter: char| letter.is_whitespace() || matches!(letter, '-' | ',' | '/' | '(');
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
        out.pad(&format!("{major}.{minor}.{patch}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_tools_print() {
        for (text, expected) in [
            ("cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143", Some([0, 9, 143])),
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
            ("systemd 252 (252.38-1~deb12u1)", Some([252, 38, 0])),
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
}
