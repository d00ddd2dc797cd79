//! Durations as they are written on the command line.

use std::time::Duration;

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
        });
    }
}
