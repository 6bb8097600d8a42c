//! Listeners that validate client certificates, or have several certificates: their TLS configurations, made when tables are
//! activated.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::route::{ClientAuthentication, Listener};
use model::{Name, Notice, ObjectKey, ObjectRef};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::certificates::{
    CertificateAuthorities, ServerCertificate, ServerConfigs, crypto_provider, joined, resolver,
};
use crate::proxy::ProxyTables;

/// The configurations of a listener, and what they were made from: equal sources keep them, and with them TLS sessions.
pub(crate) struct ListenerTlsConfigs {
    certificates: Vec<Arc<ServerCertificate>>,
    clients: Option<Arc<ClientAuthentication>>,
    authorities: Vec<Arc<CertificateAuthorities>>,
    pub(crate) configs: ServerConfigs,
}

/// By port and name of the listener.
pub(crate) type TlsByListener = BTreeMap<(u16, Name), Arc<ListenerTlsConfigs>>;

/// The configurations of all listeners that validate clients or have several certificates. One without a usable authority has none, so that its
/// handshakes fail.
pub(crate) fn listeners(
    tables: &ProxyTables,
    before: &TlsByListener,
    notices: &mut Vec<Notice>,
) -> TlsByListener {
    let mut found = TlsByListener::new();
    for port in tables.routes.ports().filter(|port| port.protocol.is_tls()) {
        for listener in &port.listeners {
            let key = (port.number, listener.name.clone());
            match ListenerTlsConfigs::new(tables, listener, before.get(&key)) {
                Ok(Some(tls)) => drop(found.insert(key, tls)),
                Ok(None) => {}
                Err(notice) => notices.push(notice),
            }
        }
    }
    found
}

impl ListenerTlsConfigs {
    /// `None` for a listener with one certificate and no clients to validate, whose configuration is that of the certificate,
    /// or without a usable certificate.
    fn new(
        tables: &ProxyTables,
        listener: &Listener,
        before: Option<&Arc<Self>>,
    ) -> Result<Option<Arc<Self>>, Notice> {
        let certificates: Vec<_> = usable_certificates(tables, listener).cloned().collect();
        let clients = listener.clients.clone();
        if certificates.is_empty() || (certificates.len() == 1 && clients.is_none()) {
            return Ok(None);
        }
        let keys = clients.iter().flat_map(|clients| clients.authorities.iter());
        let authorities: Vec<_> = keys.filter_map(|key| tables.authorities.get(key).cloned()).collect();
        let is_same = |before: &&Arc<Self>| {
            are_same(&before.certificates, &certificates)
                && before.clients == clients
                && are_same(&before.authorities, &authorities)
        };
        if let Some(before) = before.filter(is_same) {
            return Ok(Some(before.clone()));
        }
        let verifier = clients.as_ref().map(|clients| verifier(clients, &authorities)).transpose();
        let configs = verifier
            .and_then(|verifier| ServerConfigs::new(resolver(&certificates), verifier.as_ref()))
            .map_err(|error| {
                unusable(clients.as_ref().and_then(|clients| clients.authorities.first()), &error)
            })?;
        Ok(Some(Arc::new(Self { certificates, clients, authorities, configs })))
    }
}

/// The certificates of a listener that were read, in their order.
pub(crate) fn usable_certificates<'t>(
    tables: &'t ProxyTables,
    listener: &'t Listener,
) -> impl Iterator<Item = &'t Arc<ServerCertificate>> {
    listener.certificates.iter().filter_map(|own| tables.certificates.get(&own.secret))
}

fn are_same<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

fn unusable(authority: Option<&ObjectKey>, error: &Error) -> Notice {
    let key = authority.cloned().unwrap_or_default();
    let object = ObjectRef::new("ConfigMap", &key.namespace, &key.name);
    let message = format!(
        "missing or unusable certificate authority of clients: TLS connections to the listener are closed; put PEM certificates into ca.crt: {error}"
    );
    Notice::new(object, "CertificateAuthorityMissing", message)
}

fn verifier(
    clients: &ClientAuthentication,
    authorities: &[Arc<CertificateAuthorities>],
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let roots = Arc::new(joined(authorities));
    if !clients.is_required {
        return Ok(Arc::new(AnyClient { provider: crypto_provider(), hints: roots.subjects() }));
    }
    WebPkiClientVerifier::builder_with_provider(roots, crypto_provider())
        .build()
        .map_err(|error| Error::General(error.to_string()))
}

/// AllowInsecureFallback: asks for a certificate, and accepts none or any.
#[derive(Debug)]
struct AnyClient {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
