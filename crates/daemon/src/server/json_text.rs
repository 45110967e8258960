//! The one message of the verbs that every version understands: a length as a little-endian `u32`, then
//! JSON.

use serde::Serialize;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The longest text in bytes that is read.
const TEXT_MAX: u32 = 64 * 1024;

/// Reads one text; `so_far` are bytes of it that were read already.
pub(super) async fn read(stream: &mut UnixStream, so_far: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = so_far.chain(stream);
    let length = stream.read_u32_le().await?;
    if length > TEXT_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a text of {length} bytes")));
    }
    let mut text = Vec::new();
    let read = stream.take(length.into()).read_to_end(&mut text).await?;
    if u32::try_from(read) != Ok(length) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(text)
}

/// Writes one text.
pub(super) async fn write(stream: &mut UnixStream, text: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(text)?;
    let length = u32::try_from(text.len()).map_err(io::Error::other)?;
    let mut frame = length.to_le_bytes().to_vec();
    frame.extend_from_slice(&text);
    stream.write_all(&frame).await
}
