//! The nftables backend.
//!
//! ```text
//! render (Ruleset) -> diff (NftChange) -> encode -> netlink batch -> kernel or fake
//!    ^                                                                  |
//!    +--------------------- decode <------------ dump ------------------+--> trace
//! ```

pub mod abi;
pub mod apply;
mod backend;
mod cleanup;
pub mod codes;
pub mod decode;
pub mod diff;
pub mod encode;
pub mod fake;
pub mod ir;
mod kernel;
pub mod render;
pub mod sidecar_redirect;
pub mod trace;

pub use backend::NftablesBackend;
pub use cleanup::list_chains;
pub use kernel::{DumpRequest, Kernel};
