//! Entries for the fuzz targets: paths and continue tokens.

use super::continue_token::ContinueToken;
use super::request_info::{self, RequestPath};
use crate::kinds::ResourceKind;

/// The fields of a path as text, and its kind.
pub(crate) fn parse_path(path: &str) -> Result<(String, Option<&'static ResourceKind>), String> {
    let parsed = request_info::parse(path).map_err(|error| error.message)?;
    let kind = match &parsed {
        RequestPath::Resource(info) => Some(info.kind),
        _ => None,
    };
    let shown = match &parsed {
        RequestPath::Resource(info) => {
            format!("{} {:?} {:?} {:?}", info.kind.plural, info.namespace, info.name, info.subresource)
        }
        other => format!("{other:?}"),
    };
    Ok((shown, kind))
}

/// Decodes a token; what it encodes to again decodes to the same.
pub(crate) fn parse_continue_token(token: &str) -> Result<(), String> {
    let decoded = ContinueToken::decode(token).map_err(|error| error.message)?;
    let again = ContinueToken::decode(&decoded.encode()).map_err(|error| error.message);
    assert_eq!(again.as_ref(), Ok(&decoded), "a continue token does not survive encoding");
    Ok(())
}
