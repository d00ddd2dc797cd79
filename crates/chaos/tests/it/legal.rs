//! Legal histories of an ideal lock are accepted; with one event changed they are refused, for the right reason.

mod mutate;
mod order;
mod queue;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;

use leasehold_chaos::{Checker, Event, History, Invariant, Recorder, Report, What, timeline};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use self::mutate::MUTATIONS;
use self::world::World;

fn checked<'a>(events: impl IntoIterator<Item = &'a Event>) -> Report {
    let mut checker = Checker::default();
    events.into_iter().for_each(|event| checker.event(event));
    checker.finish()
}

fn histories(cases: u32, test: impl Fn(u64, usize) -> Result<(), TestCaseError>) {
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    runner
        .run(&(any::<u64>(), 1..600usize), |(seed, steps)| {
            test(seed, steps)
        })
        .unwrap();
}

#[test]
fn legal_histories_are_accepted() {
    let (grants, losses, rejected) = (RefCell::new(0), RefCell::new(0), RefCell::new(0));
    histories(400, |seed, steps| {
        let report = checked(&World::run(seed, steps, seed % 2 == 0));
        prop_assert!(report.is_clean(), "{report}");
        *grants.borrow_mut() += report.figures.grants;
        *losses.borrow_mut() += report.figures.losses;
        *rejected.borrow_mut() += report.figures.rejected;
        Ok(())
    });
    // The ideal lock lives: histories in which nothing happens are legal, too.
    let happened = [grants, losses, rejected].map(RefCell::into_inner);
    assert!(
        happened[0] > 10_000 && happened[1] > 500 && happened[2] > 50,
        "{happened:?}"
    );
}

#[test]
fn with_one_event_changed_they_are_refused() {
    let applied = RefCell::new(BTreeMap::<&str, u32>::new());
    histories(150, |seed, steps| {
        let legal = World::run(seed, 100 + steps, false);
        for (name, mutation, rules) in MUTATIONS {
            let mut history = mutate::History::new(legal.clone(), seed);
            if mutation(&mut history).is_none() {
                continue;
            }
            *applied.borrow_mut().entry(name).or_default() += 1;
            let report = checked(&history.sorted());
            let found = report
                .violations
                .iter()
                .any(|violation| rules.contains(&violation.rule));
            prop_assert!(found, "{name}: {report}");
        }
        Ok(())
    });
    for (name, ..) in MUTATIONS {
        let times = applied.borrow().get(name).copied().unwrap_or_default();
        assert!(times >= 10, "{name:?} was applied {times} times only");
    }
}

#[test]
fn a_history_is_read_from_the_files_of_its_processes_in_the_order_of_time() {
    let folder = tempfile::tempdir().unwrap();
    let events = World::run(7, 300, true);
    let recorders: Vec<Recorder> = (0..50)
        .map(|p| Recorder::new(folder.path(), p).unwrap())
        .collect();
    for event in &events {
        recorders[usize::try_from(event.p).unwrap()]
            .write(event.t, event.what.clone())
            .unwrap();
    }
    // A process that was killed while it wrote.
    let path = folder.path().join("000002.jsonl");
    let torn = std::fs::read_to_string(&path).unwrap() + r#"{"t":5,"p"#;
    std::fs::write(&path, torn).unwrap();
    let read: Vec<Event> = History::in_folder(folder.path())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(read, events);
    // A line that is none in the middle of a file is a mistake, and says where.
    std::fs::write(&path, "{\"t\":5,\"p\n").unwrap();
    let error = History::in_folder(folder.path())
        .unwrap()
        .find_map(Result::err)
        .unwrap()
        .to_string();
    assert!(error.contains("000002.jsonl:1"), "{error}");
}

#[test]
fn memory_is_bounded_by_what_is_under_way() {
    let mut checker = Checker::default();
    let mut peak = 0;
    for round in 0..200 {
        // One long history: each round goes on where the last one ended.
        for mut event in World::run(round, 100, false) {
            event.t += round * 10_000_000_000;
            shift(&mut event, round * 1_000_000);
            checker.event(&event);
        }
        peak = peak.max(checker.under_way());
    }
    let report = checker.finish();
    assert_eq!(report.of(Invariant::History), 0, "{report}");
    assert!(report.figures.events > 20_000, "{report}");
    assert!(peak < 200, "{peak}");
}

/// Gives each acquisition of a round numbers of its own, and times of its own.
fn shift(event: &mut Event, by: u64) {
    let text = serde_json::to_string(&event).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (field, by) in [
        ("op", by),
        ("tok", by),
        ("id", by),
        ("p", by),
        ("target", by),
        ("valid", by * 10_000),
        ("deadline", by * 10_000),
    ] {
        if let Some(number) = value
            .get(field)
            .and_then(serde_json::Value::as_u64)
            .filter(|it| *it > 0 || field != "p")
        {
            value[field] = (number + by).into();
        }
    }
    *event = serde_json::from_value(value).unwrap();
}

#[test]
fn a_violation_is_drawn_with_all_that_happened_to_its_lock() {
    let legal = World::run(3, 300, false);
    let mut history = mutate::History::new(legal, 3);
    let (_, granted_early, _) = MUTATIONS[0];
    granted_early(&mut history).unwrap();
    let events = history.sorted();
    let report = checked(&events);
    let violation = &report.violations[0];
    let page = timeline(violation, events.iter().cloned());
    let asked = events.iter().filter_map(|event| match &event.what {
        What::Invoke { op, lock, .. } if *lock == violation.lock => Some(op),
        _ => None,
    });
    let mut rows = 0;
    for op in asked {
        rows += 1;
        assert!(
            page.contains(&format!(", {op}: ")),
            "{op} is not on the page"
        );
    }
    assert!(
        rows > 10
            && page.contains("holds")
            && page.contains("pause")
            && page.contains("font-weight='bold'")
    );
}
