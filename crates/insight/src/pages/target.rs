//! Which page a path names, and the one path of a page: viewers of the same page share its rendering.

use crate::pages::query::{QueryPairs, encoded, link};
use crate::pages::{NodesQuery, ServicesQuery, WhatIfForm};

/// A page with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageTarget {
    Overview,
    Services(ServicesQuery),
    Service { namespace: String, name: String },
    Nodes(NodesQuery),
    Routes { search: String },
    WhatIf(WhatIfForm),
}

/// The longest name of a Kubernetes object.
const MAX_NAME: usize = 253;

impl PageTarget {
    /// The page at a path; `None` if there is none.
    pub fn parse(path: &str, query: &str) -> Option<Self> {
        let pairs = QueryPairs::parse(query);
        let text = |key| pairs.value(key).unwrap_or_default().to_owned();
        Some(match path {
            "/" => Self::Overview,
            "/services" => Self::Services(ServicesQuery::parse(&pairs)),
            "/nodes" => Self::Nodes(NodesQuery::parse(&pairs)),
            "/routes" => Self::Routes { search: text("q") },
            "/what-if" => Self::WhatIf(WhatIfForm::parse(&pairs)),
            other => {
                let (namespace, name) = other.strip_prefix("/services/")?.split_once('/')?;
                let is_name = |name: &str| {
                    let plain = |letter: char| {
                        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter)
                    };
                    name.starts_with(|first: char| first.is_ascii_alphanumeric())
                        && name.len() <= MAX_NAME
                        && name.chars().all(plain)
                };
                if !is_name(namespace) || !is_name(name) {
                    return None;
                }
                Self::Service { namespace: namespace.to_owned(), name: name.to_owned() }
            }
        })
    }

    /// As in `/services?q=cart`: the path and query of a link.
    pub fn parse_link(link: &str) -> Option<Self> {
        let (path, query) = link.split_once('?').unwrap_or((link, ""));
        Self::parse(path, query)
    }

    /// The link to it, the same for equal pages.
    pub fn link(&self) -> String {
        match self {
            Self::Overview => "/".to_owned(),
            Self::Services(query) => query.link(),
            Self::Service { namespace, name } => service_link(namespace, name),
            Self::Nodes(query) => query.link(),
            Self::Routes { search } => link("/routes", &[("q", search)]),
            Self::WhatIf(form) => form.link(),
        }
    }
}

pub(crate) fn service_link(namespace: &str, name: &str) -> String {
    format!("/services/{}/{}", encoded(namespace), encoded(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_one_link() {
        for text in [
            "/",
            "/services",
            "/services?q=cart&sort=cost",
            "/services?q=a%20b&page=3",
            "/services/shop/cart",
            "/nodes?sort=name",
            "/routes?q=x",
            "/what-if?service=shop%2Fcart&mechanism=Spill&zone=zone-a&add=zone-b&replicas=-2",
        ] {
            let target = PageTarget::parse_link(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(target.link(), text);
        }
        assert_eq!(
            PageTarget::parse_link("/services?sort=nothing&page=0&x=1").map(|t| t.link()).as_deref(),
            Some("/services")
        );
        for text in [
            "",
            "//",
            "/x",
            "/services/",
            "/services/a",
            "/services/a/b/c",
            "/services/../b",
            "/services/a/%2e",
            "/services/A/b",
        ] {
            assert_eq!(PageTarget::parse_link(text), None, "{text}");
        }
    }
}
