//! PostgreSQL's binary COPY, written by hand: the generic writer of tokio-postgres goes through a
//! trait object per field, which costs more than the field.

use std::pin::Pin;

use bytes::{BufMut, Bytes, BytesMut};
use deadpool_postgres::Transaction;
use futures::SinkExt;
use tokio_postgres::CopyInSink;

use super::{fault::Fault, time::Micros};

/// Sent at once; a row is never split. Small enough that the server begins while the rest is being
/// written.
const CHUNK_BYTES: usize = 64 << 10;

/// Rows of one COPY, in chunks.
pub struct Rows {
    columns: i16,
    rows: u64,
    chunks: Vec<Bytes>,
    buffer: BytesMut,
}

impl Rows {
    pub fn new(columns: i16) -> Rows {
        let mut buffer = BytesMut::with_capacity(CHUNK_BYTES);
        buffer.put_slice(b"PGCOPY\n\xff\r\n\0");
        // No flags, no extension of the header.
        buffer.put_i32(0);
        buffer.put_i32(0);
        Rows {
            columns,
            rows: 0,
            chunks: Vec::new(),
            buffer,
        }
    }

    /// The fields of a row follow, as many as there are columns.
    pub fn row(&mut self) -> &mut Rows {
        if self.buffer.len() >= CHUNK_BYTES {
            let full = std::mem::replace(
                &mut self.buffer,
                BytesMut::with_capacity(CHUNK_BYTES + 4096),
            );
            self.chunks.push(full.freeze());
        }
        self.rows += 1;
        self.buffer.put_i16(self.columns);
        self
    }

    pub fn time(&mut self, time: Micros) -> &mut Rows {
        self.int8(time.raw())
    }

    pub fn int8(&mut self, value: i64) -> &mut Rows {
        self.buffer.put_i32(8);
        self.buffer.put_i64(value);
        self
    }

    pub fn int4(&mut self, value: i32) -> &mut Rows {
        self.buffer.put_i32(4);
        self.buffer.put_i32(value);
        self
    }

    pub fn float8(&mut self, value: f64) -> &mut Rows {
        self.buffer.put_i32(8);
        self.buffer.put_f64(value);
        self
    }

    pub fn bytes(&mut self, value: &[u8]) -> &mut Rows {
        // Callers are bounded far below what the length can say.
        self.buffer.put_i32(value.len() as i32);
        self.buffer.put_slice(value);
        self
    }

    pub fn null(&mut self) -> &mut Rows {
        self.buffer.put_i32(-1);
        self
    }

    pub fn optional_int8(&mut self, value: Option<i64>) -> &mut Rows {
        match value {
            Some(value) => self.int8(value),
            None => self.null(),
        }
    }

    pub fn optional_float8(&mut self, value: Option<f64>) -> &mut Rows {
        match value {
            Some(value) => self.float8(value),
            None => self.null(),
        }
    }

    /// Empty: NULL.
    pub fn text_or_null(&mut self, value: &str) -> &mut Rows {
        if value.is_empty() {
            self.null()
        } else {
            self.bytes(value.as_bytes())
        }
    }

    /// An array of `real`.
    pub fn float4s(&mut self, values: &[f32]) -> &mut Rows {
        const FLOAT4_OID: u32 = 700;
        self.buffer.put_i32(20 + 8 * values.len() as i32);
        // One dimension, no NULLs, from index 1.
        self.buffer.put_i32(1);
        self.buffer.put_i32(0);
        self.buffer.put_u32(FLOAT4_OID);
        self.buffer.put_i32(values.len() as i32);
        self.buffer.put_i32(1);
        for value in values {
            self.buffer.put_i32(4);
            self.buffer.put_f32(*value);
        }
        self
    }

    /// Chunks that are full, for [`Copying`].
    fn full(&mut self) -> impl Iterator<Item = Bytes> + '_ {
        self.chunks.drain(..)
    }

    /// `statement`: `COPY table (columns) FROM STDIN (FORMAT binary)`. Without rows the server is
    /// not asked.
    pub async fn send(self, transaction: &Transaction<'_>, statement: &str) -> Result<(), Fault> {
        let mut copying = Copying {
            rows: self,
            sink: None,
        };
        copying.finish(transaction, statement).await
    }
}

/// A COPY whose rows go to the server as they are written.
pub struct Copying {
    pub rows: Rows,
    sink: Option<Pin<Box<CopyInSink<Bytes>>>>,
}

impl Copying {
    pub fn new(columns: i16) -> Copying {
        Copying {
            rows: Rows::new(columns),
            sink: None,
        }
    }

    /// Sends what is full; to be called after every few rows.
    pub async fn push(
        &mut self,
        transaction: &Transaction<'_>,
        statement: &str,
    ) -> Result<(), Fault> {
        if self.rows.chunks.is_empty() {
            return Ok(());
        }
        let sink = match &mut self.sink {
            Some(sink) => sink,
            none => {
                let statement = transaction.prepare_cached(statement).await?;
                none.insert(Box::pin(transaction.copy_in(&statement).await?))
            }
        };
        for chunk in self.rows.full() {
            sink.feed(chunk).await?;
        }
        Ok(())
    }

    /// Sends the rest and waits for the server. Without rows it is not asked.
    pub async fn finish(
        &mut self,
        transaction: &Transaction<'_>,
        statement: &str,
    ) -> Result<(), Fault> {
        if self.rows.rows == 0 {
            return Ok(());
        }
        self.rows.buffer.put_i16(-1);
        let last = self.rows.buffer.split().freeze();
        self.rows.chunks.push(last);
        self.push(transaction, statement).await?;
        if let Some(sink) = &mut self.sink {
            sink.as_mut().finish().await?;
        }
        Ok(())
    }
}
