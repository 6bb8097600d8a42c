//! How many rules use each backend.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::route::{BackendId, HttpRule};

use super::super::prepared_rules::differing;

#[derive(Debug, Default)]
pub(super) struct BackendUsage {
    rules_by_backend: BTreeMap<BackendId, usize>,
    /// Backends that came into use or went out of use.
    changed: BTreeSet<BackendId>,
}

impl BackendUsage {
    pub(super) fn has(&self, backend: &BackendId) -> bool {
        self.rules_by_backend.contains_key(backend)
    }

    pub(super) fn take_changed(&mut self) -> BTreeSet<BackendId> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn replace(&mut self, old: &[Arc<HttpRule>], new: &[Arc<HttpRule>]) {
        let (old, new) = differing(old, new);
        self.add(new.iter().flat_map(|rule| rule.backends()));
        self.remove(old.iter().flat_map(|rule| rule.backends()));
    }

    pub(super) fn add<'b>(&mut self, backends: impl Iterator<Item = &'b BackendId>) {
        for backend in backends {
            let rules = self.rules_by_backend.entry(backend.clone()).or_default();
            *rules += 1;
            if *rules == 1 {
                self.changed.insert(backend.clone());
            }
        }
    }

    fn remove<'b>(&mut self, backends: impl Iterator<Item = &'b BackendId>) {
        for backend in backends {
            let Some(rules) = self.rules_by_backend.get_mut(backend) else { continue };
            *rules -= 1;
            if *rules == 0 {
                self.rules_by_backend.remove(backend);
                self.changed.insert(backend.clone());
            }
        }
    }
}
