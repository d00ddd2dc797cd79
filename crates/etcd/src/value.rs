//! What the value of a place says: the label, and in a last line of its own since when.
//!
//! etcd keeps no time, so it is the wall clock of the client that entered the line, in milliseconds since 1970. Only
//! people read it. Nothing compares values: a holder may change its label, and other tools write what they like.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn write(label: &str, since: SystemTime) -> String {
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("{label}\n{since}")
}

pub(crate) fn label(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    text.rsplit_once('\n').map_or(&*text, |(label, _)| label).to_owned()
}

pub(crate) fn since(value: &[u8]) -> Option<SystemTime> {
    let (_, since) = str::from_utf8(value).ok()?.rsplit_once('\n')?;
    UNIX_EPOCH.checked_add(Duration::from_millis(since.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_says_who_and_since_when() {
        let since_when = UNIX_EPOCH + Duration::from_millis(1_234_567);
        for said in ["web-1", "", "two\nlines", "é"] {
            let value = write(said, since_when);
            assert_eq!((label(value.as_bytes()), since(value.as_bytes())), (said.to_owned(), Some(since_when)));
        }
        assert_eq!((label(b"other"), since(b"other")), ("other".to_owned(), None));
        assert_eq!(since(b"x\n99999999999999999999"), None);
        assert_eq!(label(&[0xff]), "\u{fffd}");
    }
}
