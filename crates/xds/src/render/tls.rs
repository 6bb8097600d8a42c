//! TLS to backends, and client certificates at listeners.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::{
    SystemRootCerts, TrustChainVerification,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, TlsCertificate, UpstreamTlsContext,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern};
use model::ObjectKey;
use model::route::{BackendTls, ClientAuthentication};

use super::PemKeyPair;
use super::protobuf::source;

type Authorities = BTreeMap<ObjectKey, Arc<[u8]>>;

/// How a listener validates clients.
#[derive(Clone)]
pub(super) struct DownstreamValidation {
    pub(super) context: CertificateValidationContext,
    pub(super) is_required: bool,
}

/// `None` if a certificate is required and no authority is known.
pub(super) fn client_validation(
    clients: &ClientAuthentication,
    authorities: &Authorities,
) -> Option<DownstreamValidation> {
    let pem = joined(&clients.authorities, authorities);
    if clients.is_required && pem.is_empty() {
        return None;
    }
    let mut context = CertificateValidationContext {
        trusted_ca: source(Specifier::InlineBytes(pem)),
        ..CertificateValidationContext::default()
    };
    if !clients.is_required {
        context.trust_chain_verification = TrustChainVerification::AcceptUntrusted.into();
    }
    Some(DownstreamValidation { context, is_required: clients.is_required })
}

/// `None` if no authority, or not the client certificate, is known.
pub(super) fn upstream_context(
    tls: &BackendTls,
    authorities: &Authorities,
    certificates: &BTreeMap<ObjectKey, Arc<PemKeyPair>>,
) -> Option<UpstreamTlsContext> {
    let pem = joined(&tls.authorities, authorities);
    if pem.is_empty() && !tls.trusts_system {
        return None;
    }
    let mut validation = CertificateValidationContext::default();
    if pem.is_empty() {
        validation.system_root_certs = Some(SystemRootCerts {});
    } else {
        validation.trusted_ca = source(Specifier::InlineBytes(pem));
    }
    let names = if tls.alternative_names.is_empty() {
        std::slice::from_ref(&tls.server_name)
    } else {
        &*tls.alternative_names
    };
    validation.match_typed_subject_alt_names = names.iter().map(|name| subject(name)).collect();
    let mut own = Vec::new();
    if let Some(secret) = &tls.client_certificate {
        let pair = certificates.get(secret)?;
        own.push(TlsCertificate {
            certificate_chain: source(Specifier::InlineBytes(pair.chain.to_vec())),
            private_key: source(Specifier::InlineBytes(pair.key.to_vec())),
            ..TlsCertificate::default()
        });
    }
    Some(UpstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_certificates: own,
            validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
            ..CommonTlsContext::default()
        }),
        sni: tls.server_name.to_string(),
        ..UpstreamTlsContext::default()
    })
}

/// A name in the certificate: a URI, or a host name, for which a wildcard of the certificate counts.
fn subject(name: &str) -> SubjectAltNameMatcher {
    let kind = if name.contains(':') { SanType::Uri } else { SanType::Dns };
    let matcher = StringMatcher {
        match_pattern: Some(MatchPattern::Exact(name.to_owned())),
        ..StringMatcher::default()
    };
    SubjectAltNameMatcher {
        san_type: kind.into(),
        matcher: Some(matcher),
        ..SubjectAltNameMatcher::default()
    }
}

fn joined(keys: &[ObjectKey], authorities: &Authorities) -> Vec<u8> {
    let found: Vec<&[u8]> = keys.iter().filter_map(|key| authorities.get(key)).map(|pem| &**pem).collect();
    found.join(&b'\n')
}
