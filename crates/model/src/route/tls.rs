//! TLS of a gateway: certificates of its clients, and TLS to its backends. Keys and certificates stay with the proxy: tables
//! name the Secrets and ConfigMaps that have them.

use crate::name::{Name, ObjectKey};

/// How a listener validates client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuthentication {
    /// ConfigMaps with certificate authorities in `ca.crt`.
    pub authorities: Box<[ObjectKey]>,
    /// Otherwise clients without a valid certificate are let through.
    pub is_required: bool,
}

/// TLS to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// The SNI, and the name in the certificate unless there are `alternative_names`.
    pub server_name: Name,
    /// Host names, or URIs; the certificate needs one of them.
    pub alternative_names: Box<[Name]>,
    /// ConfigMaps with certificate authorities in `ca.crt`.
    pub authorities: Box<[ObjectKey]>,
    /// The certificate authorities of the proxy's system are trusted.
    pub trusts_system: bool,
    /// The Secret of the gateway's certificate as a client.
    pub client_certificate: Option<ObjectKey>,
}
