//! The Redlock store of Leasehold.

mod claim;
mod config;
mod look;
mod nodes;
mod store;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::seam::{Backend, Bells, Claim, ClaimId, Claimed, Place, Renewal, Tenure, async_trait};
use leasehold_core::{Fairness, Fencing, FencingToken, Guarantees, Line, Name, Result};
pub use leasehold_redis::Options;
use leasehold_redis::client::ConnectionInfo;
use leasehold_redis::parts::Names;

use crate::nodes::Nodes;
use crate::store::Store;

/// The shortest lease; a shorter one is granted as this.
const MIN_TTL: Duration = Duration::from_millis(200);
/// The longest lease: far beyond use, and exact in a double.
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A store on several independent Redis servers.
pub struct Redlock(Arc<Store>);

impl Redlock {
    /// Connects to `redlock://[user:password@]host[:port],host[:port],host[:port]…[/db][?timeout=ms][&prefix=text]`.
    pub async fn connect(url: &str) -> Result<Redlock> {
        let (nodes, options) = config::parse(url)?;
        Redlock::connect_with(nodes, options).await
    }

    /// Connects with the client crate's own configuration of each node.
    pub async fn connect_with(nodes: Vec<ConnectionInfo>, options: Options) -> Result<Redlock> {
        config::check(&nodes)?;
        let names = Arc::new(Names::new(&options.prefix, "r")?);
        let (bells, channel) = (Bells::new(), format!("leasehold:{}", ClaimId::fresh()));
        let nodes = Nodes::connect(nodes, options.timeout, &channel, &bells).await?;
        Ok(Redlock(Arc::new(Store { nodes, names, channel, bells, holds: Mutex::default() })))
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({:?}, {:?})", self.0.names, self.0.nodes)
    }
}

#[async_trait]
impl Backend for Redlock {
    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.0.take(claim).await
    }

    async fn renew(&self, tenures: &[Tenure]) -> Result<Vec<Renewal>> {
        self.0.keep(tenures).await
    }

    async fn release(&self, claim: &Claim, _place: Option<&Place>) -> Result<()> {
        self.0.withdraw(claim).await
    }

    async fn inspect(&self, name: &Name) -> Result<Line> {
        self.0.look(name).await
    }

    /// Walks all keys of every node with `SCAN`, so it costs O(keys) and is meant for people and tools.
    async fn list(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<Name>> {
        self.0.names_after(prefix, after, limit).await
    }

    async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        self.0.end(name, token).await
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::none("redlock")
            .fencing(Fencing::WhileDataLives)
            .fairness(Fairness::None)
            .pushed_wake(true)
            .ttl(MIN_TTL, Duration::from_millis(1))
            .recovery(Duration::from_millis(500))
            .notes(NOTES)
    }

    fn bells(&self) -> Option<&Bells> {
        Some(&self.0.bells)
    }

    /// Closes the connections. Redis has no sessions: what is still held ends with its lease.
    async fn close(&self) -> Result<()> {
        self.0.nodes.close();
        Ok(())
    }
}

const NOTES: &str = "todo";
