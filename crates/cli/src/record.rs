//! A record that work is done, in words, for tables and JSON.

use std::time::Duration;

use humantime::{format_duration, format_rfc3339_millis};
use leasehold_core::Completion;
use serde_json::{Value, json};

use crate::participant::{can_be_shown, time};

/// The number of characters of a result that a list shows.
const SHOWN: usize = 60;

/// The heading of a table of records.
pub(crate) const HEADING: [&str; 7] = ["DONE", "BY", "TOKEN", "AT", "COUNTS FOR", "FIRE", "RESULT"];

/// A row of a table of records. Only the beginning of a long result is shown, unless `whole`.
pub(crate) fn row(name: &str, done: &Completion, whole: bool) -> [String; 7] {
    let fire = match done.fire {
        0 => "-".into(),
        fire => fire.to_string(),
    };
    [
        name.into(),
        by(done),
        done.token.to_string(),
        time(done.at),
        left(done),
        fire,
        result(done, whole).unwrap_or_else(|| "-".into()),
    ]
}

/// The client that did the work.
pub(crate) fn by(done: &Completion) -> String {
    if done.label.is_empty() {
        "without a label".into()
    } else {
        done.label.to_string()
    }
}

/// The time for which the record still counts.
pub(crate) fn left(done: &Completion) -> String {
    done.left.map_or_else(
        || "ever".into(),
        |left| format_duration(Duration::from_secs(left.as_secs())).to_string(),
    )
}

/// The result in one line and in quotes, so that nothing in it is taken for anything else.
pub(crate) fn result(done: &Completion, whole: bool) -> Option<String> {
    let result = done.result.as_deref()?;
    let shown: String = match whole {
        true => result.into(),
        false => result.chars().take(SHOWN).collect(),
    };
    let more = match (shown.len() < result.len(), done.is_cut) {
        (true, _) => " …",
        (false, true) => " … (cut)",
        (false, false) => "",
    };
    Some(format!("{shown:?}{more}"))
}

/// The record as JSON.
pub(crate) fn described(done: &Completion) -> Value {
    json!({
        "token": done.token.get(),
        "label": &*done.label,
        "at": can_be_shown(done.at).then(|| format_rfc3339_millis(done.at).to_string()),
        "left_ms": done.left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "fire": done.fire,
        "result": done.result.as_deref(),
        "cut": done.is_cut,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use leasehold::FencingToken;
    use leasehold_fuzz::fuzz_text;

    use super::*;
    use crate::output;

    fn record(result: &str) -> Completion {
        let mut done = Completion::new(FencingToken::new(7), "me", SystemTime::now());
        done.result = Some(result.into());
        done
    }

    #[test]
    fn a_record_in_words() {
        let mut done = record("17\n");
        done.left = Some(Duration::from_millis(90_900));
        let [name, by, token, at, left, fire, result] = row("job", &done, false);
        assert_eq!((&*name, &*by, &*token), ("job", "me", "7"));
        assert!(at.ends_with("(0s ago)"), "{at}");
        assert_eq!((&*left, &*fire, &*result), ("1m 30s", "-", r#""17\n""#));
        done.left = None;
        done.fire = 12;
        assert_eq!(row("job", &done, false)[4..6], ["ever", "12"]);
    }

    #[test]
    fn a_long_result_is_shown_from_its_beginning() {
        let mut done = record(&"é".repeat(100));
        let short = result(&done, false).unwrap();
        assert_eq!(short, format!("{:?} …", "é".repeat(SHOWN)));
        done.is_cut = true;
        let whole = result(&done, true).unwrap();
        assert_eq!(whole, format!("{:?} … (cut)", "é".repeat(100)));
    }

    #[test]
    fn whatever_a_result_is_it_is_one_line_and_stays_the_same_in_json() {
        fuzz_text(include_str!("../corpus/texts"), |text| {
            let done = record(text);
            for whole in [true, false] {
                let shown = result(&done, whole).unwrap();
                assert!(!shown.contains(['\n', '\r', '\x1b', '\u{9b}', '\u{202e}']));
            }
            let json = output::safe_json(&described(&done).to_string());
            let back: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(back["result"], text);
        });
    }
}
