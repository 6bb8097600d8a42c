//! A Secret of type kubernetes.io/tls: a certificate with its chain, and its key. Neither is ever logged.

use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use model::{Notice, ObjectKey, ObjectRef};
use proxy::KeyPair;

/// A certificate chain and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, then those that lead from it to an authority.
    pub chain: Box<[u8]>,
    /// The key.
    pub key: Box<[u8]>,
}

/// Only how long they are: this may stand in a log.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({} bytes, {} bytes)", self.chain.len(), self.key.len())
    }
}

/// Reads a Secret from its JSON.
pub fn parse(key: &ObjectKey, text: &str) -> Result<Pair, Notice> {
    let secret: Secret = serde_json::from_str(text)
        .map_err(|_| unusable(key, "it cannot be read: is it of type kubernetes.io/tls?".to_owned()))?;
    let mut data = secret.data.unwrap_or_default();
    let plain = secret.string_data.unwrap_or_default();
    let mut part = |name: &str| {
        let bytes = data.remove(name).map(|bytes| bytes.0);
        let bytes = bytes.or_else(|| plain.get(name).map(|text| text.clone().into_bytes()));
        bytes.filter(|bytes| !bytes.is_empty()).map(Vec::into_boxed_slice).ok_or_else(|| {
            let advice = "make it with kubectl create secret tls NAME --cert=FILE --key=FILE";
            unusable(key, format!("data[{name}] is missing: {advice}"))
        })
    };
    let pair = Pair { chain: part("tls.crt")?, key: part("tls.key")? };
    match KeyPair::parse(&pair.chain, &pair.key) {
        Ok(_) => Ok(pair),
        Err(error) => Err(unusable(key, error.to_string())),
    }
}

/// The Notice of a Secret that is named and is not there.
pub fn missing(key: &ObjectKey) -> Notice {
    let message = "a listener names it and it is not there, so clients of that listener get no certificate; make it \
                   with kubectl create secret tls NAME --cert=FILE --key=FILE";
    Notice::new(about(key), "SecretNotFound", message)
}

/// The Notice of a Secret that is there and cannot be used.
pub fn unusable(key: &ObjectKey, why: String) -> Notice {
    Notice::new(about(key), "SecretNotUsable", why)
}

/// The word of a Notice about a Secret that cannot be read.
pub const NOT_READABLE: &str = "SecretNotReadable";

/// The Notice of a Secret that the API does not show us.
pub fn unreadable(key: &ObjectKey, why: &str) -> Notice {
    let message = format!("it cannot be read: may this account list and watch it? The API says: {why}");
    Notice::new(about(key), NOT_READABLE, message)
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
        let pair = Pair { chain: b"CHAIN".as_slice().into(), key: b"SECRET".as_slice().into() };
        assert_eq!(format!("{pair:?}"), "Pair(5 bytes, 6 bytes)");
        let without = parse(&key, r#"{"data":{"tls.crt":"Q0hBSU4="}}"#).unwrap_err();
        assert!(
            without.to_string().starts_with("Secret shop/cert: SecretNotUsable: data[tls.key]"),
            "{without}"
        );
        let broken = parse(&key, r#"{"data":{"tls.key":"SECRET!"}}"#).unwrap_err();
        assert!(!broken.to_string().contains("SECRET!"), "{broken}");
    }
}
