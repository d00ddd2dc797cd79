//! The faults that the test wants of a proxy at the moment, and the counters of a proxy.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use tokio::sync::watch;

use super::trap::Trap;

/// The fate of the chunks of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Flow {
    #[default]
    Pass,
    Hold,
    Drop,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub(super) flow: Flow,
    pub(super) delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Requests,
    Replies,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    pub(super) cut: bool,
    /// Connections of an earlier generation are closed.
    pub(super) generation: u64,
    /// Nothing passes any more over connections up to this number, in either direction.
    pub(super) frozen: u64,
    pub(super) requests: Lane,
    pub(super) replies: Lane,
}

impl Control {
    pub(super) fn sever(&mut self, cut: bool) {
        self.cut = cut;
        self.generation += 1;
    }

    pub(super) fn lane(&self, side: Side) -> Lane {
        match side {
            Side::Requests => self.requests,
            Side::Replies => self.replies,
        }
    }

    /// The fate of the chunks of the connection with this number.
    pub(super) fn flow(&self, side: Side, nth: u64) -> Flow {
        if nth <= self.frozen {
            Flow::Hold
        } else {
            self.lane(side).flow
        }
    }
}

/// The state that all tasks of a proxy share.
#[derive(Debug)]
pub(super) struct Shared {
    upstream: Mutex<String>,
    pub(super) control: watch::Sender<Control>,
    pub(super) listening: watch::Sender<bool>,
    pub(super) open: watch::Sender<usize>,
    pub(super) connections: AtomicU64,
    pub(super) request_bytes: AtomicU64,
    traps: Mutex<Vec<Trap>>,
    rewrites: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Shared {
    pub(super) fn new(upstream: String) -> Self {
        Self {
            upstream: Mutex::new(upstream),
            control: watch::Sender::default(),
            listening: watch::Sender::new(true),
            open: watch::Sender::default(),
            connections: AtomicU64::new(0),
            request_bytes: AtomicU64::new(0),
            traps: Mutex::default(),
            rewrites: Mutex::default(),
        }
    }

    pub(super) fn upstream(&self) -> String {
        self.upstream
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn lead_to(&self, upstream: String) {
        *self.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Control)) {
        self.control.send_modify(change);
    }

    pub(super) fn arm(&self, trap: Trap) -> Trap {
        self.traps().push(trap.clone());
        trap
    }

    /// The first trap that this request chunk springs.
    pub(super) fn spring(&self, chunk: &[u8]) -> Option<Trap> {
        self.traps().iter().find(|trap| trap.meets(chunk)).cloned()
    }

    pub(super) fn traps(&self) -> MutexGuard<'_, Vec<Trap>> {
        self.traps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rewrite(&self, from: &[u8], to: &[u8]) {
        self.rewrites().push((from.to_vec(), to.to_vec()));
    }

    pub(super) fn rewritten(&self, chunk: &mut [u8]) {
        for (from, to) in self.rewrites().iter() {
            let found = chunk.windows(from.len()).position(|window| window == from);
            if let Some(place) = found.and_then(|at| chunk.get_mut(at..at + to.len())) {
                place.copy_from_slice(to);
            }
        }
    }

    fn rewrites(&self) -> MutexGuard<'_, Vec<(Vec<u8>, Vec<u8>)>> {
        self.rewrites.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
