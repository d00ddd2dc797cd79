//! Whatever stands in the files of a history, it is read or refused with the line that is wrong, and judged.

use std::fs;

use leasehold_chaos::{Checker, Event, History, timeline};
use leasehold_fuzz::fuzz;

fn judge(events: &[Event]) {
    let mut checker = Checker::default();
    events.iter().for_each(|event| checker.event(event));
    assert!(checker.under_way() <= events.len());
    let report = checker.finish();
    assert!(!report.to_string().is_empty());
    for violation in report.violations.iter().take(2) {
        assert!(timeline(violation, events.iter().cloned()).contains("svg"));
    }
}

#[test]
fn histories() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("000001.jsonl");
    fuzz(include_str!("../../corpus/histories"), |history| {
        // As they are, line by line: what is no event is left out.
        let lines = history.split_inclusive(|byte| *byte == b'\n');
        let mut events: Vec<Event> = lines
            .clone()
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        for event in &events {
            let written = serde_json::to_string(event).unwrap();
            assert_eq!(
                serde_json::from_str::<Event>(&written).unwrap(),
                *event,
                "{written}"
            );
        }
        fs::write(&file, history).unwrap();
        let read: Vec<_> = History::in_folder(folder.path()).unwrap().collect();
        // A part of a line at the end is what a process leaves that is killed while it writes.
        let whole = lines.filter(|line| line.ends_with(b"\n"));
        let bad = whole
            .clone()
            .position(|line| serde_json::from_slice::<Event>(line).is_err());
        match bad {
            None => assert_eq!(read.iter().filter(|it| it.is_ok()).count(), whole.count()),
            Some(at) => {
                let error = read.last().unwrap().as_ref().unwrap_err().to_string();
                assert!(
                    error.contains(&format!("000001.jsonl:{}: ", at + 1)),
                    "{error}"
                );
            }
        }
        events.sort_by_key(|event| event.t);
        judge(&events);
    });
}
