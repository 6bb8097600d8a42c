//! `metadata.uid` in sixteen bytes.

use std::fmt;

use crate::name::Name;

/// Distinguishes an object from a deleted one of the same name.
///
/// API servers assign random UUIDs, which are stored as bytes; any other value is stored as a string.
#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Uid(Repr);

#[derive(Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
enum Repr {
    Uuid(Uuid),
    Text(Name),
}

/// A random (version 4) UUID in its canonical, lower-case form.
///
/// Its seventh byte is 4 and one free digit. As a [`Digit`], that byte has a niche for the discriminants, so that
/// `Option<Uid>` is as small as the UUID.
#[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd, Hash)]
struct Uuid {
    head: [u8; 6],
    after_version: Digit,
    tail: [u8; 9],
}

/// A hexadecimal digit.
#[derive(Clone, Copy, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[rustfmt::skip]
enum Digit { D0, D1, D2, D3, D4, D5, D6, D7, D8, D9, Da, Db, Dc, Dd, De, Df }

impl Digit {
    #[rustfmt::skip]
    const ALL: [Self; 16] = [
        Self::D0, Self::D1, Self::D2, Self::D3, Self::D4, Self::D5, Self::D6, Self::D7,
        Self::D8, Self::D9, Self::Da, Self::Db, Self::Dc, Self::Dd, Self::De, Self::Df,
    ];
}

impl Uid {
    /// Any string is a valid UID.
    pub fn new(text: &str) -> Self {
        match parse_uuid(text.as_bytes()) {
            Some(uuid) => Self(Repr::Uuid(uuid)),
            None => Self(Repr::Text(Name::new(text))),
        }
    }
}

const UUID_LENGTH: usize = 36;
const UUID_DASHES: [usize; 4] = [8, 13, 18, 23];

fn parse_uuid(text: &[u8]) -> Option<Uuid> {
    if text.len() != UUID_LENGTH || UUID_DASHES.iter().any(|at| text[*at] != b'-') {
        return None;
    }
    let mut bytes = [0u8; 16];
    let digits = text.iter().enumerate().filter(|(at, _)| !UUID_DASHES.contains(at));
    for (i, (_, c)) in digits.enumerate() {
        let value = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        bytes[i / 2] = bytes[i / 2] << 4 | value;
    }
    let [a, b, c, d, e, f, version, tail @ ..] = bytes;
    let after_version = Digit::ALL[usize::from(version & 0xf)];
    (version >> 4 == 4).then_some(Uuid { head: [a, b, c, d, e, f], after_version, tail })
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uuid = match &self.0 {
            Repr::Text(text) => return f.write_str(text),
            Repr::Uuid(uuid) => uuid,
        };
        let version = 0x40 | uuid.after_version as u8;
        let bytes = uuid.head.iter().chain([&version]).chain(&uuid.tail);
        for (i, byte) in bytes.enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_survive_a_round_trip() {
        for text in [
            "6c3d1d2e-9a40-4f7e-8a55-0123456789ab",
            "6c3d1d2e-9a40-1f7e-8a55-0123456789ab",
            "6C3D1D2E-9A40-4F7E-8A55-0123456789AB",
            "6c3d1d2e-9a40-4f7e-8a55-0123456789ag",
            "6c3d1d2e09a40-4f7e-8a55-0123456789ab",
            "test-foo",
            "",
        ] {
            assert_eq!(Uid::new(text).to_string(), text);
        }
        assert!(matches!(Uid::new("6c3d1d2e-9a40-4f7e-8a55-0123456789ab").0, Repr::Uuid(_)));
    }

    #[test]
    fn an_optional_uid_is_as_small_as_a_uuid() {
        assert_eq!(size_of::<Option<Uid>>(), 16);
    }
}
