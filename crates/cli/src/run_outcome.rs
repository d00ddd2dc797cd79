//! How a run went: its exit, its report, and what is said about it.

use leasehold::{Error, Loss};
use nix::sys::signal::Signal;

use crate::exit::{self, Exit, say};
use crate::guardian::wire::{Status, Why};
use crate::processes::Left;
use crate::report::{Outcome, Report, ReportFile};
use crate::signals;
use crate::store_url::StoreUrl;
use crate::supervise;

/// How a run went.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) exit: Exit,
    pub(crate) token: Option<u64>,
    pub(crate) status: Option<Status>,
    /// Processes that run on without the lock.
    pub(crate) left: Vec<Left>,
    pub(crate) complaint: Option<String>,
    /// The complaint is for the report alone.
    pub(crate) silent: bool,
}

impl RunOutcome {
    fn new(outcome: Outcome, exit: Exit) -> RunOutcome {
        RunOutcome { outcome, exit, token: None, status: None, left: Vec::new(), complaint: None, silent: false }
    }

    fn because(self, what: String) -> RunOutcome {
        RunOutcome { complaint: Some(what), ..self }
    }

    /// That somebody else holds it is not said.
    pub(crate) fn silent_if_not_acquired(self) -> RunOutcome {
        RunOutcome { silent: self.outcome == Outcome::NotAcquired, ..self }
    }

    /// It could not be run, or not to its end.
    pub(crate) fn failed(code: u8, what: String) -> RunOutcome {
        RunOutcome::new(Outcome::Failed, Exit::Code(code)).because(what)
    }

    /// The store said no, or nothing.
    pub(crate) fn refused(e: &Error, store: &StoreUrl, not_acquired: u8) -> RunOutcome {
        let (outcome, code) = match exit::of_error(e) {
            exit::NOT_ACQUIRED => (Outcome::NotAcquired, not_acquired),
            exit::USAGE => (Outcome::Failed, exit::USAGE),
            code => (Outcome::Unavailable, code),
        };
        RunOutcome::new(outcome, Exit::Code(code)).because(exit::of_store(e, &store.named()))
    }

    /// A signal ended the wait.
    pub(crate) fn interrupted(signal: i32) -> RunOutcome {
        RunOutcome::new(Outcome::Interrupted, Exit::Signal(signal))
    }

    /// What the release of the lock says about a run that seemed to be good.
    pub(crate) fn released(self, e: &Error) -> RunOutcome {
        match e.loss() {
            Some(_) if self.outcome == Outcome::Ended => {
                let what = format!("the program had ended, but {e}: it was not protected to its end");
                RunOutcome { outcome: Outcome::Lost, exit: Exit::Code(exit::LOST), complaint: Some(what), ..self }
            }
            None if self.outcome == Outcome::Ended => {
                say(format_args!("releasing: {}", exit::chain(e)));
                self
            }
            _ => {
                tracing::debug!(error = %e, "releasing");
                self
            }
        }
    }

    /// What became of a program under a lock, which was lost for this reason, if it was.
    pub(crate) fn of(name: &str, outcome: supervise::Outcome, loss: Option<Loss>) -> RunOutcome {
        let (ended, foreground) = match outcome {
            supervise::Outcome::Ended { ended, foreground } => (ended, foreground),
            supervise::Outcome::NotStarted(what) => return RunOutcome::failed(exit::FAILED, what),
            supervise::Outcome::GuardianDied { left } => {
                let what = format!("the guardian died; {}", how_ended(&left));
                return RunOutcome { left, ..RunOutcome::failed(exit::FAILED, what) };
            }
        };
        let how = how_ended(&ended.left);
        let lost = |why: &str| {
            RunOutcome::new(Outcome::Lost, Exit::Code(exit::LOST))
                .because(format!("the lock {name:?} was lost: {why}; {how}"))
        };
        let ran = match (ended.why, loss) {
            (Why::Deadline, None) => lost("its lease could not be renewed in time"),
            (Why::Deadline | Why::Ordered, Some(Loss::Evicted)) => {
                lost("somebody ended this hold by its token, as `leasehold break` does")
            }
            (Why::Deadline | Why::Ordered, Some(loss)) => lost(&loss.to_string()),
            (Why::Ordered, None) => RunOutcome::new(Outcome::MaxHold, Exit::Code(exit::MAX_HOLD))
                .because(format!("--max-hold is over; {how}")),
            (Why::Itself, _) => {
                if !ended.left.is_empty() {
                    say(format_args!(
                        "the program left processes behind, which run on without the lock: {}",
                        listed(&ended.left)
                    ));
                }
                RunOutcome::new(Outcome::Ended, of_status(ended.status, foreground))
            }
        };
        RunOutcome { status: ended.status, left: ended.left, ..ran }
    }

    /// Says and writes it.
    pub(crate) fn tell(self, name: &str, store: &str, report: &mut ReportFile) -> Exit {
        if let Some(what) = self.complaint.as_ref().filter(|_| !self.silent) {
            say(what);
        }
        let (code, signal) = match self.status {
            Some(Status::Code(code)) => (Some(code), None),
            Some(Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let detail = self.complaint.unwrap_or_default();
        let (outcome, token) = (self.outcome, self.token);
        let left = self.left.iter().map(|process| process.pid).collect();
        if let Err(e) = report.write(&Report { outcome, name, store, token, code, signal, left, detail }) {
            say(format_args!("the report's file: {e}"));
        }
        self.exit
    }
}

fn of_status(status: Option<Status>, foreground: bool) -> Exit {
    match status {
        Some(Status::Code(code)) => Exit::Code(u8::try_from(code).unwrap_or(exit::FAILED)),
        Some(Status::Signal(signal)) if signal == Signal::SIGINT as i32 && foreground => {
            // From the keyboard: the rest of our job, and the shell that waits for it, are to see it too.
            signals::tell_own_group(Signal::SIGINT);
            Exit::Signal(signal)
        }
        Some(Status::Signal(signal)) => Exit::Code(exit::of_signal(signal)),
        None => Exit::Code(exit::FAILED),
    }
}

/// How the program was ended, by us.
pub(crate) fn how_ended(left: &[Left]) -> String {
    match left {
        [] => "the program was ended".into(),
        left => format!("what could be ended was, but these processes run on: {}", listed(left)),
    }
}

fn listed(left: &[Left]) -> String {
    left.iter().map(Left::to_string).collect::<Vec<_>>().join(", ")
}
