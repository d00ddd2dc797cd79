//! What others see: the pushes word by word, the fence that all names share, and nothing of an earlier layout.

use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Mode, Moment, WaitPolicy};
use leasehold_redis::Redis;
use leasehold_redis::client::{AsyncConnectionConfig, Client, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

/// Everything that is published to any client of the store.
async fn pushes(
    server: &Server,
) -> (
    leasehold_redis::client::aio::MultiplexedConnection,
    mpsc::UnboundedReceiver<PushInfo>,
) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let client = Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap();
    connection.psubscribe("leasehold:*").await.unwrap();
    (connection, receiver)
}

async fn next_push(pushes: &mut mpsc::UnboundedReceiver<PushInfo>) -> String {
    loop {
        let push = pushes.recv().await.unwrap();
        if let (PushKind::PMessage, [_, _, Value::BulkString(text)]) = (push.kind, &push.data[..])
            && !text.is_empty()
        {
            return String::from_utf8(text.clone()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_push_carries_the_latest_attempt_that_the_place_grew_from() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let (_connection, mut pushes) = pushes(&server).await;
        let [holder, next] = [
            fair("a name"),
            claim("a name", WaitPolicy::Fast, Duration::from_millis(5000), ""),
        ];
        let token = granted(&store, &holder).await.token;
        waiting(&store, &next).await;
        let micros = || Moment::now().as_nanos() / 1000;
        for by in ["renewal", "claim"] {
            let before = micros();
            match by {
                "renewal" => drop(renewed(&store, &next, None).await),
                _ => drop(waiting(&store, &next).await),
            }
            let after = micros();
            let (_, entry) = place(&server, &next).await.unwrap();
            let attempt: u64 = entry.split(' ').nth(8).unwrap().parse().unwrap();
            assert!(
                (before..=after).contains(&attempt),
                "{by}: {before} {attempt} {after}"
            );
        }
        let before = micros();
        waiting(&store, &next).await;
        let after = micros();
        sleep(50).await;
        store.release(&holder, None).await.unwrap();
        let push = next_push(&mut pushes).await;
        let fields: Vec<&str> = push.splitn(7, ' ').collect();
        let [verb, id, new, turns, attempt, ttl, key] = fields[..] else {
            panic!("{push}")
        };
        assert_eq!(
            (verb, id, turns, ttl, key),
            (
                "granted",
                next.id.to_string().as_str(),
                "64",
                "5000",
                "a name"
            )
        );
        assert!((before..=after).contains(&attempt.parse().unwrap()));
        let grant = granted(&store, &next).await;
        assert!(grant.token > token && grant.token.to_string() == new);
        store.evict(&"a name".into(), grant.token).await.unwrap();
        assert_eq!(next_push(&mut pushes).await, format!("evicted {}", next.id));
    })
    .await;
}

/// The token of one hold.
async fn hold(store: &Redis, policy: WaitPolicy) -> u64 {
    let claim = claim("x", policy, TTL, "");
    let token = granted(store, &claim).await.token.get();
    store.release(&claim, None).await.unwrap();
    token
}

#[tokio::test]
async fn a_clock_that_stepped_back_is_outlived_by_the_last_token() {
    bounded(async {
        let server = server().await;
        // As after a step back of an hour: the last token is an hour ahead of the clock.
        let ahead = hold(&client(&server).await, WaitPolicy::Fair).await + 3_600_000_000;
        server
            .command(&["SET", "{}:f", &ahead.to_string(), "PX", "7200000"])
            .await
            .unwrap();
        // One by one, and no block for turns.
        for (n, policy) in [WaitPolicy::Fair, WaitPolicy::Fast, WaitPolicy::Fair]
            .into_iter()
            .enumerate()
        {
            assert_eq!(
                hold(&client(&server).await, policy).await,
                ahead + 1 + n as u64
            );
        }
        // A client that knows the clock finds it so, which costs no more than the token that it asked for.
        let store = client(&server).await;
        let mut last = ahead + 3;
        for _ in 0..4 {
            let next = hold(&store, WaitPolicy::Fair).await;
            assert!((last + 1..=last + 2).contains(&next), "{last} {next}");
            last = next;
        }
        // It is kept until the clock has passed it, and two hours more.
        let left = number(&server, &["PTTL", "{}:f"]).await;
        assert!((10_790_000..=10_801_000).contains(&left), "{left}");
    })
    .await;
}

/// Else a loss of the fence would give tokens out again: nothing but the clock is left then.
#[tokio::test]
async fn no_block_of_tokens_runs_far_ahead_of_the_clock() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        hold(&store, WaitPolicy::Fair).await;
        let turns = async |name: &str| {
            let claim = claim(name, WaitPolicy::Fast, TTL, "");
            let grant = granted(&store, &claim).await;
            store.release(&claim, None).await.unwrap();
            grant.turns
        };
        for ahead in [900_000, 60_000_000] {
            // Unless the clock has passed it meanwhile.
            loop {
                let fence = clock(&server).await + ahead;
                server
                    .command(&["SET", "{}:f", &fence.to_string(), "EX", "7200"])
                    .await
                    .unwrap();
                let turns = (turns("x").await, turns("y").await);
                if clock(&server).await < fence {
                    assert_eq!(turns, (1, 1), "{ahead} us ahead");
                    // The block that was not given out is not used up.
                    let after = server
                        .command(&["GET", "{}:f"])
                        .await
                        .unwrap()
                        .text()
                        .unwrap()
                        .parse::<u64>()
                        .unwrap();
                    assert!(after <= fence + 2, "{} for two turns", after - fence);
                    break;
                }
            }
        }
        server.command(&["DEL", "{}:f"]).await.unwrap();
        assert_eq!(turns("x").await, 64);
        // Many in one moment, over many connections.
        let mut tasks = tokio::task::JoinSet::new();
        let stores = std::sync::Arc::new([client(&server).await, client(&server).await]);
        for n in 0..400 {
            let stores = stores.clone();
            let claim = claim(&format!("many/{n}"), WaitPolicy::Fast, TTL, "");
            tasks.spawn(async move { granted(&stores[n % 2], &claim).await });
        }
        let mut last = 0;
        while let Some(grant) = tasks.join_next().await {
            let grant = grant.unwrap();
            last = last.max(grant.token.get() + u64::from(grant.turns) - 1);
        }
        let now = clock(&server).await;
        assert!(last < now + 5100, "{} us ahead", last - now);
        sleep(10).await;
        server.command(&["DEL", "{}:f"]).await.unwrap();
        let after = hold(&store, WaitPolicy::Fair).await;
        assert!(after > last, "{after} after {last}");
    })
    .await;
}

/// The server's microseconds.
async fn clock(server: &Server) -> u64 {
    let leasehold_testbed::Reply::Array(time) = server.command(&["TIME"]).await.unwrap() else {
        panic!("no time")
    };
    let [seconds, micros] = [0, 1].map(|i| time[i].text().unwrap().parse::<u64>().unwrap());
    seconds * 1_000_000 + micros
}

/// The same lock by two ways, and each look may grant it.
#[tokio::test]
async fn tokens_of_a_lock_rise_whichever_prefix_leads_to_it() {
    bounded(async {
        let server = server().await;
        let plain = client(&server).await;
        let prefixed = Redis::connect(&format!("{}?prefix=app:", server.url()))
            .await
            .unwrap();
        let mut last = 0;
        for _ in 0..5 {
            for (store, name) in [(&prefixed, "x"), (&plain, "app:x"), (&prefixed, "x")] {
                let claim = fair(name);
                let token = granted(store, &claim).await.token.get();
                store.release(&claim, None).await.unwrap();
                assert!(token > last, "{name}: {token} after {last}");
                last = token;
            }
        }
        // A look by the other way grants, too.
        let [dead, next, after] = [fair("x"), fair("x"), fair("x")];
        granted(&prefixed, &dead).await;
        waiting(&prefixed, &next).await;
        server.command(&["DEL", "app:x"]).await.unwrap();
        let queue = plain.inspect(&"app:x".into()).await.unwrap();
        let token = queue.holders[0].token.unwrap();
        prefixed.release(&next, None).await.unwrap();
        assert!(granted(&prefixed, &after).await.token > token && token.get() > last);
    })
    .await;
}

#[tokio::test]
async fn tokens_rise_through_a_restart_from_an_older_snapshot() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        hold(&store, WaitPolicy::Fair).await;
        server.command(&["SAVE"]).await.unwrap();
        let mut last = 0;
        for _ in 0..100 {
            last = hold(&store, WaitPolicy::Fast).await + 63;
        }
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        assert!(
            text(&server, &["GET", "{}:f"])
                .await
                .is_some_and(|fence| fence.parse::<u64>().unwrap() < last)
        );
        let next = claim("x", WaitPolicy::Try, TTL, "");
        while store.claim(&next).await.is_err() {
            sleep(10).await;
        }
        let token = granted(&store, &next).await.token;
        assert!(token.get() > last, "{token} after {last}");
    })
    .await;
}

#[tokio::test]
async fn a_last_token_that_fell_behind_the_clock_is_not_counted_on_from() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        for back in [900_000, 3_600_000_000] {
            // As if the server went back to older data, and its connections stayed.
            let last = hold(&store, WaitPolicy::Fast).await + 63;
            server
                .command(&["SET", "{}:f", &(last - back).to_string(), "EX", "7200"])
                .await
                .unwrap();
            let next = hold(&store, WaitPolicy::Fair).await;
            assert!(next > last, "{next} after {last}, {back} us back");
        }
    })
    .await;
}

#[tokio::test]
async fn what_an_earlier_layout_holds_is_another_tools_and_ours_is_to_it() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let id = fair("x").id;
        for old in [
            format!("{id} 1795368566044676 1 1795368566044 5 10000 1795368576044 exclusive 1 1 leasehold:{id} label"),
            "shared 2 4294967295".to_owned(),
        ] {
            server.command(&["SET", "x", &old, "PX", "10000"]).await.unwrap();
            assert!(busy(&store, &claim("x", WaitPolicy::Try, TTL, "")).await.foreign, "{old}");
            server.command(&["DEL", "x"]).await.unwrap();
        }
        // It read an entry by its first word, an id in hexadecimal digits, or that of a kind; and its keys were `h`, `f`, `q` and `w`.
        for mode in [Mode::Exclusive, SHARED] {
            let [holder, next] = [moded(mode, "holder"), moded(Mode::Exclusive, "next")];
            granted(&store, &holder).await;
            waiting(&store, &next).await;
            let first = text(&server, &["GET", "x"]).await.unwrap().chars().next().unwrap();
            assert!(!first.is_ascii_alphanumeric(), "{first}");
            for key in ["h", "f", "q", "w"] {
                assert_eq!(number(&server, &["EXISTS", &format!("{{x}}:{key}")]).await, 0, "{key}");
            }
            store.release(&next, None).await.unwrap();
            store.release(&holder, None).await.unwrap();
        }
    })
    .await;
}
