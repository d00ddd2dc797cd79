//! Durations as they are written on the command line.

use std::time::Duration;

use leasehold_core::{Keep, MAX_KEEP};

/// Parses a duration as `humantime` does. A number without a unit is in seconds, as everywhere in a
/// shell.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let read = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|e| e.to_string()),
    };
    read.map_err(|e| format!("{e}; write it as in 500ms, 30s, 5m or 1h, or as a number of seconds"))
}

pub(crate) fn max_hold(text: &str) -> Result<Duration, String> {
    let max = duration(text)?;
    if max.is_zero() {
        Err("CMD would be ended at once".into())
    } else {
        Ok(max)
    }
}

/// Parses the period of a job. Clocks of machines differ, so a period must be long enough.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let period = duration(text)?;
    if period < Duration::from_secs(2) {
        return Err("below 2s the clocks of two machines may name different periods".into());
    }
    if period > MAX_KEEP / 2 {
        return Err("longer than 18250 days".into());
    }
    Ok(period)
}

/// Parses the time for which a record counts: a duration, or `forever`.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    if text == "forever" {
        return Ok(Keep::Forever);
    }
    let keep = duration(text).map_err(|e| format!("{e}, or as the word forever"))?;
    if keep.is_zero() {
        return Err("the work would never count as done".into());
    }
    if keep > MAX_KEEP {
        return Err("longer than 36500 days; write it as the word forever".into());
    }
    Ok(Keep::For(keep))
}

/// Parses a lease. Ending processes takes time, so a lease must be long enough for it.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err("below 1s there is no time to end a program when its lock is lost".into());
    }
    if ttl > leasehold::MAX_TTL {
        return Err("longer than a day".into());
    }
    Ok(ttl)
}

#[cfg(test)]
mod tests {
    use leasehold_fuzz::fuzz_text;

    use super::*;

    #[test]
    fn a_number_alone_is_seconds() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        for bad in ["", "-1", "nan", "inf", "1e300", "5 apples"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn periods_and_keeps_have_limits() {
        for (text, expected) in [
            ("2s", Some(2)),
            ("1.9", None),
            ("49years", Some(1_546_322_400)),
            ("50years", None),
        ] {
            assert_eq!(
                period(text).ok(),
                expected.map(Duration::from_secs),
                "{text}"
            );
        }
        assert_eq!(keep("forever"), Ok(Keep::Forever));
        assert_eq!(keep("30d"), Ok(Keep::For(Duration::from_secs(2_592_000))));
        for bad in ["0", "0s", "101years", "for ever", ""] {
            assert!(keep(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn whatever_a_duration_is_it_is_read_or_refused() {
        fuzz_text(include_str!("../corpus/durations"), |text| {
            if let Ok(read) = duration(text) {
                assert_eq!(
                    duration(&humantime::format_duration(read).to_string()),
                    Ok(read)
                );
            }
            assert!(ttl(text).is_ok_and(|ttl| ttl <= leasehold::MAX_TTL) || ttl(text).is_err());
            assert!(max_hold(text).is_ok_and(|max| !max.is_zero()) || max_hold(text).is_err());
            let two = Duration::from_secs(2);
            assert!(period(text).is_ok_and(|period| period >= two) || period(text).is_err());
            if let Ok(Keep::For(kept)) = keep(text) {
                assert!(!kept.is_zero() && kept <= MAX_KEEP, "{text}");
            }
        });
    }
}
