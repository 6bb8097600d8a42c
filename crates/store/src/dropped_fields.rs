//! Objects without `metadata.managedFields`, for clients that do not read them (KEP-5958). The bytes are cut out of the
//! stored JSON: lists and watches send stored bytes, and parsing them would cost more than sending the field.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// The object without its managedFields; as it is if it has none.
pub(crate) fn without_managed_fields(json: &Bytes) -> Bytes {
    let Some(range) = managed_fields(json) else { return json.clone() };
    let mut left = BytesMut::with_capacity(json.len() - range.len());
    left.extend_from_slice(&json[..range.start]);
    left.extend_from_slice(&json[range.end..]);
    left.freeze()
}

/// The bytes of the field, with the comma that separates it from another.
pub(crate) fn managed_fields(json: &[u8]) -> Option<Range<usize>> {
    let metadata = member(json, 0, b"\"metadata\"")?;
    let Range { start, end } = member(json, metadata.value, b"\"managedFields\"")?.whole;
    match (json.get(end), json.get(start.checked_sub(1)?)) {
        (Some(b','), _) => Some(start..end + 1),
        (_, Some(b',')) => Some(start - 1..end),
        _ => Some(start..end),
    }
}

/// A member of an object.
struct Member {
    /// From its name to the end of its value.
    whole: Range<usize>,
    /// Where its value starts.
    value: usize,
}

/// The member with a name, given in quotes, of the object that starts at `at`. Stored JSON has no blanks.
fn member(json: &[u8], at: usize, name: &[u8]) -> Option<Member> {
    let mut start = at + 1;
    if json.get(at) != Some(&b'{') {
        return None;
    }
    while json.get(start) == Some(&b'"') {
        let name_end = string_end(json, start)?;
        let value = name_end + 1;
        let end = value_end(json, value)?;
        if json.get(start..name_end) == Some(name) {
            return Some(Member { whole: start..end, value });
        }
        start = end + 1;
    }
    None
}

fn value_end(json: &[u8], at: usize) -> Option<usize> {
    let (mut at, mut depth) = (at, 0_usize);
    loop {
        match json.get(at)? {
            b'"' => at = string_end(json, at)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' => (at, depth) = (at + 1, depth.checked_sub(1)?),
            _ => at += 1,
        }
        if depth == 0 && matches!(json.get(at), None | Some(b',' | b'}' | b']')) {
            return Some(at);
        }
    }
}

/// After the closing quote of a string that starts at `at`.
fn string_end(json: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without(json: &str) -> String {
        let left = without_managed_fields(&Bytes::from(json.to_owned()));
        String::from_utf8(left.to_vec()).unwrap()
    }

    #[test]
    fn the_field_is_cut_out_of_the_metadata_alone() {
        let fields = r#""managedFields":[{"manager":"a \"}]\" b","fieldsV1":{"f:x":{}}}]"#;
        for (metadata, left) in [
            (format!(r#""name":"a",{fields},"uid":"u""#), r#""name":"a","uid":"u""#),
            (format!(r#"{fields},"name":"a""#), r#""name":"a""#),
            (format!(r#""labels":{{"managedFields":"1"}},{fields}"#), r#""labels":{"managedFields":"1"}"#),
            (fields.to_owned(), ""),
        ] {
            let object = |metadata: &str| {
                format!(r#"{{"kind":"X","metadata":{{{metadata}}},"spec":{{"managedFields":[1]}},"n":1}}"#)
            };
            assert_eq!(without(&object(&metadata)), object(left));
        }
    }

    #[test]
    fn an_object_without_it_is_left_as_it_is() {
        for json in [
            "",
            "{}",
            "[]",
            r#"{"metadata":null}"#,
            r#"{"metadata":{"name":"a"},"managedFields":[]}"#,
            r#"{"metadata":{"x":"#,
        ] {
            assert_eq!(without(json), json);
        }
    }
}
