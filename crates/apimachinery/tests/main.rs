//! The tests of crate `apimachinery`, as one program: one link instead of 5.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod cluster_ips_properties;
mod ip_allocation;
mod rbac;
mod server_side_apply;
mod validate;
