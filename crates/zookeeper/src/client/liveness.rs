//! From when a session surely lives: which heartbeats prove what. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::seam::{Moment, Validity};

/// What is known of one session's life on the leader.
///
/// Only the leader expires sessions, and a follower tells it which ones were heard of only every half tick, when it answers
/// the leader's ping. So an answered write proves that the follower was joined to its leader, but not that *its own* touch has
/// arrived there: a follower that then dies takes it along. What surely arrived are the touches that the follower had
/// half a tick to pass on before the proving write was sent. The server's tick is unknown here; a session lasts at least
/// two, so half a tick is at most a quarter of it. Reads prove nothing: a follower that is cut off answers them.
#[derive(Debug)]
pub(crate) struct Proof {
    /// What the server of the present connection agreed to.
    timeout: Duration,
    since: Moment,
    /// How long the session surely lives from then: what the server agreed to that heard of it.
    lasts: Duration,
    /// Until when more was promised than is true since another server agreed to less.
    promised: Option<Moment>,
    /// Heartbeats that were answered and are not proven yet: when each was sent and answered.
    pending: VecDeque<(Moment, Moment)>,
}

impl Proof {
    /// A session that was asked for at `asked`: before that it did not exist.
    pub(crate) fn new(asked: Moment, timeout: Duration) -> Proof {
        Proof { timeout, since: asked, lasts: timeout, promised: None, pending: VecDeque::new() }
    }

    /// What the server of the present connection agreed to.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A server agreed to this on another connection. The leader goes by that at once: what was heard of before lasts no longer.
    /// What was sent over the connection of before may be lost with its server.
    pub(crate) fn negotiated(&mut self, timeout: Duration) {
        if timeout < self.lasts {
            self.promised = self.promised.max(Some(self.since + self.lasts));
        }
        self.pending.clear();
        (self.timeout, self.lasts) = (timeout, self.lasts.min(timeout));
    }

    /// The leader heard of the session on this connection, since `asked`: followers ask it before they answer.
    pub(crate) fn attached(&mut self, asked: Moment) {
        (self.since, self.lasts) = (self.since.max(asked), self.timeout);
    }

    /// Whether more was promised than is true now.
    pub(crate) fn is_shortened(&self) -> bool {
        self.promised.is_some_and(|promised| self.since + self.lasts < promised)
    }

    /// Whether it has surely ended, also for a server that is late.
    pub(crate) fn is_long_over(&self, now: Moment) -> bool {
        self.since + self.lasts * 3 / 2 <= now
    }

    /// A heartbeat that was sent at `sent` was answered at `now`.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment) {
        while let Some(&(earlier, heard)) = self.pending.front() {
            if heard + self.timeout / 4 > sent {
                break;
            }
            (self.since, self.lasts) = (self.since.max(earlier), self.timeout);
            self.pending.pop_front();
        }
        self.pending.push_back((sent, now));
    }

    /// When to send the next heartbeat, after one at `last`. Two are always on their way to be proven, each by the next but one,
    /// which leaves as soon as it can prove it: so a lease counts from no more than three eighths of it and three round trips ago,
    /// for eight writes a lease, however long the round trip is.
    pub(crate) fn next(&self, last: Moment) -> Moment {
        let soon = last + self.timeout / 8;
        match self.pending.front() {
            Some(&(_, heard)) if self.pending.len() > 1 => soon.max(heard + self.timeout / 4),
            _ => soon,
        }
    }

    /// How long something holds that was last asked for at `asked`: from then, or from the latest proven touch if that is
    /// earlier. 1 % of the timeout is given up for the leader's own lateness in pinging, on top of the margin that every lease
    /// has.
    pub(crate) fn validity(&self, asked: Moment) -> Validity {
        Validity::since(self.since.min(asked), self.lasts - self.lasts / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn proof() -> Proof {
        Proof::new(at(1000), Duration::from_millis(1200))
    }

    #[test]
    fn a_heartbeat_counts_once_a_later_one_that_left_a_quarter_after_its_answer_is_answered() {
        let mut proof = proof();
        // Every 200 ms, answered within 10 ms: a quarter of the timeout is 300 ms.
        for (sent, proven) in [(1010, 1000), (1210, 1000), (1410, 1010), (1610, 1210), (1810, 1410)] {
            proof.answered(at(sent), at(sent + 10));
            assert_eq!(proof.since, at(proven), "after the one of {sent}");
        }
        assert!(proof.pending.len() <= 3);
    }

    #[test]
    fn the_cadence_keeps_the_proof_young_whatever_the_round_trip() {
        for rtt in [1, 20, 100, 250] {
            let mut proof = proof();
            let (mut last, mut oldest, mut sent) = (1000, Duration::ZERO, Vec::new());
            for now in 1000..13_000 {
                oldest = oldest.max(at(now).since(proof.since));
                sent.retain(|&beat| {
                    let answered = beat + rtt <= now;
                    if answered {
                        proof.answered(at(beat), at(now));
                    }
                    !answered
                });
                if proof.next(at(last)) <= at(now) {
                    sent.push(now);
                    last = now;
                }
            }
            assert!(oldest <= Duration::from_millis(452 + 3 * rtt), "{oldest:?} at a round trip of {rtt} ms");
        }
    }

    #[test]
    fn another_server_s_limit_counts_from_its_first_word() {
        let ends = |proof: &Proof| (proof.since, proof.lasts.as_millis());
        let mut proof = proof();
        proof.answered(at(1100), at(1110));
        proof.negotiated(Duration::from_millis(400));
        assert_eq!(ends(&proof), (at(1000), 400));
        assert!(proof.is_shortened());
        // What was answered on the connection of before proves nothing on this one.
        proof.answered(at(1450), at(1460));
        assert_eq!(ends(&proof), (at(1000), 400));
        proof.attached(at(1400));
        assert_eq!(ends(&proof), (at(1400), 400));
        assert!(proof.is_shortened(), "2200 was promised");
        proof.answered(at(1850), at(1860));
        proof.answered(at(2000), at(2010));
        assert_eq!(ends(&proof), (at(1850), 400));
        assert!(!proof.is_shortened());
        // A longer one counts only for what was heard of under it.
        proof.negotiated(Duration::from_millis(1200));
        assert_eq!(ends(&proof), (at(1850), 400));
        proof.attached(at(2100));
        assert_eq!(ends(&proof), (at(2100), 1200));
        assert!(!proof.is_long_over(at(3899)) && proof.is_long_over(at(3900)));
    }

    #[test]
    fn late_answers_prove_later() {
        let mut proof = proof();
        proof.answered(at(1200), at(1900)); // a slow one
        proof.answered(at(1400), at(1901));
        proof.answered(at(2190), at(2195)); // left only 290 ms after that answer
        assert_eq!(proof.since, at(1000));
        proof.answered(at(2201), at(2205));
        assert_eq!(proof.since, at(1400));
    }
}
