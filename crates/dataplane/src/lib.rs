//! From a ForwardingTable to the kernel: `render` -> `diff` -> `apply`, one module for each way of the kernel.
//!
//! Nothing here chooses an endpoint. Only `apply` touches the world; everything before it is a value, and the
//! fake kernel evaluates packets on the very bytes that would be sent.

pub mod conntrack;
pub mod nftables;
