//! The command's side while the program runs: deadlines to the guardian, signals to the program, the terminal to
//! its process group. It knows nothing of stores.

use std::io;
use std::time::Duration;

use leasehold::seam::Moment;
use nix::sys::signal::Signal;
use tokio::time::MissedTickBehavior;

use crate::exit::say;
use crate::guardian::Guardian;
use crate::guardian::deadline::Plan;
use crate::guardian::wire::{Ended, Event, Order, Start};
use crate::processes::Left;
use crate::signals::{self, Caught, Signals};
use crate::terminal::Terminal;

/// How the program ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Ended {
        ended: Ended,
        /// It had the terminal, so a keyboard's signal was for it.
        foreground: bool,
    },
    /// The guardian could not start it.
    NotStarted(String),
    /// The guardian died or did not answer, and with it the program; these could not be ended.
    GuardianDied { left: Vec<Left> },
}

/// What is watched while the program runs.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) signals: &'a Signals,
    pub(crate) terminal: Option<&'a Terminal>,
    pub(crate) ttl: Duration,
    pub(crate) plan: Plan,
}

/// Starts the program and stays until it, and what has to end with it, has ended. `deadline` says until when the lock is
/// surely held; `stop` resolves when the program must end before that, with whether at once.
pub(crate) async fn supervise(
    guardian: &Guardian,
    start: Start,
    life_line: &[std::os::fd::OwnedFd],
    watch: Watch<'_>,
    deadline: impl Fn() -> Moment,
    stop: impl Future<Output = bool>,
) -> io::Result<Outcome> {
    let mut program = Program {
        pid: None,
        // It gets the terminal when it starts if it is ours.
        wants_terminal: start.foreground,
        terminal: watch.terminal,
        deadline: &deadline,
        stop_reported: false,
    };
    let mut acknowledged = Acknowledged::new(Moment::from_nanos(start.deadline), &watch);
    let foreground = start.foreground;
    if let Err(e) = guardian.run(start, life_line) {
        tracing::debug!(error = %e, "the guardian did not take the program");
    }
    tokio::pin!(stop);
    let mut stopping = false;
    let every = watch.ttl / 20;
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let outcome = loop {
        tokio::select! {
            biased;
            event = guardian.next() => match event? {
                Some(Event::Started { pid }) => {
                    program.pid = Some(pid);
                    acknowledged.answered();
                }
                Some(Event::Ack(nanos)) => acknowledged.until(Moment::from_nanos(nanos)),
                Some(Event::Stopped { signal }) => program.was_stopped(signal, guardian),
                Some(Event::NotSignalled { signal }) => {
                    let signal = signals::name_of(signal);
                    say(format_args!("{signal} was not passed on: the program runs as another user"));
                }
                Some(Event::Ended(ended)) => break Some(Outcome::Ended { ended, foreground: foreground && program.has_terminal() }),
                Some(Event::Failed(what)) => break Some(Outcome::NotStarted(what)),
                None => break None,
            },
            at_once = &mut stop, if !stopping => {
                stopping = true;
                guardian.order(&Order::End { at_once });
            }
            signal = watch.signals.next() => program.signalled(signal?, guardian),
            _ = tick.tick() => {
                guardian.order(&Order::Deadline(deadline().as_nanos()));
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
        // What it has left undone is ours to do.
        None => Outcome::GuardianDied { left: guardian.clean_up(watch.plan.grace + watch.plan.margin).await? },
    };
    program.take_terminal();
    Ok(outcome)
}

/// Whether the guardian still answers. It is asked many times a lease; once it has not answered for a third of one, or for
/// so long that it should have ended the program, it is dead or stopped. A command that was itself stopped counts from when
/// it runs again.
struct Acknowledged {
    deadline: Moment,
    asked_unanswered: u32,
    plan: Plan,
}

impl Acknowledged {
    fn new(deadline: Moment, watch: &Watch<'_>) -> Acknowledged {
        // That it is to start the program is asked first.
        Acknowledged { deadline, asked_unanswered: 1, plan: watch.plan }
    }

    fn until(&mut self, deadline: Moment) {
        self.deadline = self.deadline.max(deadline);
        self.answered();
    }

    fn answered(&mut self) {
        self.asked_unanswered = 0;
    }

    fn are_overdue(&mut self) -> bool {
        self.asked_unanswered += 1;
        let must_have_ended = self.plan.kill_at(self.deadline) + self.plan.margin / 2;
        self.asked_unanswered > TICKS_IN_A_THIRD || self.asked_unanswered > 1 && Moment::now() >= must_have_ended
    }
}

const TICKS_IN_A_THIRD: u32 = 7;

/// The program as seen from here.
struct Program<'a, D> {
    pid: Option<i32>,
    /// It has the terminal, or is to get it back.
    wants_terminal: bool,
    terminal: Option<&'a Terminal>,
    deadline: &'a D,
    /// The terminal shows already that only the program was stopped.
    stop_reported: bool,
}

impl<D: Fn() -> Moment> Program<'_, D> {
    fn signalled(&mut self, caught: Caught, guardian: &Guardian) {
        match caught.named() {
            // Another process of our group wants the terminal that the program has: `leasehold run … | less`.
            Some(Signal::SIGTTIN | Signal::SIGTTOU) if caught.by_kernel => {
                if self.take_terminal() {
                    self.wants_terminal = false;
                    signals::signal_own_group(Signal::SIGCONT);
                }
            }
            // Also SIGTSTP: the program stops, and then we do.
            _ => guardian.order(&Order::Signal(caught.number)),
        }
    }

    /// Stops with the program, as one job; returns when the job was continued. But of SIGSTOP: that stopped the
    /// program alone (`kill -STOP`, cpulimit), and its sender will continue it. The lock stays held meanwhile.
    fn was_stopped(&mut self, signal: i32, guardian: &Guardian) {
        let Some(by @ (Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) = signals::named(signal) else {
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
            let left = (self.deadline)().since(Moment::now());
            if had_it {
                say(format_args!("stopped; the lock is held for {:.1} s more", left.as_secs_f64()));
            }
            signals::stop_own_group(by);
            self.give_terminal();
        }
        guardian.order(&Order::Signal(Signal::SIGCONT as i32));
    }

    fn has_terminal(&self) -> bool {
        self.pid.zip(self.terminal).is_some_and(|(pid, terminal)| terminal.belongs_to(pid))
    }

    /// Gives it the terminal if that is ours to give.
    fn give_terminal(&self) -> bool {
        match (self.pid, self.terminal) {
            (Some(pid), Some(terminal)) if self.wants_terminal && terminal.is_ours() => {
                terminal.give_to(pid);
                true
            }
            _ => false,
        }
    }

    /// Takes the terminal back; false if the program did not have it.
    fn take_terminal(&self) -> bool {
        let had = self.has_terminal();
        if let (true, Some(terminal)) = (had, self.terminal) {
            terminal.take();
        }
        had
    }
}
