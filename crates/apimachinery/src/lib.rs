//! The rules of the API: what kube-apiserver and its allocators decide about an object or a user, as pure functions.
//!
//! The embedded API, the controller of cluster IPs and the commands that explain call the same functions. No I/O, no clock,
//! no random source: inputs are arguments. How traffic flows is decided in crate `plan`.
//!
//! | decision | where |
//! |---|---|
//! | whether an object is valid | [`validate`] |
//! | field ownership and server-side apply | [`managed_fields`] |
//! | cluster IPs and their repair | [`cluster_ips`] |
//! | NodePorts | [`node_port_allocator`] |
//! | whether a user may do something, and may grant it | [`rbac`] |
//! | tokens of service accounts | [`service_account`] |
//! | machines that join: tokens, credentials, what a node may write | [`join`] |
//! | what the audit log records | [`audit_policy`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod audit_policy;
pub mod cluster_ips;
pub mod join;
pub mod managed_fields;
pub mod node_port_allocator;
pub mod rbac;
pub mod service_account;
pub mod validate;
