//! Where the demand of Spill comes from: `--spill-demand`, and `zoneward.dev/spill-demand` on a Service.

use std::fmt;
use std::str::FromStr;

use model::{Service, annotation};
use serde::{Deserialize, Serialize};

/// The source of the demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpillDemandMode {
    /// The CPU of nodes; what measured demand would do is shown.
    #[default]
    Observe,
    /// The connections that nodes count.
    Measured,
    /// The CPU of nodes.
    Cpu,
}

impl SpillDemandMode {
    pub const ALL: [Self; 3] = [Self::Observe, Self::Measured, Self::Cpu];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Measured => "measured",
            Self::Cpu => "cpu",
        }
    }

    /// The mode of a Service: its own, if that is valid.
    pub fn of(service: &Service, default: Self) -> Self {
        let own = service.annotations.value(annotation::SPILL_DEMAND);
        own.and_then(|text| text.parse().ok()).unwrap_or(default)
    }
}

impl fmt::Display for SpillDemandMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SpillDemandMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|mode| mode.as_str() == text);
        known.ok_or_else(|| format!("{text:?}: expected observe, measured or cpu"))
    }
}
