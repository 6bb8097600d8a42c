//! The channel of the Gateway API: standard, or with experimental fields. It belongs to the process, because schemas are
//! static.

use std::sync::OnceLock;

/// The channel of the Gateway API's schemas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayApiChannel {
    #[default]
    Standard,
    /// With experimental fields of Gateway, HTTPRoute and GRPCRoute, such as `retry` and `sessionPersistence`.
    Experimental,
}

static GATEWAY_API_CHANNEL: OnceLock<GatewayApiChannel> = OnceLock::new();

/// Sets the channel for the whole process, because schemas are static. Once, before the first request; later calls and
/// calls after a schema was used have no effect.
pub fn set_gateway_api_channel(channel: GatewayApiChannel) {
    GATEWAY_API_CHANNEL.get_or_init(|| channel);
}

pub(super) fn gateway_api_channel() -> GatewayApiChannel {
    *GATEWAY_API_CHANNEL.get_or_init(GatewayApiChannel::default)
}
