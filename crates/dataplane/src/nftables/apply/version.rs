//! Kernels that are too old are refused with the reason, before anything is written.

use std::fmt;

/// The oldest kernel whose nf_tables does what our rules need.
const OLDEST: (u32, u32) = (5, 13);

/// A kernel that is too old.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldKernel {
    /// What it calls itself.
    pub release: String,
}

impl fmt::Display for OldKernel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = OLDEST;
        write!(
            out,
            "kernel {} is older than {major}.{minor}, the first whose nf_tables is known to hold rules like these, \
             here and in kube-proxy; update the kernel, use another proxy mode, or set \
             KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK if your distribution has brought the fixes back",
            self.release
        )
    }
}

impl std::error::Error for OldKernel {}

/// Refuses a kernel before 5.13 by its release (`uname -r`), unless `skip` is set. A release that cannot be read counts
/// as new: custom kernels have odd names.
// semantics D10: kernel >= 5.13 unless the environment says to skip the check.
pub fn check_kernel(release: &str, skip: bool) -> Result<(), OldKernel> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return Ok(()) };
    if skip || (major, minor) >= OLDEST {
        return Ok(());
    }
    Err(OldKernel { release: release.to_string() })
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
