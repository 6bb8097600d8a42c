//! Types for the Kubernetes objects that Zoneward reads and for the tables that it computes.
//!
//! No I/O, no clock, no JSON values: [`parse`] converts objects to these types, and [`mod@write`] applies our fields to
//! the stored JSON.
//!
//! | what | where |
//! |---|---|
//! | Kubernetes objects | [`service`], [`mod@slice`], [`endpoint`], [`pod`], [`node`], [`service_cidr`] (with IPAddress) |
//! | Gateway API objects | [`gateway_api`] |
//! | all objects, indexed | [`snapshot`] |
//! | JSON -> objects, objects -> JSON | [`parse`], [`mod@write`]; [`field`]: fields with paths and errors; [`json`] |
//! | protobuf -> objects | [`protobuf`]: what is around a message; [`parse::message`]: the message |
//! | names, labels, identities | [`name`], [`label`], [`uid`], [`annotation`]: every key that is read or written; [`proxy_user`] |
//! | tables of the data planes | [`forward`] (L4), [`backend`] and [`route`] (L7), [`locality`] |
//! | messages to users | [`notice`], [`suggestion`] ("did you mean") |
//! | values | [`address`], [`duration`], [`time`], [`hash`], [`random`], [`tree`] |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod address;
pub mod annotation;
pub mod backend;
pub mod duration;
pub mod endpoint;
pub mod field;
pub mod forward;
pub mod gateway_api;
pub mod hash;
pub mod json;
pub mod label;
pub mod locality;
pub mod name;
pub mod node;
pub mod notice;
pub mod parse;
pub mod plant;
pub mod pod;
pub mod protobuf;
pub mod proxy_user;
pub mod random;
pub mod route;
pub mod service;
pub mod service_cidr;
pub mod slice;
pub mod snapshot;
pub mod suggestion;
pub mod time;
pub mod tree;
pub mod uid;
pub mod write;

pub use address::{AddressType, Addresses, Family, Protocol};
pub use backend::{Backend, BackendEndpoint, BackendTable};
pub use duration::GoDuration;
pub use endpoint::{Endpoint, EndpointConditions, EndpointIdentity, Hints, TargetRef};
pub use forward::{ForwardingTable, Frontend};
pub use label::Labels;
pub use locality::Locality;
pub use name::{Interner, Name, ObjectKey, ServiceKey};
pub use node::{Namespace, Node};
pub use notice::{Notice, ObjectRef};
pub use parse::Object;
pub use pod::{ContainerPort, Pod, PodDetails};
pub use proxy_user::{ProxyKind, ProxyUser};
pub use route::{BackendId, RouteTable};
pub use service::{ClusterIps, Service, ServicePort, ServiceType, TargetPort, TrafficPolicy};
pub use service_cidr::{IpAddress, ParentRef, ServiceCidr};
pub use slice::{EndpointShares, Owner, Slice, SliceContent, SlicePort};
pub use snapshot::{Snapshot, SnapshotRevision};
pub use time::Timestamp;
pub use uid::Uid;
