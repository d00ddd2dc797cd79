//! The command's side while the program runs. It sends deadlines to the guardian and signals to the
//! program, and gives the terminal to the program's process group. It knows nothing of stores.

use std::io;
use std::pin::pin;

use leasehold::backend::Moment;
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use crate::exit::say;
use crate::guardian::Guardian;
use crate::guardian::deadline::Deadline;
use crate::guardian::wire::{Ended, Event, Order, Start};
use crate::processes::Left;
use crate::signals::{self, Caught, Signals};
use crate::terminal::Terminal;

/// The end of the program.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ended {
        ended: Ended,
        /// The program had the terminal, so a signal from the keyboard was for it.
        foreground: bool,
        /// A signal that asks for an end was passed on to the program.
        asked: bool,
    },
    /// The guardian could not start the program.
    NotStarted(String),
    /// The guardian died or did not answer, and the program ended with it. The processes `left`
    /// could not be ended.
    GuardianDied { left: Vec<Left> },
}

/// The sources that are watched while the program runs.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) signals: &'a Signals,
    pub(crate) terminal: Option<&'a Terminal>,
}

/// Starts the program and stays until it, and everything that has to end with it, has ended.
/// `deadline` returns the time until which the lock is surely held, or `None` if it is not held.
/// `stop` resolves when the program must end before that; true means at once.
pub(crate) async fn supervise(
    guardian: &Guardian,
    start: Start,
    life_line: &[std::os::fd::OwnedFd],
    watch: Watch<'_>,
    deadline: impl Fn() -> Option<Deadline>,
    stop: impl Future<Output = bool>,
) -> io::Result<Outcome> {
    let mut program = Program {
        pid: None,
        // The program gets the terminal at its start if the terminal is ours.
        wants_terminal: start.foreground,
        terminal: watch.terminal,
        deadline: &deadline,
        stop_reported: false,
        asked: false,
    };
    let mut acknowledged = Acknowledged::new(start.deadline);
    let foreground = start.foreground;
    if let Err(e) = guardian.run(start, life_line) {
        tracing::debug!(error = %e, "the guardian did not take the program");
    }
    tokio::pin!(stop);
    let mut stopping = false;
    let mut tick = pin!(sleep(acknowledged.deadline.tick()));
    let outcome = loop {
        tokio::select! {
            biased;
            event = guardian.next() => match event? {
                Some(Event::Started { pid }) => {
                    program.pid = Some(pid);
                    acknowledged.answered();
                }
                Some(Event::Ack(deadline)) => acknowledged.until(deadline),
                Some(Event::Stopped { signal }) => program.was_stopped(signal, guardian),
                Some(Event::NotSignalled { signal }) => {
                    let signal = signals::name_of(signal);
                    say(format_args!("{signal} was not passed on: the program runs as another user"));
                }
                Some(Event::Ended(ended)) => break Some(Outcome::Ended {
                    ended,
                    foreground: foreground && program.has_terminal(),
                    asked: program.asked,
                }),
                Some(Event::Failed(what)) => break Some(Outcome::NotStarted(what)),
                None => break None,
            },
            at_once = &mut stop, if !stopping => {
                stopping = true;
                guardian.order(&Order::End { at_once });
            }
            signal = watch.signals.next() => program.signalled(signal?, guardian),
            () = &mut tick => {
                // A lost lock has no deadline any more: `stop` reports the loss, and the guardian
                // keeps the deadline that it has.
                let known = deadline().unwrap_or(acknowledged.deadline);
                guardian.order(&Order::Deadline(known));
                tick.as_mut().reset(Instant::now() + known.tick());
                if acknowledged.are_overdue() {
                    say("the guardian does not answer; the program is ended");
                    guardian.kill();
                    break None;
                }
            }
        }
    };
    let outcome = match outcome {
        Some(outcome) => outcome,
        // The command does the work that the guardian has left undone.
        None => Outcome::GuardianDied {
            left: guardian
                .clean_up(acknowledged.deadline.grace() + acknowledged.deadline.margin())
                .await?,
        },
    };
    program.take_terminal();
    Ok(outcome)
}

/// Records whether the guardian still answers. It is asked many times in a lease. If it has not
/// answered for a third of one, or for so long that it should have ended the program, it is dead or
/// stopped. A command that was itself stopped counts from the time when it runs again.
struct Acknowledged {
    deadline: Deadline,
    asked_unanswered: u32,
}

impl Acknowledged {
    fn new(deadline: Deadline) -> Acknowledged {
        // The order to start the program is the first question.
        Acknowledged {
            deadline,
            asked_unanswered: 1,
        }
    }

    fn until(&mut self, deadline: Deadline) {
        self.deadline = deadline;
        self.answered();
    }

    fn answered(&mut self) {
        self.asked_unanswered = 0;
    }

    fn are_overdue(&mut self) -> bool {
        self.asked_unanswered += 1;
        let must_have_ended = self.deadline.kill_at() + self.deadline.margin() / 2;
        self.asked_unanswered > TICKS_IN_A_THIRD
            || self.asked_unanswered > TICKS_WHILE_IT_KILLS && Moment::now() >= must_have_ended
    }
}

const TICKS_IN_A_THIRD: u32 = 14;
/// A guardian that kills many processes answers between two rounds of killing.
const TICKS_WHILE_IT_KILLS: u32 = 2;

/// Returns whether people and service managers end programs by this signal.
fn asks_for_an_end(signal: Signal) -> bool {
    matches!(
        signal,
        Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGHUP
    )
}

/// The program as this module sees it.
struct Program<'a, D> {
    pid: Option<i32>,
    /// The program has the terminal, or is to get it back.
    wants_terminal: bool,
    terminal: Option<&'a Terminal>,
    deadline: &'a D,
    /// The terminal already shows that only the program was stopped.
    stop_reported: bool,
    /// It was asked to end by a signal.
    asked: bool,
}

impl<D: Fn() -> Option<Deadline>> Program<'_, D> {
    fn signalled(&mut self, caught: Caught, guardian: &Guardian) {
        match caught.named() {
            // Another process of our group wants the terminal that the program has: `leasehold run … | less`.
            Some(Signal::SIGTTIN | Signal::SIGTTOU) if caught.by_kernel => {
                if self.take_terminal() {
                    self.wants_terminal = false;
                    signals::signal_own_group(Signal::SIGCONT);
                }
            }
            // This includes SIGTSTP: the program stops, and then this process does.
            named => {
                self.asked |= named.is_some_and(asks_for_an_end);
                guardian.order(&Order::Signal {
                    number: caught.number,
                    from_systemd: caught.is_from_systemd(),
                });
            }
        }
    }

    /// Stops with the program, as one job, and returns when the job was continued. SIGSTOP is an
    /// exception: it stopped the program alone (`kill -STOP`, cpulimit), and its sender will
    /// continue it. The lock stays held meanwhile.
    fn was_stopped(&mut self, signal: i32, guardian: &Guardian) {
        let Some(by @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) =
            signals::named(signal)
        else {
            if self.has_terminal() && !self.stop_reported {
                self.stop_reported = true;
                let pid = self.pid.unwrap_or_default();
                say(format_args!(
                    "the program was stopped by SIGSTOP; the lock stays held; `kill -CONT {pid}` continues it"
                ));
            }
            return;
        };
        let asked = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        self.wants_terminal |= asked;
        if !(asked && self.give_terminal()) {
            let had_it = self.take_terminal();
            let until = (self.deadline)().map_or(0, |deadline| deadline.until);
            let left = Moment::from_nanos(until).since(Moment::now());
            if had_it {
                say(format_args!(
                    "stopped; the lock is held for {:.1} s more",
                    left.as_secs_f64()
                ));
            }
            signals::stop_own_group(by);
            self.give_terminal();
        }
        guardian.order(&Order::Signal {
            number: Signal::SIGCONT as i32,
            from_systemd: false,
        });
    }

    fn has_terminal(&self) -> bool {
        self.pid
            .zip(self.terminal)
            .is_some_and(|(pid, terminal)| terminal.belongs_to(pid))
    }

    /// Gives the program the terminal if the terminal is ours to give.
    fn give_terminal(&self) -> bool {
        match (self.pid, self.terminal) {
            (Some(pid), Some(terminal)) if self.wants_terminal && terminal.is_ours() => {
                terminal.give_to(pid);
                true
            }
            _ => false,
        }
    }

    /// Takes the terminal back; returns false if the program did not have it.
    fn take_terminal(&self) -> bool {
        let had = self.has_terminal();
        if let (true, Some(terminal)) = (had, self.terminal) {
            terminal.take();
        }
        had
    }
}
