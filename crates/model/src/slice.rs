//! EndpointSlices: what is stored, and the part of it that a controller writes.

use std::sync::Arc;

use crate::address::{AddressType, Protocol};
use crate::annotation;
use crate::endpoint::Endpoint;
use crate::label::Labels;
use crate::name::{Name, ObjectKey, ServiceKey};
use crate::uid::Uid;

/// An EndpointSlice as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its identity.
    pub uid: Option<Uid>,
    /// Counts changes of its content.
    pub generation: i64,
    /// The version to name when writing, so that a newer one is not overwritten.
    pub resource_version: Option<Name>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it has annotations, ours or others.
    pub annotated: bool,
    /// Who wrote it last, as the API server noted it in `metadata.managedFields`.
    pub written_by: Option<Name>,
    /// The Services named as owners.
    pub owners: Box<[Owner]>,
    /// What we would write.
    pub content: SliceContent,
}

/// A Service named as the owner of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The Service's name.
    pub name: Name,
    /// The identity of that life of the Service.
    pub uid: Uid,
}

/// The part of an EndpointSlice that its controller decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceContent {
    /// What the addresses are.
    pub address_type: AddressType,
    /// All labels.
    pub labels: Labels,
    /// The annotations that we read and write; others on the object stay as they are.
    pub annotations: Labels,
    /// The ports that every endpoint of the slice has. Shared: the same list stands in many slices.
    pub ports: Arc<[SlicePort]>,
    /// The endpoints, in order.
    pub endpoints: Vec<Endpoint>,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlicePort {
    /// The Service port's name; missing is not the same as empty.
    pub name: Option<Name>,
    /// The protocol; missing is TCP.
    pub protocol: Protocol,
    /// The number that the endpoints listen on; missing means every port.
    pub port: Option<u16>,
    /// What is spoken on it.
    pub app_protocol: Option<Name>,
}

impl Slice {
    /// The Service that it belongs to: by its label, and where that is missing by its owner.
    pub fn service(&self) -> Option<ServiceKey> {
        let name = self.labelled_service().or_else(|| self.owners.first().map(|o| &o.name))?;
        Some(ServiceKey::new(&self.key.namespace, name))
    }

    /// The Service that its label names; consumers go by that alone.
    pub fn labelled_service(&self) -> Option<&Name> {
        let labels = &self.content.labels;
        labels.value(annotation::SERVICE_NAME).or_else(|| labels.value(annotation::BESIDE_SERVICE_NAME))
    }

    /// Whether it is one of ours that stand beside those of Kubernetes' own controller.
    pub fn is_beside(&self) -> bool {
        self.content.labels.has(annotation::BESIDE_SERVICE_NAME)
    }

    /// Who writes it.
    pub fn managed_by(&self) -> Option<&Name> {
        self.content.labels.value(annotation::MANAGED_BY)
    }
}

impl SliceContent {
    /// One of our annotations.
    pub fn annotation(&self, key: &str) -> Option<&Name> {
        self.annotations.value(key)
    }
}
