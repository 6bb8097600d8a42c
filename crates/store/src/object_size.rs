//! The size of an object: at most what etcd takes in one request by default. It is checked before work that grows with it,
//! and again when the object is stored.

use std::io::{self, Write};

use serde_json::Value;

use crate::status::StatusError;

/// Bytes of an object as JSON.
pub(crate) const MAX_OBJECT: usize = 3 << 19;

/// What defaulting adds to each container of a Pod, at least.
const CONTAINER_DEFAULTS: usize = 100;

/// Refuses a decoded object that is too large, or becomes so by defaulting.
pub(crate) fn check(object: &Value) -> Result<(), StatusError> {
    // Those of a stored Pod have their defaults.
    let is_bare = |item: &&Value| item["terminationMessagePath"].is_null();
    let containers =
        |name: &str| object["spec"][name].as_array().map_or(0, |list| list.iter().filter(is_bare).count());
    let added = (containers("containers") + containers("initContainers")) * CONTAINER_DEFAULTS;
    match encoded(object) {
        Some(size) if size + added <= MAX_OBJECT => Ok(()),
        size => Err(StatusError::object_too_large(size)),
    }
}

/// As [`check`], for the result of a patch. An object that is too large may stay so: see [`check_stored`].
pub(crate) fn check_change(before: &Value, after: &Value) -> Result<(), StatusError> {
    check(after).or_else(|error| if encoded(before).is_none() { Ok(()) } else { Err(error) })
}

/// The size of a value as JSON; `None` if it is larger than an object may be.
pub(crate) fn encoded(value: &Value) -> Option<usize> {
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value).ok().map(|()| counter.0)
}

/// Refuses to store a version that is too large, unless the stored one is as large: of that, earlier versions of this
/// program accepted more, and its finalizers have to be removed.
pub(crate) fn check_stored(size: usize, before: usize) -> Result<(), StatusError> {
    if size <= MAX_OBJECT.max(before) { Ok(()) } else { Err(StatusError::object_too_large(Some(size))) }
}

struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        if self.0 > MAX_OBJECT { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_limit_is_that_of_the_json_text() {
        let object = |size: usize| json!({"data": {"a": "x".repeat(size)}});
        let frame = object(0).to_string().len();
        assert!(check(&object(MAX_OBJECT - frame)).is_ok());
        assert_eq!(check(&object(MAX_OBJECT - frame + 1)).unwrap_err().code, 413);
        assert_eq!(check(&json!({"spec": {"containers": vec![json!({}); 20_000]}})).unwrap_err().code, 413);
        assert!(check_stored(MAX_OBJECT, 0).is_ok() && check_stored(MAX_OBJECT + 1, 0).is_err());
        assert!(check_stored(MAX_OBJECT + 1, MAX_OBJECT + 1).is_ok());
    }
}
