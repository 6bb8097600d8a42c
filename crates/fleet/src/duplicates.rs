//! Invariant 5 at every change: an endpoint is in one slice per owner and port set. Only in runs in which no write can
//! happen twice: after a lost response, even a correct controller creates a slice again.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{Slice, annotation};

use crate::options::Faults;
use crate::truth::Truth;
use crate::violation::BrokenInvariant;

/// Checks the slices of every Service, if the faults of this run allow it.
#[derive(Default)]
pub(crate) struct DuplicateChecker {
    is_on: bool,
    checked: u64,
}

impl DuplicateChecker {
    pub(crate) fn new(faults: &Faults) -> Self {
        Self { is_on: !faults.may_repeat_writes(), checked: 0 }
    }

    /// A leader lost its lease and cancelled its writes in flight, which the API may have applied: the next leader does not
    /// expect them, and may create a slice again (run 30371).
    pub(crate) fn leader_stopped(&mut self) {
        self.is_on = false;
    }

    pub(crate) fn check(&mut self, truth: &Truth) -> Result<(), BrokenInvariant> {
        if !self.is_on || truth.last_change == self.checked {
            return Ok(());
        }
        self.checked = truth.last_change;
        truth.versions.iter().try_for_each(|(service, versions)| match versions.slices.last() {
            Some(slices) => one_slice_each(service, slices),
            None => Ok(()),
        })
    }
}

fn one_slice_each(service: &str, slices: &[Slice]) -> Result<(), BrokenInvariant> {
    let mut seen: BTreeMap<IpAddr, &Slice> = BTreeMap::new();
    let ours = |slice: &&Slice| slice.managed_by().is_some_and(|name| name == annotation::CONTROLLER_NAME);
    for slice in slices.iter().filter(ours) {
        for endpoint in &slice.content.endpoints {
            let address = endpoint.addresses.first();
            let Some(other) = seen.insert(address, slice) else { continue };
            // Another Service of the same name, or other ports: created before the old slice is deleted.
            if other.owners == slice.owners && other.content.ports == slice.content.ports {
                let text =
                    format!("{address} of Service {service} is in slices {} and {}", other.key, slice.key);
                return Err(BrokenInvariant::new(5, text));
            }
        }
    }
    Ok(())
}
