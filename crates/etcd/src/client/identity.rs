//! The identity of an etcd cluster: the `cluster_id` that stands in the header of each answer.
//!
//! An address may come to lead to another cluster while programs run, and a connection is made anew
//! below this crate, without a word. Every answer is therefore compared. A cluster keeps its id over
//! changes of its members; a member that was set up anew as a cluster of its own, and a cluster that
//! was restored from a backup, have another one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use etcd_client::{
    DeleteResponse, GetResponse, LeaseGrantResponse, LeaseRevokeResponse, MemberListResponse,
    ResponseHeader, StatusResponse, TxnResponse,
};
use leasehold_core::ErrorKind::OtherStore;
use leasehold_core::StoreId;
use leasehold_core::backend::Identity;

use crate::error::Failure;

/// The identity of the cluster, as far as a client knows it.
#[derive(Debug, Default)]
pub(crate) struct ClusterIdentity {
    /// The `cluster_id`; 0 before the first answer.
    known: AtomicU64,
    identity: Identity,
}

/// An answer, which says to which cluster its member belongs.
pub(crate) trait Answered {
    /// The header of the answer.
    fn cluster_id(&self) -> u64;
}

macro_rules! answered {
    ($($response:ty),+) => {
        $(
            impl Answered for $response {
                fn cluster_id(&self) -> u64 {
                    self.header().map_or(0, ResponseHeader::cluster_id)
                }
            }
        )+
    };
}

answered!(
    DeleteResponse,
    GetResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    MemberListResponse,
    StatusResponse,
    TxnResponse
);

/// What several answers have told together, and the id of the cluster from one of them.
impl<T> Answered for (T, u64) {
    fn cluster_id(&self) -> u64 {
        self.1
    }
}

impl ClusterIdentity {
    /// The cluster with this identity is the right one, if one is given, and otherwise the first
    /// that answers.
    pub(crate) fn pinned(id: Option<StoreId>) -> ClusterIdentity {
        ClusterIdentity {
            known: AtomicU64::new(0),
            identity: Identity::pinned(id),
        }
    }

    pub(crate) fn id(&self) -> Option<StoreId> {
        self.identity.id()
    }

    /// Fails if an answer came from a member of another cluster. A simulated one has no id.
    pub(crate) fn check(&self, answered: u64) -> Result<(), Failure> {
        if answered == 0 || answered == self.known.load(Relaxed) {
            return Ok(());
        }
        self.identity
            .check(&store_id(answered))
            .map_err(|e| Failure::new(OtherStore, e.to_string()))?;
        self.known.store(answered, Relaxed);
        Ok(())
    }
}

/// The identity of the cluster with this id, as etcdctl prints it.
pub(crate) fn store_id(cluster_id: u64) -> StoreId {
    StoreId::of("etcd", format_args!("{cluster_id:x}"))
}
