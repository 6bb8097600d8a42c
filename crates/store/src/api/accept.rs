//! In which form a client wants its answer: objects, tables, or metadata alone. Always JSON.

use http::{HeaderMap, header};

use crate::status::Failure;

/// The form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As stored.
    #[default]
    Object,
    /// A Table, for people.
    Table,
    /// PartialObjectMetadata.
    Metadata,
}

/// What a client accepts, best first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    /// The form of objects.
    pub form: Form,
    /// Whether discovery may come in one document.
    pub aggregated: bool,
}

impl Accept {
    /// Reads the Accept headers.
    pub fn of(headers: &HeaderMap) -> Result<Self, Failure> {
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
        ranges.find_map(read).ok_or_else(|| Failure::not_acceptable("application/json"))
    }
}

/// One media range, if it is one that we can serve.
fn read(range: &str) -> Option<Accept> {
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
                "Table" => Form::Table,
                "PartialObjectMetadata" | "PartialObjectMetadataList" => Form::Metadata,
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
        Accept::of(&headers).map_err(|failure| failure.code)
    }

    #[test]
    fn the_first_form_that_we_can_serve_is_taken() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(accept(table).unwrap().form, Form::Table);
        let proto = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(accept(proto).unwrap().form, Form::Object);
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
        assert_eq!(accept(partial).unwrap().form, Form::Metadata);
        assert_eq!(accept("*/*").unwrap().form, Form::Object);
        assert_eq!(accept("text/html"), Err(406));
        assert_eq!(accept("application/json;as=Table;v=v9;g=meta.k8s.io"), Err(406));
    }
}
