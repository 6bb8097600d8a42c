//! Resources: named messages of five kinds, encoded once and shared by all streams, each with a version that follows
//! from its content. So the same configuration has the same versions after a restart, and nothing is sent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;

/// What a resource is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A backend: how its endpoints are spoken to.
    Cluster,
    /// The endpoints of a backend.
    Endpoints,
    /// Where connections arrive.
    Listener,
    /// The routes of a destination or of a gateway's port.
    Routes,
    /// A certificate with its key.
    Secret,
}

impl Kind {
    /// Every kind, in the order in which additions are safe: what is named goes before what names it. Secrets are
    /// asked for by listeners that are here already.
    pub const ALL: [Self; 5] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Routes, Self::Secret];

    /// The name of the message on the wire.
    pub fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Routes => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        }
    }

    /// The kind of a message.
    pub fn of(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// A word for logs, metrics and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Endpoints => "endpoints",
            Self::Listener => "listener",
            Self::Routes => "routes",
            Self::Secret => "secret",
        }
    }

    /// Whether a client that names none means all: so it is with what stands at the roots.
    pub fn is_root(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A resource's content in 128 bits (FNV-1a).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u128);

impl Version {
    const BASIS: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;

    /// The version of some content.
    pub fn of(content: &[u8]) -> Self {
        let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        Self(content.iter().fold(Self::BASIS, step))
    }

    /// The version of several in order.
    pub fn of_all(versions: impl IntoIterator<Item = Version>) -> Self {
        let bytes: Vec<u8> = versions.into_iter().flat_map(|version| version.0.to_be_bytes()).collect();
        Self::of(&bytes)
    }

    /// As it was written by `Display`; anything else is a version of nobody's.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// One resource.
#[derive(Clone, PartialEq, Eq)]
pub struct Resource {
    /// Its name, unique among its kind.
    pub name: Arc<str>,
    /// Follows from the body.
    pub version: Version,
    /// The encoded message.
    pub body: Bytes,
}

impl Resource {
    /// A resource with this message.
    pub fn new(name: &str, body: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), version: Version::of(&body), body: body.into() })
    }

    /// As it travels.
    pub fn any(&self, kind: Kind) -> Any {
        Any { type_url: kind.type_url().to_owned(), value: self.body.to_vec() }
    }
}

/// Bodies may be keys: they are never shown by accident.
impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.name, self.version, self.body.len())
    }
}

/// Resources of one kind, by name.
pub type Named = BTreeMap<Arc<str>, Arc<Resource>>;

/// Everything that a proxy is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceSet {
    by_kind: BTreeMap<Kind, Named>,
}

static NONE: Named = Named::new();

impl ResourceSet {
    /// Puts a resource in, or in the place of the one with the same name.
    pub fn put(&mut self, kind: Kind, resource: Arc<Resource>) {
        self.by_kind.entry(kind).or_default().insert(resource.name.clone(), resource);
    }

    /// The resources of a kind.
    pub fn of(&self, kind: Kind) -> &Named {
        self.by_kind.get(&kind).unwrap_or(&NONE)
    }

    /// One resource.
    pub fn find(&self, kind: Kind, name: &str) -> Option<&Arc<Resource>> {
        self.of(kind).get(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_kind.values().map(Named::len).sum()
    }

    /// The names of what another set has otherwise, or one of the two has not.
    pub fn differences(&self, other: &Self) -> BTreeMap<Kind, BTreeSet<Arc<str>>> {
        let mut found = BTreeMap::new();
        for kind in Kind::ALL {
            let names = differing(self.of(kind), other.of(kind));
            if !names.is_empty() {
                found.insert(kind, names);
            }
        }
        found
    }

    /// Takes all resources of a kind from another set.
    pub fn share(&mut self, kind: Kind, other: &Self) {
        self.by_kind.insert(kind, other.of(kind).clone());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Both are in order, so one walk along both finds everything; what is shared is not looked into.
fn differing(a: &Named, b: &Named) -> BTreeSet<Arc<str>> {
    let mut names = BTreeSet::new();
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return names,
            (Some((x, p)), Some((y, q))) if x == y => {
                if !Arc::ptr_eq(p, q) && p.version != q.version {
                    names.insert(Arc::clone(x));
                }
                left.next();
                right.next();
            }
            (Some((x, _)), other) if other.is_none_or(|(y, _)| x < y) => {
                names.insert(Arc::clone(x));
                left.next();
            }
            (_, Some((y, _))) => {
                names.insert(Arc::clone(y));
                right.next();
            }
            (Some(_), None) => return names,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_from_content_alone_and_are_read_back() {
        let version = Version::of(b"a");
        assert_eq!(version, Resource::new("x", b"a".to_vec()).version);
        assert_ne!(version, Version::of(b"b"));
        assert_eq!(version.to_string(), "d228cb696f1a8caf78912b704e4a8964", "FNV-1a of the letter a");
        assert_eq!(Version::parse(&version.to_string()), Some(version));
        assert_eq!(Version::parse("17"), None);
    }

    #[test]
    fn sets_differ_by_name_and_version() {
        let set = |pairs: &[(&str, &str)]| {
            let mut set = ResourceSet::default();
            for (name, body) in pairs {
                set.put(Kind::Cluster, Resource::new(name, body.as_bytes().to_vec()));
            }
            set
        };
        let (a, b) = (set(&[("a", "1"), ("b", "1"), ("d", "1")]), set(&[("b", "2"), ("c", "1"), ("d", "1")]));
        let names = |a: &ResourceSet, b: &ResourceSet| {
            let found = a.differences(b).remove(&Kind::Cluster).unwrap_or_default();
            found.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&a, &b), "a b c");
        assert_eq!(names(&b, &a), "a b c");
        assert_eq!(names(&a, &a.clone()), "");
        assert_eq!(names(&a, &ResourceSet::default()), "a b d");
    }

    #[test]
    fn every_kind_is_found_by_its_message() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind.type_url()), Some(kind));
        }
        assert_eq!(Kind::of("type.googleapis.com/google.protobuf.Empty"), None);
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let resource = Resource::new("cert", b"-----BEGIN PRIVATE KEY-----".to_vec());
        assert!(!format!("{resource:?}").contains("PRIVATE"));
    }
}
