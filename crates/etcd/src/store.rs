//! What all parts of the store share, and how they ask etcd.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{
    Client, Compare, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use leasehold_core::seam::{Bells, Mode};
use leasehold_core::{Contention, Error, ErrorKind, Result};
use tokio::sync::mpsc::UnboundedSender;

use crate::cluster::{Answer, Cluster};
use crate::config::Config;
use crate::error::Failure;
use crate::line::holders;
use crate::names::{self, Keys};
use crate::table::{State, token};
use crate::value::{self, Value};

pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) cluster: Cluster,
    pub(crate) bells: Bells,
    /// Leases are granted one by one.
    pub(crate) granting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    closed: AtomicBool,
}

impl Store {
    pub(crate) fn new(config: Config, orders: UnboundedSender<Arc<str>>) -> Store {
        Store {
            keys: Keys::new(&config.namespace),
            cluster: Cluster::new(config),
            bells: Bells::new(),
            granting: tokio::sync::Mutex::default(),
            state: Mutex::new(State::new(orders)),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "this etcd client was closed");
        if self.closed.load(SeqCst) { Err(closed()) } else { Ok(()) }
    }

    pub(crate) async fn txn(&self, txn: Txn) -> Answer<TxnResponse> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().max_decoding_message_size(usize::MAX).txn(txn).await }
        };
        self.cluster.ask(self.cluster.config.limit, request).await
    }

    /// Changes something if the entry is still the one that `still` names by its revision: so a late duplicate of the request
    /// can harm nobody. Says whether it was.
    pub(crate) async fn change(&self, still: Compare, then: Vec<TxnOp>) -> Result<bool, Failure> {
        Ok(self.txn(Txn::new().when([still]).and_then(then)).await.outcome?.succeeded())
    }

    /// A read; an unanswered one was as good as not executed.
    pub(crate) async fn get(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, Failure> {
        let key = key.into();
        let request = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().max_decoding_message_size(usize::MAX).get(key, Some(options)).await }
        };
        self.cluster.ask(self.cluster.config.limit, request).await.outcome.map_err(Failure::of_a_read)
    }

    /// Nothing new begins from here on, and the watcher ends.
    pub(crate) fn shut(&self) {
        self.closed.store(true, SeqCst);
        self.cluster.moved.send_replace(());
    }

    /// Ends all sessions, and all that is held in them.
    pub(crate) async fn close(&self) -> Result<()> {
        self.shut();
        // Whoever is about to be granted a lease comes first, and is closed too.
        let _turn = self.turn(&self.granting).await;
        let sessions: Vec<_> = self.state().sessions.values().cloned().collect();
        let revocations = sessions.iter().map(|session| async move {
            let request = |client: Client| async move { client.lease_client().revoke(session.lease).await };
            match self.cluster.ask(self.cluster.config.limit, request).await.outcome {
                Ok(_) | Err(Failure::LeaseGone) => {
                    self.lose(session);
                    Ok(())
                }
                Err(failure) => Err(Error::from(failure)),
            }
        });
        futures_util::future::join_all(revocations).await.into_iter().collect()
    }
}

/// A lock's line, oldest first; all of it for 0. The server sorts all of it before it cuts it off.
pub(crate) fn by_age(limit: i64) -> GetOptions {
    GetOptions::new().with_prefix().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(limit)
}

pub(crate) fn put(lease: i64, key: &str, value: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
}

/// The reads in a transaction's answer, in order.
pub(crate) fn reads(response: &TxnResponse) -> Vec<GetResponse> {
    let read = |op| if let TxnOpResponse::Get(read) = op { Some(read) } else { None };
    response.op_responses().into_iter().filter_map(read).collect()
}

pub(crate) fn revision(header: Option<&etcd_client::ResponseHeader>) -> i64 {
    header.map_or(0, etcd_client::ResponseHeader::revision)
}

/// The modes of those who stand before the entry `created`, from a read of the line's oldest. What was not read keeps
/// everybody out.
pub(crate) fn before(line: &str, read: &GetResponse, created: i64) -> Vec<Mode> {
    let older = read.kvs().iter().take_while(|entry| entry.create_revision() < created);
    let mut modes: Vec<Mode> = older.map(|entry| value::mode(line, entry)).collect();
    if read.more() && modes.len() == read.kvs().len() {
        modes.push(Mode::Exclusive);
    }
    modes
}

/// How many of the line's oldest hold.
pub(crate) fn holding(line: &str, read: &GetResponse) -> usize {
    holders(&before(line, read, i64::MAX))
}

/// Who holds, from a read of the line's oldest; `others`: how many stand in it, whoever asks not counted.
pub(crate) fn contention(line: &str, read: &GetResponse, others: i64) -> Contention {
    let Some(head) = read.kvs().first() else { return Contention::unknown() };
    let ours = names::is_ours(line, head.key());
    let who = if ours { Contention::by(Value::read(head.value()).label) } else { Contention::foreign() };
    let who = who.token(token(head.create_revision()));
    // Whether more hold than were read cannot be known, unless the head excludes them.
    let known = !read.more() || value::mode(line, head) == Mode::Exclusive;
    let waiters = usize::try_from(others).unwrap_or(0).saturating_sub(holding(line, read));
    if known { who.waiters(waiters) } else { who }
}
