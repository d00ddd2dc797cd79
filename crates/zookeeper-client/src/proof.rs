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
    timeout: Duration,
    since: Moment,
    /// Heartbeats that were answered and are not proven yet: when each was sent and answered.
    pending: VecDeque<(Moment, Moment)>,
}

impl Proof {
    /// A session that was asked for at `asked`: before that it did not exist.
    pub(crate) fn new(asked: Moment, timeout: Duration) -> Proof {
        Proof { timeout, since: asked, pending: VecDeque::new() }
    }

    /// A heartbeat that was sent at `sent` was answered at `now`.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment) {
        while let Some(&(earlier, heard)) = self.pending.front() {
            if heard + self.timeout / 4 > sent {
                break;
            }
            self.since = self.since.max(earlier);
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
        Validity::since(self.since.min(asked), self.timeout - self.timeout / 100)
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
