//! The wire format of protobuf: numbered fields, without their meaning.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// The undecoded value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Raw<'a> {
    Varint(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(&'a [u8]),
}

impl<'a> Raw<'a> {
    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed("expected bytes, got a number")),
        }
    }

    pub(super) fn text(self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a string is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// An integer; negative ones are the two's complement in 64 bits.
    pub(super) fn number(self) -> Result<i64, Malformed> {
        match self {
            Self::Varint(bits) => Ok(bits.cast_signed()),
            _ => Err(Malformed("expected an integer, got bytes")),
        }
    }

    pub(super) fn double(self) -> Result<f64, Malformed> {
        match self {
            Self::Eight(bytes) => Ok(f64::from_le_bytes(bytes)),
            Self::Four(bytes) => Ok(f32::from_le_bytes(bytes).into()),
            _ => Err(Malformed("expected a float")),
        }
    }
}

/// Iterates over the fields of a message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for at in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(Malformed("truncated in a number"))?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * at).min(63);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a varint has more than ten bytes"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed("truncated in a field"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, Raw<'a>), Malformed> {
        let key = self.varint()?;
        let raw = match key & 7 {
            0 => Raw::Varint(self.varint()?),
            1 => Raw::Eight(self.take(8)?.try_into().map_err(|_| Malformed("truncated in a field"))?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed("a field is too long"))?;
                Raw::Bytes(self.take(length)?)
            }
            5 => Raw::Four(self.take(4)?.try_into().map_err(|_| Malformed("truncated in a field"))?),
            _ => return Err(Malformed("unknown wire type")),
        };
        Ok((key >> 3, raw))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Raw<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order_and_errors_end_them() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x08];
        let read: Vec<_> = Fields::of(&bytes).collect();
        assert_eq!(
            read,
            [Ok((1, Raw::Varint(150))), Ok((2, Raw::Bytes(b"hi"))), Err(Malformed("truncated in a number"))]
        );
        assert!(Fields::of(&[0xff; 12]).next().is_some_and(|field| field.is_err()));
        assert!(Fields::of(&[0x12, 0x7f]).next().is_some_and(|field| field.is_err()));
        assert!(Fields::of(&[0x0b]).next().is_some_and(|field| field.is_err()));
    }
}
