//! Tokens of `fast` locks, which are drawn in blocks: that they rise also where the files are lost just after.

use std::fs;
use std::time::SystemTime;

use leasehold_core::backend::{Backend, Claim, Claimed, ClaimedAll, Grant, Mode, WaitPolicy};
use leasehold_sqlite::Sqlite;
use rusqlite::Connection;

use super::*;

fn fast(name: &str, mode: Mode) -> Claim {
    Claim::new(name, mode, WaitPolicy::Fast, TTL, "")
}

async fn granted(client: &Sqlite, claim: &Claim) -> Grant {
    match client.claim(claim).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn last_of(grant: &Grant) -> i64 {
    grant.token.as_i64() + i64::from(grant.turns) - 1
}

/// The wall clock in microseconds.
fn wall() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_micros() as i64
}

/// The last token that the file knows, once it is so far ahead of the clock.
fn set_ahead(place: &Place, micros: i64) -> i64 {
    let last = wall() + micros;
    let database = Connection::open(place.path()).unwrap();
    database.busy_timeout(Duration::from_secs(10)).unwrap();
    database
        .execute("UPDATE meta SET token = ?1", [last])
        .unwrap();
    last
}

/// Takes many blocks as fast as it can, more than one token for each microsecond; says the first token and the last.
pub(crate) fn draw_blocks(words: &[String]) {
    let [locks] = words else { unreachable!() };
    run(async {
        let client = open(locks).await.unwrap();
        let (mut first, mut last) = (None, 0);
        for part in 0..40 {
            let claims: Vec<_> = (0..100)
                .map(|i| fast(&format!("{part}/{i}"), Mode::Exclusive))
                .collect();
            let ClaimedAll::Granted(grants) = client.claim_all(&claims).await.unwrap() else {
                panic!("busy")
            };
            for grant in grants {
                assert!(grant.token.as_i64() > last, "{} after {last}", grant.token);
                (first, last) = (first.or(Some(grant.token.as_i64())), last_of(&grant));
            }
        }
        say(&format!("{} {last}", first.unwrap()));
        tokio::task::spawn_blocking(await_cue).await.unwrap();
    });
}

/// Whoever had them dies, and then not a byte of the files is left.
pub(crate) fn rise_after_many_blocks_and_a_loss() {
    let place = Place::new();
    let mut greatest = 0;
    for round in 0..10 {
        let began = wall();
        let mut client = Actor::start("draw_blocks", &[&place.word()]);
        let said: Vec<i64> = client
            .hear()
            .split(' ')
            .map(|token| token.parse().unwrap())
            .collect();
        client.kill();
        all(&place)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        assert!(
            said[0] > greatest,
            "{} after {greatest} in round {round}",
            said[0]
        );
        // As far above the clock as a file may have been that was lost just before.
        assert!(said[0] > began + 5000, "{} at {began}", said[0]);
        greatest = said[1];
        println!("{} µs ahead", greatest - wall());
    }
}

/// However a block is asked for, none is given out far ahead of the clock. What is not given out belongs to nobody.
pub(crate) fn blocks_end_near_the_clock() {
    run(async {
        let place = Place::new();
        let (here, other) = (
            open(place.path()).await.unwrap(),
            open(place.path()).await.unwrap(),
        );
        let name = "a".into();
        // At once; with a look at the queue; as a waiter; several names.
        for way in 0..4 {
            let claim = fast(
                "a",
                if way == 1 {
                    Mode::Shared
                } else {
                    Mode::Exclusive
                },
            );
            let before = fast(
                "a",
                if way == 1 {
                    Mode::Shared
                } else {
                    Mode::Exclusive
                },
            );
            if way == 1 || way == 2 {
                granted(&other, &before).await;
            }
            let last = set_ahead(&place, 3_600_000_000);
            let grant = match way {
                2 => {
                    assert!(matches!(
                        here.claim(&claim).await.unwrap(),
                        Claimed::Waiting(_)
                    ));
                    other.release(&before, None).await.unwrap();
                    granted(&here, &claim).await
                }
                3 => match here.claim_all(std::slice::from_ref(&claim)).await.unwrap() {
                    ClaimedAll::Granted(grants) => grants.into_iter().next().unwrap(),
                    busy => panic!("{busy:?}"),
                },
                _ => granted(&here, &claim).await,
            };
            assert!(
                grant.token.as_i64() > last && grant.turns == 1,
                "{way}: {grant:?} after {last}"
            );
            let again = granted(&here, &claim).await;
            assert_eq!((again.token, again.turns), (grant.token, 1), "{way}");
            let after = FencingToken::new(grant.token.get() + 1);
            assert!(
                !other.evict(&name, after).await.unwrap(),
                "{way}: ended by a token that is not its own"
            );
            assert!(other.evict(&name, grant.token).await.unwrap(), "{way}");
            here.release(&claim, None).await.unwrap();
            other.release(&before, None).await.unwrap();
        }
        // Back at the clock, all that was asked for.
        set_ahead(&place, -1_000_000);
        assert!(granted(&here, &fast("b", Mode::Exclusive)).await.turns > 1);
    });
}
