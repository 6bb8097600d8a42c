//! Ports and protocols, the same for Services, EndpointSlices and Pods.

use std::collections::BTreeSet;

use super::field::{Field, Findings, one_of, quoted};
use super::syntax::port_name;

/// A number from 1 to 65535.
pub(super) fn number(field: &Field, findings: &mut Findings) -> Option<u16> {
    let number = field.integer(findings)?;
    match u16::try_from(number) {
        Ok(port) if port != 0 => Some(port),
        _ => {
            findings.refuse(field, format!("{number} is not a port: 1 to 65535"));
            None
        }
    }
}

/// A number from 1 to 65535 that may not be missing; what says zero says nothing.
pub(super) fn required_number(field: &Field, findings: &mut Findings) -> Option<u16> {
    if !field.is_set() || field.value().as_i64() == Some(0) {
        findings.require(field, "a port needs its number: 1 to 65535");
        return None;
    }
    number(field, findings)
}

/// The number of a Service's port. Where it is missing, a target that is to be the same is missing too.
pub(super) fn service_number(field: &Field, target: &Field, findings: &mut Findings) -> Option<u16> {
    let nothing = |field: &Field| matches!(field.value().as_i64(), Some(0)) || !field.is_given();
    if !nothing(field) {
        return number(field, findings);
    }
    findings.refuse(field, "a port needs its number: 1 to 65535");
    if nothing(target) {
        findings.refuse(target, "is the number of the port unless given, and that is missing");
    }
    None
}

/// A number, or none: zero stands for "choose one" or "none".
pub(super) fn optional_number(field: &Field, findings: &mut Findings) -> Option<u16> {
    if field.value().as_i64() == Some(0) { None } else { number(field, findings) }
}

/// A number, or the name of a container's port. Zero and an empty text stand for "not given".
pub(super) fn number_or_name(field: &Field, findings: &mut Findings) {
    match field.peek_text() {
        Some("") => {}
        Some(name) => findings.refuse_if(field, port_name(name)),
        None => {
            optional_number(field, findings);
        }
    }
}

/// The protocol; TCP where none is given.
pub(super) fn protocol<'a>(field: &Field<'a>, findings: &mut Findings) -> &'a str {
    one_of(field, &["TCP", "UDP", "SCTP"], findings).unwrap_or("TCP")
}

/// Refuses a name that another port of the same list has.
pub(super) fn unique_name<'a>(
    field: &Field,
    name: &'a str,
    seen: &mut BTreeSet<&'a str>,
    findings: &mut Findings,
) {
    if !seen.insert(name) {
        findings
            .repeated(field, format!("another port is named {} too: each needs its own name", quoted(name)));
    }
}
