//! The subject of a comparison: a store by its URL, and a way to start a holder that can be killed.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::memory::Memory;
use leasehold::{Result, Store};
use serde::Serialize;

type Holder = dyn Fn(&str, Duration) -> Command + Send + Sync;

/// Which clients the locks of a store exclude from each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one host.
    Host,
    /// All clients of the server.
    Machines,
}

/// A store that is compared.
#[derive(Clone)]
pub struct Subject {
    url: String,
    address: String,
    /// The store that the clients of `memory://` share.
    memory: Option<Memory>,
    holder: Option<Arc<Holder>>,
}

impl Subject {
    /// The store of a URL, as [`leasehold::connect`] reads it. Clients of `memory://` share one store. `address` is what is
    /// shown of the URL: without credentials.
    ///
    /// A bad URL is an error when it is connected.
    pub fn at(url: &str, address: impl Into<String>) -> Subject {
        let url = url.trim().to_owned();
        let memory = (url == "memory://").then(Memory::new);
        Subject {
            url,
            address: address.into(),
            memory,
            holder: None,
        }
    }

    /// Sets the function that starts a process which holds the lock of this full name with this lease, as
    /// [`hold_until_killed`](crate::compare::hold_until_killed) does. Without it the killed holder is a client of this process whose
    /// runtime is shut down, which leaves its sockets open where its store keeps them elsewhere.
    #[must_use]
    pub fn killed_as(
        mut self,
        holder: impl Fn(&str, Duration) -> Command + Send + Sync + 'static,
    ) -> Subject {
        self.holder = Some(Arc::new(holder));
        self
    }

    /// The URL without credentials.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn reach(&self) -> Reach {
        match self.url.split_once(':') {
            Some(("memory", _)) => Reach::Process,
            Some(("sqlite", _)) => Reach::Host,
            _ => Reach::Machines,
        }
    }

    pub(crate) fn holder(&self, name: &str, lease: Duration) -> Option<Command> {
        self.holder.as_ref().map(|holder| holder(name, lease))
    }

    /// Another client, as another process would have.
    pub(crate) async fn backend(&self) -> Result<Arc<dyn Backend>> {
        match &self.memory {
            Some(memory) => Ok(Arc::new(memory.another_client())),
            None => leasehold::connect(&self.url).backend().await,
        }
    }

    pub(crate) async fn store(&self) -> Result<Store> {
        Ok(Store::new(self.backend().await?))
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({})", self.address)
    }
}
