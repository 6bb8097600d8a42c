//! EndpointSlices: the stored object, and the content that a controller writes.

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
        }
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

    pub fn managed_by(&self) -> Option<&Name> {
        self.content.labels.value(annotation::MANAGED_BY)
    }
}

impl SliceContent {
    pub fn annotation(&self, key: &str) -> Option<&Name> {
        self.annotations.value(key)
    }
}
