//! The fires of a job that every machine starts by its own clock: numbers of periods, which are the
//! same on machines whose clocks differ by less than half a period.

use std::time::{Duration, SystemTime};

use humantime::format_duration;

/// The periods of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Every {
    period: Duration,
    /// The time from the beginning of a day in UTC, or of another period, to the fire.
    offset: Duration,
}

/// One fire of a job, as this machine's clock names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fire {
    pub(crate) number: u64,
    /// The time from the nearest boundary between two fires, if it is short.
    pub(crate) near_boundary: Option<Duration>,
}

impl Every {
    /// # Errors
    /// The offset is not shorter than the period.
    pub(crate) fn new(period: Duration, offset: Duration) -> Result<Every, String> {
        if offset >= period {
            return Err(format!(
                "--offset {} is not shorter than --every {}",
                format_duration(offset),
                format_duration(period)
            ));
        }
        Ok(Every { period, offset })
    }

    /// The shortest time for which a record of a fire must count: two periods.
    pub(crate) fn least_keep(&self) -> Duration {
        self.period * 2
    }

    /// The fire of this time: the one that is nearest. A clock that was never set may be before all
    /// fires.
    pub(crate) fn fire(&self, now: SystemTime) -> Fire {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanos);
        let period = nanos(self.period);
        let shifted = now - nanos(self.offset) + period / 2;
        let number = u64::try_from(shifted.div_euclid(period)).unwrap_or(0);
        let behind = shifted.rem_euclid(period);
        let from_boundary = behind.min(period - behind);
        let near_boundary = (from_boundary <= period / 8)
            .then(|| Duration::from_nanos(u64::try_from(from_boundary).unwrap_or(u64::MAX)));
        Fire {
            number,
            near_boundary,
        }
    }

    /// The text about a start that is close to the boundary between two fires.
    pub(crate) fn warning(&self, from_boundary: Duration) -> String {
        let better = (self.offset + self.period / 2).as_nanos() % self.period.as_nanos();
        let better = Duration::from_nanos(u64::try_from(better).unwrap_or_default());
        format!(
            "this start is {:.1} s from the boundary between two fires of --every {}: a clock \
             that is wrong by more names another fire, which runs as well; start it at another \
             time, or use --offset {} on all machines",
            from_boundary.as_secs_f64(),
            format_duration(self.period),
            format_duration(better),
        )
    }
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    fn at(secs: f64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs_f64(secs)
    }

    fn every(period: u64, offset: u64) -> Every {
        Every::new(Duration::from_secs(period), Duration::from_secs(offset)).unwrap()
    }

    #[test]
    fn the_nearest_fire_is_meant() {
        let ten = every(10, 0);
        for (now, number) in [
            (0.0, 0),
            (4.9, 0),
            (5.0, 1),
            (14.9, 1),
            (15.0, 2),
            (1e9, 100_000_000),
        ] {
            assert_eq!(ten.fire(at(now)).number, number, "{now}");
        }
        let offset = every(10, 5);
        for (now, number) in [(0.0, 0), (9.9, 0), (10.0, 1), (19.9, 1)] {
            assert_eq!(offset.fire(at(now)).number, number, "{now}");
        }
        // A clock before the first fire, and one that was never set.
        assert_eq!(every(DAY, DAY / 2 + 1).fire(at(0.0)).number, 0);
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(DAY * 10);
        assert_eq!(ten.fire(before).number, 0);
    }

    #[test]
    fn clocks_that_differ_by_less_than_half_a_period_name_one_fire() {
        let day = every(DAY, 3 * 3600);
        let three = (20_000 * DAY + 3 * 3600) as f64;
        for clock in [-0.49, -0.3, 0.0, 0.3, 0.49] {
            let fire = day.fire(at(three + clock * DAY as f64));
            assert_eq!(fire.number, 20_000, "{clock}");
            assert_eq!(fire.near_boundary.is_some(), clock.abs() > 0.375, "{clock}");
        }
    }

    #[test]
    fn a_start_at_half_a_period_is_warned_of_with_an_offset_that_mends_it() {
        let noon = at((20_000 * DAY + DAY / 2) as f64 - 0.002);
        let near = every(DAY, 0).fire(noon).near_boundary.unwrap();
        let warning = every(DAY, 0).warning(near);
        assert!(warning.contains("--offset 12h "), "{warning}");
        assert_eq!(every(DAY, DAY / 2).fire(noon).near_boundary, None);
        let warning = every(DAY, 18 * 3600).warning(Duration::ZERO);
        assert!(warning.contains("--offset 6h "), "{warning}");
    }

    #[test]
    fn an_offset_is_shorter_than_its_period() {
        let period = Duration::from_secs(10);
        assert!(Every::new(period, period).is_err());
        assert!(Every::new(period, period - Duration::from_nanos(1)).is_ok());
    }

    #[test]
    fn the_longest_period_of_the_latest_time_has_a_fire() {
        let period = leasehold_core::MAX_KEEP / 2;
        let every = Every::new(period, period - Duration::from_nanos(1)).unwrap();
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::MAX / 4);
        assert!(every.fire(late).number > 0);
        assert!(every.least_keep() <= leasehold_core::MAX_KEEP);
    }
}
