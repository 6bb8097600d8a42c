//! Messages about objects for their owners.
//!
//! An invalid object becomes a Notice and the rest is processed. Controllers turn Notices into Events and log lines,
//! commands into rows of a report.

use std::fmt;

use crate::name::{Name, ObjectKey, ServiceKey};

/// A message about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    pub object: ObjectRef,
    /// As `reason` of an Event.
    pub reason: &'static str,
    /// What happened, why, and what to do.
    pub message: String,
}

/// Kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    pub kind: Name,
    /// Empty for cluster-scoped kinds.
    pub namespace: Name,
    pub name: Name,
}

impl Notice {
    pub fn new(object: ObjectRef, reason: &'static str, message: impl Into<String>) -> Self {
        Self { object, reason, message: message.into() }
    }
}

impl ObjectRef {
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: Name::new(kind), namespace: Name::new(namespace), name: Name::new(name) }
    }

    pub fn service(key: &ServiceKey) -> Self {
        Self { kind: Name::new("Service"), namespace: key.namespace.clone(), name: key.name.clone() }
    }

    pub fn pod(key: &ObjectKey) -> Self {
        Self { kind: Name::new("Pod"), namespace: key.namespace.clone(), name: key.name.clone() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.reason, self.message)
    }
}
