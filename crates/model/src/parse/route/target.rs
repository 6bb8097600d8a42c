//! targetRef and backendRef: whom a policy is for, and where requests go.

use super::at::{At, Problems};
use crate::label::Labels;
use crate::name::{Name, ServiceKey};
use crate::route::{BackendRef, PolicyTarget};

/// What a targetRef may name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The clients in the mesh.
    Client,
    /// A gateway.
    Gateway,
    /// Either.
    Either,
}

impl Role {
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Client => &["Mesh", "MeshSubset", "MeshService", "MeshServiceSubset"],
            Self::Gateway => &["MeshGateway"],
            Self::Either => &["Mesh", "MeshSubset", "MeshService", "MeshServiceSubset", "MeshGateway"],
        }
    }
}

/// `spec.targetRef`. In the mesh a missing one is everybody (semantics 1.3).
pub(super) fn target(at: &At, role: Role, problems: &mut Problems) -> PolicyTarget {
    if !at.is_set() {
        if role == Role::Gateway {
            problems.add(at, "name the gateway, as {kind: MeshGateway, name: edge}");
        }
        return PolicyTarget::Mesh;
    }
    match kind(at, role.kinds(), problems) {
        Some("MeshSubset") => {
            refuse(at, &["name"], "MeshSubset", problems);
            PolicyTarget::Subset(tags(at, true, problems))
        }
        Some("MeshService") => {
            refuse(at, &["tags"], "MeshService", problems);
            PolicyTarget::Service(name(at, problems))
        }
        Some("MeshServiceSubset") => {
            PolicyTarget::ServiceSubset(name(at, problems), tags(at, true, problems))
        }
        Some("MeshGateway") => PolicyTarget::Gateway(name(at, problems), tags(at, false, problems)),
        Some(_) => {
            everything(at, problems);
            PolicyTarget::Mesh
        }
        None => PolicyTarget::Mesh,
    }
}

/// `to[].targetRef`: a Service, of the policy's namespace unless it says another. Clients ask for a Service and never
/// for a part of it.
pub(super) fn destination(at: &At, own: &Name, problems: &mut Problems) -> ServiceKey {
    let unnamed = || ServiceKey::new(own, &Name::default());
    if !at.is_set() {
        problems.add(at, "name the destination, as {kind: MeshService, name: backend}");
        return unnamed();
    }
    at.only(&["kind", "name", "namespace", "tags"], problems);
    if kind_word(at, &["MeshService"], problems).is_none() {
        return unnamed();
    }
    refuse(at, &["tags"], "MeshService", problems);
    let namespace = at.child("namespace");
    let namespace = if namespace.is_set() { namespace_name(&namespace, problems) } else { own.clone() };
    ServiceKey::new(&namespace, &name(at, problems))
}

fn namespace_name(field: &At, problems: &mut Problems) -> Name {
    let text = field.needed(problems).unwrap_or_default();
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || text.len() > 63 || !text.bytes().all(is_plain) {
        problems.add(field, "it is not the name of a namespace");
    }
    Name::new(text)
}

/// A targetRef of the kind Mesh.
pub(super) fn everything(at: &At, problems: &mut Problems) {
    if at.is_set() && kind(at, &["Mesh"], problems).is_some() {
        refuse(at, &["name", "tags"], "Mesh", problems);
    }
}

fn kind<'a>(at: &At<'a>, kinds: &[&str], problems: &mut Problems) -> Option<&'a str> {
    at.only(&["kind", "name", "tags"], problems);
    kind_word(at, kinds, problems)
}

fn kind_word<'a>(at: &At<'a>, kinds: &[&str], problems: &mut Problems) -> Option<&'a str> {
    let field = at.child("kind");
    if at.is_map() && !field.is_set() {
        problems.add(&field, format!("it is missing: write {}", kinds.join(", ")));
    }
    field.word(kinds, problems)
}

fn refuse(at: &At, members: &[&str], kind: &str, problems: &mut Problems) {
    for member in members.iter().map(|member| at.child(member)).filter(At::is_set) {
        problems.add(&member, format!("the kind {kind} takes none"));
    }
}

fn name(at: &At, problems: &mut Problems) -> Name {
    let field = at.child("name");
    let text = field.needed(problems).unwrap_or_default();
    let is_good = text.len() <= 253 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    if !is_good {
        problems.add(&field, "it is not the name of an object");
    }
    Name::new(text)
}

fn tags(at: &At, needed: bool, problems: &mut Problems) -> Labels {
    let field = at.child("tags");
    let pairs = field.pairs(problems);
    if needed && pairs.is_empty() && (field.is_map() || !field.is_set()) {
        problems.add(&field, "at least one tag is needed, as {version: v2}; for all, leave the subset out");
    }
    Labels::from_pairs(pairs)
}

/// An entry of `backendRefs`, or the backend of a mirror, which has no weight.
pub(super) fn backend(at: &At, weighted: bool, problems: &mut Problems) -> Option<BackendRef> {
    let known: &[&str] = match weighted {
        true => &["kind", "name", "tags", "port", "weight"],
        false => &["kind", "name", "tags", "port"],
    };
    at.only(known, problems);
    let field = at.child("kind");
    if at.is_map() && !field.is_set() {
        problems.add(&field, "it is missing: write MeshService or MeshServiceSubset");
    }
    let kind = field.word(&["MeshService", "MeshServiceSubset"], problems);
    if kind == Some("MeshService") {
        refuse(at, &["tags"], "MeshService", problems);
    }
    let weight = at.child("weight").within(0, i64::from(u32::MAX), problems);
    Some(BackendRef {
        name: name(at, problems),
        tags: (kind? == "MeshServiceSubset").then(|| tags(at, true, problems)),
        port: at.child("port").port(problems),
        weight: weight.and_then(|weight| u32::try_from(weight).ok()),
    })
}
