//! The testbed's own runtime.
//!
//! Tests starve, pause and shut down their runtimes on purpose. The proxies have to go on
//! meanwhile, so they run here.

use std::{future::Future, io, sync::LazyLock};

use tokio::{
    runtime::{Builder, Runtime},
    task::AbortHandle,
};

use crate::error::{Error, Result};

static RUNTIME: LazyLock<io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("testbed")
        .enable_all()
        .build()
});

/// A background task, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(AbortHandle);

pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Result<Task> {
    match &*RUNTIME {
        Ok(runtime) => Ok(Task(runtime.spawn(work).abort_handle())),
        Err(error) => Err(Error::io("starting the testbed's runtime")(
            io::Error::other(error.to_string()),
        )),
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
