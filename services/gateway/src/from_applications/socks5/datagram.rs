//! The header of a datagram between an application and its association (RFC 1928, 7): two reserved
//! bytes, a fragment number, and an address.

use bytes::Bytes;
use tunnel::Authority;

use super::{Target, authority, target};

/// Two reserved bytes and the fragment number.
const START_BYTES: usize = 3;

/// Why a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::from_applications) enum Unfit {
    /// Fragmented, which RFC 1928 lets a server refuse.
    Fragment,
    Malformed,
}

impl Unfit {
    /// A label of metrics, from a bounded set.
    pub(in crate::from_applications) fn label(self) -> &'static str {
        match self {
            Self::Fragment => "fragment",
            Self::Malformed => "malformed",
        }
    }
}

/// A datagram of an application.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::from_applications) struct Datagram<'a> {
    pub(in crate::from_applications) authority: Authority,
    /// The whole header. Answers of the destination have the same header, so an application that
    /// used a name gets a name.
    pub(in crate::from_applications) header: &'a [u8],
    pub(in crate::from_applications) payload: &'a [u8],
}

pub(in crate::from_applications) fn parse(bytes: &[u8]) -> Result<Datagram<'_>, Unfit> {
    let [_, _, fragment, kind, rest @ ..] = bytes else {
        return Err(Unfit::Malformed);
    };
    if *fragment != 0 {
        return Err(Unfit::Fragment);
    }
    let Ok(Some(Target {
        address,
        port,
        length,
    })) = target(*kind, rest)
    else {
        return Err(Unfit::Malformed);
    };
    if port == 0 {
        return Err(Unfit::Malformed);
    }
    let authority = authority(address, *kind, port).ok_or(Unfit::Malformed)?;
    let (header, payload) = bytes.split_at(START_BYTES + 1 + length);
    Ok(Datagram {
        authority,
        header,
        payload,
    })
}

/// The same header before the destination's payload; the reserved bytes are set to zero.
pub(in crate::from_applications) fn answer(header: &Bytes, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(header.len() + payload.len());
    datagram.extend_from_slice(header);
    datagram[..START_BYTES].fill(0);
    datagram.extend_from_slice(payload);
    datagram
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn v6() -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 4];
        bytes.extend([0; 15]);
        bytes.extend([1, 0, 53]);
        bytes
    }

    #[test]
    fn each_kind_of_address_is_understood() {
        for (header, expected) in [
            (&[0, 0, 0, 1, 127, 0, 0, 1, 0, 53][..], "127.0.0.1:53"),
            (&v6(), "[::1]:53"),
            (b"\0\0\0\x03\x03dns\0\x35", "dns:53"),
            (b"\0\0\0\x03\x03::1\0\x35", "[::1]:53"),
        ] {
            for payload in [&b"question"[..], b""] {
                let whole = [header, payload].concat();
                let datagram = parse(&whole).unwrap();
                assert_eq!(datagram.authority, expected);
                assert_eq!((datagram.header, datagram.payload), (header, payload));
                let header = Bytes::copy_from_slice(header);
                let back = answer(&header, b"answer");
                assert_eq!(parse(&back).unwrap().payload, b"answer");
            }
        }
    }

    #[test]
    fn a_truncated_header_is_malformed() {
        for header in [
            &[0, 0, 0, 1, 127, 0, 0, 1, 0, 53][..],
            &v6(),
            b"\0\0\0\x03\x03dns\0\x35",
        ] {
            for length in 0..header.len() {
                assert_eq!(parse(&header[..length]), Err(Unfit::Malformed), "{length}");
            }
        }
    }

    #[test]
    fn fragments_and_invalid_destinations_have_their_own_reasons() {
        for (bytes, expected) in [
            (&[0, 0, 1, 1, 127, 0, 0, 1, 0, 53][..], Unfit::Fragment),
            (&[0, 0, 0x80, 9], Unfit::Fragment),
            (&[0, 0, 0, 9, 127, 0, 0, 1, 0, 53], Unfit::Malformed),
            (&[0, 0, 0, 1, 127, 0, 0, 1, 0, 0], Unfit::Malformed),
            (b"\0\0\0\x03\0\0\x35", Unfit::Malformed),
            (b"\0\0\0\x03\x03a@b\0\x35", Unfit::Malformed),
            (b"\0\0\0\x03\x02\xff\xfe\0\x35", Unfit::Malformed),
        ] {
            assert_eq!(parse(bytes), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn an_answer_has_no_reserved_bytes_set() {
        let header = Bytes::from_static(&[7, 7, 0, 1, 127, 0, 0, 1, 0, 53]);
        assert_eq!(answer(&header, b"x")[..4], [0, 0, 0, 1]);
    }
}
