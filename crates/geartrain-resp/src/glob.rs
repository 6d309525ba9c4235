//! Glob patterns as Redis matches them: channel patterns and `KEYS`.

/// Whether a text matches a pattern: `*` is any text, `?` any byte, `[a-z]` a byte of the class, `[^a-z]` a
/// byte outside it, and a backslash escapes the byte that follows.
pub(crate) fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut text_at) = (0, 0);
    // Where to backtrack to: behind the last star, and the text position it was tried with.
    let mut star: Option<(usize, usize)> = None;
    while text_at < text.len() {
        let step = match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, text_at));
                at += 1;
                continue;
            }
            Some(_) => one(&pattern[at..], text[text_at]),
            None => None,
        };
        match (step, &mut star) {
            (Some(length), _) => {
                at += length;
                text_at += 1;
            }
            (None, Some((behind, taken))) => {
                *taken += 1;
                (at, text_at) = (*behind, *taken);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

/// How long the first part of a pattern is, if it matches this byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', class @ ..] => {
            let negated = class.first() == Some(&b'^');
            let mut at = usize::from(negated);
            let mut found = false;
            loop {
                match &class[at..] {
                    [] | [b']', ..] => break,
                    [b'\\', escaped, ..] => {
                        found |= *escaped == byte;
                        at += 2;
                    }
                    [low, b'-', high, ..] if *high != b']' => {
                        found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                        at += 3;
                    }
                    [only, ..] => {
                        found |= *only == byte;
                        at += 1;
                    }
                }
            }
            // A class that is not closed ends with the pattern.
            (found != negated).then_some((at + 2).min(pattern.len()))
        }
        [plain, ..] => (*plain == byte).then_some(1),
        [] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, matches) in [
            ("*", "", true),
            ("*", "ql:log", true),
            ("ql:*", "ql:log", true),
            ("ql:*", "gt:log", false),
            ("ql:w:*-1", "ql:w:host-2-1", true),
            ("ql:w:*-1", "ql:w:host-12", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[^a-c]x", "dx", true),
            ("[^a-c]x", "ax", false),
            ("[\\]]", "]", true),
            ("[ab", "b", true),
            ("[", "a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("**a**", "bab", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("a*", "", false),
        ] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), matches, "{pattern} {text}");
        }
        let slow = [&b"a*".repeat(50)[..], b"b"].concat();
        assert!(!glob(&slow, &b"a".repeat(5_000)));
    }
}
