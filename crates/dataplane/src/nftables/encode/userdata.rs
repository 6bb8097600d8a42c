//! User data of sets: what nft needs to list keys, data and comments, and to load its own listing. The kernel stores it
//! uninterpreted.
//!
//! The result of `numgen` has no named type. nft describes sets with such a field by example
//! (`typeof ip daddr . ... . numgen random mod 65536`), one expression per field.

use crate::nftables::abi::udata;
use crate::nftables::codes;
use crate::nftables::ir::{Comment, DataType, FieldType, SetSpec};

/// The kernel's limit for one set.
const LONGEST: usize = 256;

/// nft's numbers for expressions, headers and their fields.
mod example {
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const META: u32 = 9;
    pub(super) const CONCAT: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
    /// Header and field of a payload.
    pub(super) const TH_DPORT: [u32; 2] = [11, 2];
    pub(super) const IP_DADDR: [u32; 2] = [12, 12];
    pub(super) const IP6_DADDR: [u32; 2] = [13, 9];
    pub(super) const META_MARK: [u32; 1] = [3];
    pub(super) const META_IIFNAME: [u32; 1] = [6];
    pub(super) const META_L4PROTO: [u32; 1] = [16];
    /// Random, modulus, offset. The modulus is only displayed.
    pub(super) const RANDOM: [u32; 3] = [1, 65_536, 0];
}

/// The longest comment with type, length and NUL.
pub(super) const LONGEST_COMMENT: usize = Comment::LONGEST + 3;

/// A comment as the only user data, as on tables, chains, rules and elements. In a buffer on the stack: a load has many.
pub(super) fn comment_only<'b>(buffer: &'b mut [u8; LONGEST_COMMENT], kind: u8, comment: &str) -> &'b [u8] {
    let text = shortened(comment, Comment::LONGEST).as_bytes();
    buffer[0] = kind;
    // 128 bytes and NUL fit.
    buffer[1] = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    buffer[2..2 + text.len()].copy_from_slice(text);
    buffer[2 + text.len()] = 0;
    &buffer[..text.len() + 3]
}

/// The user data that nft expects of a set.
pub(super) fn of_set(spec: &SetSpec) -> Vec<u8> {
    let mut bytes = Vec::new();
    number(&mut bytes, udata::SET_KEY_BYTEORDER, codes::byteorder(&spec.key));
    if let Some(data) = &spec.data {
        let order = match data {
            DataType::Fields(fields) => codes::byteorder(fields),
            // nft 1.0.6 aborts on a byte order other than 0 for verdicts.
            DataType::Verdict => 0,
        };
        number(&mut bytes, udata::SET_DATA_BYTEORDER, order);
    }
    examples(&mut bytes, spec);
    if let Some(comment) = &spec.comment {
        let room = LONGEST.saturating_sub(bytes.len() + 3);
        text(&mut bytes, udata::SET_COMMENT, shortened(comment.as_str(), room));
    }
    bytes
}

/// Key and data by example, where a field has no type that can be named.
fn examples(bytes: &mut Vec<u8>, spec: &SetSpec) {
    let data = match &spec.data {
        Some(DataType::Fields(fields)) => fields.as_slice(),
        _ => &[],
    };
    if !spec.key.iter().chain(data).any(|field| *field == FieldType::Index) {
        return;
    }
    let (Some(key), Some(data)) = (of_fields(&spec.key), of_fields(data)) else { return };
    item(bytes, udata::SET_KEY_TYPEOF, &key);
    if spec.data.is_some() {
        item(bytes, udata::SET_DATA_TYPEOF, &data);
    }
}

/// The expression of one field, or of a concatenation; none if a field has no example.
fn of_fields(fields: &[FieldType]) -> Option<Vec<u8>> {
    if let [one] = fields {
        return of_field(*one);
    }
    let mut list = Vec::new();
    for (place, field) in fields.iter().enumerate() {
        item(&mut list, u8::try_from(place).ok()?, &of_field(*field)?);
    }
    Some(expression(example::CONCAT, &list))
}

fn of_field(field: FieldType) -> Option<Vec<u8>> {
    let (kind, numbers): (u32, &[u32]) = match field {
        FieldType::Ipv4Addr => (example::PAYLOAD, &example::IP_DADDR),
        FieldType::Ipv6Addr => (example::PAYLOAD, &example::IP6_DADDR),
        FieldType::InetService => (example::PAYLOAD, &example::TH_DPORT),
        FieldType::InetProto => (example::META, &example::META_L4PROTO),
        FieldType::Mark => (example::META, &example::META_MARK),
        FieldType::IfName => (example::META, &example::META_IIFNAME),
        FieldType::Index => (example::NUMGEN, &example::RANDOM),
        FieldType::FibAddrType | FieldType::CtState | FieldType::Other { .. } => return None,
    };
    let mut list = Vec::new();
    for (place, value) in numbers.iter().enumerate() {
        number(&mut list, u8::try_from(place).ok()?, *value);
    }
    Some(expression(kind, &list))
}

fn expression(kind: u32, list: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    number(&mut bytes, udata::TYPEOF_EXPR, kind);
    item(&mut bytes, udata::TYPEOF_DATA, list);
    bytes
}

fn item(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    // A type has at most five fields.
    bytes.extend_from_slice(&[kind, u8::try_from(value.len()).unwrap_or(u8::MAX)]);
    bytes.extend_from_slice(value);
}

fn number(bytes: &mut Vec<u8>, kind: u8, value: u32) {
    item(bytes, kind, &value.to_ne_bytes());
}

fn text(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    // A comment has at most 128 bytes, so its length with NUL fits.
    bytes.extend_from_slice(&[kind, u8::try_from(text.len() + 1).unwrap_or(u8::MAX)]);
    bytes.extend_from_slice(text.as_bytes());
    bytes.push(0);
}

/// Cuts at a character boundary.
fn shortened(text: &str, room: usize) -> &str {
    let end = (0..=room.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_of_a_set_stays_below_what_the_kernel_takes() {
        use FieldType::{Index, InetProto, InetService, Ipv6Addr};
        let spec = SetSpec {
            comment: Some(Comment::new(&"x".repeat(128))),
            ..SetSpec::map(
                &[Ipv6Addr, InetProto, InetService, Index],
                DataType::Fields(vec![Ipv6Addr, InetService]),
            )
        };
        assert!(of_set(&spec).len() <= LONGEST);
        assert_eq!(shortened("aü", 2), "a");
    }
}
