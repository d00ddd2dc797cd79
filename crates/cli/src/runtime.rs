//! The runtime that a command's work runs in, and how it ends: with the process.

use std::io;

use tokio::runtime::Builder;

/// Does the work in a runtime of this kind. One thread is enough for the most: whatever may block has a thread of its own.
pub(crate) fn in_runtime<T, F: Future<Output = T>>(mut kind: Builder, work: impl FnOnce() -> F) -> io::Result<T> {
    let runtime = kind.enable_all().build()?;
    let done = runtime.block_on(async { Box::pin(work()).await });
    // The process ends now: a name lookup that hangs must not hold that up, and the kernel closes all at once.
    std::mem::forget(runtime);
    Ok(done)
}
