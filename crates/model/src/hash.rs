//! FNV-1a with 32, 64 and 128 bits: stable across machines and versions.

/// The initial value of [`fnv1a_32`].
pub const BASIS_32: u32 = 0x811c_9dc5;
/// The initial value of [`fnv1a_64`].
pub const BASIS_64: u64 = 0xcbf2_9ce4_8422_2325;
/// The initial value of [`fnv1a_128`].
pub const BASIS_128: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;

/// Continues a hash with more bytes.
pub fn fnv1a_32(hash: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Continues a hash with more bytes.
pub fn fnv1a_64(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Continues a hash with more bytes.
pub fn fnv1a_128(hash: u128, bytes: &[u8]) -> u128 {
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(hash, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_the_letter_a_are_the_published_ones() {
        assert_eq!(fnv1a_32(BASIS_32, b"a"), 0xe40c_292c);
        assert_eq!(fnv1a_64(BASIS_64, b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a_128(BASIS_128, b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
