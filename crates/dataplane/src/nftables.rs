//! The nftables data plane.

pub mod apply;
pub mod decode;
pub mod diff;
pub mod encode;
pub mod fake;
pub mod ir;
pub mod netlink;
pub mod redirect;
pub mod render;
