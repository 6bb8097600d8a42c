//! What the page of one Service shows beside its row of the report.

use serde_json::Value;

use super::ServiceDetail;
use crate::ledger::TrafficMinute;
use crate::what_if::{EndpointLoad, WhatIfComparison};

/// One Service in full, with its endpoints and history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceView {
    pub detail: ServiceDetail,
    /// By the plan, for the measured demand.
    pub endpoints: Vec<EndpointLoad>,
    /// Oldest first; minutes without traffic are missing.
    pub history: Vec<TrafficMinute>,
    /// The fix of the report as a merge patch.
    pub fix: Option<Value>,
}

/// A change that was evaluated for the demand of a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfView {
    pub comparison: WhatIfComparison,
    /// Whether the demand is measured; else it is assumed to follow the CPU of the nodes.
    pub is_measured: bool,
    /// The command that sets the mechanism, if it changes.
    pub command: Option<String>,
}
