//! Refuses kernels that are too old, before anything is written.

use std::fmt;

/// The oldest kernel whose nf_tables supports our rules.
const OLDEST: (u32, u32) = (5, 13);

/// A kernel that is too old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedKernel {
    /// As `uname -r` prints it.
    pub release: String,
}

impl fmt::Display for UnsupportedKernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = OLDEST;
        write!(
            out,
            "kernel {} is older than {major}.{minor}, the minimum for nftables mode; update the kernel, or \
             set KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK if your distribution backported the fixes",
            self.release
        )
    }
}

impl std::error::Error for UnsupportedKernel {}

/// Checks the release (`uname -r`), unless `skip` is set. A release that cannot be parsed passes: custom kernels have
/// odd names.
// semantics D10: kernel >= 5.13 unless the environment says to skip the check.
pub fn check_kernel(release: &str, skip: bool) -> Result<(), UnsupportedKernel> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return Ok(()) };
    if skip || (major, minor) >= OLDEST {
        return Ok(());
    }
    Err(UnsupportedKernel { release: release.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_before_5_13_is_refused_with_the_reason_unless_told_to_skip() {
        let refused = check_kernel("5.10.0-28-amd64", false).unwrap_err().to_string();
        assert!(refused.starts_with("kernel 5.10.0-28-amd64 is older than 5.13,"), "{refused}");
        assert_eq!(check_kernel("5.10.0-28-amd64", true), Ok(()));
        for fine in ["5.13.0", "5.15.0-1-generic", "6.1", "6.18.44-x", "10.0-rc1", "custom"] {
            assert_eq!(check_kernel(fine, false), Ok(()), "{fine}");
        }
    }
}
