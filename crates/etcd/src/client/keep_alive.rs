//! The stream of keep-alives of one lease.

use etcd_client::{
    Client, Error as ClientError, LeaseKeepAliveStream, LeaseKeeper, ResponseHeader,
};
use leasehold_core::backend::Moment;
use leasehold_core::support::Home;

use crate::client::identity::Answered;
use crate::error::LEASE_NOT_FOUND;

/// A keep-alive that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// The time just before it was sent.
    pub(crate) sent: Moment,
    /// The `raft_term` of the answer: the latest term that the answering member has applied.
    pub(crate) term: u64,
    /// The id of the member's cluster.
    cluster_id: u64,
}

impl Answered for KeepAlive {
    fn cluster_id(&self) -> u64 {
        self.cluster_id
    }
}

/// A stream of keep-alives. One keep-alive is under way at a time, and its sender has the stream to
/// itself. A keep-alive that hangs in the server blocks all that follow on the stream, so the
/// stream is given up with it.
#[derive(Debug)]
pub(crate) struct KeepAlives {
    /// The endpoint, by its index.
    pub(crate) endpoint: usize,
    /// The runtime in which its connection lives, if that is known.
    home: Option<Home>,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl KeepAlives {
    /// Opens a stream, which sends a first keep-alive. etcd-client does not pass its answer on, so
    /// the term of that answer is not known.
    pub(crate) async fn open(
        client: &Client,
        endpoint: usize,
        home: Option<Home>,
        lease: i64,
    ) -> Result<KeepAlives, ClientError> {
        let (keeper, answers) = client.lease_client().keep_alive(lease).await?;
        Ok(KeepAlives {
            endpoint,
            home,
            keeper,
            answers,
        })
    }

    /// Returns whether its connection is driven.
    pub(crate) async fn is_driven(&self) -> bool {
        match &self.home {
            Some(home) => home.is_driven().await,
            None => true,
        }
    }

    pub(crate) async fn send(&mut self) -> Result<KeepAlive, ClientError> {
        let sent = Moment::now();
        self.keeper.keep_alive().await?;
        let answer = self.answers.message().await?;
        let answer =
            answer.ok_or_else(|| ClientError::LeaseKeepAliveError("the stream ended".into()))?;
        if answer.ttl() <= 0 {
            return Err(ClientError::LeaseKeepAliveError(LEASE_NOT_FOUND.into()));
        }
        Ok(KeepAlive {
            sent,
            term: answer.header().map_or(0, ResponseHeader::raft_term),
            cluster_id: answer.header().map_or(0, ResponseHeader::cluster_id),
        })
    }
}
