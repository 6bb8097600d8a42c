//! The Gateway API: which routes are attached to which listeners, the route tables that follow, and the statuses.
//!
//! ```text
//! Gateway + ListenerSets -> listeners: conflicts, certificates, kinds -> attachment: parentRef -> listeners, or why not
//!   -> rules: filters and backends resolved -> table: one RouteTable, as for MeshGateways
//!   -> status: conditions of every object; bound_ports: what proxies report of its ports
//! Service parentRefs -> mesh_routes: the routing of an outbound
//! ```
//!
//! Unlike Mesh* policies, routes are never merged per field: on equal matches the older route wins. In the mesh, an
//! unmatched request gets 404, and a rule without backends 500. A route makes its backends HTTP, whatever the port's name.

mod addresses;
mod attached_routes;
mod attachment;
mod backend_tls;
pub(crate) mod bound_ports;
mod features;
mod listeners;
mod mesh_routes;
mod references;
mod request;
mod rules;
pub(crate) mod shared_hosts;
mod status;
mod table;
#[cfg(test)]
mod tests;

pub use addresses::{AssignedAddresses, GATEWAY_NAME_LABEL, MachineAddresses, machine_addresses};
pub use attached_routes::AttachedRoutes;
pub(crate) use attachment::gateway_of;
pub use bound_ports::{PortReport, UnboundPort, UnboundPorts};
pub use features::{BUNDLE_VERSION, SUPPORTED_FEATURES};
pub(crate) use mesh_routes::deciding_routes;
pub use mesh_routes::{MeshRouting, mesh_routing};
pub use request::{ArrivingRequest, trace_at_gateway, trace_in_mesh};
pub use status::{ObjectStatus, StatusPlanner, statuses};
pub use table::gateway_table;

/// Why a condition is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// `reason` of the condition.
    reason: &'static str,
    message: String,
}

impl Problem {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
