//! The reason of a request: the header `x-braid-reason`, UTF-8 with everything but ASCII
//! percent-encoded (RFC 3986, 2.1). It is optional and goes into the audit log, for example for an
//! unusual look at a patient's data.

use http::HeaderMap;

const HEADER: &str = "x-braid-reason";
/// Characters of a person's reason for a change.
const REASON_LENGTH_MAX: usize = 500;

const LONG: &str = "x-braid-reason: longer than 500 characters";
const FORM: &str = "x-braid-reason: no percent-encoded UTF-8, for example fall%20at%20home";
const LINE: &str = "x-braid-reason: more than one line, or control characters";

/// Empty when no reason is given. A reason that cannot be logged refuses the request, because its
/// sender relies on the log.
pub(crate) fn of(headers: &HeaderMap) -> Result<String, &'static str> {
    let Some(value) = headers.get(HEADER) else {
        return Ok(String::new());
    };
    let bytes = decoded(value.as_bytes()).ok_or(FORM)?;
    let reason = String::from_utf8(bytes).map_err(|_| FORM)?;
    let reason = reason.trim();
    if reason.chars().count() > REASON_LENGTH_MAX {
        return Err(LONG);
    }
    if !contracts::text::is_plain(reason) {
        return Err(LINE);
    }
    Ok(reason.to_owned())
}

fn decoded(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%' {
            let (digits, tail) = tail.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = tail;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn said(value: &str) -> Result<String, &'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, value.parse().unwrap());
        of(&headers)
    }

    #[test]
    fn what_is_said_is_read_and_what_would_break_the_log_is_refused() {
        assert_eq!(of(&HeaderMap::new()).unwrap(), "");
        assert_eq!(said(" fall at home ").unwrap(), "fall at home");
        assert_eq!(said("st%C3%BCrzte%2c%20100%25").unwrap(), "stürzte, 100%");
        for (value, why) in [
            ("%", FORM),
            ("%4", FORM),
            ("%+4", FORM),
            ("%zz", FORM),
            ("%ff", FORM),
            ("a%0Ab", LINE),
            (&"%C3%BC".repeat(501), LONG),
        ] {
            assert_eq!(said(value).unwrap_err(), why, "{value}");
        }
        assert_eq!(said(&"%C3%BC".repeat(500)).unwrap().chars().count(), 500);
    }
}
