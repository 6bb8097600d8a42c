//! References to other objects: whether a ReferenceGrant permits them, and whether certificates can be used.

use model::gateway_api::{CertificateKind, CertificateSource, ObjectReference};
use model::{Name, ObjectKey, Snapshot};

use super::Problem;

/// The object that refers to others.
#[derive(Clone, Copy)]
pub(super) struct Referrer<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) kind: &'a str,
    pub(super) namespace: &'a Name,
}

impl Referrer<'_> {
    /// Whether it may refer to an object: in its own namespace, or by a ReferenceGrant.
    pub(super) fn check_grant(&self, to: &ObjectReference) -> Result<(), Problem> {
        let mut grants = self.snapshot.reference_grants(&to.namespace);
        if *self.namespace == to.namespace || grants.any(|grant| grant.permits(self.kind, self.namespace, to))
        {
            return Ok(());
        }
        let message = format!(
            "{} {}/{} is in another namespace, and no ReferenceGrant there permits references from {} in namespace {}",
            to.kind, to.namespace, to.name, self.kind, self.namespace
        );
        Err(Problem::new("RefNotPermitted", message))
    }

    /// The Secret of a certificate; `reason` is for one that cannot be used.
    pub(super) fn certificate(
        &self,
        to: &ObjectReference,
        reason: &'static str,
    ) -> Result<ObjectKey, Problem> {
        if !to.group.is_empty() || to.kind != "Secret" {
            return Err(Problem::new(reason, format!("{} {} is not a Secret", to.kind, to.name)));
        }
        self.check_grant(to)?;
        self.usable(CertificateKind::Secret, to, reason)
    }

    /// The ConfigMap of certificate authorities.
    pub(super) fn authority(
        &self,
        to: &ObjectReference,
        kind_reason: &'static str,
    ) -> Result<ObjectKey, Problem> {
        if !to.group.is_empty() || to.kind != "ConfigMap" {
            return Err(Problem::new(kind_reason, format!("{} {} is not a ConfigMap", to.kind, to.name)));
        }
        self.check_grant(to)?;
        self.usable(CertificateKind::ConfigMap, to, "InvalidCACertificateRef")
    }

    /// The Secret or ConfigMap of a reference, if it may be read.
    pub(super) fn source(&self, to: &ObjectReference) -> Option<(CertificateKind, ObjectKey)> {
        let kind = match (to.group.as_str(), to.kind.as_str()) {
            ("", "Secret") => CertificateKind::Secret,
            ("", "ConfigMap") => CertificateKind::ConfigMap,
            _ => return None,
        };
        self.check_grant(to).ok().map(|()| (kind, to.key()))
    }

    fn usable(
        &self,
        kind: CertificateKind,
        to: &ObjectReference,
        reason: &'static str,
    ) -> Result<ObjectKey, Problem> {
        let key = to.key();
        match self.snapshot.certificate_source(kind, &key) {
            None => Err(Problem::new(reason, format!("{} {key} does not exist", to.kind))),
            Some(CertificateSource { problem: Some(problem), .. }) => {
                Err(Problem::new(reason, format!("{} {key}: {problem}", to.kind)))
            }
            Some(_) => Ok(key),
        }
    }
}
