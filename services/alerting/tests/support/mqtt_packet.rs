//! Reads packets of MQTT 3.1.1.

use tokio::io::{AsyncRead, AsyncReadExt};

/// First byte and content of the next packet.
pub async fn packet(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let first = stream.read_u8().await?;
    let mut length = 0;
    for shift in [0, 7, 14, 21] {
        let byte = stream.read_u8().await?;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((first, body))
}
