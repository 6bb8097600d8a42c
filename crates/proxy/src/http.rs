//! One HTTP request: routing, forwarding, retries, and the bodies of both directions.

mod attempt;
pub(crate) mod body;
pub(crate) mod body_chunk;
mod forward;
pub(crate) mod headers;
pub(crate) mod http2_limits;
mod local_reply;
mod mirror;
pub(crate) mod outbound_limits;
mod request_template;
mod response_changes;
mod retry;
pub(crate) mod route_rule;
pub(crate) mod router;
mod upgrade;
