//! The wait for replicas, of the option `min_replicas`.

use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_redis_client::{Connection, Inbox, junk};
use redis::{Value, pipe};

use crate::config::Config;

/// Asks for acknowledgements, on a connection of its own, since `WAIT` blocks what comes behind it.
pub(crate) struct Replicas {
    pub(crate) connection: Connection,
    least: u32,
    within: Duration,
}

impl Replicas {
    pub(crate) async fn open(config: &Config) -> Result<Option<Replicas>> {
        let Some((least, within)) = config.min_replicas else { return Ok(None) };
        let (server, inbox) = (config.server.clone(), Inbox::new(false));
        let connection = Connection::new(server, config.timeout, within, &inbox)?;
        connection.connect().await?;
        Ok(Some(Replicas { connection, least, within }))
    }

    /// Returns when enough of them have what was written before this call. Fewer are [`ErrorKind::Ambiguous`]: the claim is
    /// there, and core asks again or withdraws it.
    pub(crate) async fn acknowledge(&self) -> Result<()> {
        // WAIT counts what was written before this client's latest command, by whichever client: so there is one.
        let mut wait = pipe();
        wait.cmd("PING").cmd("WAIT").arg(self.least).arg(self.within.as_millis() as u64);
        let answer = self.connection.send(&wait).await?.pop().unwrap_or_default();
        let Value::Int(heard) = self.connection.refusal(answer)? else { return Err(junk("WAIT")) };
        if heard >= i64::from(self.least) {
            return Ok(());
        }
        let what = format!("{heard} of at least {} replicas acknowledged the claim in time", self.least);
        Err(Error::new(ErrorKind::Ambiguous, what))
    }
}
