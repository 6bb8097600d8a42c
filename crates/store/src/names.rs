//! Names that the server makes up: ends of names for generateName, and identities.

use std::io;

/// What a generated end is made of: no vowels, so that no words come out, and nothing that looks alike.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const GENERATED: usize = 5;
const LONGEST: usize = 63;

/// `prefix` with a random end, cut so that it stays a good name.
pub fn generate(prefix: &str) -> io::Result<String> {
    let mut random = [0u8; GENERATED];
    fill(&mut random)?;
    Ok(generated(prefix, random))
}

fn generated(prefix: &str, random: [u8; GENERATED]) -> String {
    let room = LONGEST - GENERATED;
    let cut = prefix.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= room).last();
    let mut name = prefix[..cut.unwrap_or(0)].to_owned();
    name.extend(random.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])));
    name
}

/// A random (version 4) UUID.
pub fn uid() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    Ok(parts.map(hex).join("-"))
}

/// Random bytes of the machine.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| io::Error::other(format!("the machine gives no random bytes: {error}")))
}

/// A random number, for where a search starts.
pub fn seed() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_name_keeps_its_prefix_and_fits_a_label() {
        assert_eq!(generated("web-", [0, 1, 2, 3, 26]), "web-bcdf9");
        assert_eq!(generated(&"x".repeat(80), [0; 5]).len(), 63);
        assert_eq!(generated("ü".repeat(40).as_str(), [0; 5]).chars().filter(|c| *c == 'ü').count(), 29);
    }

    #[test]
    fn identities_are_uuids_of_version_four() {
        let uid = uid().unwrap();
        assert_eq!(uid.len(), 36);
        assert_eq!(&uid[14..15], "4");
        assert_ne!(uid, super::uid().unwrap());
    }
}
