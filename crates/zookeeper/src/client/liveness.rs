//! Since when a session surely lives: which keep-alives verify what. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::seam::{Moment, Validity};

/// What is known of one session's life on the leader.
///
/// Only the leader expires sessions. A follower reports to it only every half tick which sessions it has heard of, when it
/// answers the leader's ping. So an answered write verifies that the follower was joined to its leader, but not that *its own*
/// touch has arrived there: it is lost if the follower then dies. Verified are the touches that the follower had half a tick to
/// report before the verifying write was sent. The server's tick is unknown here; a session lasts at least two, so half a tick is
/// at most a quarter of it. Reads verify nothing: a follower that is cut off answers them.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// What the server of the present connection agreed to: how long the session lives without keep-alives.
    pub(crate) timeout: Duration,
    /// The latest touch that is verified.
    since: Moment,
    /// How long the session surely lives from then: what the server agreed to that received that touch.
    lasts: Duration,
    /// The end that was promised before another server agreed to less.
    promised: Option<Moment>,
    /// When the latest keep-alive was sent that was answered, on any connection. What is read in the session after that is no
    /// older than this.
    pub(crate) last_answered: Moment,
    /// Keep-alives that were answered and are not verified yet: when each was sent and answered.
    pending: VecDeque<(Moment, Moment)>,
}

impl Liveness {
    /// A session that was asked for at `asked`: before that it did not exist.
    pub(crate) fn new(asked: Moment, timeout: Duration) -> Liveness {
        let pending = VecDeque::new();
        Liveness { timeout, since: asked, lasts: timeout, promised: None, last_answered: asked, pending }
    }

    /// A server agreed to this on another connection. The leader applies it at once, also to earlier touches. What was sent over
    /// the previous connection may be lost with its server.
    pub(crate) fn negotiated(&mut self, timeout: Duration) {
        if timeout < self.lasts {
            self.promised = self.promised.max(Some(self.since + self.lasts));
        }
        self.pending.clear();
        (self.timeout, self.lasts) = (timeout, self.lasts.min(timeout));
    }

    /// The leader has heard of the session on this connection since `asked`: followers ask it before they answer.
    pub(crate) fn reconnected(&mut self, asked: Moment) {
        (self.since, self.lasts) = (self.since.max(asked), self.timeout);
    }

    /// Whether more was promised than is true now.
    pub(crate) fn is_shortened(&self) -> bool {
        self.promised.is_some_and(|promised| self.since + self.lasts < promised)
    }

    /// Whether it has surely expired, also on a server that is late.
    pub(crate) fn has_surely_expired(&self, now: Moment) -> bool {
        self.since + self.lasts * 3 / 2 <= now
    }

    /// A keep-alive that was sent at `sent` was answered at `now`.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment) {
        while let Some(&(earlier, answered)) = self.pending.front() {
            if answered + self.timeout / 4 > sent {
                break;
            }
            (self.since, self.lasts) = (self.since.max(earlier), self.timeout);
            self.pending.pop_front();
        }
        self.pending.push_back((sent, now));
        self.last_answered = self.last_answered.max(sent);
    }

    /// When to send the next keep-alive, after one at `last`. Two are always waiting to be verified, each by the next but one,
    /// which is sent as soon as it can verify it. So a lease counts from no more than three eighths of it and three round trips
    /// ago, for eight writes a lease, however long the round trip is.
    pub(crate) fn next(&self, last: Moment) -> Moment {
        let soon = last + self.timeout / 8;
        match self.pending.front() {
            Some(&(_, answered)) if self.pending.len() > 1 => soon.max(answered + self.timeout / 4),
            _ => soon,
        }
    }

    /// How long something lasts that was last verified at `asked`: from then, or from the latest verified touch if that is
    /// earlier. 1 % of the timeout is given up for the leader's own lateness in pinging, on top of the margin of every lease.
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

    fn liveness() -> Liveness {
        Liveness::new(at(1000), Duration::from_millis(1200))
    }

    #[test]
    fn a_keep_alive_counts_once_one_that_was_sent_a_quarter_after_its_answer_is_answered() {
        let mut liveness = liveness();
        // Every 200 ms, answered within 10 ms: a quarter of the timeout is 300 ms.
        for (sent, verified) in [(1010, 1000), (1210, 1000), (1410, 1010), (1610, 1210), (1810, 1410)] {
            liveness.answered(at(sent), at(sent + 10));
            assert_eq!(liveness.since, at(verified), "after the one of {sent}");
        }
        assert!(liveness.pending.len() <= 3);
    }

    #[test]
    fn the_cadence_keeps_the_verified_touch_young_whatever_the_round_trip() {
        for rtt in [1, 20, 100, 250] {
            let mut liveness = liveness();
            let (mut last, mut oldest, mut sent) = (1000, Duration::ZERO, Vec::new());
            for now in 1000..13_000 {
                oldest = oldest.max(at(now).since(liveness.since));
                sent.retain(|&keep_alive| {
                    let answered = keep_alive + rtt <= now;
                    if answered {
                        liveness.answered(at(keep_alive), at(now));
                    }
                    !answered
                });
                if liveness.next(at(last)) <= at(now) {
                    sent.push(now);
                    last = now;
                }
            }
            assert!(oldest <= Duration::from_millis(452 + 3 * rtt), "{oldest:?} at a round trip of {rtt} ms");
        }
    }

    #[test]
    fn another_server_s_limit_counts_from_its_first_answer() {
        let ends = |liveness: &Liveness| (liveness.since, liveness.lasts.as_millis());
        let mut liveness = liveness();
        liveness.answered(at(1100), at(1110));
        liveness.negotiated(Duration::from_millis(400));
        assert_eq!(ends(&liveness), (at(1000), 400));
        assert!(liveness.is_shortened());
        // What was answered on the previous connection verifies nothing on this one.
        liveness.answered(at(1450), at(1460));
        assert_eq!(ends(&liveness), (at(1000), 400));
        liveness.reconnected(at(1400));
        assert_eq!(ends(&liveness), (at(1400), 400));
        assert!(liveness.is_shortened(), "2200 was promised");
        liveness.answered(at(1850), at(1860));
        liveness.answered(at(2000), at(2010));
        assert_eq!(ends(&liveness), (at(1850), 400));
        assert!(!liveness.is_shortened());
        // A longer one counts only for touches that it applied to.
        liveness.negotiated(Duration::from_millis(1200));
        assert_eq!(ends(&liveness), (at(1850), 400));
        liveness.reconnected(at(2100));
        assert_eq!(ends(&liveness), (at(2100), 1200));
        assert!(!liveness.has_surely_expired(at(3899)) && liveness.has_surely_expired(at(3900)));
    }

    #[test]
    fn late_answers_verify_later() {
        let mut liveness = liveness();
        liveness.answered(at(1200), at(1900)); // a slow one
        liveness.answered(at(1400), at(1901));
        liveness.answered(at(2190), at(2195)); // sent only 290 ms after that answer
        assert_eq!(liveness.since, at(1000));
        liveness.answered(at(2201), at(2205));
        assert_eq!(liveness.since, at(1400));
    }
}
