//! Many claims, and what one script does for them.

use leasehold_core::backend::{Claim, LeaseRef, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Loss};
use leasehold_redis::Redis;

use super::*;

/// How many scripts ran, and how many pushes they sent.
async fn scripts_and_pushes(count: &Count<'_>) -> (u64, u64) {
    (
        count.of("evalsha").await + count.of("eval").await,
        count.of("publish").await,
    )
}

async fn readers(store: &Redis, name: &str, n: usize) -> Vec<Claim> {
    let readers: Vec<Claim> = (0..n).map(|_| of_mode(name, SHARED, TTL * 6)).collect();
    for reader in &readers {
        drop(store.claim(reader).await.unwrap());
    }
    readers
}

async fn tell_longest(server: &Server, what: &str) {
    let slow = server.command(&["SLOWLOG", "GET", "1000"]).await.unwrap();
    let leasehold_testbed::Reply::Array(slow) = slow else {
        return;
    };
    let took = slow.iter().filter_map(|entry| match entry {
        leasehold_testbed::Reply::Array(fields) => {
            fields.get(2).and_then(leasehold_testbed::Reply::integer)
        }
        _ => None,
    });
    println!(
        "{what}: the longest script took {} us",
        took.max().unwrap_or_default()
    );
    server.command(&["SLOWLOG", "RESET"]).await.unwrap();
}

#[tokio::test]
async fn no_crowd_makes_a_script_long_and_nobody_is_forgotten() {
    bounded(async {
        const CROWD: usize = 2000;
        let server = server().await;
        for set in [["slowlog-log-slower-than", "200"], ["slowlog-max-len", "1000"]] {
            server.command(&["CONFIG", "SET", set[0], set[1]]).await.unwrap();
        }
        let store = client(&server).await;
        // Readers behind a writer: each is admitted, and told.
        let writer = of_mode("readers", Mode::Exclusive, TTL * 6);
        granted(&store, &writer).await;
        let crowd = readers(&store, "readers", CROWD).await;
        tell_longest(&server, "standing in line").await;
        let count = Count::from_here(&server).await;
        store.release(&writer, None).await.unwrap();
        let (scripts, pushes) = scripts_and_pushes(&count).await;
        assert!(scripts as usize >= CROWD / 100 && pushes as usize >= CROWD, "{scripts} scripts, {pushes} pushes");
        tell_longest(&server, "a release that admits readers").await;
        for reader in &crowd {
            assert!(matches!(renewed(&store, reader, None).await, Renewal::Granted(_)));
        }
        // Their lock is deleted by hand: whatever is kept of them goes at once.
        server.command(&["DEL", "readers"]).await.unwrap();
        let count = Count::from_here(&server).await;
        granted(&store, &crowd[0]).await;
        assert_eq!(scripts_and_pushes(&count).await.0, 1);
        assert_eq!(number(&server, &["ZCARD", "{readers}:s"]).await, 1);
        assert_eq!(number(&server, &["HLEN", "{readers}:r"]).await, 1);
        for reader in &crowd[1..] {
            granted(&store, reader).await;
        }
        // The leases of all but one are over.
        let end = "for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -2)) do redis.call('ZADD', KEYS[1], 1, id) end";
        server.command(&["EVAL", end, "1", "{readers}:s"]).await.unwrap();
        let count = Count::from_here(&server).await;
        waiting(&store, &fair("readers")).await;
        let (scripts, _) = scripts_and_pushes(&count).await;
        assert!(scripts as usize >= CROWD / 100, "{scripts} scripts");
        tell_longest(&server, "a claim that removes sharers").await;
        // The dead in line, before one that lives.
        let (holder, next) = (of_mode("dead", Mode::Exclusive, TTL * 6), fair("dead"));
        granted(&store, &holder).await;
        for _ in 0..CROWD {
            drop(store.claim(&claim("dead", WaitPolicy::Fair, ms(100), "")).await.unwrap());
        }
        waiting(&store, &next).await;
        sleep(150).await;
        let count = Count::from_here(&server).await;
        store.release(&holder, None).await.unwrap();
        assert!(scripts_and_pushes(&count).await.0 as usize >= CROWD / 100);
        tell_longest(&server, "a release before the dead").await;
        assert_eq!(held_by(&server, "dead").await, next.id.to_string());
    })
    .await;
}

#[tokio::test]
async fn whoever_comes_next_goes_on_where_a_release_was_cut_off() {
    bounded(async {
        const CROWD: usize = 400;
        let server = server().await;
        let store = client(&server).await;
        // The server knows the script.
        store.release(&fair("warm"), None).await.unwrap();
        for (n, how) in ["renewal", "claim", "evict"].into_iter().enumerate() {
            let proxy = leasehold_testbed::Proxy::to(server.addr()).await.unwrap();
            let dying = Redis::connect(&format!("redis://{}", proxy.addr()))
                .await
                .unwrap();
            let name = format!("x/{n}");
            let writer = fair(&name);
            let token = granted(&store, &writer).await.token;
            let crowd = readers(&store, &name, CROWD).await;
            let count = Count::from_here(&server).await;
            match how {
                "evict" => assert!(store.evict(&writer.name, token).await.unwrap()),
                _ => {
                    // The client dies after its first script.
                    proxy.hold_replies();
                    let first = tokio::spawn({
                        let writer = writer.clone();
                        async move { dying.release(&writer, None).await }
                    });
                    while text(&server, &["GET", &name])
                        .await
                        .is_none_or(|value| !value.starts_with("=shared"))
                    {
                        sleep(5).await;
                    }
                    first.abort();
                    let _ = first.await;
                    assert!(in_line(&server, &name).await > 0, "nothing was left to do");
                }
            }
            match how {
                "renewal" => {
                    let leases: Vec<LeaseRef> =
                        crowd.iter().map(|reader| lease(reader, None)).collect();
                    // Each script for a hundred of them admits at least fifty.
                    for _ in 0..CROWD / 50 / leases.len().div_ceil(100) {
                        store.renew(&leases).await.unwrap();
                    }
                }
                "claim" => drop(granted(&store, &of_mode(&name, SHARED, TTL)).await),
                _ => {}
            }
            assert_eq!(in_line(&server, &name).await, 0, "{how}: some still wait");
            assert!(
                count.of("publish").await as usize >= CROWD,
                "{how}: some were not told"
            );
        }
    })
    .await;
}

/// A hold of the same batch is extended by then, and its client has to hear of it in time.
#[tokio::test]
async fn answers_to_renewals_do_not_wait_until_a_crowd_is_served() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (held, holder, next) = (fair("held"), fair("dead"), fair("dead"));
        let token = granted(&store, &held).await.token;
        granted(&store, &holder).await;
        for _ in 0..300 {
            waiting(&store, &claim("dead", WaitPolicy::Fair, TTL, "")).await;
        }
        waiting(&store, &next).await;
        // The leases of all but the last are over, and their holder is gone.
        let end = "for n = 1, 300 do local e = redis.call('HGET', KEYS[1], n) \
                   redis.call('HSET', KEYS[1], n, '1 ' .. string.match(e, ' (.*)')) end";
        server
            .command(&["EVAL", end, "1", "{dead}:l"])
            .await
            .unwrap();
        server.command(&["DEL", "dead"]).await.unwrap();
        let leases = [lease(&next, None), lease(&held, Some(token))];
        // The server learns the script.
        drop(renewed(&store, &held, Some(token)).await);
        for round in 0..4 {
            let count = Count::from_here(&server).await;
            let answers = store.renew(&leases).await.unwrap();
            // One for holds, and one for places, which the server learns at first.
            let scripts = if round == 0 { 3 } else { 2 };
            assert_eq!(count.requests().await, scripts, "round {round}");
            assert!(matches!(answers[1], Renewal::Renewed(_)), "{answers:?}");
            // Each goes on where the one before has stopped.
            assert_eq!(
                matches!(answers[0], Renewal::Granted(_)),
                round == 3,
                "{answers:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_hundred_holds_are_renewed_by_one_script() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut leases = Vec::new();
        for n in 0..100 {
            let claim = fair(&format!("x/{n}"));
            let token = granted(&store, &claim).await.token;
            leases.push(lease(&claim, Some(token)));
        }
        // The server learns the script for holds, and the one for all else.
        store.renew(&leases).await.unwrap();
        drop(renewed(&store, &fair("nobody"), None).await);
        let count = Count::from_here(&server).await;
        store.renew(&leases).await.unwrap();
        assert_eq!(
            (
                count.requests().await,
                count.of("mget").await,
                count.of("pexpire").await
            ),
            (1, 1, 100)
        );
        server.command(&["DEL", "x/7"]).await.unwrap();
        server
            .command(&["SET", "x/8", "somebody else's"])
            .await
            .unwrap();
        server.command(&["PEXPIRE", "x/9", "5000"]).await.unwrap();
        let count = Count::from_here(&server).await;
        let answers = store.renew(&leases).await.unwrap();
        // One for all, and one for those of which something has become.
        assert_eq!((count.requests().await, count.of("mget").await), (2, 1));
        for (n, answer) in answers.iter().enumerate() {
            match n {
                7 | 8 => assert!(
                    matches!(answer, Renewal::Lost(Loss::Gone)),
                    "{n}: {answer:?}"
                ),
                _ => assert!(matches!(answer, Renewal::Renewed(_)), "{n}: {answer:?}"),
            }
        }
        assert!(number(&server, &["PTTL", "x/9"]).await > 9000);
        assert_eq!(
            text(&server, &["GET", "x/8"]).await.unwrap(),
            "somebody else's"
        );
        // Another token, or another id, is another hold.
        let other = with_ttl(&leases[0].claim, TTL);
        let wrong = lease(&other, leases[1].token);
        assert!(matches!(
            store.renew(&[wrong]).await.unwrap()[0],
            Renewal::Lost(Loss::Gone)
        ));
    })
    .await;
}

/// One script has leases of one length; each answer is for the lease that was asked about.
#[tokio::test]
async fn leases_of_two_lengths_are_each_renewed_for_their_own() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut leases = Vec::new();
        for n in 0..30 {
            let ttl = if n % 2 == 0 { TTL } else { TTL * 3 };
            let claim = claim(&format!("x/{n}"), WaitPolicy::Fair, ttl, "");
            let token = granted(&store, &claim).await.token;
            leases.push(lease(&claim, Some(token)));
            server
                .command(&["PEXPIRE", &format!("x/{n}"), "5000"])
                .await
                .unwrap();
        }
        server.command(&["DEL", "x/7"]).await.unwrap();
        let answers = store.renew(&leases).await.unwrap();
        for (n, (lease, answer)) in leases.iter().zip(&answers).enumerate() {
            match answer {
                Renewal::Lost(Loss::Gone) if n == 7 => continue,
                Renewal::Renewed(validity) if n != 7 => {
                    assert_eq!(validity.ttl(), lease.claim.ttl, "{n}");
                }
                _ => panic!("{n}: {answer:?}"),
            }
            let left = number(&server, &["PTTL", &format!("x/{n}")]).await;
            let left = Duration::from_millis(left.unsigned_abs());
            assert!(
                left <= lease.claim.ttl && left > lease.claim.ttl - TTL / 2,
                "{n}: {left:?}"
            );
        }
    })
    .await;
}

/// The server refuses a request for many if it refuses it for one of their keys. That one is alone with it.
#[tokio::test]
async fn one_refused_key_takes_no_other_hold_along() {
    bounded(async {
        let server = server().await;
        let user = [
            "ACL",
            "SETUSER",
            "me",
            "on",
            ">secret",
            "+@all",
            "allchannels",
            "~x*",
            "~{x*",
        ];
        server
            .command(&[&user[..], &["~{}:f", "~y*", "~{y*"]].concat())
            .await
            .unwrap();
        let store = Redis::connect(&format!("redis://me:secret@{}", server.addr()))
            .await
            .unwrap();
        let mut leases = Vec::new();
        for n in 0..20 {
            let claim = fair(&if n == 7 {
                "y".to_owned()
            } else {
                format!("x/{n}")
            });
            let token = granted(&store, &claim).await.token;
            leases.push(lease(&claim, Some(token)));
        }
        let taken = ["ACL", "SETUSER", "me", "resetkeys", "~{}:f", "~x*", "~{x*"];
        server.command(&taken).await.unwrap();
        for (n, answer) in store.renew(&leases).await.unwrap().iter().enumerate() {
            match n {
                7 => assert!(
                    matches!(answer, Renewal::Unknown(e) if e.kind() == ErrorKind::Denied),
                    "{answer:?}"
                ),
                _ => assert!(matches!(answer, Renewal::Renewed(_)), "{n}: {answer:?}"),
            }
        }
    })
    .await;
}
