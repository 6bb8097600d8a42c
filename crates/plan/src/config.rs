//! What flags and files say about decisions, as one value. It is made once, where a program starts, and passed to
//! everything that decides, explains or predicts, so that a status and its controller cannot differ. There is no `Default`:
//! a function that needs the configuration takes it.

use model::{Name, Service};
use serde::{Deserialize, Serialize};

use crate::feature_gates::FeatureGates;
use crate::hints::{MechanismChoice, TrafficDistributionDefaults, ZoneWeight, choose};
use crate::slices::SliceOptions;
use crate::spill::SpillDemandMode;

/// The settings for all Services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanningConfig {
    pub gates: FeatureGates,
    /// The default where neither the Service nor its namespace has a setting.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "name")]
    pub default_traffic_distribution: Option<Name>,
    /// How a zone's traffic is estimated, for `same-zone: Prefer` and for warnings.
    pub prefer_by: ZoneWeight,
    /// Where the demand of Spill comes from, unless a Service says so; `None` leaves measured demand in slices as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_demand: Option<SpillDemandMode>,
    /// How slices are packed.
    pub slices: SliceOptions,
}

impl PlanningConfig {
    /// What holds without flags.
    pub fn without_flags() -> Self {
        Self {
            gates: FeatureGates::ALL,
            default_traffic_distribution: None,
            prefer_by: ZoneWeight::Nodes,
            spill_demand: None,
            slices: SliceOptions::WITHOUT_FLAGS,
        }
    }

    /// The defaults for the Services of a namespace with this one.
    pub fn defaults(&self, namespace: Option<&Name>) -> TrafficDistributionDefaults {
        TrafficDistributionDefaults {
            namespace: namespace.cloned(),
            cluster: self.default_traffic_distribution.clone(),
        }
    }

    /// The mechanism of a Service, with the default of its namespace.
    pub fn choose(&self, service: &Service, namespace: Option<&Name>) -> MechanismChoice {
        choose(service, &self.defaults(namespace), &self.gates)
    }
}

mod name {
    use model::Name;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(name: &Option<Name>, serializer: S) -> Result<S::Ok, S::Error> {
        match name {
            Some(name) => serializer.serialize_some(name.as_str()),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Name>, D::Error> {
        Ok(Option::<String>::deserialize(from)?.map(|name| Name::new(&name)))
    }
}
