//! What depends on an object: what has to be planned again after a change.
//!
//! ```text
//! watch -> Change (the object that is held, the one that replaces it)
//!       -> slices:   Services whose EndpointSlices change       -> work queue of the controller
//!       -> tables:   outbounds, gateways and backends           -> tables of L7 proxies
//!       -> statuses: statuses of routes, gateways and policies  -> writer of statuses
//! ```

mod slices;
mod statuses;
mod tables;

use model::gateway_api::{GatewayApiKind, GatewayApiObject};
use model::route::{
    MeshGateway, MeshGatewayHttpRoute, MeshHttpRoute, MeshLoadBalancing, MeshRouteFilter, MeshTcpRoute,
};
use model::{Namespace, Node, Object, ObjectKey, Pod, Service, Slice, Snapshot};

pub use slices::{NodeChange, SelectorIndex, node_changed, services_on_node, services_to_requeue};
pub use statuses::{AffectedStatuses, ChangedObject, StatusKey, dependent_statuses};
pub use tables::AffectedTables;

/// The object that the snapshot holds, and the one that replaces it.
pub type Versions<'s, T> = (Option<&'s T>, Option<&'s T>);

/// A change of an object, before it is applied to the snapshot.
#[derive(Clone, Copy, Debug)]
pub enum Change<'s> {
    Service(Versions<'s, Service>),
    Slice(Versions<'s, Slice>),
    Pod(Versions<'s, Pod>),
    Node(Versions<'s, Node>),
    Namespace(Versions<'s, Namespace>),
    MeshHttpRoute(Versions<'s, MeshHttpRoute>),
    MeshGatewayHttpRoute(Versions<'s, MeshGatewayHttpRoute>),
    MeshTcpRoute(Versions<'s, MeshTcpRoute>),
    MeshGateway(Versions<'s, MeshGateway>),
    MeshLoadBalancing(Versions<'s, MeshLoadBalancing>),
    MeshRouteFilter(Versions<'s, MeshRouteFilter>),
    /// The snapshot has the version before.
    GatewayApi(GatewayApiKind, &'s ObjectKey, Option<&'s GatewayApiObject>),
}

impl<'s> Change<'s> {
    /// An object was created or changed; `None` if nothing depends on it.
    pub fn applied(snapshot: &'s Snapshot, new: &'s Object) -> Option<Self> {
        Some(match new {
            Object::Service(new) => Self::Service((snapshot.service(&new.key), Some(new))),
            Object::Slice(new) => Self::Slice((snapshot.slice(&new.key), Some(new))),
            Object::Pod(new) => Self::Pod((snapshot.pod(&new.key), Some(new))),
            Object::Node(new) => Self::Node((snapshot.node(&new.name), Some(new))),
            Object::Namespace(new) => Self::Namespace((snapshot.namespace(&new.name), Some(new))),
            Object::MeshHttpRoute(new) => {
                Self::MeshHttpRoute((snapshot.mesh_http_route(&new.key), Some(new)))
            }
            Object::MeshGatewayHttpRoute(new) => {
                Self::MeshGatewayHttpRoute((snapshot.mesh_gateway_http_route(&new.key), Some(new)))
            }
            Object::MeshTcpRoute(new) => Self::MeshTcpRoute((snapshot.mesh_tcp_route(&new.key), Some(new))),
            Object::MeshGateway(new) => Self::MeshGateway((snapshot.mesh_gateway(&new.key), Some(new))),
            Object::MeshLoadBalancing(new) => {
                Self::MeshLoadBalancing((snapshot.load_balancing_policy(&new.identity.key), Some(new)))
            }
            Object::MeshRouteFilter(new) => {
                Self::MeshRouteFilter((snapshot.route_filter(&new.key), Some(new)))
            }
            Object::GatewayApi(new) => {
                let (kind, key) = new.kind_and_key()?;
                Self::GatewayApi(kind, key, Some(new))
            }
            Object::ServiceCidr(_) | Object::IpAddress(_) => return None,
        })
    }
}

/// Whether both versions are there and alike, or neither is there.
fn same<T>((old, new): Versions<'_, T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => is_same(old, new),
        (None, None) => true,
        _ => false,
    }
}
