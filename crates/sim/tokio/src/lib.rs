//! The parts of tokio that the ZooKeeper store uses. All of them are tokio's own except the channel
//! `watch`. Tokio's wakes its waiting tasks in an order that is drawn anew in each run; this one
//! wakes them in the order in which they came.

pub use tokio::{io, join, pin, runtime, select, spawn, task, test, time, try_join};

/// There is nothing to reach outside of the simulated network.
pub mod net {
    use std::io;
    use std::iter::Empty;
    use std::net::SocketAddr;

    pub use tokio::net::TcpStream;

    /// Resolves no name to an address.
    #[expect(clippy::unused_async, reason = "as tokio's")]
    pub async fn lookup_host<T>(_host: T) -> io::Result<Empty<SocketAddr>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Tokio's own, except `watch`.
pub mod sync {
    pub use tokio::sync::{Mutex, Semaphore};

    pub mod watch;
}
