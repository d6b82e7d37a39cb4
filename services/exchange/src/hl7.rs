//! HL7 v2 messages as segments, fields, repetitions and components. Sans-IO.
//!
//! Positions count from 1, as in the standard. A position that is absent is an empty text.

use std::borrow::Cow;

/// Segments of one message. An admission has some tens.
const SEGMENTS_MAX: usize = 1_000;
const MSH: &str = "MSH";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Hl7Error {
    #[error("the message does not begin with MSH and its delimiters")]
    NoHeader,
    #[error(
        "the message is neither UTF-8 nor of a character set that MSH-18 names and Braid reads"
    )]
    Text,
    #[error("the message has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
}

/// The five characters that MSH declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Delimiters {
    field: char,
    component: char,
    repetition: char,
    escape: char,
    subcomponent: char,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    text: String,
    delimiters: Delimiters,
}

#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    line: &'a str,
    delimiters: Delimiters,
}

/// One repetition of a field.
#[derive(Debug, Clone, Copy)]
pub struct Field<'a> {
    text: &'a str,
    delimiters: Delimiters,
}

impl Message {
    pub fn parse(bytes: &[u8]) -> Result<Message, Hl7Error> {
        let text = text_of(bytes)?;
        let mut marks = text.strip_prefix(MSH).ok_or(Hl7Error::NoHeader)?.chars();
        let mut mark = || {
            let next = marks.next().filter(char::is_ascii_punctuation);
            next.ok_or(Hl7Error::NoHeader)
        };
        let delimiters = Delimiters {
            field: mark()?,
            component: mark()?,
            repetition: mark()?,
            escape: mark()?,
            subcomponent: mark()?,
        };
        let all = [
            delimiters.field,
            delimiters.component,
            delimiters.repetition,
            delimiters.escape,
            delimiters.subcomponent,
        ];
        let is_twice = |(at, it): (usize, &char)| all[..at].contains(it);
        if all.iter().enumerate().any(is_twice) {
            return Err(Hl7Error::NoHeader);
        }
        let message = Message { text, delimiters };
        if message.segments().nth(SEGMENTS_MAX).is_some() {
            return Err(Hl7Error::TooManySegments);
        }
        Ok(message)
    }

    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let lines = self.text.split(['\r', '\n']);
        let lines = lines.filter(|line| !line.trim().is_empty());
        lines.map(|line| Segment {
            line,
            delimiters: self.delimiters,
        })
    }

    /// The first segment of this name.
    pub fn segment(&self, name: &str) -> Option<Segment<'_>> {
        self.segments().find(|segment| segment.name() == name)
    }

    /// A component of the first repetition of a field; empty if there is none.
    pub fn value(&self, segment: &str, field: usize, component: usize) -> Cow<'_, str> {
        let found = self.segment(segment).map(|it| it.field(field));
        found.map_or(Cow::Borrowed(""), |field| field.component(component))
    }
}

impl<'a> Segment<'a> {
    pub fn name(&self) -> &'a str {
        self.line
            .split(self.delimiters.field)
            .next()
            .unwrap_or_default()
    }

    /// The whole field, with its repetitions.
    fn whole(&self, number: usize) -> &'a str {
        // The first delimiter of MSH is itself a field, which nobody asks for.
        let after_name = match self.name() {
            MSH => number.checked_sub(2),
            _ => number.checked_sub(1),
        };
        let mut fields = self.line.split(self.delimiters.field).skip(1);
        let found = after_name.and_then(|place| fields.nth(place));
        found.unwrap_or_default()
    }

    pub fn field(&self, number: usize) -> Field<'a> {
        let mut all = self.fields(number);
        all.next().unwrap_or(Field {
            text: "",
            delimiters: self.delimiters,
        })
    }

    /// Every repetition of the field.
    pub fn fields(&self, number: usize) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let delimiters = self.delimiters;
        let all = self.whole(number).split(delimiters.repetition);
        all.map(move |text| Field { text, delimiters })
    }
}

impl<'a> Field<'a> {
    /// The first subcomponent of a component, without escapes.
    pub fn component(&self, number: usize) -> Cow<'a, str> {
        self.subcomponent(number, 1)
    }

    pub fn subcomponent(&self, number: usize, part: usize) -> Cow<'a, str> {
        let nth = |text: &'a str, mark: char, number: usize| {
            text.split(mark).nth(number.saturating_sub(1))
        };
        let component = nth(self.text, self.delimiters.component, number).unwrap_or_default();
        let found = nth(component, self.delimiters.subcomponent, part).unwrap_or_default();
        self.unescaped(found.trim())
    }

    /// The sender asks to delete the value.
    pub fn is_null(&self) -> bool {
        self.text == "\"\""
    }

    fn unescaped(&self, text: &'a str) -> Cow<'a, str> {
        if !text.contains(self.delimiters.escape) {
            return Cow::Borrowed(text);
        }
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(self.delimiters.escape) {
            plain.push_str(before);
            let Some((code, after)) = after.split_once(self.delimiters.escape) else {
                // An escape without an end is text.
                plain.push(self.delimiters.escape);
                rest = after;
                continue;
            };
            match code {
                "F" => plain.push(self.delimiters.field),
                "S" => plain.push(self.delimiters.component),
                "T" => plain.push(self.delimiters.subcomponent),
                "R" => plain.push(self.delimiters.repetition),
                "E" => plain.push(self.delimiters.escape),
                ".br" => plain.push('\n'),
                // Highlighting, character sets and codes of the sender are no text.
                _ => {}
            }
            rest = after;
        }
        plain.push_str(rest);
        Cow::Owned(plain)
    }
}

/// MSH-18 is ASCII in every character set that is read here.
fn text_of(bytes: &[u8]) -> Result<String, Hl7Error> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(text.trim_start_matches('\u{feff}').to_owned());
    }
    let header = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next();
    let header = String::from_utf8_lossy(header.unwrap_or_default());
    let mark = header.chars().nth(MSH.len()).unwrap_or('|');
    let named = header.split(mark).nth(17).unwrap_or_default();
    match named.trim() {
        // Each byte of ISO 8859-1 is the character of its number.
        "8859/1" => Ok(bytes.iter().map(|&byte| char::from(byte)).collect()),
        _ => Err(Hl7Error::Text),
    }
}

/// A text by the delimiters of the messages that are written here.
pub fn escaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '|' => plain.push_str("\\F\\"),
            '^' => plain.push_str("\\S\\"),
            '&' => plain.push_str("\\T\\"),
            '~' => plain.push_str("\\R\\"),
            '\\' => plain.push_str("\\E\\"),
            it if it.is_control() => plain.push(' '),
            it => plain.push(it),
        }
    }
    plain
}

/// A time of HL7, in UTC.
pub fn time(us: i64) -> String {
    let text = calendar::rfc3339(us).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_digit).take(14).collect();
    format!("{digits}+0000")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ADMISSION: &str = "MSH|^~\\&|KIS|HOSP|BRAID|WARD|20261129140000||ADT^A01^ADT_A01|7|P|2.5.1\r\
        PID|1||4711^^^HOSP^MR~123^^^INS&1.2.3&ISO^SS||M\\T\\S^Ann \\E\\||19400131|F\r";

    #[test]
    fn fields_components_repetitions_and_escapes() {
        let message = Message::parse(ADMISSION.as_bytes()).unwrap();
        assert_eq!(message.value("MSH", 9, 2), "A01");
        assert_eq!(message.value("MSH", 1, 1), "");
        assert_eq!(message.value("PID", 5, 1), "M&S");
        assert_eq!(message.value("PID", 5, 2), "Ann \\");
        assert_eq!(message.value("PID", 99, 1), "");
        assert_eq!(message.value("ZZZ", 1, 1), "");
        let pid = message.segment("PID").unwrap();
        let numbers: Vec<_> = pid.fields(3).map(|it| it.component(1)).collect();
        assert_eq!(numbers, ["4711", "123"]);
        let second = pid.fields(3).nth(1).unwrap();
        assert_eq!(second.subcomponent(4, 2), "1.2.3");
    }

    #[test]
    fn other_delimiters_and_character_sets_are_read() {
        let text = "MSH#*!?%#A#B#C#D#2026##ADT*A08#1#P#2.3######8859/1\rPID#1##9##M";
        let mut bytes = text.as_bytes().to_vec();
        bytes.extend([0xfc, b'l']);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.value("MSH", 9, 2), "A08");
        assert_eq!(message.value("PID", 5, 1), "Mül");
        let unnamed = text.replace("8859/1", "GB 18030");
        let mut bytes = unnamed.into_bytes();
        bytes.push(0xfc);
        assert_eq!(Message::parse(&bytes), Err(Hl7Error::Text));
    }

    #[test]
    fn what_is_no_message_is_refused_and_no_message_panics() {
        for text in ["", "PID|1", "MSH", "MSH|^~\\", "MSH|||||", "MSHabcdef"] {
            assert_eq!(
                Message::parse(text.as_bytes()),
                Err(Hl7Error::NoHeader),
                "{text}"
            );
        }
        let many = format!("MSH|^~\\&|{}", "\rZZZ|1".repeat(SEGMENTS_MAX));
        let refused = Message::parse(many.as_bytes());
        assert_eq!(refused, Err(Hl7Error::TooManySegments));
        for end in 0..ADMISSION.len() {
            if let Ok(message) = Message::parse(&ADMISSION.as_bytes()[..end]) {
                for number in 0..9 {
                    let _ = message.value("PID", number, number);
                }
            }
        }
    }
}
