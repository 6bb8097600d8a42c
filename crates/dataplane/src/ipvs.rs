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
//! those with two lists of endpoints.

pub mod abi;
mod apply;
mod backend;
mod diff;
pub mod fake;
pub(crate) mod guard;
mod interface;
mod kernel;
mod leftovers;
pub mod message;
mod ownership;
mod render;
mod route;
mod scheduler;
mod text;
mod trace;

pub use backend::{BackendTime, IpvsBackend, IpvsSettings};
pub use interface::{DUMMY_ALIAS, DUMMY_INTERFACE};
pub use kernel::{
    IpvsDump, IpvsKernel, IpvsSocket, IpvsUnavailable, foreign_servers, probe, server_counts, set_timeouts,
};
pub use leftovers::IpvsLeftovers;
pub use message::{IpvsChange, IpvsTimeouts, RealServer, VirtualServer, VirtualServerKey};
pub use render::nft_table;
pub use route::LocalRoute;
pub use scheduler::{IpvsScheduler, UnknownScheduler};
pub use text::IpvsListing;
