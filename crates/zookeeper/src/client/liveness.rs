//! The moment since which a session surely lives, computed from the send and answer times of its
//! requests. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_core::backend::{Moment, Validity};

/// The greatest number of touches that are kept until they are verified: those of a lease, even if
/// each is answered late.
const PENDING: usize = 16;

/// The knowledge of one session's life on the leader: a queue of answered requests (*touches*) that
/// wait to be verified, and the latest verified one.
///
/// Only the leader expires sessions. A follower reports to it only every half tick which sessions
/// it has heard of, when it answers the leader's ping. An answered write therefore verifies that
/// the follower was joined to its leader, but not that *its own* touch has arrived there: that is
/// lost if the follower then dies. It verifies the touches that the follower had half a tick to
/// report before the write was sent. The server's tick is unknown here; a session lasts at least
/// two ticks, so half a tick is at most a quarter of it.
///
/// Reads touch a session, too, but verify nothing: a follower that is cut off answers them. A
/// session that holds nothing only reads, and the write that comes with its next hold verifies its
/// earlier reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Liveness {
    /// The time that the session surely lives without keep-alives: the least that any server has
    /// agreed to.
    pub(crate) timeout: Duration,
    /// The time that it may live without keep-alives: the most that any server has agreed to.
    longest: Duration,
    /// The latest touch that is verified.
    since: Moment,
    /// The end that was promised before another server agreed to less; and whether that server
    /// ended it early.
    promised: Moment,
    shortened: bool,
    /// The send time of the latest answered write, on any connection. Reads in the session after
    /// that are no older than this.
    pub(crate) last_answered: Moment,
    /// The time at which the server last answered a request that counts here.
    heard: Moment,
    /// Requests that were answered and are not verified yet: the send time and the answer time of
    /// each.
    pending: VecDeque<(Moment, Moment)>,
}

impl Liveness {
    /// Creates the state of a session that was asked for at `asked`: before that it did not exist.
    pub(crate) fn new(asked: Moment, timeout: Duration) -> Liveness {
        let pending = VecDeque::new();
        let since = asked;
        let promised = asked;
        let last_answered = asked;
        let heard = asked;
        Liveness {
            timeout,
            longest: timeout,
            since,
            promised,
            shortened: false,
            last_answered,
            heard,
            pending,
        }
    }

    /// Returns whether a server that is asked for the session at `asked`, and agrees to this
    /// timeout, would end a promise early.
    pub(crate) fn promises_more(&self, timeout: Duration, asked: Moment) -> bool {
        timeout < self.timeout && asked + timeout < self.promised()
    }

    fn promised(&self) -> Moment {
        self.promised.max(self.since + self.timeout)
    }

    /// Records that a server agreed to this timeout on another connection, which was asked for at
    /// `asked`, or will only be asked for now. The leader applies the timeout at once, even to
    /// earlier touches, and may apply it again at any time: it uses the timeout of the server that
    /// tells it of the session last, and a request that was given up, or a report, may arrive when
    /// the session is connected to another server. A longer timeout therefore never replaces a
    /// shorter one. Touches over the previous connection may be lost with its server.
    pub(crate) fn negotiated(&mut self, timeout: Duration, asked: Moment) {
        if timeout < self.timeout {
            self.shortened = self.is_shortened() || self.promises_more(timeout, asked);
            self.promised = self.promised();
            self.timeout = timeout;
        }
        self.longest = self.longest.max(timeout);
        self.pending.clear();
    }

    /// Records that the leader has heard of the session on this connection since `asked`: followers
    /// ask it before they answer.
    pub(crate) fn reconnected(&mut self, asked: Moment) {
        self.since = self.since.max(asked);
    }

    /// Returns whether more was promised than is true now.
    pub(crate) fn is_shortened(&self) -> bool {
        self.shortened && self.since + self.timeout < self.promised
    }

    /// Returns whether the session has surely expired, even on a server that is late.
    pub(crate) fn has_surely_expired(&self, now: Moment) -> bool {
        self.since.max(self.heard) + self.longest * 3 / 2 <= now
    }

    /// Records that a read sent at `sent` was answered at `now`. If several were sent within a
    /// sixteenth of the timeout, only the first counts.
    pub(crate) fn touched(&mut self, sent: Moment, now: Moment) {
        self.heard = self.heard.max(now);
        if self
            .pending
            .back()
            .is_none_or(|(last, _)| *last + self.timeout / 16 <= sent)
        {
            if self.pending.len() >= PENDING {
                self.pending.pop_front();
            }
            self.pending.push_back((sent, now));
        }
    }

    /// Records that a write sent at `sent` was answered at `now`.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment) {
        while let Some(&(earlier, answered)) = self.pending.front() {
            if answered + self.timeout / 4 > sent {
                break;
            }
            self.since = self.since.max(earlier);
            self.pending.pop_front();
        }
        self.touched(sent, now);
        self.last_answered = self.last_answered.max(sent);
    }

    /// The time of the next keep-alive after one at `last`. Two are always waiting to be verified,
    /// each by the next but one, which is sent as soon as it can verify it. A lease therefore
    /// counts from no more than three eighths of it and three round trips ago, for eight requests a
    /// lease, however long the round trip is. The writes of claims count as keep-alives.
    pub(crate) fn next(&self, last: Moment) -> Moment {
        let soon = self
            .pending
            .back()
            .map_or(last, |(sent, _)| last.max(*sent))
            + self.timeout / 8;
        match self.pending.front() {
            Some(&(_, answered)) if self.pending.len() > 1 => soon.max(answered + self.timeout / 4),
            _ => soon,
        }
    }

    /// Returns whether less than half of the session's time is left for an entry that was last
    /// verified at `asked`.
    pub(crate) fn is_stale(&self, asked: Moment, now: Moment) -> bool {
        self.since.min(asked) + self.timeout / 2 <= now
    }

    /// The validity of an entry that was last verified at `asked`: from then on, or from the latest
    /// verified touch if that is earlier. 1 % of the timeout is given up for the leader's own
    /// lateness in pinging, on top of the margin of every lease.
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

    fn liveness() -> Liveness {
        Liveness::new(at(1000), Duration::from_millis(1200))
    }

    #[test]
    fn a_keep_alive_counts_once_one_that_was_sent_a_quarter_after_its_answer_is_answered() {
        let mut liveness = liveness();
        // Every 200 ms, answered within 10 ms: a quarter of the timeout is 300 ms.
        for (sent, verified) in [
            (1010, 1000),
            (1210, 1000),
            (1410, 1010),
            (1610, 1210),
            (1810, 1410),
        ] {
            liveness.answered(at(sent), at(sent + 10));
            assert_eq!(liveness.since, at(verified), "after the one of {sent}");
        }
        assert!(liveness.pending.len() <= 3);
    }

    #[test]
    fn the_cadence_keeps_the_verified_touch_young_whatever_the_round_trip() {
        for rtt in [1, 20, 100, 250] {
            let mut liveness = liveness();
            let mut last = 1000;
            let mut oldest = Duration::ZERO;
            let mut sent = Vec::new();
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
            assert!(
                oldest <= Duration::from_millis(452 + 3 * rtt),
                "{oldest:?} at a round trip of {rtt} ms"
            );
        }
    }

    #[test]
    fn another_server_s_limit_counts_from_its_first_answer_and_for_ever() {
        let ends = |liveness: &Liveness| (liveness.since, liveness.timeout.as_millis());
        let mut liveness = liveness();
        liveness.answered(at(1100), at(1110));
        let less = |asked| liveness.promises_more(Duration::from_millis(400), at(asked));
        assert!(
            less(1799)
                && !less(1800)
                && !liveness.promises_more(Duration::from_millis(1200), at(1110))
        );
        liveness.negotiated(Duration::from_millis(400), at(1300));
        assert_eq!(ends(&liveness), (at(1000), 400));
        assert!(liveness.is_shortened());
        // An answer on the previous connection verifies nothing on this one.
        liveness.answered(at(1450), at(1460));
        assert_eq!(ends(&liveness), (at(1000), 400));
        liveness.reconnected(at(1400));
        assert_eq!(ends(&liveness), (at(1400), 400));
        assert!(liveness.is_shortened(), "2200 was promised");
        liveness.answered(at(1850), at(1860));
        liveness.answered(at(2000), at(2010));
        assert_eq!(ends(&liveness), (at(1850), 400));
        assert!(!liveness.is_shortened());
        liveness.negotiated(Duration::from_millis(1200), at(2100));
        liveness.reconnected(at(2100));
        assert_eq!(
            ends(&liveness),
            (at(2100), 400),
            "the server of before may still tell the leader of it"
        );
        assert!(!liveness.has_surely_expired(at(3899)) && liveness.has_surely_expired(at(3900)));
    }

    #[test]
    fn a_shorter_limit_that_lasts_beyond_the_promise_shortens_nothing() {
        let mut liveness = liveness();
        liveness.negotiated(Duration::from_millis(400), at(1800));
        assert!(!liveness.is_shortened(), "2200 was promised, and is kept");
        let even_less = |asked| liveness.promises_more(Duration::from_millis(300), at(asked));
        assert!(even_less(1899) && !even_less(1900));
        liveness.reconnected(at(1810));
        assert_eq!(
            (liveness.since, liveness.timeout.as_millis()),
            (at(1810), 400)
        );
        liveness.negotiated(Duration::from_millis(300), at(1850));
        assert!(liveness.is_shortened(), "2210 was promised by then");
        liveness.reconnected(at(1910));
        assert!(!liveness.is_shortened());
    }

    /// The session reads while it waits, and writes once when it is granted.
    #[test]
    fn a_write_verifies_the_reads_before_it() {
        let mut liveness = liveness();
        for sent in (1150..10_000).step_by(150) {
            liveness.touched(at(sent), at(sent + 10));
            assert!(liveness.pending.len() <= PENDING);
        }
        assert_eq!(
            (liveness.since, liveness.last_answered),
            (at(1000), at(1000)),
            "reads verify nothing"
        );
        assert!(
            liveness.is_stale(at(9990), at(10_000)) && !liveness.has_surely_expired(at(11_000))
        );
        liveness.answered(at(10_000), at(10_010));
        assert_eq!(
            liveness.since,
            at(9550),
            "answered at 9560, and 300 ms are a quarter of the timeout"
        );
        assert!(!liveness.is_stale(at(10_000), at(10_010)));
        assert!(
            liveness.is_stale(at(9000), at(10_010)),
            "the entry itself was verified long ago"
        );
    }

    #[test]
    fn many_writes_are_few_keep_alives() {
        let mut liveness = liveness();
        for sent in 1000..4000 {
            liveness.answered(at(sent), at(sent + 1));
        }
        assert!(
            liveness.since >= at(3600) && liveness.pending.len() <= 6,
            "{liveness:?}"
        );
        assert!(
            liveness.next(at(1000)) >= at(4050),
            "no keep-alive is due beside them"
        );
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
