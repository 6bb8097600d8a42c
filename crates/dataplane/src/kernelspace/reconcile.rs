//! From what HNS holds to what it should hold, object by object.
//!
//! ```text
//! read -> render -> endpoints made -> load balancers made or modified -> load balancers deleted -> endpoints deleted
//! ```
//!
//! A call that fails leaves the rest of the pass to go on. Then everything is read again, a bounded number of times; what is
//! left is an error that names the Services.

use std::collections::{BTreeMap, BTreeSet};

use model::{ForwardingTable, ServiceKey};
use serde::Serialize;

use super::hcn::{Hcn, HcnError, HcnErrorKind, HcnKind, HcnState};
use super::object::{Guid, LoadBalancer};
use super::render::{HcnObjects, KernelspaceSettings, render};
use crate::backend::BackendError;

/// How often a sync reads and repairs.
const PASSES: usize = 3;

/// The result of a sync.
#[derive(Debug, Default)]
pub(super) struct Synced {
    /// HNS held nothing of ours.
    pub(super) is_initial: bool,
    pub(super) changes: usize,
    pub(super) problems: Vec<String>,
}

/// Makes HNS hold what the table says, as far as it lets us.
pub(super) fn sync(
    hcn: &mut dyn Hcn,
    table: &ForwardingTable,
    settings: &KernelspaceSettings,
) -> Result<Synced, BackendError> {
    let mut synced = Synced::default();
    let mut refused = Vec::new();
    for number in 0..PASSES {
        let state = read(hcn, settings)?;
        let rendered = render(table, settings, &state.network, &state.endpoints);
        if number == 0 {
            synced.is_initial = !state.load_balancers.keys().chain(state.endpoints.keys()).any(Guid::is_ours);
        }
        let mut pass = Pass::new(hcn, &state)?;
        pass.apply(&state, &rendered).map_err(failed)?;
        synced.changes += pass.changes;
        synced.problems = rendered.problems;
        refused = pass.refused;
        if refused.is_empty() {
            return Ok(synced);
        }
    }
    let texts: Vec<&str> = refused.iter().map(|(text, _)| text.as_str()).collect();
    let services: BTreeSet<ServiceKey> = refused.iter().filter_map(|(_, service)| service.clone()).collect();
    Err(BackendError::refused_services(texts.join("; "), services))
}

pub(super) fn read(hcn: &mut dyn Hcn, settings: &KernelspaceSettings) -> Result<HcnState, BackendError> {
    HcnState::read(hcn, &settings.network_name).map_err(|error| match error {
        HcnError::NETWORK_NOT_FOUND => BackendError::failed(format!(
            "HNS has no network {:?}: set winkernel.networkName to that of the network plugin",
            settings.network_name
        )),
        error => failed(error),
    })
}

pub(super) fn failed(error: HcnError) -> BackendError {
    BackendError::failed(error.to_string())
}

/// One walk over everything.
struct Pass<'a> {
    hcn: &'a mut dyn Hcn,
    can_modify: bool,
    /// Our load balancers.
    held: BTreeMap<Guid, LoadBalancer>,
    /// The endpoints of every program.
    endpoints: BTreeSet<Guid>,
    changes: usize,
    refused: Vec<(String, Option<ServiceKey>)>,
}

impl<'a> Pass<'a> {
    fn new(hcn: &'a mut dyn Hcn, state: &HcnState) -> Result<Self, BackendError> {
        let can_modify = hcn.version().map_err(failed)?.can_modify();
        let ours = state.load_balancers.iter().filter(|(id, _)| id.is_ours());
        Ok(Self {
            hcn,
            can_modify,
            held: ours.map(|(id, held)| (id.clone(), held.clone())).collect(),
            endpoints: state.endpoints.keys().cloned().collect(),
            changes: 0,
            refused: Vec::new(),
        })
    }

    /// An error means that HNS is away.
    fn apply(&mut self, state: &HcnState, wanted: &HcnObjects) -> Result<(), HcnError> {
        self.release_changed(state, wanted)?;
        for (id, endpoint) in &wanted.endpoints {
            if !self.endpoints.contains(id) && self.create(HcnKind::Endpoint, id, endpoint, None)? {
                self.endpoints.insert(id.clone());
            }
        }
        for (id, wanted) in &wanted.load_balancers {
            let mut object = wanted.object.clone();
            object.host_compute_endpoints.retain(|endpoint| self.endpoints.contains(endpoint));
            if !object.host_compute_endpoints.is_empty() {
                self.place(id, object, &wanted.service)?;
            }
        }
        let is_wanted = |id: &&Guid| wanted.load_balancers.contains_key(*id);
        let stale: Vec<Guid> = self.held.keys().filter(|id| !is_wanted(id)).cloned().collect();
        for id in &stale {
            self.delete_load_balancer(id)?;
        }
        let foreign = state.load_balancers.iter().filter(|(id, _)| !id.is_ours()).map(|(_, held)| held);
        let used: BTreeSet<Guid> = users(foreign.chain(self.held.values()));
        let is_needed = |id: &Guid| wanted.endpoints.contains_key(id) || used.contains(id);
        let unused: Vec<Guid> =
            self.endpoints.iter().filter(|id| id.is_ours() && !is_needed(id)).cloned().collect();
        for id in &unused {
            self.delete(HcnKind::Endpoint, id)?;
        }
        Ok(())
    }

    /// An endpoint is changed by making it anew; the load balancers that use it are made anew, too.
    fn release_changed(&mut self, state: &HcnState, wanted: &HcnObjects) -> Result<(), HcnError> {
        for (id, endpoint) in &wanted.endpoints {
            if state.endpoints.get(id).is_none_or(|held| held.is_same(endpoint)) {
                continue;
            }
            let uses = |held: &LoadBalancer| held.host_compute_endpoints.contains(id);
            let users: Vec<Guid> =
                self.held.iter().filter(|(_, held)| uses(held)).map(|(id, _)| id.clone()).collect();
            for user in &users {
                self.delete_load_balancer(user)?;
            }
            if !self.held.values().any(uses) && self.delete(HcnKind::Endpoint, id)? {
                self.endpoints.remove(id);
            }
        }
        Ok(())
    }

    fn place(&mut self, id: &Guid, object: LoadBalancer, service: &ServiceKey) -> Result<(), HcnError> {
        match self.held.get(id) {
            Some(held) if *held == object => return Ok(()),
            Some(_) if self.can_modify => {
                match self.hcn.modify(HcnKind::LoadBalancer, id, &document(&object)) {
                    Err(error) if error.kind() == HcnErrorKind::NotImplemented => {
                        self.can_modify = false;
                        self.delete_load_balancer(id)?;
                    }
                    Err(error) if error.kind() == HcnErrorKind::NotFound => drop(self.held.remove(id)),
                    result => {
                        if self.done(result, "modify", HcnKind::LoadBalancer, id, Some(service))? {
                            self.held.insert(id.clone(), object);
                        }
                        return Ok(());
                    }
                }
            }
            Some(_) => self.delete_load_balancer(id)?,
            None => {}
        }
        if !self.held.contains_key(id) && self.create(HcnKind::LoadBalancer, id, &object, Some(service))? {
            self.held.insert(id.clone(), object);
        }
        Ok(())
    }

    fn create(
        &mut self,
        kind: HcnKind,
        id: &Guid,
        object: &impl Serialize,
        service: Option<&ServiceKey>,
    ) -> Result<bool, HcnError> {
        let result = self.hcn.create(kind, id, &document(object));
        self.done(result, "create", kind, id, service)
    }

    fn delete_load_balancer(&mut self, id: &Guid) -> Result<(), HcnError> {
        if self.delete(HcnKind::LoadBalancer, id)? {
            self.held.remove(id);
        }
        Ok(())
    }

    /// What is gone is deleted.
    fn delete(&mut self, kind: HcnKind, id: &Guid) -> Result<bool, HcnError> {
        let result = match self.hcn.delete(kind, id) {
            Err(error) if error.kind() == HcnErrorKind::NotFound => Ok(()),
            result => result,
        };
        self.done(result, "delete", kind, id, None)
    }

    /// Whether a call succeeded. Only the absence of HNS ends the pass.
    fn done(
        &mut self,
        result: Result<(), HcnError>,
        does: &str,
        kind: HcnKind,
        id: &Guid,
        service: Option<&ServiceKey>,
    ) -> Result<bool, HcnError> {
        match result {
            Ok(()) => self.changes += 1,
            Err(error) if error.kind() == HcnErrorKind::ServiceAway => return Err(error),
            Err(error) => {
                let whose = service.map_or_else(String::new, |service| format!(" of Service {service}"));
                let text = format!("{does} {} {id}{whose}: {error}", kind.as_str());
                self.refused.push((text, service.cloned()));
            }
        }
        Ok(result.is_ok())
    }
}

/// The endpoints that load balancers use.
fn users<'l>(held: impl Iterator<Item = &'l LoadBalancer>) -> BTreeSet<Guid> {
    held.flat_map(|held| &held.host_compute_endpoints).cloned().collect()
}

fn document(object: &impl Serialize) -> String {
    serde_json::to_string(object).unwrap_or_default()
}
