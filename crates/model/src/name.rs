//! Interned strings: names that occur thousands of times in a cluster are stored once.
//!
//! A [`Name`] is one shared pointer; an [`Interner`] returns the same one for equal strings. It is an argument of parsing,
//! not a global, so that its memory is freed with the snapshot.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arcstr::ArcStr;

use crate::endpoint::Hints;
use crate::label::Labels;
use crate::pod::PodDetails;
use crate::slice::SlicePort;

/// A shared, immutable string: the name of an object, a zone, a label key or value.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct Name(ArcStr);

impl Name {
    /// A name that is not interned. Parsing uses an [`Interner`].
    pub fn new(text: &str) -> Self {
        Self(ArcStr::from(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

/// Namespace and name of a Service.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct ServiceKey {
    pub namespace: Name,
    pub name: Name,
}

/// Namespace and name of any other namespaced object.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct ObjectKey {
    pub namespace: Name,
    pub name: Name,
}

macro_rules! namespaced_key {
    ($key:ident) => {
        impl $key {
            pub fn new(namespace: &Name, name: &Name) -> Self {
                Self { namespace: namespace.clone(), name: name.clone() }
            }
        }

        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.name)
            }
        }

        impl fmt::Debug for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.name)
            }
        }
    };
}

namespaced_key!(ServiceKey);
namespaced_key!(ObjectKey);

/// Deduplicates names, label sets, hints and port lists. It is never iterated, so hash order has no effect.
#[derive(Debug, Default)]
pub struct Interner {
    names: HashSet<ArcStr>,
    labels: HashSet<Labels>,
    hints: HashSet<Arc<Hints>>,
    ports: HashSet<Arc<[SlicePort]>>,
    details: HashSet<Arc<PodDetails>>,
}

impl Interner {
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(known) = self.names.get(text) {
            return Name(known.clone());
        }
        let name = ArcStr::from(text);
        self.names.insert(name.clone());
        Name(name)
    }

    /// `None` if the string is absent or empty.
    pub fn name_if_set(&mut self, text: Option<&str>) -> Option<Name> {
        text.filter(|t| !t.is_empty()).map(|t| self.name(t))
    }

    pub fn labels<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let pairs: Vec<(Name, Name)> = pairs.into_iter().map(|(k, v)| (self.name(k), self.name(v))).collect();
        let labels = Labels::from_pairs(pairs);
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        self.labels.insert(labels.clone());
        labels
    }

    pub fn hints(&mut self, hints: Hints) -> Arc<Hints> {
        if let Some(known) = self.hints.get(&hints) {
            return known.clone();
        }
        let hints = Arc::new(hints);
        self.hints.insert(hints.clone());
        hints
    }

    pub fn ports(&mut self, ports: Vec<SlicePort>) -> Arc<[SlicePort]> {
        if let Some(known) = self.ports.get(ports.as_slice()) {
            return known.clone();
        }
        let ports: Arc<[SlicePort]> = ports.into();
        self.ports.insert(ports.clone());
        ports
    }

    pub fn details(&mut self, details: PodDetails) -> Arc<PodDetails> {
        if let Some(known) = self.details.get(&details) {
            return known.clone();
        }
        let details = Arc::new(details);
        self.details.insert(details.clone());
        details
    }

    /// Drops values without other references. Call it periodically, so that names of deleted pods do not accumulate.
    pub fn sweep(&mut self) {
        self.labels.retain(|l| l.is_shared());
        self.hints.retain(|h| Arc::strong_count(h) > 1);
        self.ports.retain(|p| Arc::strong_count(p) > 1);
        self.details.retain(|p| Arc::strong_count(p) > 1);
        self.names.retain(|n| ArcStr::strong_count(n).is_none_or(|count| count > 1));
    }

    pub fn name_count(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_pointer_wide() {
        assert_eq!(size_of::<Name>(), 8);
        assert_eq!(size_of::<Option<Name>>(), 8);
    }

    #[test]
    fn sweep_drops_unreferenced_values() {
        let mut interner = Interner::default();
        let kept = interner.name("kept");
        drop(interner.name("gone"));
        let labels = interner.labels([("app", "web")]);
        interner.sweep();
        assert_eq!(interner.name_count(), 3, "kept, app and web");
        drop(labels);
        interner.sweep();
        assert_eq!(interner.name_count(), 1);
        assert_eq!(interner.name("kept"), kept);
    }
}
