//! The wait for replicas with the option `min_replicas`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::link::{Connection, Inbox, junk};
use leasehold_core::support::locked;
use leasehold_core::{Error, ErrorKind, Result};
use redis::{Pipeline, Value, from_redis_value};

use crate::config::Config;

/// A channel in which nobody listens.
const WRITTEN: &str = "leasehold:written";

/// Asks for acknowledgements. It has a connection of its own, since `WAIT` blocks later requests.
pub(crate) struct Replicas {
    pub(crate) connection: Connection,
    least: u32,
    within: Duration,
    /// The id of the server's history when it was last asked for.
    history: Mutex<Option<Arc<str>>>,
}

/// The state before a claim was sent, to compare when the claim is acknowledged.
pub(crate) struct Baseline {
    /// The number of the connection.
    nth: u64,
    /// The id of the server's history; `None` if the server does not say it.
    history: Option<Arc<str>>,
}

impl Replicas {
    pub(crate) async fn open(config: &Config) -> Result<Option<Replicas>> {
        let Some((least, within)) = config.min_replicas else {
            return Ok(None);
        };
        let server = config.server.clone();
        let inbox = Inbox::new(false);
        let connection = Connection::new(server, config.timeout, within, &inbox)?;
        connection.connect().await?;
        let mut questions = Pipeline::new();
        questions.cmd("WAIT").arg(0).arg(0);
        questions.cmd("INFO").arg("replication");
        let answers = connection.send(&questions).await?;
        let Ok([may, history]) = <[Value; 2]>::try_from(answers) else {
            return Err(junk("WAIT"));
        };
        // A missing right is reported now: when replicas are first waited for, a claim is stored
        // already, and without the other answer those of another server would count.
        for answer in [may, history.clone()] {
            if let Err(e) = connection.refusal(answer)
                && matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported)
            {
                return Err(e);
            }
        }
        Ok(Some(Replicas {
            connection,
            least,
            within,
            history: Mutex::new(id_of(history)),
        }))
    }

    /// The state, to be taken before a claim is sent.
    pub(crate) fn before(&self) -> Result<Baseline> {
        Ok(Baseline {
            nth: self.connection.nth()?,
            history: locked(&self.history).clone(),
        })
    }

    /// The server whose replicas are asked. It has to be the one that has the claim, by its
    /// identity: another server, or this one after a restart, knows nothing of the claim and
    /// acknowledges the data that it has. One address may lead to several.
    pub(crate) fn server(&self, before: &Baseline) -> Result<Arc<str>> {
        self.connection.server_of(before.nth)
    }

    /// Ends the connection of this state, which leads to the wrong server.
    pub(crate) fn leave(&self, before: &Baseline, why: &Error) {
        self.connection.refuse(before.nth, why);
    }

    /// Returns once enough replicas have the writes that the server made before this call. It has
    /// to have been the primary all the time since before the claim was sent: a server that was a
    /// replica in between may have lost the claim, and each promotion gives the server's history
    /// another id. With too few replicas the error is [`ErrorKind::Ambiguous`]: the claim is
    /// stored, and core asks again or withdraws it.
    pub(crate) async fn acknowledge(&self, before: Baseline) -> Result<()> {
        let ambiguous = |e: &Error| {
            Error::new(
                ErrorKind::Ambiguous,
                format!("whether replicas have the claim: {e}"),
            )
        };
        let unavailable = |what| ambiguous(&Error::new(ErrorKind::Unavailable, what));
        // `WAIT` covers the writes of all clients before this client's latest write: since Redis 7.2,
        // and in Valkey, a command that writes nothing does not count. A message is replicated.
        let mut wait = Pipeline::new();
        wait.cmd("PUBLISH")
            .arg(WRITTEN)
            .arg("")
            .cmd("WAIT")
            .arg(self.least)
            .arg(self.within.as_millis() as u64)
            .cmd("INFO")
            .arg("replication");
        let answers = self.connection.send_over(before.nth, &wait).await;
        let answers = answers.map_err(|e| ambiguous(&e))?;
        let Ok([written, heard, now]) = <[Value; 3]>::try_from(answers) else {
            return Err(junk("WAIT"));
        };
        let written = self.connection.refusal(written);
        written.map_err(|e| ambiguous(&e))?;
        let now = id_of(now);
        locked(&self.history).clone_from(&now);
        if now != before.history {
            let what =
                "the server was a replica meanwhile, and may have lost it: a failover is under way";
            return Err(unavailable(what));
        }
        let Value::Int(heard) = self.connection.refusal(heard)? else {
            return Err(junk("WAIT"));
        };
        if heard >= i64::from(self.least) {
            return Ok(());
        }
        let what = format!(
            "{heard} of at least {} replicas acknowledged the claim in time",
            self.least
        );
        Err(Error::new(ErrorKind::Ambiguous, what))
    }
}

/// The id of the server's history, from its answer about replication.
fn id_of(answer: Value) -> Option<Arc<str>> {
    let text = from_redis_value::<String>(answer.extract_error().ok()?).ok()?;
    let id = |line: &str| line.strip_prefix("master_replid:").map(Arc::from);
    text.lines().find_map(id)
}
