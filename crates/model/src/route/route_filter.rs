//! MeshRouteFilter: a filter that the Gateway API does not have, which its routes refer to by `extensionRef`.

use crate::label::Labels;
use crate::name::ObjectKey;
use crate::route::action::DirectResponse;

/// A MeshRouteFilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshRouteFilter {
    pub key: ObjectKey,
    pub effect: ExtensionEffect,
}

/// What it does with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtensionEffect {
    Respond(DirectResponse),
    /// Backends are reduced to pods with all of these tags.
    Subset(Labels),
}

impl MeshRouteFilter {
    pub const KIND: &str = "MeshRouteFilter";
}
