//! The controlling terminal, if there is one, and the process group that has it.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    pub(crate) fn open() -> Option<Terminal> {
        open(
            "/dev/tty",
            OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY,
            Mode::empty(),
        )
        .ok()
        .map(Terminal)
    }

    /// Returns whether our own group has the terminal.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner() == Some(getpgrp().as_raw_nonzero().get())
    }

    /// Returns whether this group has the terminal.
    pub(crate) fn belongs_to(&self, group: i32) -> bool {
        self.owner() == Some(group)
    }

    /// Gives the terminal to a group. SIGTTOU must be blocked. A group that has ended does not get
    /// it.
    pub(crate) fn give_to(&self, group: i32) {
        if let Some(group) = Pid::from_raw(group) {
            let _ = tcsetpgrp(&self.0, group);
        }
    }

    /// Takes the terminal for our own group.
    pub(crate) fn take(&self) {
        let _ = tcsetpgrp(&self.0, getpgrp());
    }

    fn owner(&self) -> Option<i32> {
        tcgetpgrp(&self.0)
            .ok()
            .map(|group| group.as_raw_nonzero().get())
    }
}
