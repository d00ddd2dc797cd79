//! The calls to the operating system: the time, on a clock that counts suspend, random numbers, and
//! the machine's name.
//!
//! These calls differ between operating systems, and nothing else in core does. Therefore the
//! conditional code is here, and only here. A simulated machine can answer in place of the system.

use std::time::SystemTime;

use uuid::{Builder, Uuid};

use crate::support::simulation::simulated;

/// Nanoseconds on the clock that counts suspend.
pub(crate) fn nanos() -> u64 {
    simulated().map_or_else(clock, |machine| (machine.nanos)())
}

/// Microseconds since 1970, on the wall clock. The clock may step, so nothing is decided by it.
#[must_use]
pub fn wall() -> u64 {
    let real = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros() as u64
    };
    simulated().map_or_else(real, |machine| (machine.wall)())
}

/// A random UUID, by the random source of the operating system.
pub fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    random(&mut bytes).map_or_else(
        |_| Uuid::new_v4(),
        |()| Builder::from_random_bytes(bytes).into_uuid(),
    )
}

/// Fills `bytes` with unpredictable random numbers.
pub(crate) fn random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    let Some(machine) = simulated() else {
        return getrandom::fill(bytes);
    };
    (machine.random)(bytes);
    Ok(())
}

/// `CLOCK_BOOTTIME` on Linux, elsewhere `CLOCK_MONOTONIC`, which counts suspend on macOS.
#[cfg(unix)]
fn clock() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let id = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let id = ClockId::Monotonic;
    let t = clock_gettime(id);
    (t.tv_sec as u64)
        .saturating_mul(1_000_000_000)
        .saturating_add(t.tv_nsec as u64)
}

/// The performance counter, which goes on during suspend on Windows. The zero is one day before the first
/// call: a moment shortly before that call can be named, too.
#[cfg(windows)]
#[allow(
    clippy::disallowed_methods,
    reason = "on Windows it does not stop during suspend"
)]
fn clock() -> u64 {
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    (FIRST.elapsed() + DAY).as_nanos() as u64
}

/// The machine's name.
#[cfg(unix)]
pub(crate) fn host() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The machine's name.
#[cfg(windows)]
pub(crate) fn host() -> String {
    std::env::var_os("COMPUTERNAME")
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2020 in microseconds.
    const LONG_AGO: u64 = 1_577_836_800_000_000;

    #[test]
    fn the_machine_has_a_time_a_name_and_random_numbers() {
        let before = nanos();
        assert!((0..10_000_000).any(|_| nanos() > before) && wall() > LONG_AGO);
        assert_ne!(uuid(), uuid());
        assert!(!uuid().is_nil());
        #[cfg(target_os = "linux")]
        assert_eq!(
            Some(host()),
            std::fs::read_to_string("/proc/sys/kernel/hostname")
                .ok()
                .map(|name| name.trim().into())
        );
    }

    #[cfg(leasehold_lab)]
    #[test]
    fn a_simulated_machine_answers_in_its_place() {
        use crate::support::simulation::{Machine, dial, simulate};

        let refused = |_: &str, _| Err(std::io::ErrorKind::ConnectionRefused.into());
        simulate(Some(Machine {
            nanos: || 7,
            wall: || 8,
            random: |bytes| bytes.fill(9),
            dial: refused,
        }));
        assert_eq!((nanos(), wall(), uuid().as_bytes()[0]), (7, 8, 9));
        assert!(dial("a", 1).is_some_and(|connection| connection.is_err()));
        simulate(None);
        assert!(nanos() > 7 && wall() > LONG_AGO && dial("a", 1).is_none());
    }
}
