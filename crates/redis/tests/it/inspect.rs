//! Inspect, list and evict; names that try to collide; keys that are not ours.

use std::time::{Duration, SystemTime};

use crate::support::*;
use leasehold_core::backend::{Backend, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Name};
use leasehold_redis::Redis;

#[tokio::test]
async fn inspect_shows_the_holder_and_the_line_but_no_id() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let name = Name::from("x");
        assert_eq!(
            store.inspect(&name).await.unwrap(),
            leasehold_core::LockQueue::default()
        );
        let all = ["holder \u{1F512} \"'\n%", "", "third"]
            .map(|label| claim("x", WaitPolicy::Fair, TTL, label));
        let token = granted(&store, &all[0]).await.token;
        waiting(&store, &all[1]).await;
        waiting(&store, &all[2]).await;
        let dead = claim("x", WaitPolicy::Fair, Duration::from_millis(100), "dead");
        waiting(&store, &dead).await;
        sleep(150).await;
        let line = store.inspect(&name).await.unwrap();
        let labels = |entries: &[leasehold_core::Participant]| {
            entries
                .iter()
                .map(|e| e.label.clone().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (labels(&line.holders), labels(&line.waiters)),
            (
                vec![all[0].label.to_string()],
                vec!["".into(), "third".into()]
            )
        );
        assert_eq!(line.holders[0].token, Some(token));
        for entry in line.holders.iter().chain(&line.waiters) {
            let age = SystemTime::now()
                .duration_since(entry.since.unwrap())
                .unwrap();
            assert!(
                age >= Duration::from_millis(100) && age < Duration::from_secs(20),
                "{age:?}"
            );
        }
        assert!(!format!("{line:?}").contains(&all[0].id.to_string()));
    })
    .await;
}

#[tokio::test]
async fn list_pages_in_byte_order_and_shows_only_locks() {
    bounded(async {
        let server = server().await;
        let plain = client(&server).await;
        let prefixed = Redis::connect(&format!("{}?prefix=app:", server.url()))
            .await
            .unwrap();
        let names = ["b", "a/2", "a/10", "a*", "a{1}", "a%7B", "\u{fc}", "ab"];
        for name in names {
            granted(&prefixed, &fair(name)).await;
        }
        // Another tool's, without an end; and what is no lock.
        server.command(&["SET", "app:foreign", "1"]).await.unwrap();
        server.command(&["RPUSH", "app:list", "1"]).await.unwrap();
        server.command(&["SET", "elsewhere", "1"]).await.unwrap();
        server.command(&["SET", "app:{x}", "1"]).await.unwrap();
        let idle = fair("a/idle");
        granted(&prefixed, &idle).await;
        prefixed.release(&idle, None).await.unwrap();
        let mut sorted: Vec<Name> = names.iter().chain(&["foreign"]).map(Name::new).collect();
        sorted.sort();
        assert_eq!(prefixed.list("", None, 100).await.unwrap(), sorted);
        let mut paged = Vec::new();
        while let Some(page) =
            Some(prefixed.list("", paged.last(), 2).await.unwrap()).filter(|p| !p.is_empty())
        {
            assert!(page.len() <= 2);
            paged.extend(page);
        }
        assert_eq!(paged, sorted);
        assert_eq!(
            prefixed.list("a/", None, 9).await.unwrap(),
            ["a/10", "a/2"].map(Name::from)
        );
        assert_eq!(
            prefixed.list("a*", None, 9).await.unwrap(),
            ["a*"].map(Name::from)
        );
        assert_eq!(
            prefixed.list("a{", None, 9).await.unwrap(),
            ["a{1}"].map(Name::from)
        );
        assert!(prefixed.list("zz", None, 9).await.unwrap().is_empty());
        assert!(prefixed.list("", None, 0).await.unwrap().is_empty());
        assert_eq!(
            plain.list("app:a/", None, 9).await.unwrap(),
            ["app:a/10", "app:a/2"].map(Name::from)
        );
    })
    .await;
}

#[tokio::test]
async fn evict_ends_exactly_the_hold_of_its_token() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let name = Name::from("x");
        assert!(!store.evict(&name, FencingToken::new(1)).await.unwrap());
        let [holder, next] = [claim("x", WaitPolicy::Fast, TTL, ""), fair("x")];
        let token = granted(&store, &holder).await.token.get();
        waiting(&store, &next).await;
        for wrong in [token - 1, token + 64, u64::MAX] {
            assert!(!store.evict(&name, FencingToken::new(wrong)).await.unwrap());
        }
        let count = Count::from_here(&server).await;
        // Any of its turns; its client and the next one's are told.
        assert!(
            store
                .evict(&name, FencingToken::new(token + 63))
                .await
                .unwrap()
        );
        assert_eq!((count.requests().await, count.of("publish").await), (1, 2));
        assert!(!store.evict(&name, FencingToken::new(token)).await.unwrap());
        store.release(&holder, None).await.unwrap();
        assert!(granted(&store, &next).await.token.get() > token + 63);
    })
    .await;
}

#[tokio::test]
async fn an_eviction_does_not_read_the_queue() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let holder = fair("x");
        let token = granted(&store, &holder).await.token;
        for _ in 0..30 {
            waiting(&store, &as_mode(&fair("x"), permits(1, 2))).await;
        }
        // The server learns the script.
        assert!(
            !store
                .evict(&"x".into(), FencingToken::new(1))
                .await
                .unwrap()
        );
        let count = Count::from_here(&server).await;
        waiting(&store, &as_mode(&fair("x"), permits(1, 2))).await;
        assert!(
            !store
                .evict(&"x".into(), FencingToken::new(1))
                .await
                .unwrap()
        );
        assert!(
            !store
                .evict(&"x".into(), FencingToken::new(token.get() + 1))
                .await
                .unwrap()
        );
        assert!(store.evict(&"x".into(), token).await.unwrap());
        // Nor does a claim for permits that says what they say.
        assert_eq!((count.requests().await, count.of("hgetall").await), (4, 0));
        let calls = count.inner().await;
        assert!(calls <= 50, "{calls} calls");
    })
    .await;
}

#[tokio::test]
async fn another_tools_lock_is_waited_for_and_reported() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (waiter, second) = (fair("x"), fair("x"));
        for lease in [Some("8000"), None] {
            let set = ["SET", "x", "\u{0}junk \u{ff} value", "NX"];
            let set = [&set[..], &lease.map_or(vec![], |ms| vec!["PX", ms])].concat();
            assert_eq!(text(&server, &set).await.as_deref(), Some("OK"));
            let who = busy(&store, &claim("x", WaitPolicy::Try, TTL, "")).await;
            assert!(
                who.foreign && who.label.is_none() && who.token.is_none(),
                "{who:?}"
            );
            let place = waiting(&store, &waiter).await;
            assert!(
                place.who.foreign && place.retry_after.unwrap() <= Duration::from_millis(250),
                "{place:?}"
            );
            // Those behind it do not hurry.
            assert!(
                waiting(&store, &second).await.retry_after.unwrap() > Duration::from_millis(250)
            );
            let line = store.inspect(&"x".into()).await.unwrap();
            assert!(line.holders[0].foreign && line.waiters.len() == 2);
            let ends = line.holders[0].ends_in.unwrap() < Duration::MAX;
            assert_eq!(ends, lease.is_some());
            assert!(
                !store
                    .evict(&"x".into(), FencingToken::new(1))
                    .await
                    .unwrap()
            );
            store.release(&fair("x"), None).await.unwrap();
            assert!(
                text(&server, &["GET", "x"]).await.is_some(),
                "another tool's lock was released"
            );
            server.command(&["DEL", "x"]).await.unwrap();
            granted(&store, &waiter).await;
            store.release(&second, None).await.unwrap();
            store.release(&waiter, None).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn another_tools_lock_is_ended_as_it_was_seen_and_the_next_is_served() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (name, zero) = (Name::from("x"), FencingToken::new(0));
        let holder = async || store.inspect(&name).await.unwrap().holders.remove(0);
        assert!(!store.evict(&name, zero).await.unwrap());
        let long = "5f2b1c0e9d8a7b6c5f2b1c0e9d8a7b6c";
        server
            .command(&["SET", "x", long, "PX", "60000"])
            .await
            .unwrap();
        let seen = holder().await;
        // The whole value would free it.
        assert_eq!(seen.label.as_deref(), Some("5f2b1c0e9d8a7b6c…"));
        let left = seen.ends_in.unwrap();
        assert!(
            left > Duration::from_secs(30) && left <= Duration::from_secs(60),
            "{left:?}"
        );
        // Another one has it since: of the application, for ever.
        server.command(&["SET", "x", "42 items"]).await.unwrap();
        for number in [
            seen.evict_by.unwrap(),
            FencingToken::new(u64::MAX),
            FencingToken::new(1),
        ] {
            assert!(!store.evict(&name, number).await.unwrap());
        }
        let error = store.evict(&name, zero).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Invalid && error.to_string().contains("inspect"),
            "{error}"
        );
        assert_eq!(
            text(&server, &["GET", "x"]).await.as_deref(),
            Some("42 items")
        );
        let seen = holder().await;
        assert_eq!(
            (seen.label.as_deref(), seen.ends_in),
            (Some("42 items"), Some(Duration::MAX))
        );
        let [next, other] = [fair("x"), fair("x")];
        waiting(&store, &next).await;
        waiting(&store, &other).await;
        let number = seen.evict_by.unwrap();
        assert!(store.evict(&name, number).await.unwrap());
        assert_eq!(held_by(&server, "x").await, next.id.to_string());
        // Ours have tokens, and those who wait have none to be ended by.
        let ours = holder().await;
        assert!(
            ours.evict_by.is_none() && ours.ends_in.is_none(),
            "{ours:?}"
        );
        for number in [number, zero] {
            assert!(!store.evict(&name, number).await.unwrap());
        }
        granted(&store, &next).await;
        waiting(&store, &other).await;
    })
    .await;
}

#[tokio::test]
async fn keys_of_another_type_are_an_error_that_says_what_to_do() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for suffix in ["", ":l", ":s", ":r"] {
            let name = format!("wrong{suffix}");
            let key = if suffix.is_empty() {
                name.clone()
            } else {
                format!("{{{name}}}{suffix}")
            };
            if !suffix.is_empty() {
                granted(&store, &as_mode(&fair(&name), SHARED)).await;
                waiting(&store, &fair(&name)).await;
                server.command(&["DEL", &key]).await.unwrap();
            }
            server.command(&["RPUSH", &key, "1"]).await.unwrap();
            for policy in [WaitPolicy::Fair, WaitPolicy::Try] {
                let error = store
                    .claim(&claim(&name, policy, TTL, ""))
                    .await
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{suffix}: {error}");
                assert!(error.to_string().contains("delete it"), "{suffix}: {error}");
            }
            if suffix.is_empty() {
                let error = store.inspect(&name.as_str().into()).await.unwrap_err();
                assert!(
                    error.kind() == ErrorKind::Corrupt && error.to_string().contains("delete it"),
                    "{error}"
                );
                for number in [0, 1, u64::MAX] {
                    let number = FencingToken::new(number);
                    assert!(store.evict(&name.as_str().into(), number).await.is_err());
                }
            }
            assert_eq!(text(&server, &["TYPE", &key]).await.unwrap(), "list");
        }
    })
    .await;
}

#[tokio::test]
async fn junk_in_our_own_keys_never_blocks_a_name() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        server
            .command(&["ZADD", "{x}:s", "99999999999999", "junk"])
            .await
            .unwrap();
        server.command(&["SET", "{}:f", "junk"]).await.unwrap();
        server
            .command(&["HSET", "{x}:l", "junk", "junk", "t", "2", "1", "junk"])
            .await
            .unwrap();
        let (holder, next, reader) = (fair("x"), fair("x"), moded(SHARED, "reader"));
        granted(&store, &holder).await;
        waiting(&store, &next).await;
        waiting(&store, &reader).await;
        store.release(&holder, None).await.unwrap();
        granted(&store, &next).await;
        store.release(&next, None).await.unwrap();
        granted(&store, &reader).await;
        store.release(&reader, None).await.unwrap();
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}

/// All names share the fence. So whatever stands in its place stops none of them, and no two get the same token.
#[tokio::test]
async fn junk_in_the_place_of_the_fence_is_written_over() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let junk = [
            "junk",
            "",
            "-5",
            "nan",
            "inf",
            "1e300",
            "9007199254740993",
            "9223372036854775807",
        ];
        let sets = junk.iter().map(|junk| ["SET", "{}:f", *junk]);
        let sets = sets.chain([["RPUSH", "{}:f", "1"], ["SADD", "{}:f", "1"]]);
        for (n, set) in sets.enumerate() {
            let name = format!("x/{n}");
            let [holder, next, reader] = [fair(&name), fair(&name), as_mode(&fair(&name), SHARED)];
            let spoil = async || {
                server.command(&["DEL", "{}:f"]).await.unwrap();
                server.command(&set).await.unwrap();
            };
            spoil().await;
            let first = granted(&store, &holder).await.token;
            waiting(&store, &next).await;
            waiting(&store, &reader).await;
            spoil().await;
            // The release is done, and the next one is served.
            store.release(&holder, None).await.unwrap();
            assert_eq!(
                held_by(&server, &name).await,
                next.id.to_string(),
                "{set:?}"
            );
            let second = granted(&store, &next).await.token;
            let other = granted(&store, &fair(&format!("other/{n}"))).await.token;
            spoil().await;
            store.release(&next, None).await.unwrap();
            let third = granted(&store, &reader).await.token;
            assert!(
                first < second && second < other && other < third,
                "{set:?}: {first} {second} {other} {third}"
            );
            assert!(third.get() < 9_000_000_000_000_000, "{set:?}: {third}");
            let left = number(&server, &["PTTL", "{}:f"]).await;
            assert!((1..=7_202_000).contains(&left), "{set:?}: {left}");
        }
    })
    .await;
}
