//! Regular expressions translated to RE2, Envoy's engine.
//!
//! Policies are validated with Rust's syntax, which has more features and other meanings: `\d` is every Unicode digit in
//! Rust and ten characters in RE2. So an expression is parsed with Rust's parser and written again from its meaning, in
//! bytes, since Envoy matches bytes. One invalid expression would make Envoy reject its whole route configuration.

use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};
use regex_syntax::utf8::{Utf8Range, Utf8Sequence, Utf8Sequences};

/// RE2's limit.
const MAX_REPEATS: u32 = 1000;

/// The error says what RE2 does not support.
pub(super) fn render(pattern: &str) -> Result<String, String> {
    let hir = regex_syntax::ParserBuilder::new().utf8(false).build().parse(pattern);
    let hir = hir.map_err(|error| error.to_string().lines().last().unwrap_or_default().to_owned())?;
    let mut text = String::new();
    write(&hir, &mut text)?;
    Ok(text)
}

fn write(hir: &Hir, out: &mut String) -> Result<(), String> {
    match hir.kind() {
        HirKind::Empty => out.push_str("(?:)"),
        HirKind::Literal(bytes) => bytes.0.iter().for_each(|byte| push(*byte, out)),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges().iter().map(|range| (range.start(), range.end()));
            write_letters(ranges, out);
        }
        HirKind::Class(Class::Bytes(class)) => {
            let ranges = class.ranges().iter().map(|range| (range.start(), range.end()));
            out.push_str(&bytes_class(ranges));
        }
        HirKind::Look(look) => out.push_str(anchor(*look)?),
        HirKind::Repetition(repetition) => write_repetition(repetition, out)?,
        HirKind::Capture(capture) => group(&capture.sub, out)?,
        HirKind::Concat(parts) => {
            for part in parts {
                // An alternation within a sequence needs a group.
                if matches!(part.kind(), HirKind::Alternation(_)) {
                    group(part, out)?
                } else {
                    write(part, out)?
                }
            }
        }
        HirKind::Alternation(parts) => {
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                write(part, out)?;
            }
        }
    }
    Ok(())
}

fn group(hir: &Hir, out: &mut String) -> Result<(), String> {
    out.push_str("(?:");
    write(hir, out)?;
    out.push(')');
    Ok(())
}

fn write_repetition(repetition: &Repetition, out: &mut String) -> Result<(), String> {
    if repetition.min > MAX_REPEATS || repetition.max.is_some_and(|max| max > MAX_REPEATS) {
        return Err(format!("more than {MAX_REPEATS} repetitions, which Envoy does not support"));
    }
    group(&repetition.sub, out)?;
    match (repetition.min, repetition.max) {
        (0, Some(1)) => out.push('?'),
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (min, None) => out.push_str(&format!("{{{min},}}")),
        (min, Some(max)) => out.push_str(&format!("{{{min},{max}}}")),
    }
    if !repetition.greedy {
        out.push('?');
    }
    Ok(())
}

/// A text as a pattern for itself.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::new();
    text.bytes().for_each(|byte| push(byte, &mut out));
    out
}

/// Letters and digits as they are, everything else by number: nothing has to be escaped.
fn push(byte: u8, out: &mut String) {
    if byte.is_ascii_alphanumeric()
        || matches!(byte, b'/' | b'_' | b'-' | b' ' | b'%' | b'=' | b'&' | b':' | b',')
    {
        out.push(char::from(byte));
    } else {
        out.push_str(&format!("\\x{byte:02x}"));
    }
}

/// One of these letters: those of one byte in brackets, longer ones as the bytes that they are written with.
fn write_letters(ranges: impl Iterator<Item = (char, char)>, out: &mut String) {
    let (mut single, mut longer) = (Vec::new(), Vec::new());
    for sequence in ranges.flat_map(|(first, last)| Utf8Sequences::new(first, last)) {
        match sequence {
            Utf8Sequence::One(range) => single.push((range.start, range.end)),
            sequence => longer.push(sequence),
        }
    }
    if longer.is_empty() {
        out.push_str(&bytes_class(single.into_iter()));
        return;
    }
    let mut ways: Vec<String> = Vec::new();
    if !single.is_empty() {
        ways.push(bytes_class(single.into_iter()));
    }
    let one = |range: &Utf8Range| bytes_class([(range.start, range.end)].into_iter());
    ways.extend(longer.iter().map(|sequence| sequence.as_slice().iter().map(one).collect::<String>()));
    out.push_str(&format!("(?:{})", ways.join("|")));
}

fn bytes_class(ranges: impl Iterator<Item = (u8, u8)>) -> String {
    let mut inside = String::new();
    for (first, last) in ranges {
        inside.push_str(&format!("\\x{first:02x}"));
        if first != last {
            inside.push_str(&format!("-\\x{last:02x}"));
        }
    }
    // A class of nothing matches nothing; RE2 has no empty brackets.
    if inside.is_empty() { "[^\\x00-\\xff]".to_owned() } else { format!("[{inside}]") }
}

fn anchor(look: Look) -> Result<&'static str, String> {
    match look {
        Look::Start => Ok("\\A"),
        Look::End => Ok("\\z"),
        Look::StartLF => Ok("(?m:^)"),
        Look::EndLF => Ok("(?m:$)"),
        Look::WordAscii | Look::WordUnicode => Ok("\\b"),
        Look::WordAsciiNegate | Look::WordUnicodeNegate => Ok("\\B"),
        _ => Err("a kind of word boundary that Envoy does not support".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn patterns_are_written_from_their_meaning_in_bytes() {
        for (pattern, expected) in [
            ("/v[0-9]+/items", r"/v(?:[\x30-\x39])+/items"),
            ("^v[0-9]+$", r"\Av(?:[\x30-\x39])+\z"),
            ("x(a|bc)*?y", r"x(?:(?:a|bc))*?y"),
            ("(?i)ab{2,3}", r"[\x41\x61](?:[\x42\x62]){2,3}"),
            (r"\.html", r"\x2ehtml"),
            ("ä[äö]", r"\xc3\xa4(?:[\xc3][\xa4]|[\xc3][\xb6])"),
            ("(?x) a  b # words", "ab"),
            ("", "(?:)"),
        ] {
            assert_eq!(render(pattern).as_deref(), Ok(expected), "{pattern}");
        }
        assert!(render(".").unwrap().starts_with(r"(?:[\x00-\x09\x0b-\x7f]|[\xc2-\xdf][\x80-\xbf]|"));
    }

    #[test]
    fn what_envoy_cannot_do_is_said() {
        assert!(render("a{1001}").unwrap_err().contains("1000"));
        assert!(render(r"\b{start}a").unwrap_err().contains("boundary"));
    }

    #[test]
    fn what_is_written_matches_the_same_texts() {
        let texts =
            ["", "a", "ab", "abcab", "7", "\u{664}", "x y", "/id/ä/7", "cab", "é", "\n", "a|b", "A_ß"];
        for pattern in [
            r"\d+",
            r"[^a-c]x?",
            r"(ab|c){0,3}",
            r"\w\s\w",
            r"/(?P<id>[a-z]+)/.*",
            "a||b",
            ".",
            r"\w+",
            r"[^/]*",
        ] {
            let read =
                |text: &str| regex::bytes::RegexBuilder::new(&format!(r"\A(?:{text})\z")).build().unwrap();
            let (own, written) = (read(pattern), format!("(?-u:{})", render(pattern).unwrap()));
            let written = read(&written);
            for text in texts {
                assert_eq!(
                    own.is_match(text.as_bytes()),
                    written.is_match(text.as_bytes()),
                    "{pattern} {text:?}"
                );
            }
        }
    }
}
