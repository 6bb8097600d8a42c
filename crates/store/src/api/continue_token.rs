//! Continue tokens: the last key of a page, and the revision of the list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::StatusError;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContinueToken {
    /// The revision of all pages.
    #[serde(rename = "rv")]
    pub revision: u64,
    #[serde(rename = "ns")]
    pub namespace: String,
    #[serde(rename = "n")]
    pub name: String,
}

impl ContinueToken {
    pub(super) fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("texts and a number are always JSON");
        URL_SAFE_NO_PAD.encode(json)
    }

    pub(super) fn decode(token: &str) -> Result<Self, StatusError> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| StatusError::bad_request("continue key is not valid: restart the list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_given() {
        let place = ContinueToken { revision: 7, namespace: "default".into(), name: "ä\"x".into() };
        assert_eq!(ContinueToken::decode(&place.encode()).unwrap(), place);
        for token in ["", "x", "AAAA", "!!"] {
            assert_eq!(ContinueToken::decode(token).unwrap_err().code, 400, "{token}");
        }
    }
}
