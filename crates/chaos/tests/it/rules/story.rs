//! Histories as one writes them down: `10 asks 1 x, 11 granted 1, 20 releases 1, 30 ends`.
//!
//! Each event begins with its millisecond. Unless it says `@7`, it is of the process with the number of its acquisition. A guard
//! is valid for a second, and its token is the number of its acquisition, unless another one follows.

use leasehold_chaos::{Breaks, Checker, Event, Limits, Mode, Policy, Report, Rule, What};

const MS: u64 = 1_000_000;

/// The rules that find something in a story, if these are left out.
pub(crate) fn found(story: &str, without: &[Rule]) -> Vec<Rule> {
    report(story, without)
        .violations
        .iter()
        .map(|violation| violation.rule)
        .collect()
}

pub(crate) fn report(story: &str, without: &[Rule]) -> Report {
    let mut checker = Checker::without(without);
    let limits = Limits::default();
    checker.event(&Event::new(
        0,
        0,
        What::Begin {
            store: "test".into(),
            seed: 0,
            limits,
        },
    ));
    for sentence in story.split(',') {
        for event in events(sentence.trim()) {
            checker.event(&event);
        }
    }
    checker.finish()
}

fn events(sentence: &str) -> Vec<Event> {
    let words: Vec<&str> = sentence.split_whitespace().collect();
    let [ms, verb, rest @ ..] = &words[..] else {
        panic!("{sentence:?}")
    };
    let ms: u64 = ms.parse().unwrap();
    let number = |at: usize| rest.get(at).and_then(|word| word.parse::<u64>().ok());
    let op = number(0).unwrap_or_default();
    let p = rest
        .iter()
        .find_map(|word| word.strip_prefix('@'))
        .map_or(op, |p| p.parse().unwrap());
    let valid = (ms + 1000) * MS;
    let (a, name) = ("a".to_owned(), "files".to_owned());
    let what = match *verb {
        "asks" => vec![asks(op, &rest[1..])],
        "does" => vec![
            asks(op, &["x"]),
            What::Once {
                op,
                fire: number(1).unwrap(),
            },
        ],
        "told" => vec![What::Done {
            op,
            lock: a,
            tok: op,
            fire: number(1).unwrap(),
            since: ms * MS,
            until: number(2).unwrap() * MS,
        }],
        "forgets" => vec![What::Forget { lock: a, tok: op }],
        "goes-by" => vec![What::Under {
            op,
            claim: number(1).unwrap(),
        }],
        "granted" => vec![What::Ok {
            op,
            tok: number(1).unwrap_or(op),
            valid,
        }],
        "holds" => vec![
            asks(op, &rest[1..]),
            What::Ok {
                op,
                tok: op,
                valid: valid + MS,
            },
        ],
        "finds-over" => vec![What::Ok {
            op,
            tok: op,
            valid: ms * MS,
        }],
        "busy" => vec![What::Fail { op, busy: true }],
        "times-out" => vec![What::Fail { op, busy: false }],
        "leaves" => vec![What::Info { op }],
        "lasts" => vec![What::Least {
            op,
            until: number(1).unwrap() * MS,
        }],
        "uses" => vec![What::Use { op, valid }],
        "downgrades" => vec![What::Downgrade { op }],
        "calls-release" => vec![What::Release { op, dropped: false }],
        "drops" => vec![What::Release { op, dropped: true }],
        "is-released" => vec![What::Released { op }],
        "is-not-released" => vec![What::Unreleased { op }],
        "releases" => vec![What::Release { op, dropped: false }, What::Released { op }],
        "loses" | "loses-aside" => {
            vec![What::Lost {
                op,
                why: "expired".into(),
                aside: *verb == "loses-aside",
            }]
        }
        "is-queued" => vec![What::Queued { op }],
        "accepts" => vec![What::Accept {
            op,
            lock: a,
            tok: op,
        }],
        "rejects" => vec![What::Reject {
            op,
            lock: a,
            tok: op,
        }],
        "observes" => vec![What::Observed {
            op,
            lock: a,
            tok: number(1).unwrap(),
        }],
        "fault" => vec![What::Fault {
            id: 1,
            kind: "test".into(),
            breaks: breaks(rest[0]),
            lock: None,
        }],
        "healed" => vec![What::Healed { id: 1 }],
        "killed" => vec![What::Killed { target: op }],
        "stalled" | "stalled-aside" => {
            vec![What::Stall {
                ns: number(1).unwrap() * MS,
                aside: *verb == "stalled-aside",
            }]
        }
        "had" | "has" => vec![What::Gauge {
            name,
            value: number(1).unwrap(),
            baseline: *verb == "had",
        }],
        "left" => vec![What::Kv {
            name,
            left: op,
            allowed: number(1).unwrap(),
        }],
        "ends" => vec![What::End],
        _ => panic!("{sentence:?}"),
    };
    // The second event of one sentence is a millisecond later.
    (ms..)
        .zip(what)
        .map(|(ms, what)| Event::new(ms * MS, p, what))
        .collect()
}

fn asks(op: u64, words: &[&str]) -> What {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let mode = match words[0] {
        "x" => Mode::Exclusive,
        "r" => Mode::Shared,
        "leader" => Mode::Leader,
        "2of3" => Mode::Permits { n: 2, of: 3 },
        other => panic!("{other:?}"),
    };
    What::Invoke {
        op,
        lock: value("lock=").unwrap_or("a").into(),
        mode,
        policy: if words.contains(&"try") {
            Policy::Try
        } else {
            Policy::Fair
        },
        deadline: value("until=").map(|ms| ms.parse::<u64>().unwrap() * MS),
        owner: value("owner=").map(|owner| owner.parse().unwrap()),
    }
}

fn breaks(word: &str) -> Breaks {
    match word {
        "nothing" => Breaks::Nothing,
        "exclusion" => Breaks::Exclusion,
        _ => Breaks::Order,
    }
}
