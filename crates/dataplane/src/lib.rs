//! From a ForwardingTable to the kernel.
//!
//! One folder per backend, each with the same modules, behind [`backend::NodeBackend`]:
//!
//! ```text
//! ForwardingTable -> render -> diff -> apply -> kernel, or fake
//!                                                 |
//!                                    packet -> trace -> verdict
//! ```
//!
//! Nothing here chooses an endpoint, and only `apply` and `conntrack` touch the kernel. `fake` keeps the state of a
//! kernel in memory and receives the bytes that a kernel would get.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod backend;
pub mod conntrack;
#[doc(hidden)]
pub mod fuzzing;
pub mod iptables;
pub mod ipvs;
pub mod kernelspace;
pub mod migration;
pub mod nfnetlink;
pub mod nftables;
