//! The first bytes that a server sends on a connection. A server that refuses a client before it
//! reads anything gives its reason and closes the connection. The client crate reads the reason,
//! waits for more, and reports only the end. The reason can still be read after a write has failed.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use leasehold_core::support::locked;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes that are kept: a line with a reason is shorter, or its start is enough.
const KEPT: usize = 512;

/// The first bytes that were read, until enough are kept or [`end`](FirstWords::end) takes them.
#[derive(Clone, Default)]
pub(super) struct FirstWords(Arc<Mutex<Option<Vec<u8>>>>);

impl FirstWords {
    /// Takes the kept bytes, and ends the keeping.
    pub(super) fn end(&self) -> Vec<u8> {
        locked(&self.0).take().unwrap_or_default()
    }

    /// Adds these bytes. Returns whether more are wanted.
    fn add(&self, bytes: &[u8]) -> bool {
        let mut words = locked(&self.0);
        let Some(words) = &mut *words else {
            return false;
        };
        let room = KEPT.saturating_sub(words.len());
        words.extend_from_slice(&bytes[..bytes.len().min(room)]);
        words.len() < KEPT
    }
}

/// A stream that keeps the first bytes that are read.
pub(super) struct Listening<S> {
    stream: S,
    words: Option<FirstWords>,
}

impl<S> Listening<S> {
    pub(super) fn to(stream: S) -> (Listening<S>, FirstWords) {
        let words = FirstWords(Arc::new(Mutex::new(Some(Vec::new()))));
        let listening = Listening {
            stream,
            words: Some(words.clone()),
        };
        (listening, words)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.words.as_ref().is_some_and(|words| !words.add(bytes)) {
            self.words = None;
        }
    }
}

impl<S: AsyncRead + Unpin> Listening<S> {
    /// Keeps the bytes that came before a write failed.
    fn read_rest(&mut self, cx: &mut Context<'_>) {
        while self.words.is_some() {
            let mut bytes = [0; KEPT];
            let mut rest = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut rest) {
                Poll::Ready(Ok(())) if !rest.filled().is_empty() => self.keep(rest.filled()),
                _ => return,
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Listening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.words.is_some() {
            self.keep(&buf.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Listening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if matches!(written, Poll::Ready(Err(_))) {
            self.read_rest(cx);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if matches!(written, Poll::Ready(Err(_))) {
            self.read_rest(cx);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
