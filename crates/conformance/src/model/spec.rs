//! The sequential models: one name's queue, its holders, the effects of re-entry and downgrade, and
//! the order of tokens. They do not use core's own admission rule, so that the two are compared.

use leasehold_core::backend::Mode;

/// One claim in a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) id: usize,
    pub(crate) who: usize,
    pub(crate) mode: Mode,
    pub(crate) label: String,
    /// `None` while it waits.
    pub(crate) token: Option<u64>,
    /// The number of guards that share it, if an owner may enter again.
    pub(crate) guards: u32,
    pub(crate) owned: bool,
}

/// The required outcome of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    In,
    Busy,
    Invalid,
}

/// The required outcome of a claim by a client that may hold the name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entering {
    /// It shares this hold.
    Shares(usize),
    /// It is a claim like any other.
    New(Verdict),
}

/// One name.
#[derive(Clone, Default, Debug)]
pub struct Spec {
    queue: Vec<Entry>,
    /// Every token that was granted, with the mode it was granted in.
    granted: Vec<(u64, Mode)>,
    next: usize,
}

fn conflict(a: Mode, b: Mode) -> bool {
    !matches!(
        (a, b),
        (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. })
    )
}

fn permits(mode: Mode) -> u32 {
    if let Mode::Permits { n, .. } = mode {
        n
    } else {
        0
    }
}

impl Spec {
    /// Returns whether a claim of `mode` holds behind `before`: no claim before it conflicts, and
    /// there is room.
    fn is_in(before: &[Entry], mode: Mode) -> bool {
        if before.iter().any(|entry| conflict(entry.mode, mode)) {
            return false;
        }
        let Mode::Permits { n, of } = mode else {
            return true;
        };
        before.iter().map(|entry| permits(entry.mode)).sum::<u32>() + n <= of
    }

    pub(crate) fn verdict(&self, mode: Mode) -> Verdict {
        let counts = self.queue.iter().find_map(|e| {
            if let Mode::Permits { of, .. } = e.mode {
                Some(of)
            } else {
                None
            }
        });
        match (mode, counts) {
            (Mode::Permits { of, .. }, Some(theirs)) if of != theirs => Verdict::Invalid,
            _ if Spec::is_in(&self.queue, mode) => Verdict::In,
            _ => Verdict::Busy,
        }
    }

    pub(crate) fn entering(&self, who: usize, mode: Mode) -> Entering {
        match self
            .queue
            .iter()
            .find(|entry| entry.owned && entry.who == who)
        {
            Some(held) if held.mode == mode || held.mode == Mode::Exclusive => {
                Entering::Shares(held.id)
            }
            Some(_) => Entering::New(Verdict::Invalid),
            None => Entering::New(self.verdict(mode)),
        }
    }

    /// Takes the last place in the queue.
    pub(crate) fn join(&mut self, who: usize, mode: Mode, label: &str, owned: bool) -> usize {
        self.next += 1;
        let id = self.next;
        let label = label.to_owned();
        self.queue.push(Entry {
            id,
            who,
            mode,
            label,
            token: None,
            guards: 1,
            owned,
        });
        id
    }

    pub(crate) fn leave(&mut self, id: usize) {
        self.queue.retain(|entry| entry.id != id);
    }

    pub(crate) fn entry(&mut self, id: usize) -> Option<&mut Entry> {
        self.queue.iter_mut().find(|entry| entry.id == id)
    }

    pub(crate) fn queue(&self) -> &[Entry] {
        &self.queue
    }

    /// Returns whether this entry must hold now.
    pub(crate) fn must_hold(&self, id: usize) -> bool {
        self.queue
            .iter()
            .position(|entry| entry.id == id)
            .is_some_and(|at| {
                let entry = &self.queue[at];
                entry.token.is_some() || Spec::is_in(&self.queue[..at], entry.mode)
            })
    }

    /// Records the token that the store granted to this entry. It must be greater than that of
    /// every conflicting grant before.
    pub(crate) fn grant(&mut self, id: usize, token: u64) -> Result<(), String> {
        if !self.must_hold(id) {
            return Err(format!(
                "{id} was granted and should wait in {:?}",
                self.queue
            ));
        }
        let granted = std::mem::take(&mut self.granted);
        let entry = self.entry(id).ok_or("granted and gone")?;
        let mode = entry.mode;
        entry.token = Some(token);
        let later = granted.iter().find(|(other, theirs)| {
            *other >= token && (conflict(*theirs, mode) || *other == token)
        });
        if let Some((other, theirs)) = later {
            return Err(format!(
                "token {token} for {mode:?} came after {other} for {theirs:?}"
            ));
        }
        self.granted = granted;
        self.granted.push((token, mode));
        Ok(())
    }

    /// The view that every client must have: the holders with their tokens, sorted, and the waiters
    /// in order.
    pub(crate) fn view(&self) -> (Vec<(u64, String)>, Vec<String>) {
        let mut holders: Vec<_> = self
            .queue
            .iter()
            .filter_map(|e| e.token.map(|token| (token, e.label.clone())))
            .collect();
        holders.sort();
        (
            holders,
            self.queue
                .iter()
                .filter(|e| e.token.is_none())
                .map(|e| e.label.clone())
                .collect(),
        )
    }
}
