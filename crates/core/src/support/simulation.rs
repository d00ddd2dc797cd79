//! A simulated machine, which gives a thread its time, its random numbers and its network in place of the operating system. It exists
//! only in builds with `--cfg leasehold_lab`.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// The functions of a simulated machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Its time in nanoseconds, on the clock that counts suspend. It never goes back.
    pub nanos: fn() -> u64,
    /// Its wall clock: microseconds since 1970.
    pub wall: fn() -> u64,
    /// Its random numbers.
    pub random: fn(&mut [u8]),
    /// Its network: a connection to this host and port.
    pub dial: fn(&str, u16) -> io::Result<Box<dyn Stream>>,
}

/// A connection over a simulated network.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects over the network of the simulated machine; `None` if this thread is on a real one.
pub fn dial(host: &str, port: u16) -> Option<io::Result<Box<dyn Stream>>> {
    simulated().map(|machine| (machine.dial)(host, port))
}

#[cfg(leasehold_lab)]
mod here {
    use std::cell::Cell;

    use super::Machine;

    thread_local! {
        static MACHINE: Cell<Option<Machine>> = const { Cell::new(None) };
    }

    /// Puts this thread on this machine from now on, or on the real one.
    pub fn simulate(machine: Option<Machine>) {
        MACHINE.set(machine);
    }

    pub(crate) fn simulated() -> Option<Machine> {
        MACHINE.get()
    }
}

#[cfg(leasehold_lab)]
pub use here::simulate;
#[cfg(leasehold_lab)]
pub(crate) use here::simulated;

/// No machine is simulated in a build like this.
#[cfg(not(leasehold_lab))]
#[inline(always)]
pub(crate) const fn simulated() -> Option<Machine> {
    None
}
