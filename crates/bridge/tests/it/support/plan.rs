//! What a test does to the requests of its wires, and what was sent on them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold_core::backend::ClaimId;

/// What becomes of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// It does not arrive.
    Refused,
    /// It is executed, and the answer is lost.
    LostReply,
    /// It arrives when the test [delivers](Wire::deliver) it, and the caller was told that it is not known.
    HeldBack,
    /// It does not arrive, and is never answered.
    Hangs,
    /// It is executed, and never answered.
    HangsAfter,
}

/// The wires of one test: what is sent on all of them, in order.
#[derive(Clone, Default)]
pub(crate) struct Plan(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    sent: Vec<Sent>,
    faults: BTreeMap<usize, Fault>,
    /// In a thousand, and what decides.
    random: Option<(fastrand::Rng, u32)>,
    away: HashMap<&'static str, bool>,
}

/// One request: of which store, which verb, and for which claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) store: &'static str,
    pub(crate) verb: &'static str,
    pub(crate) id: Option<ClaimId>,
}

impl Plan {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The request with this number, from now on counted from 0, meets this fault.
    pub(crate) fn fault(&self, n: usize, fault: Fault) {
        let mut state = self.state();
        let n = state.sent.len() + n;
        state.faults.insert(n, fault);
    }

    /// So many of a thousand requests meet a fault from now on.
    pub(crate) fn random(&self, seed: u64, in_a_thousand: u32) {
        self.state().random = Some((fastrand::Rng::with_seed(seed), in_a_thousand));
    }

    /// No request meets a fault any more.
    pub(crate) fn calm(&self) {
        let mut state = self.state();
        (state.random, state.faults) = (None, BTreeMap::new());
    }

    /// No request to this store arrives while it is away.
    pub(crate) fn away(&self, store: &'static str, away: bool) {
        self.state().away.insert(store, away);
    }

    /// What was sent, as `store verb`. It is forgotten, and with it which requests were to meet a fault.
    pub(crate) fn sent(&self) -> Vec<String> {
        let mut state = self.state();
        state.faults.clear();
        let all = std::mem::take(&mut state.sent);
        drop(state);
        all.iter()
            .map(|sent| format!("{} {}", sent.store, sent.verb))
            .collect()
    }

    pub(crate) fn ids(&self, store: &str, verb: &str) -> Vec<ClaimId> {
        let state = self.state();
        let all = state
            .sent
            .iter()
            .filter(|sent| sent.store == store && sent.verb == verb);
        all.filter_map(|sent| sent.id).collect()
    }

    pub(super) fn send(
        &self,
        store: &'static str,
        verb: &'static str,
        id: Option<ClaimId>,
    ) -> Option<Fault> {
        let mut state = self.state();
        let n = state.sent.len();
        state.sent.push(Sent { store, verb, id });
        if state.away.get(store) == Some(&true) {
            return Some(Fault::Refused);
        }
        let random = state.random.as_mut().and_then(|(random, most)| {
            let all = [
                Fault::Refused,
                Fault::LostReply,
                Fault::HeldBack,
                Fault::Hangs,
                Fault::HangsAfter,
            ];
            (random.u32(0..1000) < *most).then(|| all[random.usize(0..all.len())])
        });
        state.faults.remove(&n).or(random)
    }
}

/// Whether an answer is to wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delay {
    None,
    Next,
    Waits,
}
