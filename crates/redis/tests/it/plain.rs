//! A store without scripts: what it refuses, what its user needs, and that it excludes the others.

use crate::support::*;
use leasehold_core::backend::{Backend, Claimed, Renewal, WaitPolicy};
use leasehold_core::{Contention, ErrorKind, Fairness, FencingToken, Result, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{Proxy, RedisOptions};

use ErrorKind::{Denied, Invalid, Lost, Unsupported};

/// As the store's page has them, for locks with the prefix `app:`.
const DOCUMENTED: &str = "~app:* ~{app:* ~{}:f resetchannels &leasehold:* -@all +@read +@write +@pubsub +@connection +@transaction +time +info \
    +config|get -@scripting";

const OFF: &str = "timeout=10000&scripts=off";

/// A client without scripts.
async fn plain(server: &Server) -> Redis {
    Redis::connect(&format!("{}?{OFF}", server.url()))
        .await
        .unwrap()
}

/// A server with these of its commands renamed.
async fn without(commands: &[&str]) -> Server {
    let each = commands.iter();
    let extra = each.flat_map(|name| ["--rename-command", name, ""].map(str::to_owned));
    let options = RedisOptions {
        extra: extra.collect(),
        ..RedisOptions::default()
    };
    Server::start_with(&options).await.unwrap()
}

/// What the user `app` with these rights is told that connects so.
async fn of_user(server: &Server, rights: &str, query: &str) -> Result<Redis> {
    let words = format!("ACL SETUSER app reset on >pw {rights}");
    let words: Vec<&str> = words.split_whitespace().collect();
    server.command(&words).await.unwrap();
    Redis::connect(&format!("redis://app:pw@{}?{query}", server.addr())).await
}

/// The kind of the error, which has to have these words.
#[track_caller]
fn told(answer: Result<Redis>, kind: ErrorKind, words: &[&str]) {
    let error = answer.map(drop).unwrap_err();
    let said = error.to_string();
    let has_all = words.iter().all(|word| said.contains(word));
    assert!(error.kind() == kind && has_all, "{error:?}");
}

#[tokio::test]
async fn a_server_that_forbids_scripts_says_which_word_does_without_them() {
    bounded(async {
        let word = "scripts=off in the URL";
        for renamed in [&["EVAL"][..], &["EVALSHA"], &["EVAL", "EVALSHA"]] {
            let server = without(renamed).await;
            told(Redis::connect(&server.url()).await, Unsupported, &[word]);
        }
        let server = server().await;
        let no_scripts = "~* &* +@all -@scripting";
        let refused = of_user(&server, no_scripts, "").await;
        told(refused, Denied, &["+evalsha", word]);
        // Where something else is missing, the word would not help.
        let refused = of_user(&server, "~* &* +@all -pexpire", "").await;
        let error = refused.map(drop).unwrap_err().to_string();
        assert!(
            error.contains("+pexpire") && !error.contains(word),
            "{error}"
        );
        // A word that is no answer, and a server that it is not for.
        told(
            Redis::connect("redis://h?scripts=no").await,
            Invalid,
            &["scripts is on or off"],
        );
        told(
            Redis::connect("redis+cluster://127.0.0.1:1?scripts=off").await,
            Unsupported,
            &["not for a Redis Cluster"],
        );
        of_user(&server, no_scripts, OFF).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn locks_work_where_the_commands_of_scripts_do_not_exist() {
    bounded(async {
        let server = without(&["EVAL", "EVALSHA", "SCRIPT"]).await;
        let store = Store::new(plain(&server).await);
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let guard = store.lock("x").ttl(TTL).acquire().await.unwrap();
            let other = plain(&server).await;
            let who = busy(&other, &claim("x", WaitPolicy::Try, TTL, "")).await;
            assert_eq!(who.token, Some(guard.fencing_token()));
            tokens.push(guard.fencing_token());
            guard.release().await.unwrap();
        }
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
        // Of a lock nothing stays behind, and of its server the greatest token and the identity.
        assert_eq!(server.keys("*").await.unwrap(), ["{}:f", "{}:store"]);
    })
    .await;
}

#[tokio::test]
async fn a_user_needs_what_the_page_says_and_is_told_what_is_missing() {
    bounded(async {
        let server = server().await;
        let off = format!("{OFF}&prefix=app:");
        let store = of_user(&server, DOCUMENTED, &off).await.unwrap();
        let held = fair("x");
        let grant = granted(&store, &held).await;
        assert!(matches!(
            renewed(&store, &held, grant.token).await,
            Renewal::Renewed(_)
        ));
        assert_eq!(store.list("", None, 9).await.unwrap(), ["x".into()]);
        assert!(store.evict(&"x".into(), grant.token).await.unwrap());
        for (rights, words) in [
            ("-multi", &["+multi"][..]),
            ("-watch", &["+watch"]),
            ("-unwatch", &["+unwatch"]),
            ("-exec", &["+exec"]),
            ("-incrby -pexpire", &["+incrby", "+pexpire"]),
            ("-publish", &["+publish"]),
            ("resetkeys ~app:* ~{app:*", &["~{}:f"]),
            ("resetchannels", &["&leasehold:*"]),
        ] {
            let refused = of_user(&server, &format!("{DOCUMENTED} {rights}"), &off).await;
            told(refused, Denied, words);
        }
        for command in ["MULTI", "WATCH", "INCRBY"] {
            let server = without(&[command]).await;
            let refused = Redis::connect(&format!("{}?{OFF}", server.url())).await;
            told(refused, Unsupported, &["lacks the command", command]);
        }
    })
    .await;
}

#[tokio::test]
async fn what_takes_scripts_is_refused_and_the_guarantees_say_so() {
    bounded(async {
        let server = server().await;
        let backend = std::sync::Arc::new(plain(&server).await);
        let store = Store::new(backend.clone());
        let gives = store.guarantees();
        assert_eq!(gives.fairness(), Fairness::None);
        assert!(gives.atomic_multi() == 1 && !gives.min_hold_outlives_process());
        assert!(gives.notes().contains("scripts=off"));
        let read = store.rw_lock("x").read().try_acquire().await.map(drop);
        let permit = store.semaphore("y", 3).try_acquire().await.map(drop);
        for refused in [read, permit] {
            let error = refused.unwrap_err();
            let says = error.to_string().contains("exclusive locks alone");
            assert!(error.kind() == Unsupported && says, "{error:?}");
        }
        let guard = store.lock("x").acquire().await.unwrap();
        let condition = backend.still_holds(&guard).map(drop).unwrap_err();
        let says = condition.to_string().contains("scripts=off");
        assert!(condition.kind() == Unsupported && says, "{condition:?}");
        assert_eq!(
            kind(
                backend
                    .evict(&"x".into(), FencingToken::new(9_000_000_000_000_001))
                    .await
            ),
            Unsupported
        );
        assert!(backend.token_floor().is_none());
        // Several names are taken one after the other.
        let both = store.multi_lock(["a", "b"]).acquire().await.unwrap();
        both.release().await.unwrap();
    })
    .await;
}

/// Each excludes each: with scripts, without them, and another tool.
#[tokio::test]
async fn clients_with_and_without_scripts_exclude_each_other() {
    bounded(async {
        let server = server().await;
        let [with, without] = [client(&server).await, plain(&server).await];
        let [mine, theirs] =
            ["plain", "scripts"].map(|label| claim("x", WaitPolicy::Fair, TTL, label));
        let first = granted(&without, &mine).await.token;
        let who = waiting(&with, &theirs).await.who;
        assert_eq!(who, Contention::foreign().waiters(0));
        // A client with scripts shows which kind of holder it is, and no part of an id.
        let queue = with.inspect(&"x".into()).await.unwrap();
        assert_eq!(queue.holders[0].label.as_deref(), Some("leasehold-plain …"));
        without.release(&mine, None).await.unwrap();
        let second = granted(&with, &theirs).await.token;
        let who = waiting(&without, &mine).await.who;
        assert_eq!(
            (who.label.as_deref(), who.token),
            (Some("scripts"), Some(second))
        );
        let queue = without.inspect(&"x".into()).await.unwrap();
        assert_eq!(queue.holders[0].token, Some(second));
        // A hold with scripts may have waiters behind it, which only scripts let in.
        let refused = without.evict(&"x".into(), second).await;
        assert_eq!(kind(refused), Unsupported);
        with.release(&theirs, None).await.unwrap();
        let third = granted(&without, &mine).await.token;
        assert!(first < second && second < third, "{first} {second} {third}");
        without.release(&mine, None).await.unwrap();
        // Sharers.
        let reader = moded(SHARED, "reader");
        granted(&with, &reader).await;
        let who = busy(&without, &as_try(&mine)).await;
        assert!(who.label.is_some_and(|label| label.contains("several")));
        with.release(&reader, None).await.unwrap();
        // Another tool.
        let set = ["SET", "x", "somebody", "NX", "PX", "60000"];
        server.command(&set).await.unwrap();
        let who = busy(&without, &as_try(&mine)).await;
        assert_eq!(who, Contention::foreign());
        assert!(!without.evict(&"x".into(), third).await.unwrap());
        let shown = without
            .inspect(&"x".into())
            .await
            .unwrap()
            .holders
            .remove(0);
        assert!(shown.foreign && shown.label.as_deref() == Some("somebody"));
        assert!(shown.ends_in.is_some_and(|left| left <= TTL * 6));
    })
    .await;
}

/// What another client does between the look at a lock and the request behind it undoes the request.
#[tokio::test]
async fn a_lock_that_changes_under_a_request_is_looked_at_again() {
    bounded(async {
        let server = server().await;
        let with = client(&server).await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?timeout=60000&scripts=off", proxy.addr());
        let late = Redis::connect(&url).await.unwrap();
        let [mine, theirs] = ["late", "soon"].map(|label| claim("x", WaitPolicy::Fair, TTL, label));
        granted(&late, &claim("warm", WaitPolicy::Try, TTL, "")).await;

        // A claim: the other one is granted the lock meanwhile, and keeps it; or gives it back, and has had a greater token.
        for keeps in [true, false] {
            let held_back = proxy.hold_matching("EXEC");
            let (claimed, token) = tokio::join!(late.claim(&mine), async {
                held_back.sprung().await;
                let token = granted(&with, &theirs).await.token;
                if !keeps {
                    with.release(&theirs, None).await.unwrap();
                }
                proxy.deliver_held();
                token
            });
            match claimed.unwrap() {
                Claimed::Waiting(waiting) if keeps => assert_eq!(waiting.who.token, Some(token)),
                Claimed::Granted(grant) if !keeps => assert!(grant.token > token),
                other => panic!("{other:?}"),
            }
            with.release(&theirs, None).await.unwrap();
        }

        // A release: the hold has ended meanwhile, and the lock is another client's.
        let held_back = proxy.hold_matching("EXEC");
        let (released, _) = tokio::join!(late.release(&mine, None), async {
            held_back.sprung().await;
            server.command(&["DEL", "x"]).await.unwrap();
            granted(&with, &theirs).await;
            proxy.deliver_held();
        });
        released.unwrap();
        busy(&with, &claim("x", WaitPolicy::Try, TTL, "")).await;
        with.release(&theirs, None).await.unwrap();

        // A renewal, of one of two holds.
        let other = claim("y", WaitPolicy::Try, TTL, "");
        let [x, y] = [
            granted(&late, &mine).await.token,
            granted(&late, &other).await.token,
        ];
        let held_back = proxy.hold_matching("EXEC");
        let leases = [lease(&mine, x), lease(&other, y)];
        sleep(5).await;
        let (renewals, _) = tokio::join!(late.renew(&leases), async {
            held_back.sprung().await;
            server.command(&["DEL", "x"]).await.unwrap();
            granted(&with, &theirs).await;
            proxy.deliver_held();
        });
        let renewals = renewals.unwrap();
        assert!(
            matches!(renewals[..], [Renewal::Lost(_), Renewal::Renewed(_)]),
            "{renewals:?}"
        );
    })
    .await;
}

/// A proxy that shares its connections among clients may take `WATCH` and not act on it.
#[tokio::test]
async fn a_proxy_that_ignores_watch_is_refused() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        proxy.rewrite_requests("\r\nWATCH\r\n", "\r\nTOUCH\r\n");
        let url = format!("redis://{}?{OFF}", proxy.addr());
        told(
            Redis::connect(&url).await,
            Unsupported,
            &["executes a transaction though a key that it watches has changed"],
        );
        // And on each later connection.
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?{OFF}", proxy.addr());
        let store = Redis::connect(&url).await.unwrap();
        granted(&store, &fair("x")).await;
        proxy.rewrite_requests("\r\nWATCH\r\n", "\r\nTOUCH\r\n");
        proxy.disconnect().await;
        let refused = async || {
            let error = store.claim(&fair("y")).await.unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
            error.to_string().contains("a key that it watches")
        };
        until(refused).await;
    })
    .await;
}

/// Tokens follow the clock of the server, so that they rise also when the last of them are lost. What
/// stands in the place of the greatest one and is none is written over.
#[tokio::test]
async fn tokens_are_at_the_clock_or_above_the_greatest() {
    bounded(async {
        let server = server().await;
        let store = plain(&server).await;
        let micros = || {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            now.as_micros() as u64
        };
        for (fence, is_kept) in [
            ("5", false),
            ("x", false),
            ("9100000000000000", false),
            ("8000000000000000", true),
        ] {
            server.command(&["SET", "{}:f", fence]).await.unwrap();
            let held = fair("x");
            let before = micros();
            let token = granted(&store, &held).await.token.get();
            match is_kept {
                true => assert_eq!(token, 8_000_000_000_000_001),
                false => assert!((before..=micros()).contains(&token), "{fence}: {token}"),
            }
            store.release(&held, None).await.unwrap();
            assert_eq!(
                text(&server, &["GET", "{}:f"]).await,
                Some(token.to_string())
            );
        }
    })
    .await;
}

/// Claims of other names change the greatest token all the time: a claim does not begin anew for ever.
#[tokio::test]
async fn claims_of_other_names_keep_none_from_its_token() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?timeout=60000&scripts=off", proxy.addr());
        let late = Redis::connect(&url).await.unwrap();
        granted(&late, &claim("warm", WaitPolicy::Try, TTL, "")).await;
        let other = client(&server).await;
        // However slow the machine is, the greatest token is not behind the clock.
        let ahead = ["SET", "{}:f", "8000000000000000"];
        server.command(&ahead).await.unwrap();
        let mine = fair("x");
        let mut claiming = Box::pin(late.claim(&mine));
        // Each time somebody else was granted a lock meanwhile.
        for n in 0.. {
            let held_back = proxy.hold_matching("EXEC");
            let claimed = tokio::select! {
                claimed = &mut claiming => Some(claimed),
                () = held_back.sprung() => None,
            };
            if let Some(claimed) = claimed {
                assert!(matches!(claimed.unwrap(), Claimed::Granted(_)));
                assert_eq!(n, 3, "how often it was held back");
                break;
            }
            granted(
                &other,
                &claim(&format!("other {n}"), WaitPolicy::Try, TTL, ""),
            )
            .await;
            proxy.deliver_held();
        }
    })
    .await;
}

/// The greatest token may be lost as the next one is drawn from it, by `FLUSHALL` or an eviction.
#[tokio::test]
async fn a_token_that_is_drawn_from_nothing_is_not_granted() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?timeout=60000&scripts=off", proxy.addr());
        let late = Redis::connect(&url).await.unwrap();
        granted(&late, &claim("warm", WaitPolicy::Try, TTL, "")).await;
        let other = client(&server).await;
        // However slow the machine is, the greatest token is not behind the clock.
        let ahead = ["SET", "{}:f", "8000000000000000"];
        server.command(&ahead).await.unwrap();
        let mine = fair("x");
        let claiming = async {
            let drawn = proxy.hold_matching("INCRBY");
            for n in 0..2 {
                let held_back = proxy.hold_matching("EXEC");
                held_back.sprung().await;
                let name = format!("other {n}");
                granted(&other, &claim(&name, WaitPolicy::Try, TTL, "")).await;
                proxy.deliver_held();
            }
            drawn.sprung().await;
            server.command(&["DEL", "{}:f"]).await.unwrap();
            proxy.deliver_held();
        };
        let before = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let (grant, ()) = tokio::join!(granted(&late, &mine), claiming);
        let token = grant.token.get();
        assert!(token >= before.as_micros() as u64, "{token}");
        // And what was lost expires again.
        assert!(number(&server, &["TTL", "{}:f"]).await > 7000);
    })
    .await;
}

/// A proxy that shares its connections may keep `WATCH` for a test, and mix its clients later.
#[tokio::test]
async fn a_lock_that_is_free_is_not_taken_twice_where_nothing_is_watched() {
    bounded(async {
        let server = server().await;
        let with = client(&server).await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = format!("redis://{}?timeout=60000&scripts=off", proxy.addr());
        let late = Redis::connect(&url).await.unwrap();
        granted(&late, &claim("warm", WaitPolicy::Try, TTL, "")).await;
        proxy.rewrite_requests("\r\nWATCH\r\n", "\r\nTOUCH\r\n");
        let theirs = claim("x", WaitPolicy::Fair, TTL, "soon");
        let held_back = proxy.hold_matching("EXEC");
        let mine = claim("x", WaitPolicy::Fair, TTL, "late");
        let (claimed, token) = tokio::join!(late.claim(&mine), async {
            held_back.sprung().await;
            let token = granted(&with, &theirs).await.token;
            proxy.deliver_held();
            token
        });
        match claimed.unwrap() {
            Claimed::Waiting(waiting) => assert_eq!(waiting.who.token, Some(token)),
            other => panic!("{other:?}"),
        }
        assert_eq!(held_by(&server, "x").await, theirs.id.to_string());
    })
    .await;
}

/// The key in which waiters say that they wait is for people: no lock depends on it.
#[tokio::test]
async fn what_stands_in_the_place_of_the_waiters_keeps_nobody_from_the_lock() {
    bounded(async {
        let server = server().await;
        let [one, other] = [plain(&server).await, plain(&server).await];
        let junk = ["RPUSH", "{x}:p", "junk"];
        server.command(&junk).await.unwrap();
        let [first, next, third] = [fair("x"), fair("x"), fair("x")];
        granted(&one, &first).await;
        waiting(&other, &next).await;
        waiting(&other, &third).await;
        one.release(&first, None).await.unwrap();
        granted(&other, &next).await;
        other.release(&third, None).await.unwrap();
        other.release(&next, None).await.unwrap();
        assert_eq!(number(&server, &["EXISTS", "x"]).await, 0);
    })
    .await;
}

/// Claims of one client wait for one another, and so do releases: nothing else waits for all of them.
#[tokio::test]
async fn a_renewal_and_a_release_do_not_wait_for_all_claims_and_releases() {
    bounded(async {
        let server = server().await;
        let url = format!("{}?timeout=60000&scripts=off", server.url());
        let store = Redis::connect(&url).await.unwrap();
        let [held, other] = [fair("held"), fair("other")];
        let token = granted(&store, &held).await.token;
        granted(&store, &other).await;
        let claims: Vec<_> = (0..100).map(|n| fair(&format!("new/{n}"))).collect();
        let done = std::cell::Cell::new(0);
        let claiming = futures_util::future::join_all(claims.iter().map(async |claim| {
            granted(&store, claim).await;
            done.set(done.get() + 1);
        }));
        // The claims begin first.
        let beside = async {
            tokio::join!(
                async {
                    let renewal = renewed(&store, &held, token).await;
                    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
                },
                async { store.release(&other, None).await.unwrap() },
            );
            done.get()
        };
        let (_, before) = tokio::join!(claiming, beside);
        assert!(before < 10, "{before} claims came first");

        done.set(0);
        let releasing = futures_util::future::join_all(claims.iter().map(async |claim| {
            store.release(claim, None).await.unwrap();
            done.set(done.get() + 1);
        }));
        let beside = async {
            let renewal = renewed(&store, &held, token).await;
            assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
            done.get()
        };
        let (_, before) = tokio::join!(releasing, beside);
        assert!(before < 10, "{before} releases came first");
    })
    .await;
}

/// A waiter asks without a transaction, and says that it waits once in a while.
#[tokio::test]
async fn a_waiter_asks_in_one_request() {
    bounded(async {
        let server = server().await;
        let [one, other] = [plain(&server).await, plain(&server).await];
        let long = TTL * 30;
        let [holder, next] = ["holder", "next"].map(|who| claim("x", WaitPolicy::Fair, long, who));
        granted(&one, &holder).await;
        waiting(&other, &next).await;
        let count = Count::from_here(&server).await;
        for _ in 0..10 {
            let after = waiting(&other, &next).await.retry_after.unwrap();
            assert!(after <= std::time::Duration::from_millis(100), "{after:?}");
        }
        for command in ["watch", "multi", "hset", "hsetnx"] {
            assert_eq!(count.of(command).await, 0, "{command}");
        }
        assert_eq!(count.of("time").await, 10);
        // It is shown all the while, and says so again if the key is gone.
        let shown = async || one.inspect(&"x".into()).await.unwrap().waiters.len();
        assert_eq!(shown().await, 1);
        server.command(&["DEL", "{x}:p"]).await.unwrap();
        waiting(&other, &next).await;
        assert_eq!(shown().await, 1);
        one.release(&holder, None).await.unwrap();
        granted(&other, &next).await;
        assert_eq!(shown().await, 0);
        other.release(&next, None).await.unwrap();
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

/// The hold of a client that is evicted is lost at once.
#[tokio::test]
async fn an_evicted_holder_is_told_at_once() {
    bounded(async {
        let server = server().await;
        let [one, other] = [plain(&server).await, plain(&server).await].map(Store::new);
        let guard = one.lock("x").ttl(TTL * 6).acquire().await.unwrap();
        assert!(other.evict("x", guard.fencing_token()).await.unwrap());
        // Long before the next renewal.
        within(10, guard.lost()).await;
        assert_eq!(kind(guard.release().await), Lost);
    })
    .await;
}
