//! The nouns of Zoneward: plain, compact values parsed once from Kubernetes objects.
//!
//! Everything that decides (`plan`) and everything that carries (controllers, data planes, commands)
//! speaks in these types. This crate does no I/O, reads no clock and keeps no JSON: foreign objects are
//! converted at the edge by [`parse`], and what we write is put onto the stored JSON by [`mod@write`].

#![allow(missing_docs)]

pub mod address;
pub mod annotation;
pub mod backend;
pub mod duration;
pub mod endpoint;
pub mod forward;
pub mod hash;
pub mod json;
pub mod label;
pub mod locality;
pub mod name;
pub mod near;
pub mod node;
pub mod notice;
pub mod parse;
pub mod pod;
pub mod random;
pub mod range;
pub mod route;
pub mod service;
pub mod slice;
pub mod snapshot;
pub mod time;
pub mod uid;
pub mod write;

pub use address::{AddressType, Addresses, Family, Protocol};
pub use backend::{Backend, BackendEndpoint, BackendTable};
pub use duration::GoDuration;
pub use endpoint::{Conditions, Endpoint, Hints, TargetRef};
pub use forward::{ForwardingTable, Frontend};
pub use label::Labels;
pub use locality::Locality;
pub use name::{Interner, Name, ObjectKey, ServiceKey};
pub use node::{Namespace, Node};
pub use notice::{Notice, ObjectRef};
pub use parse::Object;
pub use pod::{ContainerPort, Pod, PodDetails};
pub use range::{IpAddress, ParentRef, ServiceCidr};
pub use route::{BackendId, RouteTable};
pub use service::{ClusterIps, Service, ServicePort, ServiceType, TargetPort, TrafficPolicy};
pub use slice::{Owner, Slice, SliceContent, SlicePort};
pub use snapshot::{Revision, Snapshot};
pub use time::Timestamp;
pub use uid::Uid;
