//! Tokens of Rust sources, for tests that read them.

fn is_part_of_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

pub fn is_word(token: &str) -> bool {
    token.starts_with(is_part_of_word)
}

/// Words and marks of a source, without comments, texts and lifetimes.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c| !is_part_of_word(c)).unwrap_or(rest.len());
        let quoted = &rest[word..];
        let hashes = quoted.len() - quoted.trim_start_matches('#').len();
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if matches!(&rest[..word], "r" | "br" | "cr") && quoted[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = word + hashes + 1;
            rest[begin..]
                .find(&end)
                .map_or(rest.len(), |at| begin + at + end.len())
        } else if first == '"' {
            escaped(rest, '"')
        } else if first == '\'' {
            let mut after = rest.chars().skip(1);
            match (after.next(), after.next()) {
                (Some('\\'), _) | (_, Some('\'')) => escaped(rest, '\''),
                _ => 1 + rest[1..].find(|c| !is_part_of_word(c)).unwrap_or_default(),
            }
        } else {
            let length = match word {
                0 if rest.starts_with("::") => 2,
                0 => first.len_utf8(),
                word => word,
            };
            if !first.is_whitespace() {
                tokens.push(&rest[..length]);
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// Length of a text from its quote to the next one that no backslash escapes.
fn escaped(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

pub fn without_attributes_and_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some((first, after)) = rest.split_first() {
        match rest {
            ["#", "!", "[", ..] => rest = &rest[2 + group(&rest[2..])..],
            ["#", "[", ..] => {
                let (attribute, after) = rest.split_at(1 + group(&rest[1..]));
                let is_test = attribute.starts_with(&["#", "[", "cfg", "(", "test", ")"])
                    || attribute.starts_with(&["#", "[", "cfg", "(", "all", "(", "test"]);
                rest = if is_test {
                    &after[item(after)..]
                } else {
                    after
                };
            }
            _ => {
                kept.push(*first);
                rest = after;
            }
        }
    }
    kept
}

/// Tokens of a group in brackets, which begins here.
fn group(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Tokens of the item, field or statement that begins here.
fn item(tokens: &[&str]) -> usize {
    let mut at = 0;
    while tokens.get(at) == Some(&"#") {
        at += 1 + group(&tokens[at + 1..]);
    }
    let mut is_field = true;
    let mut is_ended_by_braces = true;
    while let Some(&token) = tokens.get(at) {
        match token {
            ";" => return at + 1,
            "," if is_field => return at + 1,
            "}" | ")" | "]" => return at,
            "{" if is_ended_by_braces => return at + group(&tokens[at..]),
            "{" | "(" | "[" => at += group(&tokens[at..]),
            word => {
                is_ended_by_braces &= !matches!(word, "use" | "static" | "let" | "=");
                is_field &= !matches!(word, "fn" | "struct" | "enum" | "impl" | "trait" | "type");
                at += 1;
            }
        }
    }
    at
}
