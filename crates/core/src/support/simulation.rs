//! A machine that is simulated: what a thread reads in the place of the operating system's time and random numbers, and whom it reaches
//! over its network. Without the feature `simulation` there is none.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// What a simulated machine answers.
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

/// A connection over the network of a simulated machine; `None`: this thread is on a real one.
pub fn dial(host: &str, port: u16) -> Option<io::Result<Box<dyn Stream>>> {
    simulated().map(|machine| (machine.dial)(host, port))
}

#[cfg(feature = "simulation")]
mod here {
    use std::cell::Cell;

    use super::Machine;

    thread_local! {
        static MACHINE: Cell<Option<Machine>> = const { Cell::new(None) };
    }

    /// From now on this thread is on this machine, or on the real one.
    pub fn simulate(machine: Option<Machine>) {
        MACHINE.set(machine);
    }

    pub(crate) fn simulated() -> Option<Machine> {
        MACHINE.get()
    }
}

#[cfg(feature = "simulation")]
pub use here::simulate;
#[cfg(feature = "simulation")]
pub(crate) use here::simulated;

/// No machine is simulated in a build like this.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub(crate) const fn simulated() -> Option<Machine> {
    None
}
