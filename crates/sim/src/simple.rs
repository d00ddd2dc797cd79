//! A store in its simplest form: the code under test is core.

mod remote;
mod server;

use std::future::ready;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use leasehold_core::Result;
use leasehold_core::backend::{Backend, Moment};
use leasehold_core::support::locked;

use crate::network::Network;
use crate::plan::Wrong;
use crate::servers::{Counts, Servers};
use crate::simple::remote::{Remote, push};
use crate::simple::server::Server;

/// Its only server.
pub(crate) struct Simple {
    network: Network,
    server: Arc<Mutex<Server>>,
}

impl Simple {
    /// Its waiters ask again when the hold before them may be over, or long before that if `polls`
    /// is set.
    pub(crate) fn new(network: Network, polls: bool) -> Simple {
        Simple {
            network,
            server: Arc::new(Mutex::new(Server::new(polls))),
        }
    }
}

impl Servers for Simple {
    fn connect(&self, process: usize) -> BoxFuture<'static, Result<Arc<dyn Backend>>> {
        let remote: Arc<dyn Backend> = Arc::new(Remote::new(
            self.network.clone(),
            self.server.clone(),
            process,
        ));
        Box::pin(ready(Ok(remote)))
    }

    fn counts(&self, now: u64) -> Counts {
        Counts {
            contents: self.left(now),
            ..Counts::default()
        }
    }

    fn make(&self, wrong: &Wrong, now: u64) {
        let now = Moment::from_nanos(now);
        match wrong {
            Wrong::Wipe(_) => locked(&self.server).wipe(),
            Wrong::Evict(lock) => locked(&self.server).evict(&(*lock).into(), true, now),
            Wrong::Delete(lock) => locked(&self.server).evict(&(*lock).into(), false, now),
            _ => {}
        }
        push(&self.network, &self.server);
    }

    fn left(&self, now: u64) -> u64 {
        locked(&self.server).entries(Moment::from_nanos(now)) as u64
    }
}
