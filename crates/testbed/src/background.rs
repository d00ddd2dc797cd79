//! A runtime of the testbed's own.
//!
//! Tests starve, pause and shut down their runtimes on purpose. The proxies must go on meanwhile, so they live here.

use std::{io, sync::OnceLock};

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, Result};

static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();

/// The runtime that carries the proxies.
pub(crate) fn handle() -> Result<&'static Handle> {
    let runtime = RUNTIME.get_or_init(|| {
        let built = Builder::new_multi_thread().worker_threads(1).thread_name("testbed").enable_all().build();
        built.map_err(|error| error.to_string())
    });
    match runtime {
        Ok(runtime) => Ok(runtime.handle()),
        Err(error) => Err(Error::io("starting the testbed's runtime")(io::Error::other(error.as_str()))),
    }
}
