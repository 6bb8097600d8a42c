//! The schedulers of IPVS, by the names that KubeProxyConfiguration has for them.

use std::fmt;
use std::str::FromStr;

use super::abi;

/// How a virtual server chooses a real server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpvsScheduler {
    #[default]
    Rr,
    Wrr,
    Lc,
    Wlc,
    Lblc,
    Lblcr,
    Sh,
    Dh,
    Sed,
    Nq,
    Mh,
}

impl IpvsScheduler {
    pub const ALL: [Self; 11] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Sh,
        Self::Dh,
        Self::Sed,
        Self::Nq,
        Self::Mh,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Sh => "sh",
            Self::Dh => "dh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Mh => "mh",
        }
    }

    /// The flags of its virtual servers. kube-proxy sets mh-port for `mh`, and no flag for others.
    pub fn flags(self) -> u32 {
        if self == Self::Mh { abi::SCHED_PORT } else { 0 }
    }

    /// The kernel module that has it.
    pub fn module(self) -> String {
        format!("ip_vs_{}", self.as_str())
    }
}

/// A name that is not in [`IpvsScheduler::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScheduler(pub String);

impl fmt::Display for UnknownScheduler {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = IpvsScheduler::ALL.map(IpvsScheduler::as_str).join(", ");
        write!(out, "IPVS has no scheduler {:?}, only {known}", self.0)
    }
}

impl std::error::Error for UnknownScheduler {}

/// An empty name is the default.
impl FromStr for IpvsScheduler {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        let known = Self::ALL.into_iter().find(|scheduler| scheduler.as_str() == name);
        known.or(name.is_empty().then_some(Self::Rr)).ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheduler_is_found_by_its_name_and_others_are_refused_by_theirs() {
        for scheduler in IpvsScheduler::ALL {
            assert_eq!(scheduler.as_str().parse(), Ok(scheduler));
        }
        assert_eq!("".parse(), Ok(IpvsScheduler::Rr));
        let refused = "fastest".parse::<IpvsScheduler>().expect_err("no such scheduler").to_string();
        assert!(refused.contains("\"fastest\"") && refused.contains("rr, wrr, lc"), "{refused}");
    }
}
