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

    /// The number of the connection on which to ask for what is sent from now on.
    pub(crate) fn nth(&self) -> Result<u64> {
        self.connection.nth()
    }

    /// Returns when enough of them have what was written before this call by the server at this address. It has to be the server that
    /// this connection has led to since before the claim was sent: another one, or the same after a restart, knows nothing of the claim
    /// and acknowledges what it has. Fewer are [`ErrorKind::Ambiguous`]: the claim is there, and core asks again or withdraws it.
    pub(crate) async fn acknowledge(&self, nth: u64, written_at: &str) -> Result<()> {
        let ambiguous = |e: &Error| Error::new(ErrorKind::Ambiguous, format!("whether replicas have the claim: {e}"));
        if self.connection.leads_to(nth).map_err(|e| ambiguous(&e))? != written_at {
            let what = "the replicas of another server would be asked: a failover is under way";
            return Err(ambiguous(&Error::new(ErrorKind::Unavailable, what)));
        }
        // WAIT counts what was written before this client's latest command, by whichever client: so there is one.
        let mut wait = pipe();
        wait.cmd("PING").cmd("WAIT").arg(self.least).arg(self.within.as_millis() as u64);
        let answers = self.connection.send_over(nth, &wait).await.map_err(|e| ambiguous(&e))?;
        let answer = answers.into_iter().next_back().unwrap_or_default();
        let Value::Int(heard) = self.connection.refusal(answer)? else { return Err(junk("WAIT")) };
        if heard >= i64::from(self.least) {
            return Ok(());
        }
        let what = format!("{heard} of at least {} replicas acknowledged the claim in time", self.least);
        Err(Error::new(ErrorKind::Ambiguous, what))
    }
}
