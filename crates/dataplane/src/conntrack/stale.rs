//! Which flows are stale, by the facts that the plan gives of a Service.

use std::net::IpAddr;

pub use model::forward::UdpService;

use super::{Flow, UDP};

/// Whether the flow was sent to this Service and its answers come from none of its serving endpoints.
pub fn is_stale(service: &UdpService, node_addresses: &[IpAddr], flow: &Flow) -> bool {
    flow.protocol == UDP && service.is_stale(node_addresses, flow.dst, flow.reply_src)
}
