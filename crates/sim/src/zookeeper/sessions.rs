//! Sessions, as the leader counts their time: in ticks, and by the reports of members about the
//! sessions that they have heard of.

use std::collections::BTreeMap;

/// The password by which a client is known to own a session: as long as a real one's, and different
/// for each session.
pub(crate) type Password = [u8; 16];

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) password: Password,
    /// The agreed timeout, in nanoseconds.
    pub(crate) timeout: u64,
    /// The member to which it is connected.
    pub(crate) member: usize,
    expires: u64,
}

/// All sessions.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<i64, Session>,
    made: i64,
    /// The leader's tick, in nanoseconds.
    tick: u64,
    /// The sessions that each member has heard of since its last report, and the time of the next
    /// reports.
    heard: Vec<BTreeMap<i64, u64>>,
    reports: u64,
}

impl Sessions {
    pub(crate) fn new(tick: u64, members: usize) -> Sessions {
        Sessions {
            all: BTreeMap::new(),
            made: 0,
            tick,
            heard: vec![BTreeMap::new(); members],
            reports: 0,
        }
    }

    /// Replaces all sessions by these. No number is given twice: a real server begins to count by
    /// the time.
    pub(crate) fn restore(&mut self, kept: Sessions) {
        let made = self.made.max(kept.made);
        *self = Sessions { made, ..kept };
    }

    pub(crate) fn tick(&self) -> u64 {
        self.tick
    }

    /// Opens a session at this member.
    pub(crate) fn open(&mut self, member: usize, timeout: u64, now: u64) -> (i64, Password) {
        self.made += 1;
        let id = (member as i64 + 1) << 56 | self.made;
        let mut password = [0x5a; 16];
        password[..8].copy_from_slice(&id.to_be_bytes());
        let expires = self.end(timeout, now);
        self.all.insert(
            id,
            Session {
                password,
                timeout,
                member,
                expires,
            },
        );
        (id, password)
    }

    pub(crate) fn get(&self, id: i64) -> Option<&Session> {
        self.all.get(&id)
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.all.keys().copied().collect()
    }

    /// Connects a session to this member, if it lives and this is its password. Returns whether it
    /// did.
    pub(crate) fn reopen(
        &mut self,
        id: i64,
        password: &[u8],
        (member, timeout): (usize, u64),
        now: u64,
    ) -> bool {
        let expires = self.end(timeout, now);
        let Some(it) = self.all.get_mut(&id).filter(|it| it.password == password) else {
            return false;
        };
        (it.member, it.timeout, it.expires) = (member, timeout, expires);
        true
    }

    pub(crate) fn close(&mut self, id: i64) {
        self.all.remove(&id);
        self.heard
            .iter_mut()
            .for_each(|heard| _ = heard.remove(&id));
    }

    /// Records that a member has heard of a session. The leader learns it at once only from itself.
    pub(crate) fn hear(&mut self, id: i64, timeout: u64, member: usize, leader: usize, now: u64) {
        if member == leader {
            self.touch(id, timeout, now);
        } else {
            self.heard[member].insert(id, timeout);
        }
    }

    fn touch(&mut self, id: i64, timeout: u64, now: u64) {
        let expires = self.end(timeout, now);
        if let Some(it) = self.all.get_mut(&id) {
            it.expires = expires;
        }
    }

    /// The expiry: the tick after the timeout.
    fn end(&self, timeout: u64, now: u64) -> u64 {
        ((now + timeout) / self.tick + 1) * self.tick
    }

    /// Each half tick, the members that reach the leader report the sessions that they have heard
    /// of.
    pub(crate) fn report(&mut self, reaches: impl Fn(usize) -> bool, now: u64) {
        if self.reports > now {
            return;
        }
        self.reports = now + self.tick / 2;
        for member in (0..self.heard.len()).filter(|member| reaches(*member)) {
            for (id, timeout) in std::mem::take(&mut self.heard[member]) {
                self.touch(id, timeout, now);
            }
        }
    }

    /// Drops everything that a member has not reported.
    pub(crate) fn forget(&mut self, member: usize) {
        self.heard[member].clear();
    }

    /// The sessions whose time is over.
    pub(crate) fn over(&self, now: u64) -> Vec<i64> {
        self.all
            .iter()
            .filter(|(_, it)| it.expires <= now)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Gives each session its whole time, as a new leader does.
    pub(crate) fn promote(&mut self, now: u64) {
        let ends: Vec<_> = self
            .all
            .iter()
            .map(|(id, it)| (*id, self.end(it.timeout, now)))
            .collect();
        for (id, expires) in ends {
            self.all.entry(id).and_modify(|it| it.expires = expires);
        }
        (0..self.heard.len()).for_each(|member| self.forget(member));
    }
}
