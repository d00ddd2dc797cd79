//! Verifies that a session and the keys under it live: a keep-alive of the lease, then transactions
//! that compare the create_revisions of all its keys.
//!
//! Algorithm ([`Cluster::verify`]):
//! 1. A keep-alive is sent; its send time and the `raft_term` of its answer are kept.
//! 2. Transactions of [`AT_ONCE`] keys each compare the create_revisions. If a comparison fails, a
//!    second transaction reads these keys one by one.
//! 3. The renewal counts for the keys of a transaction if its answer has the term of the
//!    keep-alive's answer. The session then lives since the keep-alive was sent. If the terms
//!    differ, the leader has changed, and all of this is done once more.
//! 4. The session is lost if the answer to the keep-alive is that the lease is not there, and no
//!    key is there either.
//!
//! The answer to a keep-alive alone shows little. It says nothing about the keys, and it may come
//! from a former leader that was stopped, woke up, and renews in its own table, which no longer
//! counts (etcd#15247). Why equal terms are enough:
//! * A member fills in the term of the last entry that it has applied *before* it renews, and a
//!   member that ever led renews by itself only until it applies an entry of a later leader. The
//!   member that renewed therefore led in that term or a later one.
//! * The transaction is linearizable: a majority confirmed its leader after it was sent, which was
//!   after the keep-alive's answer, and the term of its answer is not less than that leader's. That
//!   leader therefore led in that term or an earlier one, when a majority had heard of no later
//!   one. It is the member that renewed.
//! * A later leader gives every lease its whole TTL again. (With lease checkpoints, which are off
//!   by default, it may give only the rest that was left at the latest renewal but one.)
//!
//! Each transaction has a read, because etcd takes a transaction without reads for serializable:
//! any member would answer it from its own state.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, ResponseHeader, Txn, TxnOp, TxnOpResponse, TxnResponse};
use futures_util::stream::{StreamExt, iter};
use leasehold_core::ErrorKind::{Lost, Unavailable};
use leasehold_core::support::{fault, locked};

use crate::client::cluster::Cluster;
use crate::client::keep_alive::{KeepAlive, KeepAlives};
use crate::client::leased_key::LeasedKey;
use crate::client::session::Session;
use crate::error::{Failure, is_lease_not_found};

/// The number of comparisons in one transaction: as many as a server takes in its default
/// configuration.
const AT_ONCE: usize = 128;
/// The number of transactions that are under way at once.
const SIDE_BY_SIDE: usize = 32;
/// The time limit of a keep-alive, if its TTL allows so much: opening its stream costs another
/// round trip.
const LONGEST: Duration = Duration::from_secs(5);
/// The number of times that a renewal is begun: once more if the leader has changed during it.
const ROUNDS: u32 = 2;

impl Cluster {
    /// Renews the session, and returns for each of these keys, given with its create_revision,
    /// whether it is there; `Err` if that or the renewal is not verified. `Lost`: the lease and all
    /// of the keys are gone.
    pub(crate) async fn verify(
        &self,
        session: &Session,
        keys: &[(Arc<LeasedKey>, i64)],
    ) -> Result<Vec<Result<bool, Failure>>, Failure> {
        let mut round = 1;
        loop {
            let renewal = match self.keep_alive(session).await {
                Ok(renewal) if fault("E2") => {
                    session.set_verified(renewal.sent);
                    return Ok(keys.iter().map(|_| Ok(true)).collect());
                }
                Err(failure) if failure.kind != Lost => return Err(failure),
                renewal => renewal,
            };
            let (all, leader_changed) =
                self.verify_keys(session, keys, renewal.as_ref().ok()).await;
            if !leader_changed || round == ROUNDS {
                // A lease that a member does not know may be known to its leader: the keys decide.
                return match renewal {
                    Err(lost) if all.iter().all(|key| matches!(key, Ok(false))) => Err(lost),
                    _ => Ok(all),
                };
            }
            round += 1;
        }
    }

    /// Returns whether each key is there after this renewal, and whether the leader has changed
    /// since.
    async fn verify_keys(
        &self,
        session: &Session,
        keys: &[(Arc<LeasedKey>, i64)],
        renewal: Option<&KeepAlive>,
    ) -> (Vec<Result<bool, Failure>>, bool) {
        // Also without keys, because the lease is to be verified in any case.
        let chunks: Vec<_> = if keys.is_empty() {
            vec![keys]
        } else {
            keys.chunks(AT_ONCE).collect()
        };
        let reads: Vec<_> = chunks
            .iter()
            .map(|chunk| self.find_keys(session, chunk))
            .collect();
        let reads: Vec<_> = iter(reads).buffered(SIDE_BY_SIDE).collect().await;
        let mut all = Vec::with_capacity(keys.len());
        let mut leader_changed = false;
        for (chunk, read) in chunks.into_iter().zip(reads) {
            let (term, found) = match read {
                Ok(read) => read,
                Err(failure) => {
                    all.extend(chunk.iter().map(|_| Err(failure.clone())));
                    continue;
                }
            };
            let counts = renewal.filter(|renewal| term != 0 && renewal.term == term);
            leader_changed |= renewal.is_some() && counts.is_none();
            counts.inspect(|renewal| session.set_verified(renewal.sent));
            let verdict = |found| match (found || fault("E4"), counts) {
                (false, _) => Ok(false),
                (true, Some(_)) => Ok(true),
                (true, None) => Err(Failure::new(
                    Unavailable,
                    "the leader changed during the renewal",
                )),
            };
            all.extend(found.into_iter().map(verdict));
        }
        (all, leader_changed)
    }

    /// Sends one keep-alive. An attempt takes at most a sixth of the TTL, so that a second one
    /// comes in time.
    async fn keep_alive(&self, session: &Session) -> Result<KeepAlive, Failure> {
        let request = |at, client: Client| async move {
            let mut kept = locked(&session.keep_alives).take_if(|stream| stream.endpoint == at);
            if let Some(stream) = &kept
                && !stream.is_driven().await
            {
                kept = None;
            }
            loop {
                let (known, mut stream) = match kept.take() {
                    Some(stream) => (true, stream),
                    None => (
                        false,
                        KeepAlives::open(&client, at, self.home(at), session.lease).await?,
                    ),
                };
                match stream.send().await {
                    Ok(answer) => {
                        drop(locked(&session.keep_alives).replace(stream));
                        return Ok(answer);
                    }
                    // The stream ended with its connection.
                    Err(error) if known && !is_lease_not_found(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let limit = LONGEST.min(session.ttl / 6);
        self.ask_soon(limit, limit / 2, request).await
    }

    /// Sends a transaction that only reads, for a renewal.
    async fn look(&self, session: &Session, txn: Txn) -> Result<TxnResponse, Failure> {
        let request = |_, client: Client| {
            let txn = txn.clone();
            async move {
                client
                    .kv_client()
                    .max_decoding_message_size(usize::MAX)
                    .txn(txn)
                    .await
            }
        };
        let limit = self.config.timeout.min(session.ttl / 3);
        self.ask_soon(limit, limit.min(session.ttl / 6) / 2, request)
            .await
    }

    /// Ends the lease and all keys under it, unless it has ended.
    pub(crate) async fn revoke(&self, session: &Session) -> Result<(), Failure> {
        self.end_lease(session.lease).await
    }

    /// Returns the term of the answer, and for each key whether it is there.
    async fn find_keys(
        &self,
        session: &Session,
        keys: &[(Arc<LeasedKey>, i64)],
    ) -> Result<(u64, Vec<bool>), Failure> {
        let term = |answer: &TxnResponse| answer.header().map_or(0, ResponseHeader::raft_term);
        let all = keys.iter().map(|(key, created)| key.was_created(*created));
        let read = TxnOp::get(&*session.key, Some(GetOptions::new().with_count_only()));
        let together = Txn::new().when(all.collect::<Vec<_>>()).and_then([read]);
        let answer = self.look(session, together).await?;
        if answer.succeeded() {
            return Ok((term(&answer), vec![true; keys.len()]));
        }
        let reads = keys
            .iter()
            .map(|(key, _)| TxnOp::get(&*key.path, Some(GetOptions::new().with_keys_only())));
        let answer = self
            .look(session, Txn::new().and_then(reads.collect::<Vec<_>>()))
            .await?;
        let there = answer
            .op_responses()
            .into_iter()
            .zip(keys)
            .map(|(read, (_, created))| match read {
                TxnOpResponse::Get(read) => {
                    read.kvs().iter().any(|kv| kv.create_revision() == *created)
                }
                _ => false,
            });
        Ok((term(&answer), there.collect()))
    }
}
