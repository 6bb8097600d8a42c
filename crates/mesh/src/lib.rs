//! The L7 side: the same routes and endpoints for the embedded proxy and for Envoy, kept up to date.
//!
//! ```text
//! watches or files -> TableCache: Snapshot -> affected parts -> the tables of each ProxyIdentity
//!    RouteTable + BackendTable + certificates -> the embedded proxy, or xDS
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod certificate_watches;
pub mod control;
pub mod embedded_proxy;
mod identity_tables;
pub mod listeners;
pub mod object_source;
pub mod proxy_identity;
pub mod proxy_traffic;
pub mod redirect;
pub mod route_status;
pub mod table_cache;
pub mod tls_secret;

use anyhow::{Context, Result};
use model::route::AppProtocol;
use model::{Protocol, Service, ServicePort};

pub use proxy_identity::{ProxyIdentity, ProxyRole};
pub use table_cache::{ChangedTables, MeshTables, TableCache, TableUpdate};

/// The TCP port that routes apply to: the one wanted by name or number, else the first that speaks HTTP, else the first.
pub fn destination_port<'s>(service: &'s Service, wanted: Option<&str>) -> Result<&'s ServicePort> {
    let key = &service.key;
    let mut ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    if let Some(wanted) = wanted {
        let is_wanted = |p: &&ServicePort| p.name == wanted || p.port.to_string() == wanted;
        return ports.find(is_wanted).with_context(|| format!("Service {key} has no TCP port {wanted}"));
    }
    let speaks_http = |p: &&ServicePort| AppProtocol::of(p.app_protocol.as_deref(), &p.name).is_http();
    let first = ports.clone().next().with_context(|| format!("Service {key} has no TCP port"))?;
    Ok(ports.find(speaks_http).unwrap_or(first))
}
