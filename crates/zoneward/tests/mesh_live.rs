//! L7 proxies as processes, with real requests, in a network namespace of their own: the examples with `zoneward up`,
//! gateways and sidecars, redirects by the kernel.

mod examples;
mod life;
mod redirect;
mod tls;
pub(crate) mod world;
