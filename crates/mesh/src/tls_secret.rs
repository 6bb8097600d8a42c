//! Secrets of type kubernetes.io/tls: a certificate chain and its key, which are never logged. ConfigMaps of certificate
//! authorities.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use model::gateway_api::CertificateKind;
use model::{Notice, ObjectKey, ObjectRef};
use proxy::{CertificateAuthorities, ServerCertificate};
use xds::render::PemKeyPair;

/// Parses the JSON of a Secret.
pub fn parse(key: &ObjectKey, text: &str) -> Result<PemKeyPair, Notice> {
    let secret: Secret = serde_json::from_str(text)
        .map_err(|_| unusable(key, "cannot be parsed; is it of type kubernetes.io/tls?".to_owned()))?;
    let mut data = secret.data.unwrap_or_default();
    let plain = secret.string_data.unwrap_or_default();
    let mut part = |name: &str| {
        let bytes = data.remove(name).map(|bytes| bytes.0);
        let bytes = bytes.or_else(|| plain.get(name).map(|text| text.clone().into_bytes()));
        bytes.filter(|bytes| !bytes.is_empty()).map(Vec::into_boxed_slice).ok_or_else(|| {
            let advice = "create it with kubectl create secret tls NAME --cert=FILE --key=FILE";
            unusable(key, format!("missing data[{name}]; {advice}"))
        })
    };
    let pair = PemKeyPair { chain: part("tls.crt")?, key: part("tls.key")? };
    match ServerCertificate::parse(&pair.chain, &pair.key) {
        Ok(_) => Ok(pair),
        Err(error) => Err(unusable(key, error.to_string())),
    }
}

/// Parses the JSON of a ConfigMap.
pub fn authorities(key: &ObjectKey, text: &str) -> Result<Arc<[u8]>, Notice> {
    let unusable = |why: &str| {
        Notice::new(ObjectRef::new("ConfigMap", &key.namespace, &key.name), "ConfigMapNotUsable", why)
    };
    let map: Option<ConfigMap> = serde_json::from_str(text).ok();
    let pem = map.and_then(|map| map.data).and_then(|mut data| data.remove("ca.crt"));
    let pem = pem.filter(|pem| !pem.is_empty()).ok_or_else(|| unusable("missing data[ca.crt]"))?;
    match CertificateAuthorities::parse(pem.as_bytes()) {
        Ok(_) => Ok(pem.into_bytes().into()),
        Err(error) => Err(unusable(&error.to_string())),
    }
}

pub fn missing(kind: CertificateKind, key: &ObjectKey) -> Notice {
    match kind {
        CertificateKind::Secret => {
            let message = "missing, but a listener refers to it, so its TLS handshakes fail; create it \
                           with kubectl create secret tls NAME --cert=FILE --key=FILE";
            Notice::new(about(key), "SecretNotFound", message)
        }
        CertificateKind::ConfigMap => {
            let about = ObjectRef::new("ConfigMap", &key.namespace, &key.name);
            let message =
                "missing, but certificates are validated by it, so its TLS handshakes fail; create it";
            Notice::new(about, "ConfigMapNotFound", message)
        }
    }
}

pub fn unusable(key: &ObjectKey, why: String) -> Notice {
    Notice::new(about(key), "SecretNotUsable", why)
}

/// The reason of [`unreadable`].
pub const NOT_READABLE: &str = "SecretNotReadable";

/// The Notice of an object that the API does not show us.
pub fn unreadable(kind: CertificateKind, key: &ObjectKey, why: &str) -> Notice {
    let message = format!("cannot be read; may this account list and watch it? {why}");
    let about = match kind {
        CertificateKind::Secret => about(key),
        CertificateKind::ConfigMap => ObjectRef::new("ConfigMap", &key.namespace, &key.name),
    };
    Notice::new(about, NOT_READABLE, message)
}

fn about(key: &ObjectKey) -> ObjectRef {
    ObjectRef::new("Secret", &key.namespace, &key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_and_never_shown() {
        let key = ObjectKey::new(&"shop".into(), &"cert".into());
        let text = r#"{"metadata":{"name":"cert"},"type":"kubernetes.io/tls","data":{"tls.crt":"Q0hBSU4=","tls.key":"U0VDUkVU"}}"#;
        let no_pem = parse(&key, text).unwrap_err();
        assert!(no_pem.to_string().contains("tls.crt") && !no_pem.to_string().contains("SECRET"), "{no_pem}");
        let pair = PemKeyPair { chain: b"CHAIN".as_slice().into(), key: b"SECRET".as_slice().into() };
        assert_eq!(format!("{pair:?}"), "PemKeyPair(5 bytes of chain)");
        let without = parse(&key, r#"{"data":{"tls.crt":"Q0hBSU4="}}"#).unwrap_err();
        assert!(
            without.to_string().starts_with("Secret shop/cert: SecretNotUsable: missing data[tls.key]"),
            "{without}"
        );
        let broken = parse(&key, r#"{"data":{"tls.key":"SECRET!"}}"#).unwrap_err();
        assert!(!broken.to_string().contains("SECRET!"), "{broken}");
    }
}
