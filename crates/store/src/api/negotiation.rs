//! Content negotiation: objects, tables, or metadata only, as JSON; objects of some kinds also as protobuf.

use bytes::Bytes;
use http::{HeaderMap, header};
use model::protobuf::MEDIA_TYPE;

use crate::dropped_fields::without_managed_fields;
use crate::status::StatusError;

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ResponseForm {
    /// As stored.
    #[default]
    Object,
    /// A Table, for kubectl.
    Table,
    /// PartialObjectMetadata.
    Metadata,
}

/// The first acceptable form of the Accept headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accept {
    pub form: ResponseForm,
    /// Whether discovery may be aggregated.
    pub aggregated: bool,
    /// Whether objects come without `metadata.managedFields` (KEP-5958).
    pub drops_managed_fields: bool,
    /// Whether a watch may be compressed.
    pub gzip: bool,
    /// Whether objects are sent as protobuf.
    pub protobuf: bool,
}

impl Accept {
    /// A stored object as this client reads it.
    pub(super) fn shown(&self, json: Bytes) -> Bytes {
        if self.drops_managed_fields { without_managed_fields(&json) } else { json }
    }

    /// `serves_protobuf`: whether the response to this request can be protobuf.
    pub(crate) fn of(headers: &HeaderMap, serves_protobuf: bool) -> Result<Self, StatusError> {
        let given: Vec<&str> =
            headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let mut ranges = given
            .iter()
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|r| !r.is_empty())
            .peekable();
        let gzip = accepts_gzip(headers);
        if ranges.peek().is_none() {
            return Ok(Self { gzip, ..Self::default() });
        }
        let accept = ranges.find_map(|range| parse_range(range, serves_protobuf));
        let accept = accept.ok_or_else(|| StatusError::not_acceptable("application/json"))?;
        Ok(Self { gzip, ..accept })
    }
}

/// Whether an Accept-Encoding header names gzip, and not with the weight zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let given = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    given.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        is_gzip && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

/// One media range, if it can be served.
fn parse_range(range: &str, serves_protobuf: bool) -> Option<Accept> {
    let mut parts = range.split(';').map(str::trim);
    let protobuf = match parts.next()? {
        "application/json" | "application/*" | "*/*" => false,
        MEDIA_TYPE if serves_protobuf => true,
        _ => return None,
    };
    let parameter = |wanted: &str| {
        range
            .split(';')
            .filter_map(|part| part.trim().split_once('='))
            .find(|(key, _)| *key == wanted)
            .map(|(_, v)| v)
    };
    // Several fields are joined by `+`; those that are not known are ignored.
    let mut dropped = parameter("drop").unwrap_or_default().split('+');
    let drops_managed_fields = dropped.any(|field| field == "metadata.managedFields");
    match parameter("as") {
        None => Some(Accept { drops_managed_fields, protobuf, ..Accept::default() }),
        // Tables and metadata are JSON.
        Some(_) if protobuf => None,
        Some("APIGroupDiscoveryList") if parameter("v") == Some("v2") => {
            Some(Accept { aggregated: true, ..Accept::default() })
        }
        Some(word) if parameter("g") == Some("meta.k8s.io") && matches!(parameter("v"), Some("v1")) => {
            let form = match word {
                "Table" => ResponseForm::Table,
                "PartialObjectMetadata" | "PartialObjectMetadataList" => ResponseForm::Metadata,
                _ => return None,
            };
            Some(Accept { form, drops_managed_fields, ..Accept::default() })
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> Result<Accept, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.parse().unwrap());
        Accept::of(&headers, false).map_err(|error| error.code)
    }

    #[test]
    fn the_first_form_that_we_can_serve_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accept(table).unwrap().form, ResponseForm::Table);
        let proto = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accept(proto).unwrap().form, ResponseForm::Object);
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        assert_eq!(accept(partial).unwrap().form, ResponseForm::Metadata);
        assert_eq!(accept("*/*").unwrap().form, ResponseForm::Object);
        assert_eq!(accept("text/html"), Err(406));
        let gzip = |value: &'static str| {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, http::HeaderValue::from_static(value))]);
            Accept::of(&headers, false).unwrap().gzip
        };
        assert!(gzip("gzip") && gzip("br, gzip;q=0.5") && !gzip("identity") && !gzip("gzip;q=0"));
        let dropped = |value: &str| accept(value).unwrap().drops_managed_fields;
        assert!(dropped("application/json;drop=metadata.managedFields"));
        assert!(dropped(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1; drop=a+metadata.managedFields"
        ));
        assert!(!dropped("application/json;drop=metadata.annotations") && !dropped(table));
        assert_eq!(accept("application/json;as=Table;v=v9;g=meta.k8s.io"), Err(406));
    }

    #[test]
    fn protobuf_is_for_the_objects_of_some_kinds() {
        let is_protobuf = |value: &str, serves_protobuf: bool| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, value.parse().unwrap())]);
            Accept::of(&headers, serves_protobuf).map(|accept| accept.protobuf).map_err(|error| error.code)
        };
        let both = "application/vnd.kubernetes.protobuf,application/json";
        let (only, reversed) =
            ("application/vnd.kubernetes.protobuf", "application/json, application/vnd.kubernetes.protobuf");
        assert_eq!((is_protobuf(both, true), is_protobuf(both, false)), (Ok(true), Ok(false)));
        assert_eq!((is_protobuf(only, true), is_protobuf(only, false)), (Ok(true), Err(406)));
        assert_eq!(is_protobuf(reversed, true), Ok(false), "the order of the client");
        let metadata = format!("{only};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
        assert_eq!(is_protobuf(&metadata, true), Err(406));
        let dropping = HeaderMap::from_iter([(
            header::ACCEPT,
            "application/vnd.kubernetes.protobuf;drop=metadata.managedFields".parse().unwrap(),
        )]);
        assert!(Accept::of(&dropping, true).unwrap().drops_managed_fields);
    }
}
