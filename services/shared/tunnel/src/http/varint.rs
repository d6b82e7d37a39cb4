//! Variable-length integers (RFC 9000, 16).

use bytes::BufMut;

/// Largest value of a variable-length integer.
pub(crate) const MAX: u64 = (1 << 62) - 1;

/// The integer at the front and its length; `None` while it is incomplete.
pub(crate) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let bytes = bytes.get(..length)?;
    let mut value = u64::from(first & 0x3f);
    for byte in &bytes[1..] {
        value = value << 8 | u64::from(*byte);
    }
    Some((value, length))
}

/// The length of the shortest form.
pub(crate) fn length(value: u64) -> u64 {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// The shortest form.
pub(crate) fn put(out: &mut impl BufMut, value: u64) {
    debug_assert!(value <= MAX);
    match length(value) {
        1 => out.put_u8(value as u8),
        2 => out.put_u16(value as u16 | 0x4000),
        4 => out.put_u32(value as u32 | 0x8000_0000),
        _ => out.put_u64(value | 0xc000_0000_0000_0000),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn integers_have_the_shortest_form() {
        for (value, bytes) in [
            (0, &[0][..]),
            (63, &[63]),
            (64, &[0x40, 64]),
            (16_383, &[0x7f, 0xff]),
            (16_384, &[0x80, 0, 0x40, 0]),
            ((1 << 30) - 1, &[0xbf, 0xff, 0xff, 0xff]),
            (1 << 30, &[0xc0, 0, 0, 0, 0x40, 0, 0, 0]),
        ] {
            let mut buf = BytesMut::new();
            put(&mut buf, value);
            assert_eq!(&buf[..], bytes, "{value}");
            assert_eq!(read(bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }
}
