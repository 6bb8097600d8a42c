//! Notices: what we have to say about an object, in words for the person who wrote it.
//!
//! A bad object becomes a Notice and the rest goes on. The same Notice later becomes an Event, a log line or
//! a row of a report.

use std::fmt;

use crate::name::{Name, ObjectKey, ServiceKey};

/// One remark about one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// What it is about.
    pub object: ObjectRef,
    /// A word for programs, in the manner of Event reasons.
    pub reason: &'static str,
    /// What happened, why, and what to do.
    pub message: String,
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Its kind, as `Service`.
    pub kind: Name,
    /// Its namespace; empty for kinds without one.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
}

impl Notice {
    /// A remark about an object.
    pub fn new(object: ObjectRef, reason: &'static str, message: impl Into<String>) -> Self {
        Self { object, reason, message: message.into() }
    }
}

impl ObjectRef {
    /// Any object.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: Name::new(kind), namespace: Name::new(namespace), name: Name::new(name) }
    }

    /// A Service.
    pub fn service(key: &ServiceKey) -> Self {
        Self { kind: Name::new("Service"), namespace: key.namespace.clone(), name: key.name.clone() }
    }

    /// A Pod.
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
