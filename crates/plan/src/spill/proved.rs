//! The load that the endpoints of a Service have carried: the annotation `zoneward.dev/proved`.

use std::fmt;
use std::str::FromStr;

use model::Timestamp;

use super::DemandError;

/// After this time without a new proof half of it counts.
const HALF_LIFE_SECONDS: f64 = 7.0 * 24.0 * 3600.0;

/// Connections per second and endpoint, and when that was: `12.5@2026-11-17T10:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProvedLoad {
    pub connections_per_second: f64,
    pub at: Timestamp,
}

impl ProvedLoad {
    /// In thousandths, as it is written.
    pub fn new(connections_per_second: f64, at: Timestamp) -> Self {
        Self { connections_per_second: (connections_per_second * 1_000.0).floor() / 1_000.0, at }
    }

    /// What still counts of it.
    pub fn now(&self, now: Timestamp) -> f64 {
        let age = now.seconds_since(self.at).max(0.0);
        self.connections_per_second * (-age / HALF_LIFE_SECONDS).exp2()
    }

    pub fn parse(text: &str) -> Result<Self, DemandError> {
        text.parse()
    }
}

impl fmt::Display for ProvedLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}@{}", self.connections_per_second, self.at)
    }
}

impl FromStr for ProvedLoad {
    type Err = DemandError;

    fn from_str(text: &str) -> Result<Self, DemandError> {
        let malformed = || {
            DemandError::new(format!("{text:?}: write it as RATE@TIME, such as 12.5@2026-11-17T10:00:00Z"))
        };
        let (load, at) = text.split_once('@').ok_or_else(malformed)?;
        let load: f64 = load.parse().map_err(|_| malformed())?;
        let at = Timestamp::parse(at).ok_or_else(malformed)?;
        if !load.is_finite() || load < 0.0 {
            return Err(malformed());
        }
        Ok(Self { connections_per_second: load, at })
    }
}
