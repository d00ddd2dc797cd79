//! What all parts of the store share: what this client knows, and how it asks etcd.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{
    Client, Compare, GetOptions, GetResponse, PutOptions, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use futures_util::future::join_all;
use leasehold_core::seam::{Bells, ClaimId, Moment};
use leasehold_core::{Error, ErrorKind, Name, Result};
use tokio::sync::mpsc::UnboundedSender;

use crate::cluster::{Answer, Cluster};
use crate::config::Config;
use crate::error::Failure;
use crate::line::{Copy, Line, Own};
use crate::names::{self, Keys};
use crate::session::Session;

pub(crate) struct Store {
    pub(crate) keys: Keys,
    pub(crate) cluster: Cluster,
    pub(crate) bells: Bells,
    /// Leases are granted one by one.
    pub(crate) granting: tokio::sync::Mutex<()>,
    /// Tells the watcher to watch this line.
    pub(crate) orders: UnboundedSender<Name>,
    state: Mutex<State>,
}

/// What this client knows of its claims, its sessions and their lines. Nothing here waits.
#[derive(Default, Debug)]
pub(crate) struct State {
    pub(crate) lines: HashMap<Name, Line>,
    pub(crate) sessions: Vec<Arc<Session>>,
    pub(crate) closed: bool,
}

impl State {
    /// The session for this TTL, in seconds, that lets claims in.
    pub(crate) fn session(&self, asked: u64) -> Option<Arc<Session>> {
        self.sessions.iter().find(|session| session.asked == asked && !session.is_closed()).cloned()
    }

    /// What is known of this claim.
    pub(crate) fn own(&mut self, name: &Name, id: ClaimId) -> Option<&mut Own> {
        self.lines.get_mut(name)?.own(id)
    }

    /// The copy of this line, while it is followed.
    pub(crate) fn copy(&mut self, name: &Name) -> Option<&mut Copy> {
        self.lines.get_mut(name)?.copy.as_deref_mut()
    }

    /// All claims.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (&Name, &mut Own)> {
        self.lines.iter_mut().flat_map(|(name, line)| line.own.iter_mut().map(move |own| (name, own)))
    }

    /// Takes the claim in, on the lowest slot that is free: keys are used again, because etcd keeps a tombstone of each.
    pub(crate) fn enroll(&mut self, name: &Name, id: ClaimId, prefix: &str, session: Arc<Session>) -> Own {
        let own = &mut self.lines.entry(name.clone()).or_default().own;
        let used: HashSet<&str> = own.iter().map(|other| &*other.key).collect();
        let mut slot = 0;
        while used.contains(&*names::place(prefix, session.lease, slot)) {
            slot += 1;
        }
        let (key, tended) = (names::place(prefix, session.lease, slot).into(), Moment::now());
        let (granted, doubt, leaving) = (false, false, false);
        let new = Own { id, session, key, created: 0, ahead: None, granted, doubt, leaving, tended };
        own.push(new.clone());
        new
    }

    /// Removes a claim that was released: the store surely has nothing left of it, and never will.
    pub(crate) fn strike(&mut self, name: &Name, id: ClaimId) {
        let Some(line) = self.lines.get_mut(name) else { return };
        line.own.retain(|own| own.id != id || !own.leaving);
        if line.is_nobodys() {
            self.lines.remove(name);
        }
    }

    /// Ends a session; answers whose claims ended with it.
    pub(crate) fn end(&mut self, session: &Session) -> Vec<ClaimId> {
        self.sessions.retain(|other| other.lease != session.lease);
        let mut ended = Vec::new();
        self.lines.retain(|_, line| {
            let of = line.own.extract_if(.., |own| own.session.lease == session.lease);
            ended.extend(of.map(|own| own.id));
            !line.is_nobodys()
        });
        ended
    }

    /// Gives up the copies of lines in which nobody waits any more.
    pub(crate) fn unfollow(&mut self) {
        self.lines.retain(|_, line| {
            line.copy.take_if(|_| !line.own.iter().any(Own::waits) && line.observers.strong_count() == 0);
            !line.is_nobodys()
        });
    }
}

impl Store {
    pub(crate) fn new(config: Config, orders: UnboundedSender<Name>) -> Store {
        Store {
            keys: Keys::new(&config.namespace),
            cluster: Cluster::new(config),
            bells: Bells::new(),
            granting: tokio::sync::Mutex::default(),
            orders,
            state: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> Result<()> {
        let closed = || Error::new(ErrorKind::Closed, "this etcd client was closed");
        if self.state().closed { Err(closed()) } else { Ok(()) }
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
        self.state().closed = true;
        self.cluster.moved.send_replace(());
    }

    /// Ends all sessions, and all that is held in them.
    pub(crate) async fn close(&self) -> Result<()> {
        self.shut();
        // Whoever is about to be granted a lease comes first, and is closed too.
        let _turn = self.turn().await;
        let sessions = self.state().sessions.clone();
        let revocations = sessions.iter().map(|session| async move {
            let request = |client: Client| async move { client.lease_client().revoke(session.lease).await };
            match self.cluster.ask(self.cluster.config.limit, request).await.outcome {
                Err(failure) if !failure.lease_is_gone() => Err(Error::from(failure)),
                _ => Ok(self.lose(session)),
            }
        });
        join_all(revocations).await.into_iter().collect()
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
