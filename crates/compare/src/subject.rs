//! What is compared: a store by how to get a client of it, and how to get a holder that can be killed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::memory::Memory;
use leasehold::seam::Backend;
use leasehold::{Result, Store};
use serde::Serialize;
use tokio::process::Command;

type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>>> + Send>>;
type Connect = dyn Fn() -> Connecting + Send + Sync;
type Holder = dyn Fn(&str, Duration) -> Command + Send + Sync;

/// Among whom a store's locks work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one host.
    Host,
    /// All who reach the server.
    Machines,
}

/// A store that is compared.
#[derive(Clone)]
pub struct Subject {
    address: String,
    reach: Reach,
    connect: Arc<Connect>,
    holder: Option<Arc<Holder>>,
}

impl Subject {
    /// A store of which `connect` makes another client each time, as another process would have. `address` is shown.
    pub fn new<F>(address: impl Into<String>, connect: impl Fn() -> F + Send + Sync + 'static) -> Subject
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        Subject {
            address: address.into(),
            reach: Reach::Machines,
            connect: Arc::new(move || Box::pin(connect())),
            holder: None,
        }
    }

    /// The store of a URL, as [`leasehold::connect`] reads it; clients of `memory://` share one world. `address` is what is
    /// shown of the URL: without credentials.
    ///
    /// A bad URL is an error when it is connected.
    pub fn at(url: &str, address: impl Into<String>) -> Subject {
        let url = url.trim().to_owned();
        if url == "memory://" {
            let world = Memory::new();
            let subject = Subject::new(address, move || {
                let client = world.another_client();
                async move { Ok(Arc::new(client) as Arc<dyn Backend>) }
            });
            return subject.reaching(Reach::Process);
        }
        let reach = if url.starts_with("sqlite:") { Reach::Host } else { Reach::Machines };
        let subject = Subject::new(address, move || {
            let url = url.clone();
            async move { Ok(Arc::from(leasehold::connect_backend(&url).await?)) }
        });
        subject.reaching(reach)
    }

    /// How far its locks reach; machines, unless it is said.
    #[must_use]
    pub fn reaching(self, reach: Reach) -> Subject {
        Subject { reach, ..self }
    }

    /// How to start a process that holds the lock of this full name with this lease, as
    /// [`hold_until_killed`](crate::hold_until_killed) does. Without it the killed holder is a client of this process whose
    /// runtime is torn down, which leaves its sockets open where its store keeps them elsewhere.
    #[must_use]
    pub fn killed_as(mut self, holder: impl Fn(&str, Duration) -> Command + Send + Sync + 'static) -> Subject {
        self.holder = Some(Arc::new(holder));
        self
    }

    /// What is shown of it.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    pub(crate) fn holder(&self, name: &str, lease: Duration) -> Option<Command> {
        self.holder.as_ref().map(|holder| holder(name, lease))
    }

    pub(crate) async fn backend(&self) -> Result<Arc<dyn Backend>> {
        (self.connect)().await
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
