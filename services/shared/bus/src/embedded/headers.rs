//! Headers as one blob: for each, length and bytes of the name, length and bytes of the value;
//! lengths are u32 little endian.

use bytes::Bytes;

/// `None` when there are none, which costs a record a single byte.
pub fn encode(headers: &[(String, Bytes)]) -> Option<Vec<u8>> {
    if headers.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    for (name, value) in headers {
        for part in [name.as_bytes(), value.as_ref()] {
            // `publish` refuses a record of 1 MiB or more, headers included.
            out.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(part);
        }
    }
    Some(out)
}

/// `None` when the blob is cut or a name is not UTF-8.
pub fn decode(mut blob: &[u8]) -> Option<Vec<(String, Bytes)>> {
    let mut headers = Vec::new();
    while !blob.is_empty() {
        let name = part(&mut blob)?;
        let value = part(&mut blob)?;
        headers.push((
            String::from_utf8(name.to_vec()).ok()?,
            Bytes::copy_from_slice(value),
        ));
    }
    Some(headers)
}

fn part<'a>(blob: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = blob.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *blob = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_come_back_and_a_cut_blob_is_refused() {
        let headers = vec![
            ("reason".to_owned(), Bytes::from_static(b"no\0utf8\xff")),
            (String::new(), Bytes::new()),
        ];
        let blob = encode(&headers).unwrap();
        assert_eq!(decode(&blob), Some(headers));
        assert_eq!(encode(&[]), None);
        for cut in 1..blob.len() {
            // The end of the first header is a legal end.
            if cut != 4 + "reason".len() + 4 + b"no\0utf8\xff".len() {
                assert_eq!(decode(&blob[..cut]), None, "cut at {cut}");
            }
        }
    }
}
