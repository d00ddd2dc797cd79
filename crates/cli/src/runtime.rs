//! The runtime for a command's work. It ends with the process.

use std::io;

use tokio::runtime::Builder;

/// Does the work in a runtime of this kind. One thread is enough for most commands: work that may
/// block has a thread of its own.
pub(crate) fn in_runtime<T, F: Future<Output = T>>(
    mut kind: Builder,
    work: impl FnOnce() -> F,
) -> io::Result<T> {
    let runtime = kind.enable_all().build()?;
    let done = runtime.block_on(async { Box::pin(work()).await });
    // The process ends now. A name lookup that hangs must not delay that, and the kernel closes
    // everything at once.
    std::mem::forget(runtime);
    Ok(done)
}
