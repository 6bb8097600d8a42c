//! The endpoints' side: backends by weight, load balancing, outlier detection and connection pools.

pub(crate) mod backend;
pub(crate) mod backend_settings;
pub(crate) mod circuit_breaker;
pub(crate) mod connection_pool;
pub(crate) mod endpoint;
pub(crate) mod hash_table;
pub(crate) mod load_balancer;
pub(crate) mod outlier_detection;
pub(crate) mod tls;
pub(crate) mod weighted_backends;
