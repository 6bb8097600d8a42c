//! Continue tokens: where a list stopped, and which version of the store it shows.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::status::Failure;

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// The version of the first page, which all others show too.
    #[serde(rename = "rv")]
    pub revision: u64,
    /// The namespace of the last object shown.
    #[serde(rename = "ns")]
    pub namespace: String,
    /// The name of the last object shown.
    #[serde(rename = "n")]
    pub name: String,
}

impl Continuation {
    /// As a token that clients carry without looking into it.
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("texts and a number are always JSON");
        URL_SAFE_NO_PAD.encode(json)
    }

    /// Reads a token that was given to a client.
    pub fn decode(token: &str) -> Result<Self, Failure> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        bytes
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| Failure::bad_request("continue key is not valid: start the list anew"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_given() {
        let place = Continuation { revision: 7, namespace: "default".into(), name: "ä\"x".into() };
        assert_eq!(Continuation::decode(&place.encode()).unwrap(), place);
        for token in ["", "x", "AAAA", "!!"] {
            assert_eq!(Continuation::decode(token).unwrap_err().code, 400, "{token}");
        }
    }
}
