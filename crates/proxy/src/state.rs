//! The tables in force, with their rules made ready. Replaced whole: a request sees one state from its first look to
//! its answer. What did not change is taken over from the state before.

use std::sync::Arc;

use model::route::{HttpRoutes, PathMatch, RequestView, RouteGroup, Routing, WeightedBackends};
use model::{Notice, ObjectRef};

use crate::peer::Moment;
use crate::proxy::Tables;
use crate::registry::{ByAddress, Registry, address};
use crate::rules::{Group, Legs, Rule};
use crate::settings::Settings;

/// The tables in force.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) tables: Tables,
    groups: ByAddress<Arc<Group>>,
    splits: ByAddress<Arc<Legs>>,
}

/// The rule that a request hit.
#[derive(Clone, Copy)]
pub(crate) struct Found<'s> {
    pub(crate) rule: &'s Rule,
    pub(crate) model: &'s model::route::HttpRule,
    pub(crate) path: &'s PathMatch,
}

impl State {
    /// The state for new tables, and what in them cannot be obeyed.
    pub(crate) fn new(
        tables: Tables,
        before: &Self,
        registry: &mut Registry,
        now: Moment,
        settings: &Settings,
    ) -> (Self, Vec<Notice>) {
        registry.update(&tables.backends, now, settings);
        let mut state = Self { tables, ..Self::default() };
        let routes = state.tables.routes.clone();
        let listeners = routes.ports().flat_map(|port| port.listeners.iter());
        let of_hosts: Vec<_> = listeners.flat_map(|listener| listener.hosts.iter().map(|(_, r)| r)).collect();
        for routing in routes.outbounds().map(|outbound| &outbound.routing).chain(of_hosts) {
            state.add(routing, before, registry, settings);
        }
        let mut notices: Vec<Notice> =
            state.groups.values().flat_map(|group| group.notices.clone()).collect();
        notices.extend(state.missing_certificates());
        notices.sort();
        notices.dedup();
        (state, notices)
    }

    fn add(&mut self, routing: &Routing, before: &Self, registry: &mut Registry, settings: &Settings) {
        match routing {
            Routing::Http(routes) => {
                for group in &routes.groups {
                    self.groups.entry(address(group)).or_insert_with(|| {
                        let known = before.groups.get(&address(group)).cloned();
                        known.unwrap_or_else(|| Arc::new(Group::new(group, registry, &settings.readable)))
                    });
                }
            }
            Routing::Tcp(split) => {
                self.splits.entry(address(split)).or_insert_with(|| {
                    let known = before.splits.get(&address(split)).cloned();
                    known.unwrap_or_else(|| Arc::new(Legs::new(split, registry)))
                });
            }
        }
    }

    fn missing_certificates(&self) -> Vec<Notice> {
        let ports = self.tables.routes.ports().filter(|port| port.protocol.is_tls());
        let certificates = ports.flat_map(|port| &port.listeners).filter_map(|l| l.certificate.as_ref());
        let missing = certificates.filter(|c| !self.tables.certificates.contains_key(&c.secret));
        let notice = |secret: &model::ObjectKey| {
            let object = ObjectRef::new("Secret", &secret.namespace, &secret.name);
            let message = "a listener needs this certificate and it is not there or not usable: TLS connections for its hosts are closed; create it with kubectl create secret tls";
            Notice::new(object, "CertificateMissing", message)
        };
        missing.map(|certificate| notice(&certificate.secret)).collect()
    }

    /// The rule that a request hits.
    pub(crate) fn find<'s>(&'s self, routes: &'s HttpRoutes, request: &RequestView<'_>) -> Option<Found<'s>> {
        routes.groups.iter().find_map(|group: &Arc<RouteGroup>| {
            let entry = group.find(request)?;
            let rule = self.groups.get(&address(group))?.rules.get(entry.rule)?;
            Some(Found { rule, model: group.rules().get(entry.rule)?, path: &entry.path })
        })
    }

    /// The backends of connections that are carried whole.
    pub(crate) fn legs(&self, split: &Arc<WeightedBackends>) -> Option<&Arc<Legs>> {
        self.splits.get(&address(split))
    }
}
