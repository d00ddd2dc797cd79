//! Signals that systemd sends to each process of a unit: to the program, to the command, which
//! passes signals on to the program, and to the guardian. If the guardian gets such a signal too,
//! the program has got it already, and it is not passed on. Other senders do not signal the
//! guardian, which has a process group and a name of its own. The exception is a sender that
//! selects by the command line (`pkill -f`): it signals the guardian and the command, but not the
//! program, and it is no service manager.

use std::time::Duration;

use leasehold::backend::Moment;

/// The longest time that systemd takes until all processes have the signal.
const ROUND: Duration = Duration::from_millis(250);
/// The longest time after which the command sees a signal that the guardian has seen.
const LATE: Duration = Duration::from_secs(2);

/// The signals that the guardian has got itself, and those that the command has asked it to pass
/// on.
#[derive(Debug, Default)]
pub(super) struct Doubles {
    /// Each with the time at which it came.
    got: Vec<(i32, Moment)>,
    /// Each with the time at which it is passed on, unless the guardian gets it too.
    held_back: Vec<(i32, Moment)>,
}

impl Doubles {
    /// Records a signal that the guardian itself has got.
    pub(super) fn got(&mut self, number: i32, now: Moment) {
        if !take(&mut self.held_back, number) {
            self.got.retain(|(_, at)| now < *at + LATE);
            self.got.push((number, now));
        }
    }

    /// Records a signal that the command has got from systemd.
    pub(super) fn command_got(&mut self, number: i32, now: Moment) {
        self.got.retain(|(_, at)| now < *at + LATE);
        if !take(&mut self.got, number) {
            self.held_back.push((number, now + ROUND));
        }
    }

    /// Returns the next signal that went to the command alone, once it is due.
    pub(super) fn due(&mut self, now: Moment) -> Option<i32> {
        let at = self.held_back.iter().position(|(_, at)| *at <= now)?;
        Some(self.held_back.remove(at).0)
    }

    /// The time at which the next signal is due.
    pub(super) fn next(&self) -> Option<Moment> {
        self.held_back.iter().map(|(_, at)| *at).min()
    }
}

fn take(from: &mut Vec<(i32, Moment)>, number: i32) -> bool {
    let at = from.iter().position(|(it, _)| *it == number);
    at.map(|at| from.remove(at)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_the_guardian_gets_too_is_not_passed_on() {
        let mut doubles = Doubles::default();
        // The guardian gets the first signal before the command, and the second one after it.
        doubles.got(15, at(0));
        doubles.command_got(15, at(50));
        doubles.command_got(15, at(200));
        assert_eq!(doubles.next(), Some(at(450)));
        doubles.got(15, at(201));
        assert_eq!((doubles.next(), doubles.due(at(9000))), (None, None));
        // Signal 15 and the second signal 1 went to the command alone.
        doubles.got(1, at(1000));
        doubles.command_got(15, at(1000));
        doubles.command_got(1, at(1001));
        doubles.command_got(1, at(1002));
        assert_eq!(doubles.due(at(1249)), None);
        let mut due = || doubles.due(at(1252));
        assert_eq!([due(), due(), due()], [Some(15), Some(1), None]);
        // A signal that the guardian got long ago is not counted as this one.
        doubles.got(15, at(2000));
        doubles.command_got(15, at(4000));
        assert_eq!(doubles.next(), Some(at(4250)));
    }
}
