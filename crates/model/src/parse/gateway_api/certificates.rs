//! Secrets and ConfigMaps: whether they hold usable certificates.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::gateway_api::{CertificateKind, CertificateSource};
use crate::name::{Name, ObjectKey};

/// The fields of a Secret or ConfigMap that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateFields {
    metadata: CertificateMetadata,
    #[serde(rename = "type")]
    secret_type: Option<String>,
    data: Option<BTreeMap<String, Option<String>>>,
    string_data: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CertificateMetadata {
    name: String,
    namespace: Option<String>,
}

/// Checks the data of a Secret or ConfigMap, and forgets it.
pub fn certificate_source(kind: CertificateKind, fields: &CertificateFields) -> CertificateSource {
    let namespace = fields.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or(super::super::DEFAULT_NAMESPACE);
    let problem = match kind {
        CertificateKind::Secret => secret_problem(fields),
        CertificateKind::ConfigMap => config_map_problem(fields),
    };
    let key = ObjectKey { namespace: Name::new(namespace), name: Name::new(&fields.metadata.name) };
    CertificateSource { kind, key, problem: problem.map(|problem| Name::new(&problem)) }
}

fn secret_problem(fields: &CertificateFields) -> Option<String> {
    if fields.secret_type.as_deref() != Some("kubernetes.io/tls") {
        return Some("its type is not kubernetes.io/tls".to_owned());
    }
    let text = |name: &str| {
        let plain = fields.string_data.as_ref().and_then(|data| data.get(name)).cloned();
        plain.or_else(|| {
            let encoded = fields.data.as_ref()?.get(name)?.as_deref()?;
            String::from_utf8(STANDARD.decode(encoded).ok()?).ok()
        })
    };
    [("tls.crt", "CERTIFICATE"), ("tls.key", "PRIVATE KEY")].into_iter().find_map(|(name, label)| {
        let is_good = text(name).is_some_and(|text| has_pem(&text, label));
        (!is_good).then(|| format!("{name} is not {label} in PEM"))
    })
}

fn config_map_problem(fields: &CertificateFields) -> Option<String> {
    let text = fields.data.as_ref().and_then(|data| data.get("ca.crt")?.as_deref());
    match text {
        None => Some("it has no ca.crt".to_owned()),
        Some(text) => (!has_pem(text, "CERTIFICATE")).then(|| "ca.crt is not CERTIFICATE in PEM".to_owned()),
    }
}

/// Whether the text is a list of PEM blocks, at least one of them with this label and a DER sequence in it.
fn has_pem(text: &str, label: &str) -> bool {
    let mut rest = text;
    let mut found = false;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let Some((own, after)) = after.split_once("-----") else { return false };
        let Some((body, after)) = after.split_once(&format!("-----END {own}-----")) else { return false };
        let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let is_sequence = STANDARD.decode(body).is_ok_and(|der| der.first() == Some(&0x30));
        // `RSA PRIVATE KEY` and `EC PRIVATE KEY` are keys, too.
        if own.ends_with(label) {
            found |= is_sequence;
            if !is_sequence {
                return false;
            }
        }
        rest = after;
    }
    found
}
