//! The stream of keep-alives of one lease.

use etcd_client::{Client, Error as ClientError, LeaseKeepAliveStream, LeaseKeeper, ResponseHeader};
use leasehold_core::seam::Moment;

use crate::error::LEASE_NOT_FOUND;

/// A keep-alive that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Before it was sent.
    pub(crate) sent: Moment,
    /// The `raft_term` of the answer: the latest term that the answering member has applied.
    pub(crate) term: u64,
}

/// A stream of keep-alives: one is under way at a time, and its sender has the stream to itself. A keep-alive that hangs in the
/// server holds up all that follow on the stream, so the stream is given up with it.
#[derive(Debug)]
pub(crate) struct KeepAlives {
    /// The endpoint, by its index.
    pub(crate) endpoint: usize,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl KeepAlives {
    /// Opening a stream sends a keep-alive, whose answer etcd-client keeps to itself: so the term of it is not known.
    pub(crate) async fn open(client: &Client, endpoint: usize, lease: i64) -> Result<KeepAlives, ClientError> {
        let (keeper, answers) = client.lease_client().keep_alive(lease).await?;
        Ok(KeepAlives { endpoint, keeper, answers })
    }

    pub(crate) async fn send(&mut self) -> Result<KeepAlive, ClientError> {
        let sent = Moment::now();
        self.keeper.keep_alive().await?;
        let answer = self.answers.message().await?;
        let answer = answer.ok_or_else(|| ClientError::LeaseKeepAliveError("the stream ended".into()))?;
        if answer.ttl() <= 0 {
            return Err(ClientError::LeaseKeepAliveError(LEASE_NOT_FOUND.into()));
        }
        Ok(KeepAlive { sent, term: answer.header().map_or(0, ResponseHeader::raft_term) })
    }
}
