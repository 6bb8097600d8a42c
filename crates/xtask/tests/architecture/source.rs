//! Rust source reduced to what the checks may look at: code without comments, strings and test parts.
//! A dozen lexical rules instead of a parser: enough to tell `unwrap()` in code from `unwrap()` in a sentence.

use std::ops::Range;

/// The source with comments, strings and character literals blanked; line breaks stay where they are.
pub(crate) fn code_only(source: &str) -> String {
    let letters: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < letters.len() {
        let end = literal_end(&letters, at);
        match end {
            Some(end) => {
                code.extend(letters[at..end].iter().map(|letter| if *letter == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                code.push(letters[at]);
                at += 1;
            }
        }
    }
    code
}

/// If a comment or a literal starts here, where it ends.
fn literal_end(letters: &[char], at: usize) -> Option<usize> {
    let next = letters.get(at + 1).copied();
    match letters[at] {
        '/' if next == Some('/') => Some(find(letters, at, &['\n'])),
        '/' if next == Some('*') => Some(block_comment_end(letters, at)),
        '"' => Some(string_end(letters, at)),
        'r' if !follows_a_name(letters, at) => raw_string_end(letters, at),
        '\'' => char_end(letters, at),
        _ => None,
    }
}

/// `br"..."` is a raw string, `bar"..."` is no Rust.
fn follows_a_name(letters: &[char], at: usize) -> bool {
    let is_name = |letter: &char| letter.is_alphanumeric() || *letter == '_';
    let before = letters[..at].iter().rev().take_while(|letter| is_name(letter)).collect::<Vec<_>>();
    !matches!(before.as_slice(), [] | ['b'] | ['c'])
}

fn find(letters: &[char], from: usize, wanted: &[char]) -> usize {
    let place = letters[from..].windows(wanted.len()).position(|window| window == wanted);
    place.map_or(letters.len(), |offset| from + offset)
}

fn block_comment_end(letters: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut here = at;
    while here < letters.len() {
        match (letters[here], letters.get(here + 1)) {
            ('/', Some('*')) => (depth, here) = (depth + 1, here + 2),
            ('*', Some('/')) => (depth, here) = (depth - 1, here + 2),
            _ => here += 1,
        }
        if depth == 0 {
            break;
        }
    }
    here
}

fn string_end(letters: &[char], at: usize) -> usize {
    let mut here = at + 1;
    while here < letters.len() {
        match letters[here] {
            '\\' => here += 2,
            '"' => return here + 1,
            _ => here += 1,
        }
    }
    letters.len()
}

fn raw_string_end(letters: &[char], at: usize) -> Option<usize> {
    let hashes = letters[at + 1..].iter().take_while(|letter| **letter == '#').count();
    if letters.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let closing: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    Some((find(letters, at + 2 + hashes, &closing) + closing.len()).min(letters.len()))
}

/// `'a'` and `'\n'` are literals, the `'a` of a lifetime is not.
fn char_end(letters: &[char], at: usize) -> Option<usize> {
    match (letters.get(at + 1)?, letters.get(at + 2)) {
        ('\\', _) => Some((find(letters, at + 3, &['\'']) + 1).min(letters.len())),
        (_, Some('\'')) => Some(at + 3),
        _ => None,
    }
}

/// The code without the items marked `#[cfg(test)]`; their lines become empty.
pub(crate) fn without_test_parts(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut from = 0;
    for part in test_parts(code) {
        kept.push_str(&code[from..part.start]);
        kept.extend(code[part.clone()].chars().filter(|letter| *letter == '\n'));
        from = part.end;
    }
    kept + &code[from..]
}

/// How many lines are not inside an item marked `#[cfg(test)]`.
pub(crate) fn lines_outside_tests(code: &str) -> usize {
    let in_tests: usize = test_parts(code).into_iter().map(|part| code[part].lines().count()).sum();
    code.lines().count().saturating_sub(in_tests)
}

fn test_parts(code: &str) -> Vec<Range<usize>> {
    let mark = "#[cfg(test)]";
    let mut parts = Vec::new();
    let mut from = 0;
    while let Some(offset) = code[from..].find(mark) {
        let start = from + offset;
        from = start + mark.len() + item_end(&code[start + mark.len()..]);
        parts.push(start..from);
    }
    parts
}

/// An item ends with the brace that closes its first one, or with a semicolon before any brace.
fn item_end(item: &str) -> usize {
    let mut depth = 0_usize;
    for (place, letter) in item.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth <= 1 => return place + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return place + 1,
            _ => {}
        }
    }
    item.len()
}

#[test]
fn comments_and_literals_are_blanked_and_lines_stay() {
    let source = concat!(
        "let a = \"x.unwrap() \\\" {\"; // y.unwrap()\n",
        "let b = r#\"z \" unwrap()\"#; /* a /* b */ c */ '{'\n",
        "fn f<'a>(x: &'a str) { bar.unwrap() }",
    );
    let code = code_only(source);
    assert_eq!(code.lines().count(), 3);
    assert_eq!(code.matches("unwrap()").count(), 1);
    assert_eq!(code.matches('{').count(), 1);
    assert!(code.contains("fn f<'a>(x: &'a str)"), "{code}");
}

#[test]
fn test_parts_are_left_out_and_lines_stay() {
    let code = concat!(
        "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { c.unwrap() }\n}\n",
        "#[cfg(test)]\nmod more;\nfn d() {}",
    );
    let kept = without_test_parts(code);
    assert_eq!(kept.lines().count(), code.lines().count());
    assert!(kept.contains("fn a()") && kept.contains("fn d()"), "{kept}");
    assert!(!kept.contains("unwrap") && !kept.contains("more"), "{kept}");
    assert_eq!(lines_outside_tests(code), 2);
}
