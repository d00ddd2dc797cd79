//! The identity of an etcd cluster: the `cluster_id` that stands in the header of each answer.
//!
//! An address may come to lead to another cluster while programs run, and a connection is made anew
//! below this crate, without a word. Every answer is therefore compared. A cluster keeps its id over
//! changes of its members. It is computed of the token and the addresses with which the cluster was
//! set up: one that is set up anew by other words has another one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use etcd_client::{
    DeleteResponse, GetResponse, LeaseGrantResponse, LeaseRevokeResponse, MemberListResponse,
    ResponseHeader, StatusResponse, TxnResponse,
};
use leasehold_core::ErrorKind::OtherStore;
use leasehold_core::StoreId;
use leasehold_core::backend::Identity;

use crate::config::Config;
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
    /// The cluster that the configuration names is the right one, or the one that named its
    /// members, and otherwise the first that answers.
    pub(crate) fn of(config: &Config) -> ClusterIdentity {
        let identity = Identity::pinned(config.store_id.clone());
        if let Some(id) = &config.discovered {
            identity.learn(id.clone());
        }
        ClusterIdentity {
            known: AtomicU64::new(0),
            identity,
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

/// The `cluster_id` of each etcd that was started without `--initial-cluster-token` and
/// `--initial-cluster`, at any address.
const DEFAULT: u64 = 0xcdf8_1819_4e3a_8c32;

/// The warning for an operator if many other clusters have this id.
pub(crate) fn warning(cluster_id: u64) -> Option<String> {
    let what = "this etcd has the cluster id of each etcd that is started by default, so another one behind its address would not be \
                recognized: give it an --initial-cluster-token of its own when it is set up anew";
    (cluster_id == DEFAULT).then(|| what.to_owned())
}

/// The identity of the cluster with this id, as etcdctl prints it.
pub(crate) fn store_id(cluster_id: u64) -> StoreId {
    StoreId::of("etcd", format_args!("{cluster_id:x}"))
}
