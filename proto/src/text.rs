//! Text that other people and machines wrote: ids, names, reasons, notes and summaries.
//!
//! One list holds the characters that can forge what a person reads. Every door refuses them in ids
//! and names, and every writer for a terminal escapes them, because older rows may hold them.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character moves the cursor, begins a line, or turns the direction of a line. These are
/// C0, DEL, C1, the line separators and the direction marks.
pub const fn is_control(it: char) -> bool {
    matches!(it,
        '\0'..='\u{1f}'
        | '\u{7f}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}')
}

/// Whether a text is one line without control characters.
pub fn is_plain(text: &str) -> bool {
    !text.contains(is_control)
}

/// Refuses control characters, for example "has the control character U+001B".
pub fn check(text: &str) -> Result<(), NotPlain> {
    text.chars()
        .find(|it| is_control(*it))
        .map_or(Ok(()), |found| Err(NotPlain(found)))
}

/// The first control character of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPlain(char);

impl std::fmt::Display for NotPlain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "has the control character U+{:04X}", u32::from(self.0))
    }
}

impl std::error::Error for NotPlain {}

/// The text on one line of a terminal: control characters are shown as `\n` or `\u{1b}`.
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(text, is_control, |it, into| {
        into.extend(it.escape_default())
    })
}

/// The same for several lines: a newline stays one.
pub fn lines(text: &str) -> Cow<'_, str> {
    let is_shown = |it| it != '\n' && is_control(it);
    escaped(text, is_shown, |it, into| into.extend(it.escape_default()))
}

/// The same for JSON, which stays valid: a control character is shown as `\u009b`.
pub fn json(text: &str) -> Cow<'_, str> {
    let is_shown = |it| it != '\n' && is_control(it);
    escaped(text, is_shown, |it, into| {
        // Every character of the list has four digits, and writing to a string cannot fail.
        let _ = write!(into, "\\u{:04x}", u32::from(it));
    })
}

fn escaped(
    text: &str,
    is_escaped: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for it in text.chars() {
        match is_escaped(it) {
            true => escape(it, &mut shown),
            false => shown.push(it),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_forge_a_line_is_refused_and_shown_escaped() {
        for plain in ["ada", "Zo\u{eb} d'Arc-Li", "\u{5f20}\u{4f1f}", "", "a b"] {
            assert_eq!(check(plain), Ok(()), "{plain}");
            assert!(matches!(line(plain), Cow::Borrowed(_)), "{plain}");
        }
        for forged in [
            '\0', '\t', '\n', '\r', '\u{1b}', '\u{7f}', '\u{85}', '\u{9b}', '\u{61c}', '\u{200e}',
            '\u{2028}', '\u{2029}', '\u{202e}', '\u{2066}', '\u{2069}',
        ] {
            let text = format!("a{forged}b");
            assert_eq!(check(&text), Err(NotPlain(forged)));
            let within_lines = text.replace('\n', "\t");
            for shown in [line(&text), lines(&within_lines), json(&within_lines)] {
                assert!(is_plain(&shown) && shown.len() > 3, "{shown:?}");
            }
        }
        assert_eq!(line("a\n\u{1b}[2J"), "a\\n\\u{1b}[2J");
        assert_eq!(lines("a\n\tb"), "a\n\\tb");
        assert_eq!(json("[\"\u{9b}\"]\n"), "[\"\\u009b\"]\n");
        let said = check("a\u{1b}").map_err(|it| it.to_string());
        assert_eq!(said, Err("has the control character U+001B".to_owned()));
    }
}
