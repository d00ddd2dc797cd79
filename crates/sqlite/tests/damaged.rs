//! Rows that were changed by hand: whatever they hold, a request is answered or refused with its reason, and no thread of a client ends by it.
//!
//! `LEASEHOLD_FUZZ=10000000 cargo test --profile fuzz -p leasehold-sqlite --test damaged`

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, LeaseRef, Mode, Place, Renewal, WaitPolicy,
};
use leasehold_core::{Error, ErrorKind, FencingToken};
use leasehold_fuzz::fuzz_servers;
use leasehold_sqlite::Sqlite;
use rusqlite::Connection;

const TTL: Duration = Duration::from_secs(10);

/// A thread of ours has panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

struct World {
    file: PathBuf,
    claims: Vec<(Claim, Option<Place>)>,
}

impl World {
    fn claim(mode: Option<&str>, policy: WaitPolicy) -> Claim {
        let mode = match mode {
            Some("s") => Mode::Shared,
            Some("p") => Mode::Permits { n: 1, of: 2 },
            _ => Mode::Exclusive,
        };
        Claim::new("x", mode, policy, TTL, "a label")
    }

    fn damage(&self, sql: &str) {
        let connection = Connection::open(&self.file).unwrap();
        connection.busy_timeout(TTL).unwrap();
        // What is no statement is refused.
        let _ = connection.execute(sql, []);
    }

    async fn verb(&mut self, store: &Sqlite, line: &str) {
        let (verb, word) = line
            .split_once(' ')
            .map_or((line, None), |(verb, word)| (verb, Some(word)));
        let ends = |nth: Option<&(Claim, Option<Place>)>| {
            nth.cloned()
                .unwrap_or_else(|| (World::claim(None, WaitPolicy::Fair), None))
        };
        let (first, last) = (ends(self.claims.first()), ends(self.claims.last()));
        let answer = match verb {
            "hold" | "wait" | "try" | "claim" => {
                let policy = if verb == "try" {
                    WaitPolicy::Try
                } else {
                    WaitPolicy::Fair
                };
                let claim = if verb == "claim" {
                    last.0
                } else {
                    World::claim(word, policy)
                };
                let answer = store.claim(&claim).await;
                let place = match &answer {
                    Ok(Claimed::Granted(grant)) => Some(grant.place.clone()),
                    Ok(Claimed::Waiting(waiting)) => Some(waiting.place.clone()),
                    _ => None,
                };
                self.claims.push((claim, place));
                answer.map(drop)
            }
            "renew" => {
                let lease = |(claim, place): (Claim, Option<Place>), token| {
                    let place = place.unwrap_or_else(|| Place::new("junk"));
                    LeaseRef::new(Arc::new(claim), place, token)
                };
                let answer = store
                    .renew(&[lease(first, Some(FencingToken::new(1))), lease(last, None)])
                    .await;
                answer.map(|renewals| {
                    for renewal in renewals {
                        if let Renewal::Unknown(e) = renewal {
                            judge(&e);
                        }
                    }
                })
            }
            "release" => store.release(&first.0, first.1.as_ref()).await,
            "lapse" => {
                store
                    .release_after(&first.0, first.1.as_ref(), Duration::from_millis(3))
                    .await
            }
            "inspect" => store.inspect(&"x".into()).await.map(drop),
            "list" => store.list("", None, 5).await.map(drop),
            "evict" => {
                let token = word.and_then(|word| word.parse().ok()).unwrap_or(1);
                store
                    .evict(&"x".into(), FencingToken::new(token))
                    .await
                    .map(drop)
            }
            _ => Ok(()),
        };
        if let Err(e) = answer {
            judge(&e);
        }
    }

    async fn run(&mut self, program: &str) {
        let store = Sqlite::connect(&format!("sqlite://{}", self.file.display()))
            .await
            .unwrap();
        store.list("", None, 1).await.unwrap();
        for line in program.lines().take(30) {
            if ["UPDATE ", "DELETE ", "INSERT "]
                .iter()
                .any(|word| line.starts_with(word))
            {
                self.damage(line);
            } else {
                self.verb(&store, line).await;
            }
            assert!(
                !PANICKED.load(Ordering::Relaxed),
                "a thread of the client has panicked at {line:?}"
            );
        }
    }
}

fn judge(e: &Error) {
    let kinds = [
        ErrorKind::Corrupt,
        ErrorKind::Ambiguous,
        ErrorKind::Unavailable,
        ErrorKind::Invalid,
    ];
    assert!(kinds.contains(&e.kind()), "{e} {e:?}");
}

#[test]
fn damaged_rows() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic
            .location()
            .is_some_and(|at| at.file().contains("src/") && !at.file().contains("fuzz"))
        {
            PANICKED.store(true, Ordering::Relaxed);
        }
        usual(panic);
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    fuzz_servers(include_str!("../corpus/damages"), |program| {
        let folder = tempfile::tempdir().unwrap();
        PANICKED.store(false, Ordering::Relaxed);
        let mut world = World {
            file: folder.path().join("locks.db"),
            claims: Vec::new(),
        };
        runtime.block_on(world.run(&String::from_utf8_lossy(program)));
    });
}
