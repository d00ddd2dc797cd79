//! A holder or a waiter in words, for tables and JSON.

use std::time::{Duration, SystemTime};

use leasehold::Participant;
use leasehold::backend::Mode;

/// The holder's label; of another tool's hold its value and its end.
pub(crate) fn holder(entry: &Participant) -> String {
    if !entry.foreign {
        return entry
            .label
            .clone()
            .unwrap_or_else(|| "without a label".into());
    }
    let end = match entry.ends_in {
        None => String::new(),
        Some(Duration::MAX) => ", without an end".into(),
        Some(left) => {
            let left = humantime::format_duration(Duration::from_secs(left.as_secs()));
            format!(", for {left} more")
        }
    };
    match &entry.label {
        Some(wrote) => format!("{wrote} (another tool's{end})"),
        None => format!("another tool{end}"),
    }
}

/// The permits that it has, and the number of all permits.
pub(crate) fn permits(entry: &Participant) -> Option<(u32, u32)> {
    match entry.mode {
        Some(Mode::Permits { n, of }) => Some((n, of)),
        _ => None,
    }
}

/// The mode of the claim.
pub(crate) fn mode(entry: &Participant) -> String {
    match entry.mode {
        Some(Mode::Exclusive) => "exclusive".into(),
        Some(Mode::Shared) => "shared".into(),
        Some(Mode::Permits { n, of }) => format!("{n} of {of}"),
        None => "-".into(),
    }
}

/// The number that `break` takes.
pub(crate) fn token(entry: &Participant) -> String {
    let number = entry.token.or(entry.evict_by);
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

/// Since when, if that is before the year 10000: what other tools wrote may be any number.
pub(crate) fn shown_since(entry: &Participant) -> Option<SystemTime> {
    entry.since.filter(|at| can_be_shown(*at))
}

/// Returns whether it is before the year 10000 and after 1970.
pub(crate) fn can_be_shown(at: SystemTime) -> bool {
    let of_year_10000 = 253_402_300_800;
    at.duration_since(SystemTime::UNIX_EPOCH)
        .is_ok_and(|age| age.as_secs() < of_year_10000)
}

/// By the store's clock and ours: good enough for people.
pub(crate) fn since(entry: &Participant) -> String {
    entry.since.map_or_else(|| "-".into(), time)
}

/// A time of the store, and how long ago that was.
pub(crate) fn time(at: SystemTime) -> String {
    if !can_be_shown(at) {
        return "-".into();
    }
    let age = SystemTime::now().duration_since(at).unwrap_or_default();
    let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
    format!("{} ({age} ago)", humantime::format_rfc3339_seconds(at))
}
