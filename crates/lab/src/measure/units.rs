//! Numbers as people read them: three digits, a unit, thin spaces.

use std::time::Duration;

/// A duration given in microseconds.
pub fn us(us: f64) -> String {
    if us == 0.0 {
        // Less than what it was measured with can see.
        return "0".to_owned();
    }
    scaled(us * 1e3, &["ns", "µs", "ms", "s"])
}

/// A value in the largest of these units of which it has one; each is a thousand of the one before.
pub fn scaled(mut value: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{} {}", digits(value), units[unit])
}

/// A duration given in milliseconds.
pub fn ms(ms: u64) -> String {
    us(ms as f64 * 1e3)
}

/// The milliseconds of a duration.
pub fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// A rate per second, as text.
pub fn rate(per_second: f64) -> String {
    match per_second {
        _ if per_second >= 1e6 => format!("{} M", digits(per_second / 1e6)),
        _ if per_second >= 1e4 => format!("{} k", digits(per_second / 1e3)),
        _ => digits(per_second),
    }
}

/// A factor.
pub fn times(factor: f64) -> String {
    if factor.is_finite() {
        format!("{} ×", digits(factor))
    } else {
        "–".to_owned()
    }
}

/// Two or three digits that matter.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.5 => format!("{value:.0}"),
        v if v >= 9.95 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_them() {
        let shown = [
            us(0.0),
            us(0.25),
            us(47.3),
            us(999.0),
            us(1234.0),
            us(2.5e6),
            ms(4000),
        ];
        assert_eq!(
            shown,
            [
                "0", "250 ns", "47.3 µs", "999 µs", "1.23 ms", "2.50 s", "4.00 s"
            ]
        );
        assert_eq!(
            [rate(950.0), rate(9300.0), rate(93_000.0), rate(1.2e6)],
            ["950", "9300", "93 k", "1.20 M"]
        );
        assert_eq!([times(1.5), times(f64::NAN)], ["1.50 ×", "–"]);
    }
}
