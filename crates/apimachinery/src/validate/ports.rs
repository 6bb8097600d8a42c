//! Ports and protocols, the same for Services, EndpointSlices and Pods.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::syntax::one_of;
use super::syntax::port_name;
use model::field::{Field, FieldErrors, quoted};

pub(super) fn number(field: &Field, errors: &mut FieldErrors) -> Option<u16> {
    let number = field.integer(errors)?;
    match u16::try_from(number) {
        Ok(port) if port != 0 => Some(port),
        _ => {
            errors.invalid(field, format!("{number} is not a port number (1 to 65535)"));
            None
        }
    }
}

/// A port number that must be set; zero counts as absent.
pub(super) fn required_number(field: &Field, errors: &mut FieldErrors) -> Option<u16> {
    if !field.is_set() || field.value().as_i64() == Some(0) {
        errors.required(field, "a port needs a number (1 to 65535)");
        return None;
    }
    number(field, errors)
}

/// The number of a Service port. The default targetPort is that number, so a missing number is an error of both fields.
pub(super) fn service_number(field: &Field, target: &Field, errors: &mut FieldErrors) -> Option<u16> {
    let nothing = |field: &Field| matches!(field.value().as_i64(), Some(0)) || !field.is_nonempty();
    if !nothing(field) {
        return number(field, errors);
    }
    errors.invalid(field, "a port needs a number (1 to 65535)");
    if nothing(target) {
        errors.invalid(target, "defaults to port, which is missing");
    }
    None
}

/// A port number; zero means "allocate one" or "none".
pub(super) fn optional_number(field: &Field, errors: &mut FieldErrors) -> Option<u16> {
    if field.value().as_i64() == Some(0) { None } else { number(field, errors) }
}

/// The reason of an API server.
pub(super) fn outside_of_range(number: u16, range: &RangeInclusive<u16>) -> String {
    let (first, last) = (range.start(), range.end());
    format!("{number}: provided port is not in the valid range. The range of valid ports is {first}-{last}")
}

/// A port number or the name of a container port; zero and the empty string count as absent.
pub(super) fn number_or_name(field: &Field, errors: &mut FieldErrors) {
    match field.as_str() {
        Some("") => {}
        Some(name) => errors.invalid_if(field, port_name(name)),
        None => {
            optional_number(field, errors);
        }
    }
}

/// The protocol, by default TCP.
pub(super) fn protocol<'a>(field: &Field<'a>, errors: &mut FieldErrors) -> &'a str {
    one_of(field, &["TCP", "UDP", "SCTP"], errors).unwrap_or("TCP")
}

pub(super) fn unique_name<'a>(
    field: &Field,
    name: &'a str,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut FieldErrors,
) {
    if !seen.insert(name) {
        errors.duplicate(field, format!("another port is named {}", quoted(name)));
    }
}
