//! Content negotiation: objects, tables, or metadata only. Always JSON.

use http::{HeaderMap, header};

use crate::status::StatusError;

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseForm {
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
pub struct Accept {
    pub form: ResponseForm,
    /// Whether discovery may be aggregated.
    pub aggregated: bool,
}

impl Accept {
    pub fn of(headers: &HeaderMap) -> Result<Self, StatusError> {
        let given: Vec<&str> =
            headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let mut ranges = given
            .iter()
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|r| !r.is_empty())
            .peekable();
        if ranges.peek().is_none() {
            return Ok(Self::default());
        }
        ranges.find_map(parse_range).ok_or_else(|| StatusError::not_acceptable("application/json"))
    }
}

/// One media range, if it can be served.
fn parse_range(range: &str) -> Option<Accept> {
    let mut parts = range.split(';').map(str::trim);
    if !matches!(parts.next()?, "application/json" | "application/*" | "*/*") {
        return None;
    }
    let parameter = |wanted: &str| {
        range
            .split(';')
            .filter_map(|part| part.trim().split_once('='))
            .find(|(key, _)| *key == wanted)
            .map(|(_, v)| v)
    };
    match parameter("as") {
        None => Some(Accept::default()),
        Some("APIGroupDiscoveryList") if parameter("v") == Some("v2") => {
            Some(Accept { aggregated: true, ..Accept::default() })
        }
        Some(word) if parameter("g") == Some("meta.k8s.io") && matches!(parameter("v"), Some("v1")) => {
            let form = match word {
                "Table" => ResponseForm::Table,
                "PartialObjectMetadata" | "PartialObjectMetadataList" => ResponseForm::Metadata,
                _ => return None,
            };
            Some(Accept { form, aggregated: false })
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
        Accept::of(&headers).map_err(|error| error.code)
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
        assert_eq!(accept("application/json;as=Table;v=v9;g=meta.k8s.io"), Err(406));
    }
}
