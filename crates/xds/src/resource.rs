//! xDS resources: named messages of five types, encoded once and shared by all streams. Versions are hashes of the
//! content, so that equal configuration has equal versions after a restart and is not sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use model::hash::{BASIS_128, fnv1a_128};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceType {
    Cluster,
    Endpoints,
    Listener,
    Routes,
    Secret,
}

impl ResourceType {
    /// In the order in which additions are safe: referenced types first. Secrets are requested by listeners that exist.
    pub const ALL: [Self; 5] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Routes, Self::Secret];

    pub fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Routes => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        }
    }

    pub fn of(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.type_url() == type_url)
    }

    /// For logs, metrics and `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Endpoints => "endpoints",
            Self::Listener => "listener",
            Self::Routes => "routes",
            Self::Secret => "secret",
        }
    }

    /// Whether a subscription without names is a wildcard.
    pub fn is_root(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// FNV-1a of a resource's content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentVersion(u128);

impl ContentVersion {
    pub fn of(content: &[u8]) -> Self {
        Self(fnv1a_128(BASIS_128, content))
    }

    /// The version of several resources in order.
    pub fn of_all(versions: impl IntoIterator<Item = ContentVersion>) -> Self {
        let bytes: Vec<u8> = versions.into_iter().flat_map(|version| version.0.to_be_bytes()).collect();
        Self::of(&bytes)
    }

    /// Reads the format of `Display`; other versions are not ours.
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for ContentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ContentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct XdsResource {
    /// Unique within its type.
    pub name: Arc<str>,
    pub version: ContentVersion,
    pub body: Bytes,
}

impl XdsResource {
    pub fn new(name: &str, body: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { name: name.into(), version: ContentVersion::of(&body), body: body.into() })
    }

    pub fn any(&self, kind: ResourceType) -> Any {
        Any { type_url: kind.type_url().to_owned(), value: self.body.to_vec() }
    }
}

/// Without the body, which may be a private key.
impl fmt::Debug for XdsResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} ({} bytes)", self.name, self.version, self.body.len())
    }
}

pub type ResourcesByName = BTreeMap<Arc<str>, Arc<XdsResource>>;

/// All resources of one identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceSet {
    by_kind: BTreeMap<ResourceType, ResourcesByName>,
}

static NONE: ResourcesByName = ResourcesByName::new();

impl ResourceSet {
    pub fn put(&mut self, kind: ResourceType, resource: Arc<XdsResource>) {
        self.by_kind.entry(kind).or_default().insert(resource.name.clone(), resource);
    }

    pub fn of(&self, kind: ResourceType) -> &ResourcesByName {
        self.by_kind.get(&kind).unwrap_or(&NONE)
    }

    pub fn find(&self, kind: ResourceType, name: &str) -> Option<&Arc<XdsResource>> {
        self.of(kind).get(name)
    }

    pub fn len(&self) -> usize {
        self.by_kind.values().map(ResourcesByName::len).sum()
    }

    /// Names that differ in version or exist in one set only.
    pub fn changed_names(&self, other: &Self) -> BTreeMap<ResourceType, BTreeSet<Arc<str>>> {
        let mut found = BTreeMap::new();
        for kind in ResourceType::ALL {
            let names = differing(self.of(kind), other.of(kind));
            if !names.is_empty() {
                found.insert(kind, names);
            }
        }
        found
    }

    /// Replaces all resources of a type by those of another set.
    pub fn share(&mut self, kind: ResourceType, other: &Self) {
        self.by_kind.insert(kind, other.of(kind).clone());
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One walk along both sorted maps; shared resources are skipped by pointer.
fn differing(a: &ResourcesByName, b: &ResourcesByName) -> BTreeSet<Arc<str>> {
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
        let version = ContentVersion::of(b"a");
        assert_eq!(version, XdsResource::new("x", b"a".to_vec()).version);
        assert_ne!(version, ContentVersion::of(b"b"));
        assert_eq!(version.to_string(), "d228cb696f1a8caf78912b704e4a8964", "FNV-1a of the letter a");
        assert_eq!(ContentVersion::parse(&version.to_string()), Some(version));
        assert_eq!(ContentVersion::parse("17"), None);
    }

    #[test]
    fn sets_differ_by_name_and_version() {
        let set = |pairs: &[(&str, &str)]| {
            let mut set = ResourceSet::default();
            for (name, body) in pairs {
                set.put(ResourceType::Cluster, XdsResource::new(name, body.as_bytes().to_vec()));
            }
            set
        };
        let (a, b) = (set(&[("a", "1"), ("b", "1"), ("d", "1")]), set(&[("b", "2"), ("c", "1"), ("d", "1")]));
        let names = |a: &ResourceSet, b: &ResourceSet| {
            let found = a.changed_names(b).remove(&ResourceType::Cluster).unwrap_or_default();
            found.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&a, &b), "a b c");
        assert_eq!(names(&b, &a), "a b c");
        assert_eq!(names(&a, &a.clone()), "");
        assert_eq!(names(&a, &ResourceSet::default()), "a b d");
    }

    #[test]
    fn every_kind_is_found_by_its_message() {
        for kind in ResourceType::ALL {
            assert_eq!(ResourceType::of(kind.type_url()), Some(kind));
        }
        assert_eq!(ResourceType::of("type.googleapis.com/google.protobuf.Empty"), None);
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let resource = XdsResource::new("cert", b"-----BEGIN PRIVATE KEY-----".to_vec());
        assert!(!format!("{resource:?}").contains("PRIVATE"));
    }
}
