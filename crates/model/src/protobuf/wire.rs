//! The wire format of protobuf: numbered fields, without their meaning.

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireError(pub &'static str);

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// The undecoded value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    Varint(u64),
    Eight([u8; 8]),
    Four([u8; 4]),
    Bytes(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    pub fn bytes(self) -> Result<&'a [u8], WireError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WireError("expected bytes, got a number")),
        }
    }

    pub fn text(self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| WireError("a string is not UTF-8"))
    }

    /// An integer; negative ones are the two's complement in 64 bits.
    pub fn number(self) -> Result<i64, WireError> {
        match self {
            Self::Varint(bits) => Ok(bits.cast_signed()),
            _ => Err(WireError("expected an integer, got bytes")),
        }
    }

    /// An integer of 32 bits.
    pub fn int32(self) -> Result<i32, WireError> {
        i32::try_from(self.number()?).map_err(|_| WireError("an integer is out of range"))
    }

    pub fn double(self) -> Result<f64, WireError> {
        match self {
            Self::Eight(bytes) => Ok(f64::from_le_bytes(bytes)),
            Self::Four(bytes) => Ok(f32::from_le_bytes(bytes).into()),
            _ => Err(WireError("expected a float")),
        }
    }
}

/// Iterates over the fields of a message.
pub struct WireFields<'a> {
    rest: &'a [u8],
}

impl<'a> WireFields<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for at in 0..10 {
            let (byte, rest) = self.rest.split_first().ok_or(WireError("truncated in a number"))?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << (7 * at).min(63);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError("a varint has more than ten bytes"))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WireError("truncated in a field"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), WireError> {
        let key = self.varint()?;
        let raw = match key & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => FieldValue::Eight(self.take(8)?.try_into().map_err(|_| WireError("truncated in a field"))?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError("a field is too long"))?;
                FieldValue::Bytes(self.take(length)?)
            }
            5 => FieldValue::Four(self.take(4)?.try_into().map_err(|_| WireError("truncated in a field"))?),
            _ => return Err(WireError("unknown wire type")),
        };
        Ok((key >> 3, raw))
    }
}

impl<'a> Iterator for WireFields<'a> {
    type Item = Result<(u64, FieldValue<'a>), WireError>;

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
        let read: Vec<_> = WireFields::of(&bytes).collect();
        assert_eq!(
            read,
            [
                Ok((1, FieldValue::Varint(150))),
                Ok((2, FieldValue::Bytes(b"hi"))),
                Err(WireError("truncated in a number"))
            ]
        );
        assert!(WireFields::of(&[0xff; 12]).next().is_some_and(|field| field.is_err()));
        assert!(WireFields::of(&[0x12, 0x7f]).next().is_some_and(|field| field.is_err()));
        assert!(WireFields::of(&[0x0b]).next().is_some_and(|field| field.is_err()));
    }
}
