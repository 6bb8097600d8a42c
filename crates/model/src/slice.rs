//! EndpointSlices: the stored object, and the content that a controller writes.

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::{AddressType, Protocol};
use crate::annotation;
use crate::endpoint::Endpoint;
use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::service::Service;
use crate::uid::Uid;

/// A stored EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub key: ObjectKey,
    pub uid: Option<Uid>,
    pub generation: i64,
    /// For optimistic concurrency.
    pub resource_version: Option<Name>,
    pub deleting: bool,
    /// Whether it has any annotations, including unknown ones.
    pub annotated: bool,
    /// The last manager in `metadata.managedFields`.
    pub written_by: Option<Name>,
    /// Owner references to Services.
    pub owners: Box<[Owner]>,
    pub content: SliceContent,
    /// What its annotations say on its endpoints at the time of a consumer; `None` for endpoints like any other.
    pub shares: Option<Box<EndpointShares>>,
}

/// How much of the traffic endpoints can take, in thousandths. Those that are not listed take all that others do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointShares {
    /// Sorted by address.
    pub capacities: Vec<(IpAddr, u32)>,
    /// What is moved away from the endpoints of a zone.
    pub drained_by_zone: Vec<(Name, u32)>,
}

/// An owner reference to a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub name: Name,
    pub uid: Uid,
}

/// The part of an EndpointSlice that its controller writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceContent {
    pub address_type: AddressType,
    pub labels: Labels,
    /// Only those in [`annotation::READ_FROM_SLICES`]; others are preserved on the object.
    pub annotations: Labels,
    /// Shared, because many slices have the same ports.
    pub ports: Arc<[SlicePort]>,
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlicePort {
    /// The name of the Service port; absent is different from empty.
    pub name: Option<Name>,
    pub protocol: Protocol,
    /// Absent means all ports.
    pub port: Option<u16>,
    pub app_protocol: Option<Name>,
}

impl Slice {
    /// A slice without other metadata than its name.
    pub fn new(key: ObjectKey, content: SliceContent) -> Self {
        Self {
            key,
            uid: None,
            generation: 0,
            resource_version: None,
            deleting: false,
            annotated: false,
            written_by: None,
            owners: Box::default(),
            content,
            shares: None,
        }
    }

    /// What an endpoint can carry compared with others, in thousandths.
    pub fn capacity(&self, address: IpAddr) -> u32 {
        let Some(shares) = &self.shares else { return 1_000 };
        let at = shares.capacities.binary_search_by_key(&address, |(address, _)| *address);
        at.map_or(1_000, |at| shares.capacities[at].1)
    }

    /// What is moved away from the endpoints of a zone, in thousandths.
    pub fn drained(&self, zone: Option<&Name>) -> u32 {
        let zones = self.shares.iter().flat_map(|shares| &shares.drained_by_zone);
        zones.filter(|(drained, _)| Some(drained) == zone).map(|(_, share)| *share).max().unwrap_or(0)
    }

    /// Whether its annotations say anything on the shares of its endpoints.
    pub fn has_shares(&self) -> bool {
        let keys = [annotation::CAPACITY, annotation::WARMING, annotation::DRAIN];
        keys.into_iter().any(|key| self.content.annotation(key).is_some())
    }

    /// A slice that belongs to a Service.
    pub fn owned_by(service: &Service, name: &str, content: SliceContent) -> Self {
        let uid = service.uid.clone().unwrap_or_else(|| Uid::new(""));
        let owners = [Owner { name: service.key.name.clone(), uid }].into();
        let key = ObjectKey::new(&service.key.namespace, &Name::new(name));
        Self { owners, ..Self::new(key, content) }
    }

    /// Its Service: by label, or by owner reference without the label.
    pub fn service(&self) -> Option<ServiceKey> {
        let name = self.labelled_service().or_else(|| self.owners.first().map(|o| &o.name))?;
        Some(ServiceKey::new(&self.key.namespace, name))
    }

    /// The Service in its label, which is all that consumers use.
    pub fn labelled_service(&self) -> Option<&Name> {
        let labels = &self.content.labels;
        labels.value(annotation::SERVICE_NAME).or_else(|| labels.value(annotation::COEXIST_SERVICE_NAME))
    }

    /// Whether it was written with `--coexist`.
    pub fn is_coexisting(&self) -> bool {
        self.content.labels.has(annotation::COEXIST_SERVICE_NAME)
    }

    /// The only zone whose nodes need it; `None`: all nodes do.
    pub fn for_zone(&self) -> Option<&Name> {
        self.content.for_zone()
    }

    pub fn managed_by(&self) -> Option<&Name> {
        self.content.labels.value(annotation::MANAGED_BY)
    }
}

impl SliceContent {
    /// The only zone whose nodes need it; `None`: all nodes do.
    pub fn for_zone(&self) -> Option<&Name> {
        self.labels.value(annotation::FOR_ZONE)
    }

    pub fn annotation(&self, key: &str) -> Option<&Name> {
        self.annotations.value(key)
    }
}
