//! A preview of mode kernelspace for Windows nodes: load balancers of the Host Networking Service (HNS), by HCN v2.
//!
//! ```text
//! ForwardingTable, what HNS lists -> render -> reconcile -> Hcn: create, modify, delete -> HNS or fake -> trace
//! ```
//!
//! [`Hcn`] is what a Windows machine has to provide; here only the fake does, so no packet went through it:
//! docs/design/windows.md. HNS has no transactions, so a change is made object by object, and each sync compares
//! everything. Ids of our objects begin with the letters `zoneward`; no other object is changed.

mod backend;
pub mod fake;
mod hcn;
mod object;
mod reconcile;
mod render;
mod text;
mod trace;

pub use backend::KernelspaceBackend;
pub use hcn::{Hcn, HcnError, HcnErrorKind, HcnKind, HcnVersion};
pub use object::{Guid, HcnEndpoint, LoadBalancer, Network, PortMapping, RemoteSubnet};
pub use render::{HcnObjects, KernelspaceSettings, WantedLoadBalancer, render};
pub use text::HcnListing;
