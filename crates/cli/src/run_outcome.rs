//! The end of a run: its exit, its report, and the message about it.

use std::fs::File;
use std::io::{self, Write};

use leasehold::{Error, ErrorKind, FencingToken, Loss};
use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::json;

use crate::exit::{self, Exit, say};
use crate::guardian::wire::{Status, Why};
use crate::output;
use crate::processes::{Left, how_ended, listed};
use crate::signals::{self, Signals};
use crate::store_url::StoreUrl;
use crate::supervise;

/// The kind of a run's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The program ended under the lock, by itself or by a signal that was not ours.
    Ended,
    /// The work of `once` was done before; the program was not run.
    Done,
    /// The program of `once` ended well, and the store could not record it.
    NotRecorded,
    /// The program of `once` ended well, and it is not known whether the store has recorded it.
    Unknown,
    NotAcquired,
    Unavailable,
    Lost,
    MaxHold,
    /// A signal came during the wait.
    Interrupted,
    Failed,
}

/// The end of a run. As an error, the program did not run, or not to its end.
#[derive(Debug)]
pub(crate) struct RunOutcome {
    pub(crate) outcome: Outcome,
    pub(crate) exit: Exit,
    pub(crate) token: Option<u64>,
    pub(crate) status: Option<Status>,
    /// Processes that run on without the lock.
    pub(crate) left: Vec<Left>,
    /// A description for people; empty if nothing special happened.
    pub(crate) detail: String,
    /// The detail is for the report only.
    pub(crate) silent: bool,
    /// A signal that asks for an end was passed on to the program.
    pub(crate) asked: bool,
}

impl From<io::Error> for RunOutcome {
    fn from(e: io::Error) -> RunOutcome {
        RunOutcome::failed(exit::FAILED, exit::chain(&e))
    }
}

impl RunOutcome {
    fn new(outcome: Outcome, exit: Exit, detail: impl Into<String>) -> RunOutcome {
        let detail = detail.into();
        RunOutcome {
            outcome,
            exit,
            token: None,
            status: None,
            left: Vec::new(),
            detail,
            silent: false,
            asked: false,
        }
    }

    /// Removes the message that nothing was run, because the lock was not acquired or the work is
    /// done, if asked to.
    pub(crate) fn quiet_if(self, quiet: bool) -> RunOutcome {
        RunOutcome {
            silent: quiet && matches!(self.outcome, Outcome::NotAcquired | Outcome::Done),
            ..self
        }
    }

    /// The outcome of work that was done before.
    pub(crate) fn done(token: FencingToken, code: u8, detail: String) -> RunOutcome {
        RunOutcome {
            token: Some(token.get()),
            ..RunOutcome::new(Outcome::Done, Exit::Code(code), detail)
        }
    }

    /// Returns whether the program ended by itself, with the code 0.
    pub(crate) fn is_good(&self) -> bool {
        self.outcome == Outcome::Ended && self.status == Some(Status::Code(0))
    }

    /// Returns whether the program failed, and may be tried again: nobody has asked it to end, and
    /// no process of it runs on.
    pub(crate) fn may_be_retried(&self) -> bool {
        self.outcome == Outcome::Ended
            && !self.is_good()
            && !self.asked
            && self.left.is_empty()
            && matches!(self.exit, Exit::Code(_))
    }

    /// The outcome of a program that could not be run, or not to its end.
    pub(crate) fn failed(code: u8, what: impl Into<String>) -> RunOutcome {
        RunOutcome::new(Outcome::Failed, Exit::Code(code), what)
    }

    /// The outcome if the store refused, or did not answer.
    fn refused(e: &Error, store: &StoreUrl, not_acquired: u8) -> RunOutcome {
        let (outcome, code) = match exit::of_error(e) {
            exit::NOT_ACQUIRED => (Outcome::NotAcquired, not_acquired),
            exit::USAGE => (Outcome::Failed, exit::USAGE),
            code => (Outcome::Unavailable, code),
        };
        RunOutcome::new(outcome, Exit::Code(code), exit::about(e, store))
    }

    /// Returns the store's answer to `work`. If the store refuses, or a signal comes first, the run
    /// ends.
    pub(crate) async fn unless_over<T>(
        signals: &Signals,
        store: &StoreUrl,
        not_acquired: u8,
        work: impl Future<Output = leasehold::Result<T>>,
    ) -> Result<T, RunOutcome> {
        match signals.unless_interrupted(work).await? {
            Ok(answer) => answer.map_err(|e| RunOutcome::refused(&e, store, not_acquired)),
            Err(signal) => Err(RunOutcome::interrupted(signal)),
        }
    }

    /// The outcome if a signal came during the wait.
    pub(crate) fn interrupted(signal: i32) -> RunOutcome {
        RunOutcome::new(Outcome::Interrupted, Exit::Signal(signal), "")
    }

    /// The end of the program, in words.
    pub(crate) fn how_it_failed(&self) -> String {
        match self.status {
            Some(Status::Code(code)) => format!("exit code {code}"),
            Some(Status::Signal(signal)) => signals::name_of(signal),
            None => "it is not known how".into(),
        }
    }

    /// Adds the error of the store that was asked to record the good end of the program.
    pub(crate) fn recorded(self, e: &Error) -> RunOutcome {
        let (outcome, code, what) = match (e.loss(), e.kind()) {
            (Some(_), _) => return self.lost_at_its_end(e),
            (None, ErrorKind::Ambiguous) => (
                Outcome::Unknown,
                exit::UNKNOWN,
                "it is not known whether that is recorded as done",
            ),
            (None, _) => (
                Outcome::NotRecorded,
                exit::UNAVAILABLE,
                "that could not be recorded, so the work counts as not done",
            ),
        };
        let why = exit::chain(e);
        RunOutcome {
            outcome,
            exit: Exit::Code(code),
            detail: format!("the program has ended with 0, but {what}: {why}"),
            ..self
        }
    }

    fn lost_at_its_end(self, e: &Error) -> RunOutcome {
        RunOutcome {
            outcome: Outcome::Lost,
            exit: Exit::Code(exit::LOST),
            detail: format!("the program had ended, but {e}: it was not protected to its end"),
            ..self
        }
    }

    /// Adds the result of the release. If the lock had been lost, a run that seemed to be good is
    /// not, and the cause of the loss is added.
    pub(crate) fn released(self, release: leasehold::Result<()>) -> RunOutcome {
        let Err(e) = release else { return self };
        // Where the lease could not be renewed, the release fails for the same reason, or has it as its cause.
        let cause = match e.loss() {
            Some(_) => std::error::Error::source(&e).map(exit::chain),
            None => Some(exit::chain(&e)),
        };
        match (self.outcome, e.loss(), cause) {
            (Outcome::Ended, Some(_), _) => self.lost_at_its_end(&e),
            (Outcome::Ended, None, _) => {
                say(format_args!(
                    "releasing: {}; the lock may stay taken until its lease ends",
                    exit::chain(&e)
                ));
                self
            }
            (Outcome::Lost, _, Some(cause)) => RunOutcome {
                detail: format!("{}; why: {cause}", self.detail),
                ..self
            },
            _ => {
                tracing::debug!(error = %e, "releasing");
                self
            }
        }
    }

    /// The outcome of a program that ran under a lock. `loss` is the reason if the lock was lost.
    pub(crate) fn of(name: &str, outcome: supervise::Outcome, loss: Option<Loss>) -> RunOutcome {
        let (ended, foreground, asked) = match outcome {
            supervise::Outcome::Ended {
                ended,
                foreground,
                asked,
            } => (ended, foreground, asked),
            supervise::Outcome::NotStarted(what) => return RunOutcome::failed(exit::FAILED, what),
            supervise::Outcome::GuardianDied { left } => {
                let what = format!("the guardian died; {}", how_ended(&left));
                return RunOutcome {
                    left,
                    ..RunOutcome::failed(exit::FAILED, what)
                };
            }
        };
        let how = how_ended(&ended.left);
        let lost = |why: &str| {
            let detail = format!("the lock {name:?} was lost: {why}; {how}");
            RunOutcome::new(Outcome::Lost, Exit::Code(exit::LOST), detail)
        };
        let ran = match (ended.why, loss) {
            (Why::Deadline, None) => lost("its lease could not be renewed in time"),
            (Why::Deadline | Why::Ordered, Some(Loss::Evicted)) => {
                lost("this hold was ended by its token, as `leasehold break` does")
            }
            (Why::Deadline | Why::Ordered, Some(loss)) => lost(&loss.to_string()),
            (Why::Ordered, None) => RunOutcome::new(
                Outcome::MaxHold,
                Exit::Code(exit::MAX_HOLD),
                format!("--max-hold is over; {how}"),
            ),
            (Why::Itself, _) => {
                if !ended.left.is_empty() {
                    let left = listed(&ended.left);
                    say(format_args!(
                        "the program left processes behind, which run on without the lock: {left}"
                    ));
                }
                RunOutcome::new(Outcome::Ended, of_status(ended.status, foreground), "")
            }
        };
        RunOutcome {
            status: ended.status,
            left: ended.left,
            asked,
            ..ran
        }
    }

    /// Prints the detail, and writes one line of JSON to the report, because the program may return
    /// any of our exit codes itself.
    pub(crate) fn report(self, name: &str, store: &str, file: Option<File>) -> Exit {
        if !self.silent && !self.detail.is_empty() {
            say(&self.detail);
        }
        let (code, signal) = match self.status {
            Some(Status::Code(code)) => (Some(code), None),
            Some(Status::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let line = json!({
            "outcome": self.outcome,
            "name": name,
            "store": store,
            "token": self.token,
            "code": code,
            "signal": signal,
            "left": self.left.iter().map(|process| process.pid).collect::<Vec<_>>(),
            "detail": self.detail,
        });
        let line = output::safe_json(&format!("{line}\n"));
        if let Some(Err(e)) = file.map(|mut file| file.write_all(line.as_bytes())) {
            say(format_args!("the report's file: {e}"));
        }
        self.exit
    }
}

fn of_status(status: Option<Status>, foreground: bool) -> Exit {
    match status {
        Some(Status::Code(code)) => Exit::Code(u8::try_from(code).unwrap_or(exit::FAILED)),
        Some(Status::Signal(signal)) if signal == Signal::SIGINT as i32 && foreground => {
            // The signal came from the keyboard: the rest of our job, and the shell that waits for
            // it, must see it too.
            signals::signal_own_group(Signal::SIGINT);
            Exit::Signal(signal)
        }
        Some(Status::Signal(signal)) => Exit::Code(exit::of_signal(signal)),
        None => Exit::Code(exit::FAILED),
    }
}
