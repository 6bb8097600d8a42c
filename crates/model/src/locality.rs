//! Topological distance between a client and an endpoint, as in metrics and access logs.

use std::fmt;

/// The location of an endpoint relative to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Locality {
    SameNode,
    SameZone,
    CrossZone,
    /// The zone of the client or of the endpoint is unknown.
    Unknown,
}

impl Locality {
    /// Nearest first.
    pub const ALL: [Self; 4] = [Self::SameNode, Self::SameZone, Self::CrossZone, Self::Unknown];

    /// Compares (node, zone) of client and endpoint. An unknown node or zone equals no other.
    pub fn of(client: (Option<&str>, Option<&str>), endpoint: (Option<&str>, Option<&str>)) -> Self {
        let is_known = |name: &&str| !name.is_empty();
        let same_node = client.0.filter(is_known).is_some_and(|node| endpoint.0 == Some(node));
        match (client.1.filter(is_known), endpoint.1.filter(is_known)) {
            _ if same_node => Self::SameNode,
            (Some(from), Some(to)) if from == to => Self::SameZone,
            (Some(_), Some(_)) => Self::CrossZone,
            _ => Self::Unknown,
        }
    }

    /// The value of the label `locality`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameNode => "same-node",
            Self::SameZone => "same-zone",
            Self::CrossZone => "cross-zone",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_compared_before_zones_and_unknown_is_never_equal() {
        let of = |a: (&'static str, &'static str), b: (&'static str, &'static str)| {
            Locality::of((Some(a.0), Some(a.1)), (Some(b.0), Some(b.1)))
        };
        assert_eq!(of(("n1", "a"), ("n1", "a")), Locality::SameNode);
        assert_eq!(of(("n1", "a"), ("n2", "a")), Locality::SameZone);
        assert_eq!(of(("n1", "a"), ("n2", "b")), Locality::CrossZone);
        assert_eq!(of(("n1", ""), ("n2", "b")), Locality::Unknown);
        assert_eq!(of(("", ""), ("", "")), Locality::Unknown);
        assert_eq!(Locality::of((Some("n1"), None), (Some("n1"), None)), Locality::SameNode);
        assert_eq!(Locality::of((None, None), (None, Some("a"))), Locality::Unknown);
    }
}
