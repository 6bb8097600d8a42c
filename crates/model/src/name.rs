//! Names: strings that occur thousands of times in a cluster and are held once.
//!
//! A [`Name`] is one pointer wide and shared; an [`Interner`] hands out the same one for the same text. It is
//! an argument of parsing, never a global, so that a dropped world gives its memory back.

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
    /// A name that is not shared with others of the same text. Parsing uses an [`Interner`] instead.
    pub fn new(text: &str) -> Self {
        Self(ArcStr::from(text))
    }

    /// The text.
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
    /// The namespace.
    pub namespace: Name,
    /// The name within the namespace.
    pub name: Name,
}

/// Namespace and name of any other namespaced object.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: Name,
    /// The name within the namespace.
    pub name: Name,
}

macro_rules! shown_as_namespace_slash_name {
    ($key:ident) => {
        impl $key {
            /// The key of `namespace`/`name`.
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

shown_as_namespace_slash_name!(ServiceKey);
shown_as_namespace_slash_name!(ObjectKey);

/// Hands out one shared value for equal names, label sets, hints and port lists.
///
/// Only look-ups by content: nothing ever iterates over it, so its hash order is not seen.
#[derive(Debug, Default)]
pub struct Interner {
    names: HashSet<ArcStr>,
    labels: HashSet<Labels>,
    hints: HashSet<Arc<Hints>>,
    ports: HashSet<Arc<[SlicePort]>>,
    details: HashSet<Arc<PodDetails>>,
}

impl Interner {
    /// The shared name of this text.
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(known) = self.names.get(text) {
            return Name(known.clone());
        }
        let name = ArcStr::from(text);
        self.names.insert(name.clone());
        Name(name)
    }

    /// The shared name, unless the text is missing or empty.
    pub fn name_if_set(&mut self, text: Option<&str>) -> Option<Name> {
        text.filter(|t| !t.is_empty()).map(|t| self.name(t))
    }

    /// The shared label set of these pairs.
    pub fn labels<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let pairs: Vec<(Name, Name)> = pairs.into_iter().map(|(k, v)| (self.name(k), self.name(v))).collect();
        let labels = Labels::from_pairs(pairs);
        if let Some(known) = self.labels.get(&labels) {
            return known.clone();
        }
        self.labels.insert(labels.clone());
        labels
    }

    /// The shared copy of these hints.
    pub fn hints(&mut self, hints: Hints) -> Arc<Hints> {
        if let Some(known) = self.hints.get(&hints) {
            return known.clone();
        }
        let hints = Arc::new(hints);
        self.hints.insert(hints.clone());
        hints
    }

    /// The shared copy of this list of ports.
    pub fn ports(&mut self, ports: Vec<SlicePort>) -> Arc<[SlicePort]> {
        if let Some(known) = self.ports.get(ports.as_slice()) {
            return known.clone();
        }
        let ports: Arc<[SlicePort]> = ports.into();
        self.ports.insert(ports.clone());
        ports
    }

    /// The shared copy of these details of a pod.
    pub fn details(&mut self, details: PodDetails) -> Arc<PodDetails> {
        if let Some(known) = self.details.get(&details) {
            return known.clone();
        }
        let details = Arc::new(details);
        self.details.insert(details.clone());
        details
    }

    /// Forgets what nobody holds any more. Long-running programs call this now and then, so that the names
    /// of pods long gone do not pile up.
    pub fn sweep(&mut self) {
        self.labels.retain(|l| l.is_shared());
        self.hints.retain(|h| Arc::strong_count(h) > 1);
        self.ports.retain(|p| Arc::strong_count(p) > 1);
        self.details.retain(|p| Arc::strong_count(p) > 1);
        self.names.retain(|n| ArcStr::strong_count(n).is_none_or(|count| count > 1));
    }

    /// How many distinct names are held.
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
    fn sweeping_forgets_only_what_nobody_holds() {
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
