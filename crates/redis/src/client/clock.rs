//! The server's clock as this client guesses it.

use std::sync::Mutex;

use leasehold_core::seam::Moment;
use leasehold_core::support::locked;
use leasehold_redis_client::attempt;

/// What the latest raise of the fence over one connection said of the server's clock.
///
/// A claim takes the fast path only with a guess, and a guess is only for the connection over which the fence was raised: a
/// server that comes back with older data, or another one behind the same address, is met over a new one. So the first grant over each
/// connection raises the fence above all tokens of before.
pub(crate) struct ServerClock {
    /// The number of the connection, and by how many microseconds the server's clock was ahead of ours; `None`: nothing is guessed.
    known: Mutex<Option<(u64, i64)>>,
}

impl ServerClock {
    /// One that makes guesses, or none that raises the fence with each grant.
    pub(crate) fn guessed_if(guesses: bool) -> ServerClock {
        ServerClock { known: Mutex::new(guesses.then_some((0, 0))) }
    }

    /// The server's microseconds at this moment, or 0: nothing is known over this connection.
    pub(crate) fn guess(&self, nth: u64, at: Moment) -> u64 {
        match *locked(&self.known) {
            Some((known, ahead)) if known == nth => attempt(at).saturating_add_signed(ahead),
            _ => 0,
        }
    }

    /// An answer of this moment says this time, in microseconds. So guesses are early by the way of that answer, and late only
    /// after the server's clock stepped back: until then no block of tokens is taken ahead of it.
    pub(crate) fn learn(&self, nth: u64, heard: Moment, micros: u64) {
        if let Some(known) = &mut *locked(&self.known) {
            *known = (nth, micros.wrapping_sub(attempt(heard)) as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_guess_is_for_the_connection_over_which_it_was_learnt() {
        let (clock, heard) = (ServerClock::guessed_if(true), Moment::from_nanos(5_000_000));
        assert_eq!(clock.guess(1, heard), 0);
        for micros in [1_795_000_000_000_000, 4_000] {
            clock.learn(1, heard, micros);
            assert_eq!(clock.guess(1, heard + Duration::from_millis(7)), micros + 7000);
            assert_eq!(clock.guess(2, heard), 0);
        }
        let none = ServerClock::guessed_if(false);
        none.learn(1, heard, 4_000);
        assert_eq!(none.guess(1, heard), 0);
    }
}
