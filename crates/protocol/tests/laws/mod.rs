//! What holds for all bytes that may come. The property tests and the fuzz targets ask it of theirs.

use bytes::BytesMut;
use mcp_restart_protocol::answer::{Answer, ServerFrame};
use mcp_restart_protocol::codec::{CodecError, Decode, Encode, Frames, from_bytes, take_frame, to_bytes};
use mcp_restart_protocol::request::{ClientFrame, Credential, Request};
use mcp_restart_protocol::shim::{FromShim, ToShim};
use std::fmt::Debug;
use tokio_util::codec::Decoder;

/// Whatever the bytes are read as, they are a value or an error.
pub(crate) fn are_values_or_errors(bytes: &[u8]) {
    is_a_value_or_an_error::<ClientFrame>(bytes);
    is_a_value_or_an_error::<Request>(bytes);
    is_a_value_or_an_error::<Credential>(bytes);
    is_a_value_or_an_error::<ServerFrame>(bytes);
    is_a_value_or_an_error::<Answer>(bytes);
    is_a_value_or_an_error::<ToShim>(bytes);
    is_a_value_or_an_error::<FromShim>(bytes);
}

/// Both readers take the same frames out of a stream, and come to the same end.
pub(crate) fn readers_agree(stream: &[u8]) {
    readers_agree_on::<ToShim>(stream);
    readers_agree_on::<FromShim>(stream);
    readers_agree_on::<Request>(stream);
    readers_agree_on::<ServerFrame>(stream);
}

/// Whatever is taken for a value is one: written and read again it is the same.
fn is_a_value_or_an_error<T: Encode + Decode<()> + Debug + PartialEq>(bytes: &[u8]) {
    match from_bytes::<T>(bytes) {
        Ok(value) => assert_eq!(from_bytes::<T>(&to_bytes(&value).unwrap()).unwrap(), value),
        Err(error) => assert!(matches!(error, CodecError::Malformed(_)), "{error:?}"),
    }
}

fn readers_agree_on<T: Encode + Decode<()> + Debug + PartialEq>(stream: &[u8]) {
    let (mut plain, mut bytes) = (stream.to_vec(), BytesMut::from(stream));
    let mut frames = Frames::<T, T>::default();
    loop {
        match (take_frame::<T>(&mut plain), frames.decode(&mut bytes)) {
            (Ok(Some(one)), Ok(Some(other))) => assert_eq!(one, other),
            (Ok(None), Ok(None)) => return,
            (Err(one), Err(other)) => return assert_eq!(one.to_string(), other.to_string()),
            (one, other) => panic!("{one:?} and {other:?}"),
        }
    }
}
