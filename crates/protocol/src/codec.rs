//! Frames: the length as a little-endian `u32`, then the value in bincode. The one file that names bincode.

use bincode::config::{self, Configuration, Limit, LittleEndian, Varint};
use bytes::{Bytes, BytesMut};
use std::fmt;
use std::marker::PhantomData;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

pub use bincode::{Decode, Encode};

/// The longest frame, in bytes, its length not counted.
pub const FRAME_MAX: usize = 1024 * 1024;

// Without a limit a nine-byte frame that claims a length of 2^40 makes the decoder allocate it.
const FORMAT: Configuration<LittleEndian, Varint, Limit<FRAME_MAX>> =
    config::standard().with_limit::<FRAME_MAX>();

/// Why bytes could not be read or a value not be written.
#[derive(Debug)]
pub enum CodecError {
    /// The bytes are not a value of the expected type.
    Malformed(String),
    /// A frame longer than [`FRAME_MAX`], in either direction.
    TooLong,
    /// The connection failed.
    Io(std::io::Error),
}

/// The bytes of a value, without the length.
pub fn to_bytes<T: Encode>(value: &T) -> Result<Vec<u8>, CodecError> {
    let bytes =
        bincode::encode_to_vec(value, FORMAT).map_err(|error| CodecError::Malformed(error.to_string()))?;
    if bytes.len() > FRAME_MAX { Err(CodecError::TooLong) } else { Ok(bytes) }
}

/// The value that `bytes` are; bytes that are left over make it malformed.
pub fn from_bytes<T: Decode<()>>(bytes: &[u8]) -> Result<T, CodecError> {
    match bincode::decode_from_slice(bytes, FORMAT) {
        Ok((value, used)) if used == bytes.len() => Ok(value),
        Ok((_, used)) => Err(CodecError::Malformed(format!("{} bytes too many", bytes.len() - used))),
        Err(error) => Err(CodecError::Malformed(error.to_string())),
    }
}

/// The bytes of a value with the length before them.
pub fn to_frame<T: Encode>(value: &T) -> Result<Vec<u8>, CodecError> {
    let body = to_bytes(value)?;
    let length = u32::try_from(body.len()).map_err(|_| CodecError::TooLong)?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Takes the first whole frame out of what was read so far, for programs without an async runtime.
pub fn take_frame<T: Decode<()>>(buffer: &mut Vec<u8>) -> Result<Option<T>, CodecError> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
    if length > FRAME_MAX {
        return Err(CodecError::TooLong);
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let value = from_bytes(body)?;
    buffer.drain(..4 + length);
    Ok(Some(value))
}

/// Frames on an async stream: reads `In`, writes `Out`.
#[derive(Debug)]
pub struct Frames<In, Out> {
    lengths: LengthDelimitedCodec,
    types: PhantomData<fn(Out) -> In>,
}

impl<In, Out> Default for Frames<In, Out> {
    fn default() -> Self {
        let lengths = LengthDelimitedCodec::builder()
            .little_endian()
            .length_field_type::<u32>()
            .max_frame_length(FRAME_MAX)
            .new_codec();
        Self { lengths, types: PhantomData }
    }
}

impl<In: Decode<()>, Out> Decoder for Frames<In, Out> {
    type Item = In;
    type Error = CodecError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<In>, CodecError> {
        match self.lengths.decode(source) {
            Ok(Some(body)) => from_bytes(&body).map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl<In, Out: Encode> Encoder<Out> for Frames<In, Out> {
    type Error = CodecError;

    fn encode(&mut self, value: Out, target: &mut BytesMut) -> Result<(), CodecError> {
        let body = to_bytes(&value)?;
        self.lengths.encode(Bytes::from(body), target).map_err(Into::into)
    }
}

impl From<std::io::Error> for CodecError {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::InvalidData { Self::TooLong } else { Self::Io(error) }
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "malformed frame: {why}"),
            Self::TooLong => write!(f, "a frame is longer than {FRAME_MAX} bytes"),
            Self::Io(_) => f.write_str("the connection failed"),
        }
    }
}

impl std::error::Error for CodecError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Malformed(_) | Self::TooLong => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_that_nobody_sent_is_not_allocated() {
        let huge = [0xfd, 0, 0, 0, 0, 0, 1, 0, 0];
        assert!(matches!(from_bytes::<Vec<u8>>(&huge), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn bytes_that_are_left_over_are_refused() {
        let mut bytes = to_bytes(&7_u64).unwrap();
        bytes.push(0);
        assert!(matches!(from_bytes::<u64>(&bytes), Err(CodecError::Malformed(_))));
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_before_its_body_comes() {
        let mut buffer = (u32::try_from(FRAME_MAX).unwrap() + 1).to_le_bytes().to_vec();
        assert!(matches!(take_frame::<u64>(&mut buffer), Err(CodecError::TooLong)));
        let mut buffer = BytesMut::from(&buffer[..]);
        assert!(matches!(Frames::<u64, u64>::default().decode(&mut buffer), Err(CodecError::TooLong)));
    }

    proptest! {
        #[test]
        fn both_readers_agree_however_the_bytes_are_cut(values in proptest::collection::vec(".{0,40}", 0..6), cut in 1_usize..20) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| to_frame(value).unwrap()).collect();
            let (mut plain, mut framed) = (Vec::new(), BytesMut::new());
            let mut frames = Frames::<String, String>::default();
            let (mut from_plain, mut from_framed) = (Vec::new(), Vec::new());
            for piece in bytes.chunks(cut) {
                plain.extend_from_slice(piece);
                framed.extend_from_slice(piece);
                while let Some(value) = take_frame::<String>(&mut plain).unwrap() { from_plain.push(value); }
                while let Some(value) = frames.decode(&mut framed).unwrap() { from_framed.push(value); }
            }
            prop_assert_eq!(&from_plain, &values);
            prop_assert_eq!(&from_framed, &values);
        }
    }
}
