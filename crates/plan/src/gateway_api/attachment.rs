//! Which listeners a route is attached to, by its parentRefs.

use model::gateway_api::{Gateway, ParentKind, ParentReference, Route};
use model::route::Hostname;
use model::{ObjectKey, Snapshot};

use super::Problem;
use super::listeners::{EffectiveGateway, EffectiveListener, in_scope};

/// The Gateway of a parentRef, and the ListenerSet if that is the parent.
pub(crate) fn gateway_of<'s>(
    snapshot: &'s Snapshot,
    parent: &ParentReference,
) -> Option<(&'s Gateway, Option<ObjectKey>)> {
    let key = parent.object.key();
    match parent.kind() {
        ParentKind::Gateway => Some((snapshot.gateway(&key)?, None)),
        ParentKind::ListenerSet => {
            let set = snapshot.listener_set(&key)?;
            let is_of_gateway = set.parent.kind() == ParentKind::Gateway;
            let gateway = is_of_gateway.then(|| snapshot.gateway(&set.parent.object.key()))?;
            Some((gateway?, Some(key)))
        }
        ParentKind::Service | ParentKind::Other => None,
    }
}

/// The listeners that a route is attached to by one of its parentRefs, as indexes, or why there are none. A parentRef to a
/// Gateway means its own listeners, not those of its ListenerSets.
pub(super) fn attached_listeners(
    snapshot: &Snapshot,
    gateway: &EffectiveGateway<'_>,
    set: Option<&ObjectKey>,
    route: &Route,
    parent: &ParentReference,
) -> Result<Vec<usize>, Problem> {
    if let Some((_, Err(problem))) = gateway.sets.iter().find(|(own, _)| set == Some(&own.identity.key)) {
        return Err(Problem::new("NotAllowedByListeners", problem.message.clone()));
    }
    let is_named = |listener: &EffectiveListener<'_>| {
        parent.section.as_ref().is_none_or(|name| *name == listener.listener.name)
            && parent.port.is_none_or(|port| port == listener.listener.port)
    };
    let named: Vec<_> = gateway.listeners_of(set).filter(|(_, listener)| is_named(listener)).collect();
    if named.is_empty() {
        return Err(Problem::new(
            "NoMatchingParent",
            "no listener has the sectionName and port of the parentRef",
        ));
    }
    let namespace = &route.identity.key.namespace;
    let is_allowed = |listener: &EffectiveListener<'_>| {
        let own = listener.namespace(gateway.gateway);
        listener.kinds.contains(&route.kind)
            && in_scope(snapshot, &listener.listener.routes_from, own, namespace)
    };
    let allowed: Vec<_> = named.into_iter().filter(|(_, listener)| is_allowed(listener)).collect();
    if allowed.is_empty() {
        let message = format!("no listener allows a {} from namespace {namespace}", route.kind.as_str());
        return Err(Problem::new("NotAllowedByListeners", message));
    }
    let shares_host =
        |listener: &EffectiveListener<'_>| !shared_hosts(route, &listener.listener.hostname).is_empty();
    let attached: Vec<usize> =
        allowed.into_iter().filter(|(_, listener)| shares_host(listener)).map(|(at, _)| at).collect();
    if attached.is_empty() {
        let message = "no hostname of the route is one of a listener";
        return Err(Problem::new("NoMatchingListenerHostname", message));
    }
    Ok(attached)
}

/// The host names that a route and a listener share; those of the route outside of the listener do not count.
pub(super) fn shared_hosts(route: &Route, listener: &Hostname) -> Vec<Hostname> {
    if route.hostnames.is_empty() {
        return vec![listener.clone()];
    }
    let mut shared: Vec<Hostname> =
        route.hostnames.iter().filter_map(|host| listener.intersection(host)).collect();
    shared.sort();
    shared.dedup();
    shared
}
