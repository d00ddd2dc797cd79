//! Processes that are killed while they complete work.

use std::path::Path;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, Mode, WaitPolicy,
};
use leasehold_core::{FencingToken, Keep};
use rusqlite::OptionalExtension;

use super::*;

const DAY: Keep = Keep::For(Duration::from_secs(24 * 3600));

fn claim(name: &str) -> Claim {
    let ttl = Duration::from_secs(60);
    Claim::new(name, Mode::Exclusive, WaitPolicy::Fair, ttl, "").once(0)
}

/// Does work of many names, and says what it has and what it was told.
pub(crate) fn complete_again_and_again(words: &[String]) {
    let [locks, from] = words else { unreachable!() };
    run(async {
        let client = open(locks).await.unwrap();
        for n in from.parse::<u64>().unwrap().. {
            let claim = claim(&n.to_string());
            let Claimed::Granted(grant) = client.claim(&claim).await.unwrap() else {
                panic!("{n} is free");
            };
            say(&format!("holds {n} {}", grant.token));
            let request = Complete::new(grant.token, grant.place, DAY);
            match client.complete(&claim, &request).await.unwrap() {
                Completed::Done(done) => say(&format!("done {n} {}", done.token)),
                Completed::NotHeld => panic!("{n} is held"),
            }
        }
    });
}

/// The tokens of the hold and of the completion of this name.
fn seen(place: &Path, n: u64) -> (Option<u64>, Option<u64>) {
    let first = Connection::open(place).unwrap();
    let second = place.with_file_name("locks.db-done");
    let token = |file: &Connection, find: &str| {
        let found = file.query_row(find, [n.to_string()], |row| row.get::<_, i64>(0));
        found.optional().unwrap().map(|token| token as u64)
    };
    let completion = second.exists().then(|| {
        let second = Connection::open(second).unwrap();
        token(&second, "SELECT token FROM done WHERE name = ?1")
    });
    let hold = token(&first, "SELECT token FROM place WHERE name = ?1");
    (hold, completion.flatten())
}

/// Whenever it is killed: a hold that is gone has its completion, each completion that was answered is there, and the next
/// process begins no work that was done, and all that was not.
pub(crate) fn killed_in_complete_leaves_the_hold_or_the_completion() {
    let place = Place::new();
    run_for(Duration::from_secs(240), async {
        // Keeps the files in use, as other programs do.
        let other = open(place.path()).await.unwrap();
        let is_whole = std::env::var_os("LEASEHOLD_WHOLE").is_some();
        let rounds: u64 = if is_whole { 200 } else { 60 };
        let (mut next, mut between, mut held) = (0, 0, 0);
        for round in 0..rounds {
            let from = next.to_string();
            let mut worker = Actor::start("complete_again_and_again", &[&place.word(), &from]);
            let mut last = worker.hear();
            // The first one makes its session, and perhaps the files.
            for _ in 0..round % 5 {
                last = worker.hear();
            }
            // A completion takes less than a millisecond, or some on a busy machine.
            let longest = 500 << (round % 5);
            std::thread::sleep(Duration::from_micros(fastrand::u64(0..longest)));
            worker.kill();
            while let Some(line) = worker.hears() {
                last = line;
            }
            let mut words = last.split(' ');
            let (verb, n, token) = (words.next(), words.next(), words.next());
            let n: u64 = n.unwrap().parse().unwrap();
            let token: Option<u64> = token.unwrap().parse().ok();
            for n in next..n {
                let (hold, completion) = seen(&place.path(), n);
                assert!(
                    hold.is_none() && completion.is_some(),
                    "{n}: {hold:?} {completion:?}"
                );
            }
            match (verb, seen(&place.path(), n)) {
                (Some("done"), (None, Some(there))) => assert_eq!(Some(there), token),
                (Some("holds"), (Some(hold), None)) => {
                    assert_eq!(Some(hold), token);
                    held += 1;
                }
                (Some("holds"), (hold, Some(completion))) => {
                    assert_eq!(Some(completion), token);
                    assert!(hold.is_none_or(|hold| Some(hold) == token));
                    between += 1;
                }
                other => panic!("round {round}, {last:?}: {other:?}"),
            }
            // Work that is done is told so at once, though its hold may be there; the rest begins anew.
            let (_, before) = seen(&place.path(), n);
            match other.claim(&claim(&n.to_string())).await.unwrap() {
                Claimed::Done(done) => assert_eq!(Some(done.token.get()), before),
                Claimed::Granted(grant) => {
                    assert_eq!(before, None, "work that was done begins again");
                    assert!(Some(grant.token) > token.map(FencingToken::new));
                    let request = Complete::new(grant.token, grant.place, DAY);
                    let done = other.complete(&claim(&n.to_string()), &request).await;
                    // It is another claim.
                    assert!(matches!(done.unwrap(), Completed::NotHeld));
                }
                other => panic!("{other:?}"),
            }
            next = n + 1;
            // It may have been granted the next one as well.
            while seen(&place.path(), next) != (None, None) {
                next += 1;
            }
        }
        assert!(held > 0 && between > 0, "{held} and {between} of {rounds}");
    });
}
