//! What shows that a session and the keys under it live.
//!
//! The answer to a keep-alive alone shows little: it says nothing of the keys, and it may come from a former leader, which was
//! stopped, woke, and renews in a table that counts no more (etcd#15247). So each keep-alive is followed by transactions that
//! compare the create_revisions of all the session's keys, and it counts only if they were answered in the `raft_term` of its
//! own answer. That is enough:
//! * a member fills in the term of the last entry that it has applied *before* it renews, and a member that ever led renews by
//!   itself only until it applies an entry of a later leader. So whoever renewed led in that term or a later one;
//! * the transaction is linearizable: its leader was confirmed by a majority after it was sent, which was after the
//!   keep-alive's answer, and the term of its answer is not less than that leader's. So that leader led in that term or an
//!   earlier one, when a majority had heard of no later one. It is the one who renewed;
//! * whoever leads after it gives every lease its whole TTL again (with lease checkpoints, which are off as shipped, perhaps
//!   only what was left of it at the latest renewal but one).
//!
//! A transaction that only compares would be answered by any member from its own state: etcd takes one without reads for
//! serializable. So each has a read.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, Error as ClientError, GetOptions, LeaseKeepAliveStream, LeaseKeeper, ResponseHeader, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::stream::{StreamExt, iter};
use leasehold_core::ErrorKind::{Lost, Unavailable};
use leasehold_core::seam::{Moment, locked};

use crate::cluster::Cluster;
use crate::error::{Failure, LEASE_NOT_FOUND};
use crate::key::LeasedKey;
use crate::session::Session;

/// How many things one transaction compares: as many as a server takes that is configured as it is shipped.
const AT_ONCE: usize = 128;
/// How many transactions are on their way at once.
const SIDE_BY_SIDE: usize = 32;
/// How long a keep-alive may take, if its TTL allows: opening its stream is a round trip more.
const LONGEST: Duration = Duration::from_secs(5);
/// How often a renewal is begun: once more if the leader has changed during it.
const ROUNDS: u32 = 2;

/// A keep-alive that was answered.
#[derive(Clone, Copy, Debug)]
struct Beat {
    /// Before it was sent.
    sent: Moment,
    /// In which term, as far as whoever answered knew.
    term: u64,
}

/// A stream of keep-alives: one is on its way at a time, and whoever sends it has the stream to himself. One that hangs in the
/// server holds up all that follow, so the stream is given up with it.
#[derive(Debug)]
pub(crate) struct Beats {
    /// The endpoint.
    at: usize,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Beats {
    async fn beat(&mut self) -> Result<Beat, ClientError> {
        let sent = Moment::now();
        self.keeper.keep_alive().await?;
        let answer = self.answers.message().await?;
        let answer = answer.ok_or_else(|| ClientError::LeaseKeepAliveError("the stream ended".into()))?;
        if answer.ttl() <= 0 {
            return Err(ClientError::LeaseKeepAliveError(LEASE_NOT_FOUND.into()));
        }
        Ok(Beat { sent, term: answer.header().map_or(0, ResponseHeader::raft_term) })
    }
}

impl Cluster {
    /// Renews the session, and says of each of these keys, by its create_revision, whether it is there; `Err` if that or the
    /// renewal is not proven. `Lost`: the lease and all of them are gone.
    pub async fn prove(
        &self,
        session: &Session,
        keys: &[(Arc<LeasedKey>, i64)],
    ) -> Result<Vec<Result<bool, Failure>>, Failure> {
        let mut round = 1;
        loop {
            let beat = match self.beat(session).await {
                Err(failure) if !failure.is(Lost) => return Err(failure),
                beat => beat,
            };
            // Also without keys: the lease is to be proven all the same.
            let chunks: Vec<_> = if keys.is_empty() { vec![keys] } else { keys.chunks(AT_ONCE).collect() };
            let looks: Vec<_> = chunks.iter().map(|chunk| self.look(session, chunk)).collect();
            let looks: Vec<_> = iter(looks).buffered(SIDE_BY_SIDE).collect().await;
            let (mut all, mut turned) = (Vec::with_capacity(keys.len()), false);
            for (chunk, look) in chunks.into_iter().zip(looks) {
                let (term, there) = match look {
                    Ok(seen) => seen,
                    Err(failure) => {
                        all.extend(chunk.iter().map(|_| Err(failure.clone())));
                        continue;
                    }
                };
                let counts = beat.as_ref().ok().filter(|beat| term != 0 && beat.term == term);
                turned |= beat.is_ok() && counts.is_none();
                counts.inspect(|beat| session.lived(beat.sent));
                let verdict = |there| match (there, counts) {
                    (false, _) => Ok(false),
                    (true, Some(_)) => Ok(true),
                    (true, None) => Err(Failure::new(Unavailable, "the leader changed during the renewal")),
                };
                all.extend(there.into_iter().map(verdict));
            }
            if !turned || round == ROUNDS {
                // A lease that a member does not know may be known to its leader: the keys decide.
                return match beat {
                    Err(lost) if all.iter().all(|key| matches!(key, Ok(false))) => Err(lost),
                    _ => Ok(all),
                };
            }
            round += 1;
        }
    }

    /// One keep-alive. An attempt takes at most a sixth of the TTL, so that the next endpoint is asked in time.
    async fn beat(&self, session: &Session) -> Result<Beat, Failure> {
        let request = |client: Client| async move {
            let (at, kept) = (self.active(), locked(&session.beats).take());
            let keep = |beats| drop(locked(&session.beats).replace(beats));
            if let Some(mut beats) = kept.filter(|beats| beats.at == at) {
                match beats.beat().await {
                    Ok(beat) => {
                        keep(beats);
                        return Ok(beat);
                    }
                    Err(ClientError::LeaseKeepAliveError(why)) if why == LEASE_NOT_FOUND => {
                        return Err(ClientError::LeaseKeepAliveError(why));
                    }
                    // It went with its connection.
                    Err(_) => {}
                }
            }
            // The client keeps the term of the first answer to itself.
            let (keeper, answers) = client.lease_client().keep_alive(session.lease).await?;
            let mut beats = Beats { at, keeper, answers };
            let beat = beats.beat().await?;
            keep(beats);
            Ok(beat)
        };
        self.ask(LONGEST.min(session.ttl / 6), request).await.outcome.map_err(Failure::of_a_read)
    }

    /// Which of the keys are there, and in which term that was so.
    async fn look(&self, session: &Session, keys: &[(Arc<LeasedKey>, i64)]) -> Result<(u64, Vec<bool>), Failure> {
        let term = |answer: &TxnResponse| answer.header().map_or(0, ResponseHeader::raft_term);
        let all = keys.iter().map(|(key, created)| key.was_created(*created));
        let read = TxnOp::get(&*session.key, Some(GetOptions::new().with_count_only()));
        let together = Txn::new().when(all.collect::<Vec<_>>()).and_then([read]);
        let answer = self.txn(together).await.outcome.map_err(Failure::of_a_read)?;
        if answer.succeeded() {
            return Ok((term(&answer), vec![true; keys.len()]));
        }
        let reads = keys.iter().map(|(key, _)| TxnOp::get(&*key.path, Some(GetOptions::new().with_keys_only())));
        let answer = self.txn(Txn::new().and_then(reads.collect::<Vec<_>>())).await.outcome;
        let answer = answer.map_err(Failure::of_a_read)?;
        let there = answer.op_responses().into_iter().zip(keys).map(|(read, (_, created))| match read {
            TxnOpResponse::Get(read) => read.kvs().iter().any(|kv| kv.create_revision() == *created),
            _ => false,
        });
        Ok((term(&answer), there.collect()))
    }
}
