//! A certificate with its key, for the listener that names it.

use std::fmt;

use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{Secret, TlsCertificate, secret};
use prost::Message;

use super::wire::source;

/// A certificate chain and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// The chain, the own certificate first.
    pub chain: Box<[u8]>,
    /// The key.
    pub key: Box<[u8]>,
}

/// Keys are never shown.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({} bytes of chain)", self.chain.len())
    }
}

pub(super) fn render(name: &str, pair: &KeyPair) -> Vec<u8> {
    let bytes = |bytes: &[u8]| source(Specifier::InlineBytes(bytes.to_vec()));
    let certificate = TlsCertificate {
        certificate_chain: bytes(&pair.chain),
        private_key: bytes(&pair.key),
        ..TlsCertificate::default()
    };
    Secret { name: name.to_owned(), r#type: Some(secret::Type::TlsCertificate(certificate)) }.encode_to_vec()
}
