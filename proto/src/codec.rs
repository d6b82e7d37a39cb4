//! The codec of the contracts for gRPC: protobuf, with a bound of the number of fields.
//!
//! An empty entry of a list is two bytes on the wire and some 300 in memory. So a message of 4 MiB
//! could take 600.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{self, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

/// Fields of a message; a message with more is refused before it is decoded. Each entry of a list
/// counts, the fields within it do not.
const FIELDS_MAX: usize = 1 << 16;

/// Decodes a message within the bound; the generated services and clients use it.
pub fn decode<M: Message + Default>(whole: Bytes) -> Result<M, Status> {
    if has_more_fields(&whole, FIELDS_MAX) {
        return Err(Status::invalid_argument(format!(
            "the message has more than {FIELDS_MAX} fields"
        )));
    }
    M::decode(whole).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Malformed bytes count as the end: decoding reports them.
fn has_more_fields(mut message: &[u8], max: usize) -> bool {
    let mut count = 0;
    while count <= max && !message.is_empty() {
        let skipped = decode_key(&mut message)
            .and_then(|(tag, kind)| skip_field(kind, tag, &mut message, DecodeContext::default()));
        if skipped.is_err() {
            return false;
        }
        count += 1;
    }
    count > max
}

pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Bounded<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Bounded(PhantomData)
    }
}

pub struct Bounded<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for Bounded<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        decode(from.copy_to_bytes(from.remaining())).map(Some)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::vitals::{Sample, UploadRequest};

    #[test]
    fn a_message_of_millions_of_empty_entries_is_not_decoded() {
        let upload = |entries: usize| {
            // Field 2, without a byte.
            let mut whole = [0x12, 0].repeat(entries);
            whole.extend(
                UploadRequest {
                    position: 7,
                    ..UploadRequest::default()
                }
                .encode_to_vec(),
            );
            decode::<UploadRequest>(whole.into())
        };
        let known = upload(FIELDS_MAX - 1).unwrap();
        assert_eq!((known.position, known.samples.len()), (7, FIELDS_MAX - 1));
        assert!(upload(FIELDS_MAX).is_err());
        // An upload of 4 MiB, the largest that gRPC accepts.
        assert!(size_of::<Sample>() > 200);
        assert!(upload((4 << 20) / 2 - 1).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused_and_what_is_within_an_entry_is_not_counted() {
        assert!(decode::<UploadRequest>(Bytes::from_static(&[0x12, 5, 1])).is_err());
        let many = Sample {
            device: "d".repeat(FIELDS_MAX * 2),
            ..Sample::default()
        };
        let whole = UploadRequest {
            samples: vec![many; 2],
            ..UploadRequest::default()
        };
        assert_eq!(
            decode::<UploadRequest>(whole.encode_to_vec().into()).unwrap(),
            whole
        );
    }
}
