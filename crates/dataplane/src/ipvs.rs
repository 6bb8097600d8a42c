//! The ipvs backend.
//!
//! ```text
//!                   /-> virtual servers, real servers -> diff -> generic netlink -\
//! ForwardingTable -+--> local routes ------------------> diff -> rtnetlink --------+-> kernel or fake -> trace
//!                   \-> the table of the nftables backend (mark, masquerade, refuse; policy Local) /
//! ```
//!
//! IPVS chooses the endpoint of a virtual server, by one of the kernel's schedulers. Everything else is the nftables
//! backend's: which clients are masqueraded or refused, and whole frontends for which IPVS has no verdict, such as
//! those with two lists of endpoints. Its rules accept what IPVS forwards, and so record which virtual servers are ours.

pub mod abi;
mod backend;
mod diff;
pub mod fake;
mod kernel;
pub mod message;
mod ownership;
mod render;
mod route;
mod scheduler;
mod text;
mod trace;

pub use backend::{BackendTime, IpvsBackend, IpvsSettings};
pub use kernel::{IpvsDump, IpvsKernel, IpvsSocket, IpvsUnavailable, probe, server_counts, set_timeouts};
pub use message::{IpvsChange, IpvsTimeouts, RealServer, VirtualServer, VirtualServerKey};
pub use render::nft_table;
pub use route::LocalRoute;
pub use scheduler::{IpvsScheduler, UnknownScheduler};
pub use text::IpvsListing;
