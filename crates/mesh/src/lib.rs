//! The L7 side: the same routes and endpoints for the embedded proxy and for Envoy, kept up to date.
//!
//! ```text
//! watches or files -> TableCache: Snapshot -> affected parts -> the tables of each ProxyIdentity
//!    RouteTable + BackendTable + certificates -> the embedded proxy, or xDS
//! ```

pub mod accepted;
pub mod consumer;
pub mod control;
pub mod doors;
pub mod redirect;
pub mod run;
pub mod secret;
pub mod secrets;
pub mod source;
pub mod state;
mod touch;
mod view;

use anyhow::{Context, Result};
use model::route::AppProtocol;
use model::{Protocol, Service, ServicePort};

pub use consumer::{ProxyIdentity, ProxyRole};
pub use state::{ChangedTables, MeshTables, TableCache, TableUpdate};

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
