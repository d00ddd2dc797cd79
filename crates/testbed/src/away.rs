//! A server that is away when a client connects.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::time::Duration;

use leasehold_core::backend::Clock;
use leasehold_core::{Error, ErrorKind, Result, patiently};
use tokio::sync::oneshot;

use crate::server::Server;

/// Connects while the server is away, and starts the server once the client waits for it.
pub async fn connected_before_the_server<T, F: Future<Output = Result<T>>>(
    server: &Server,
    connect: impl FnMut() -> F,
) -> T {
    server.kill().await.unwrap();
    let (waits, waiting) = oneshot::channel();
    let told = |e: &Error| waits.send(e.kind()).unwrap();
    let clock = Clock::boot();
    let connecting = patiently(Duration::MAX, &clock, connect, told);
    let starting = async {
        assert_eq!(waiting.await.unwrap(), ErrorKind::Unavailable);
        server.start_again().await.unwrap();
    };
    tokio::join!(connecting, starting).0.unwrap()
}
