//! The drain of a zone: the kind ZoneDrain in, the annotation of slices and a verdict on each Service out.
//!
//! ```text
//! ZoneDrain -> parse -> check: can the other zones take it? -> ZoneDrains -> zoneward.dev/drain of the slices
//!                         |                                                       |
//!                         +-> status: Accepted, Services by name        consumers: capacity::advance, select
//! ```
//!
//! Slices hold when the drain starts, how long it takes and when it ends, so that it ends without a controller.

mod check;
mod object;

use model::{Name, Service};

use crate::capacity::{DrainWindow, format_drains};
use crate::select::not_proxied;
pub use check::{DrainVerdict, DrainedService, ServiceLoad, check, is_refused};
pub use object::{DrainSpecError, ZoneDrain};

/// The drains in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneDrains {
    zones: Vec<(Name, DrainWindow)>,
    annotation: Option<Name>,
}

impl ZoneDrains {
    /// Of two drains of one zone the one that ends later counts.
    pub fn new(mut zones: Vec<(Name, DrainWindow)>) -> Self {
        zones.sort_by(|a, b| (&a.0, -a.1.until).cmp(&(&b.0, -b.1.until)));
        zones.dedup_by(|a, b| a.0 == b.0);
        let annotation = (!zones.is_empty()).then(|| Name::new(&format_drains(&zones)));
        Self { zones, annotation }
    }

    pub fn zones(&self) -> &[(Name, DrainWindow)] {
        &self.zones
    }

    /// The annotation of a Service's slices. Service proxies ignore Services like headless ones, and drains of them.
    pub fn annotation(&self, service: &Service) -> Option<Name> {
        self.annotation.clone().filter(|_| not_proxied(service).is_none())
    }
}

#[cfg(test)]
mod tests;
