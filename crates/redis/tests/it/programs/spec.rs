//! What a queue of one name is, step by step, without a server, a clock or a layout.

use leasehold_core::backend::{Admission, Mode, admit, same_permits};

#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Granted,
    Waiting,
    /// Or gone.
    Busy,
    /// Another number of permits.
    Differ,
}

struct Entry {
    at: usize,
    mode: Mode,
    alive: bool,
    /// It ends by itself.
    closed: bool,
}

/// Claims go by their number.
#[derive(Default)]
pub(crate) struct Spec {
    pub(crate) foreign: bool,
    holders: Vec<Entry>,
    waiters: Vec<Entry>,
}

impl Spec {
    fn fits(&self, mode: Mode) -> bool {
        let modes: Vec<Mode> = self.holders.iter().map(|e| e.mode).collect();
        !self.foreign && admit(&modes, mode) == Admission::In
    }

    /// What any request notices: the dead are gone, and those that fit are admitted in their order.
    pub(crate) fn settle(&mut self) {
        self.holders.retain(|e| e.alive);
        self.waiters.retain(|e| e.alive);
        while self.waiters.first().is_some_and(|e| self.fits(e.mode)) {
            let next = self.waiters.remove(0);
            self.holders.push(next);
        }
    }

    pub(crate) fn claim(&mut self, at: usize, mode: Mode, waits: bool) -> Answer {
        self.settle();
        if let Some(held) = self.holders.iter_mut().find(|e| e.at == at) {
            if held.closed {
                return Answer::Busy;
            }
            if (held.mode, mode) == (Mode::Exclusive, Mode::Shared) {
                held.mode = mode;
                self.settle();
            }
            return Answer::Granted;
        }
        if self.waiters.iter().any(|e| e.at == at) {
            return Answer::Waiting;
        }
        if same_permits(
            self.holders.iter().chain(&self.waiters).map(|e| &e.mode),
            mode,
        )
        .is_err()
        {
            return Answer::Differ;
        }
        let entry = Entry {
            at,
            mode,
            alive: true,
            closed: false,
        };
        if self.waiters.is_empty() && self.fits(mode) {
            self.holders.push(entry);
            Answer::Granted
        } else if waits {
            self.waiters.push(entry);
            Answer::Waiting
        } else {
            Answer::Busy
        }
    }

    pub(crate) fn release(&mut self, at: usize) {
        self.holders.retain(|e| e.at != at);
        self.waiters.retain(|e| e.at != at);
        self.settle();
    }

    pub(crate) fn release_after(&mut self, at: usize) {
        self.settle();
        self.holders
            .iter_mut()
            .filter(|e| e.at == at)
            .for_each(|e| e.closed = true);
        self.waiters.retain(|e| e.at != at);
        self.settle();
    }

    pub(crate) fn renew(&mut self, at: usize) -> Answer {
        self.settle();
        let within = |entries: &[Entry]| entries.iter().any(|e| e.at == at && !e.closed);
        match (within(&self.holders), within(&self.waiters)) {
            (true, _) => Answer::Granted,
            (_, true) => Answer::Waiting,
            _ => Answer::Busy,
        }
    }

    pub(crate) fn evict(&mut self, at: usize) -> bool {
        self.settle();
        let before = self.holders.len();
        self.holders.retain(|e| e.at != at);
        let ended = self.holders.len() < before;
        self.settle();
        ended
    }

    /// Another tool's `SET NX`. A key of sharers is there until a request notices that the last has died.
    pub(crate) fn set(&mut self) -> bool {
        let free = !self.foreign && self.holders.is_empty();
        self.foreign |= free;
        free
    }

    pub(crate) fn delete(&mut self) {
        self.foreign = false;
        self.holders.clear();
    }

    /// A lease ends: that of an exclusive hold with its key, any other for the next request.
    pub(crate) fn end(&mut self, at: usize) {
        self.holders
            .retain(|e| e.at != at || e.mode != Mode::Exclusive);
        self.holders
            .iter_mut()
            .chain(&mut self.waiters)
            .filter(|e| e.at == at)
            .for_each(|e| e.alive = false);
    }

    /// Those that hold, or whose end was not noticed yet.
    pub(crate) fn holders(&self) -> Vec<usize> {
        self.holders.iter().map(|e| e.at).collect()
    }

    pub(crate) fn live_holders(&self) -> Vec<usize> {
        self.holders
            .iter()
            .filter(|e| e.alive)
            .map(|e| e.at)
            .collect()
    }

    pub(crate) fn waiters(&self) -> Vec<usize> {
        self.waiters
            .iter()
            .filter(|e| e.alive)
            .map(|e| e.at)
            .collect()
    }
}
