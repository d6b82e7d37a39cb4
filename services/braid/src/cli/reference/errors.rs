//! The page of errors: exit statuses, answers to calls, and messages in logs and on terminals.

use super::*;

/// Failures that no constant names.
const EXITS: [(&str, &str); 2] = [
    ("0", "done"),
    (
        "1",
        "failed, with one line on standard error; also: a target is missed, a check found something",
    ),
];

/// The text of a literal at the beginning of `text`, with `…` for its arguments; else `None`.
fn literal(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let text = text.strip_prefix("format!(").unwrap_or(text).trim_start();
    let text = text.strip_prefix('"')?;
    let (mut found, mut rest) = (String::new(), text.char_indices());
    while let Some((at, character)) = rest.next() {
        match character {
            '"' => return Some((arguments(&found), &text[at + 1..])),
            // A line that goes on, or a quote.
            '\\' => match rest.next()?.1 {
                '\n' => found.push(' '),
                other => found.push(other),
            },
            other => found.push(other),
        }
    }
    None
}

fn arguments(text: &str) -> String {
    let mut parts = text.split('{');
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.split_once('}').map_or("", |(_, rest)| rest);
        found.push('…');
        found.push_str(rest);
    }
    cell(&found)
}

/// Lines of documentation at the end of `text`, up to the first full stop.
fn documented(text: &str) -> String {
    let lines = text.trim_end().lines().rev();
    let lines = lines.map_while(|line| line.trim().strip_prefix("///"));
    let mut lines: Vec<&str> = lines.collect();
    lines.reverse();
    let text = cell(&lines.join(" "));
    text.split_inclusive(". ")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn exits() -> String {
    let mut rows: Vec<(u32, String)> = Vec::new();
    for (status, meaning) in EXITS {
        rows.push((status.parse().unwrap(), meaning.to_owned()));
    }
    for (_, text) in code() {
        let mut before = 0;
        while let Some(at) = text[before..].find("const EXIT_") {
            let at = before + at;
            before = at + 1;
            let line = text[at..].lines().next().unwrap_or_default();
            let value = line.split_once('=').map(|(_, value)| value);
            let Some(Ok(status)) = value.map(|it| it.trim().trim_end_matches(';').parse()) else {
                continue;
            };
            let above = text[..at]
                .trim_end_matches("pub ")
                .trim_end_matches("pub(crate) ");
            rows.push((status, documented(above)));
        }
    }
    rows.sort();
    let rows = rows
        .iter()
        .map(|(status, meaning)| format!("| {status} | {meaning} |\n"));
    rows.collect()
}

fn answers() -> String {
    let mut page = String::new();
    for (file, text) in code() {
        for call in text.split("Status::").skip(1) {
            let Some((name, rest)) = call.split_once('(') else {
                continue;
            };
            let is_code = name.chars().all(|it| it.is_ascii_lowercase() || it == '_');
            if let Some((message, _)) = literal(rest)
                && is_code
            {
                let status = name.to_uppercase();
                let _ = writeln!(page, "| `{status}` | {message} | `{file}` |");
            }
        }
    }
    page
}

fn messages() -> String {
    let mut page = String::new();
    for (file, text) in code() {
        let mut parts = text.split("#[error(");
        let mut before = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let of = before.rsplit("enum ").next().unwrap_or_default();
            let of = of
                .split([' ', '{', '<'])
                .next()
                .unwrap_or_default()
                .to_owned();
            let meaning = documented(&before);
            before.push_str(part);
            let Some((message, rest)) = literal(part) else {
                continue;
            };
            let declared = rest
                .split_once(")]")
                .map_or("", |(_, rest)| rest)
                .trim_start();
            let is_struct = declared.starts_with("pub struct ") || declared.starts_with("struct ");
            let declared = declared
                .trim_start_matches("pub ")
                .trim_start_matches("struct ");
            let name = declared.split(|it: char| !it.is_alphanumeric()).next();
            let name = match name.unwrap_or_default() {
                name if is_struct => name.to_owned(),
                name => format!("{of}::{name}"),
            };
            let _ = writeln!(page, "| {message} | `{name}` | {meaning} | `{file}` |");
        }
    }
    page
}

pub(super) fn page() -> String {
    format!(
        "# Errors\n\nTexts as the sources write them, with `…` for what is filled in. `make \
         reference` writes this page.\n\n\
         ## Exit status\n\n| status | meaning |\n|---|---|\n{}\n\
         ## Answers to calls\n\nBy gRPC. Over HTTP the page's server turns them into statuses of \
         HTTP.\n\n| code | message | file |\n|---|---|---|\n{}\n\
         ## Messages\n\nIn logs, on standard error, in answers.\n\n\
         | message | error | meaning | file |\n|---|---|---|---|\n{}",
        exits(),
        answers(),
        messages()
    )
}

#[test]
fn messages_are_found_with_their_error_and_meaning() {
    let page = page();
    let row = "| the bus does not answer: … | `PublishError::Unavailable` |";
    assert!(page.contains(row), "no row of the bus");
    assert!(page.contains("| 64 | "), "no exit status of configuration");
    assert!(page.contains("| `PERMISSION_DENIED` | the certificate is revoked |"));
    let (text, rest) = literal(" format!(\n \"a \\\n   {b} \\\"c\\\"\", d)").unwrap();
    assert_eq!((text.as_str(), rest), ("a … \"c\"", ", d)"));
}
