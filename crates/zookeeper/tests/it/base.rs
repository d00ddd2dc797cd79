//! Tokens that are raised above those of another store: who gets which, what it costs, and what
//! faults do to it.

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::*;
use futures_util::future::join_all;
use leasehold_core::backend::Raises;
use leasehold_core::backend::{Backend, Claim, LeaseRef, Mode, Renewal};
use leasehold_core::{ErrorKind, FencingToken, Name, Store};
use leasehold_testbed::{Proxy, ZooKeeper as Server};
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Acls, Client, CreateMode};

/// A clock's microseconds: how far the tokens of other stores are.
const CLOCK: u64 = 1_795_000_000_000_000;

fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

async fn raw(server: &Server) -> Client {
    Client::connect(server.addr()).await.unwrap()
}

/// Claims again until it is granted: what core does at the notification.
async fn becomes_granted(client: &ZooKeeper, claim: &Claim) -> FencingToken {
    until(|| async {
        matches!(
            client.claim(claim).await,
            Ok(leasehold_core::backend::Claimed::Granted(_))
        )
    })
    .await;
    granted(client, claim).await.token
}

/// Places that stand keep their numbers, in all that is asked of them, and those behind them have
/// greater ones.
#[tokio::test]
async fn places_that_stand_keep_their_numbers_and_later_ones_exceed() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, at(server.addr()).await);
        let name = Name::from("a");
        let (holder, waiter, late) = (fair("a", LONG), fair("a", LONG), fair("a", LONG));
        let first = granted(&client, &holder).await;
        waiting(&other, &waiter).await;
        let mark = other.mark().await.unwrap();
        assert!(
            token(first.token.get() + 255) <= mark && mark < token(first.token.get() + 100 * 256)
        );

        other.raise(token(CLOCK)).await.unwrap();
        assert!(client.mark().await.unwrap() > token(CLOCK));
        assert_eq!(granted(&client, &holder).await.token, first.token);
        let lease = LeaseRef::new(
            Arc::new(holder.clone()),
            first.place.clone(),
            Some(first.token),
        );
        assert!(matches!(
            client.renew(&[lease]).await.unwrap()[..],
            [Renewal::Renewed(_)]
        ));
        waiting(&client, &late).await;
        client.release(&holder, None).await.unwrap();
        let second = becomes_granted(&other, &waiter).await;
        assert!(first.token < second && second < token(CLOCK));
        other.release(&waiter, None).await.unwrap();
        let third = becomes_granted(&client, &late).await;
        assert!(third > token(CLOCK), "{third:?}");

        // All know the hold by that token: who looks, who is refused, who claims again, and who
        // evicts it.
        assert_eq!(
            other.inspect(&name).await.unwrap().holders[0].token,
            Some(third)
        );
        assert_eq!(busy(&other, &trying("a", LONG)).await.token, Some(third));
        let mut shared = late.clone();
        shared.mode = Mode::Shared;
        assert_eq!(granted(&client, &shared).await.token, third);
        let place = third.get() & !255;
        assert!(
            !other.evict(&name, token(place - 1)).await.unwrap()
                && !other.evict(&name, token(place + 256)).await.unwrap()
        );
        assert!(other.evict(&name, token(place + 255)).await.unwrap());
    })
    .await;
}

/// A guard's fence is the node of its hold, whatever was added to its number.
#[tokio::test]
async fn a_raised_hold_is_fenced() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        client.raise(token(CLOCK)).await.unwrap();
        let guard = Store::new(client.clone())
            .lock("a")
            .acquire()
            .await
            .unwrap();
        assert!(guard.fencing_token() > token(CLOCK));
        let path = client.still_holds(&guard).unwrap();
        assert!(
            raw(&server)
                .await
                .check_stat(&path)
                .await
                .unwrap()
                .is_some()
        );
        guard.release().await.unwrap();
    })
    .await;
}

/// Nothing is asked: a client hears of it by its watch, and reads it once.
#[tokio::test]
async fn a_raised_cycle_is_two_requests() {
    limited(async {
        let server = server().await;
        let (client, other) = (client(&server).await, at(server.addr()).await);
        let cycles = async || {
            for i in 0..10 {
                let claim = fair(&format!("name {i}"), LONG);
                let grant = granted(&client, &claim).await;
                release(&client, &claim, &grant.place).await;
                assert!(grant.token > token(CLOCK));
            }
        };
        other.raise(token(CLOCK)).await.unwrap();
        cycles().await;
        let mut least = u64::MAX;
        // On a busy machine a keep-alive may be sent meanwhile.
        for _ in 0..50 {
            least = least.min(requests(&server, cycles()).await.0);
            if least == 20 {
                break;
            }
        }
        assert_eq!(least, 20);
        // It is true already: nothing is written.
        let version = async || {
            raw(&server)
                .await
                .check_stat("/test/.leasehold/base")
                .await
                .unwrap()
                .unwrap()
                .version
        };
        let before = version().await;
        client.raise(token(CLOCK)).await.unwrap();
        client.raise(token(1)).await.unwrap();
        assert_eq!(version().await, before);
        assert!(other.list("", None, 9).await.unwrap().is_empty());
    })
    .await;
}

/// Clients count under a lock while others raise: no token falls, and each place that was taken
/// after an answer exceeds its number.
async fn count_while_many_raise(addrs: &[String], rounds: u64) {
    const STEP: u64 = 200_000_000_000; // more than what a raise goes ahead by
    let (answered, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let addr = |i: usize| addrs[i % addrs.len()].clone();
    let raisers = (0..2).map(|i| {
        let (addr, answered) = (addr(i), answered.clone());
        tokio::spawn(async move {
            let client = at(&addr).await;
            for round in 1..=rounds {
                let number = CLOCK + round * STEP + i as u64 * 1_000;
                while client.raise(token(number)).await.is_err() {}
                answered.fetch_max(number, SeqCst);
            }
        })
    });
    let counters = (0..4).map(|i| {
        let (addr, answered, last) = (addr(i), answered.clone(), last.clone());
        tokio::spawn(async move {
            let store = Store::new(at(&addr).await);
            while answered.load(SeqCst) < CLOCK + rounds * STEP {
                let before = answered.load(SeqCst);
                let guard = hold_patiently(&store, "a", LONG).await;
                let mine = guard.fencing_token().get();
                assert!(
                    mine > before,
                    "{mine} was taken after {before} was answered"
                );
                let earlier = last.swap(mine, SeqCst);
                assert!(mine > earlier, "{mine} after {earlier}");
                guard.release().await.unwrap();
            }
        })
    });
    let tasks: Vec<_> = raisers
        .collect::<Vec<_>>()
        .into_iter()
        .chain(counters.collect::<Vec<_>>())
        .collect();
    for task in join_all(tasks).await {
        task.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_falls_while_many_raise() {
    limited(async {
        let server = server().await;
        count_while_many_raise(&[server.addr().to_owned()], 20).await;
    })
    .await;
}

/// A follower that is far behind takes places for its clients, which hear of the raise before of
/// their places.
#[tokio::test]
async fn a_client_of_a_server_that_is_behind_knows_in_time() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (client, raiser) = (at(proxy.addr()).await, at(server.addr()).await);
        let warm = granted(&client, &fair("warm", LONG)).await;
        // All that the server says comes late, in its order.
        proxy.hold_replies();
        let late = fair("late", LONG);
        let claiming = tokio::spawn({
            let (client, late) = (client.clone(), late.clone());
            async move { client.claim(&late).await }
        });
        raiser.raise(token(CLOCK)).await.unwrap();
        proxy.heal().await;
        let _ = claiming.await.unwrap();
        let theirs = becomes_granted(&client, &late).await;
        let shown = raiser.inspect(&"late".into()).await.unwrap().holders[0].token;
        assert_eq!(shown, Some(theirs), "whatever came first");
        assert_eq!(
            granted(&client, &fair("next", LONG)).await.token > token(CLOCK),
            warm.token < token(CLOCK)
        );
    })
    .await;
}

/// Whether the answer to it is lost or the server starts anew, it was done once. A new connection
/// has a watch of its own.
#[tokio::test]
async fn a_raise_survives_a_lost_answer_and_a_restart() {
    limited(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let (raiser, client) = (at(proxy.addr()).await, at(server.addr()).await);
        let lost = proxy.lose_reply_matching("/test/.leasehold/base\0\0\0");
        while let Err(e) = raiser.raise(token(CLOCK)).await {
            assert!(
                matches!(e.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable),
                "{e:?}"
            );
        }
        lost.sprung().await;
        let stat = raw(&server)
            .await
            .check_stat("/test/.leasehold/base")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(stat.version, 0, "it was written once");
        server.restart_with_data().await.unwrap();
        let first = becomes_granted(&client, &fair("a", LONG)).await;
        assert!(first > token(CLOCK));
        // Raised while it was away.
        let proxied = at(proxy.addr()).await;
        granted(&proxied, &fair("b", LONG)).await;
        proxy.cut().await;
        // Over another session, which may not be connected again yet.
        until(|| async { client.raise(token(1 << 60)).await.is_ok() }).await;
        proxy.heal().await;
        assert!(becomes_granted(&proxied, &fair("c", LONG)).await > token(1 << 60));
    })
    .await;
}

/// Deleted by hand, it is lost data: tokens fall once, for all clients. Written by hand, it is
/// refused.
#[tokio::test]
async fn a_base_that_is_lost_or_junk_is_seen() {
    limited(async {
        let server = server().await;
        let (client, raw) = (client(&server).await, raw(&server).await);
        client.raise(token(CLOCK)).await.unwrap();
        let held = fair("held", LONG);
        let before = granted(&client, &held).await;
        raw.delete("/test/.leasehold/base", None).await.unwrap();
        let new = at(server.addr()).await;
        let fallen = granted(&new, &fair("a", LONG)).await.token;
        assert!(fallen < token(CLOCK));
        let next = granted(&client, &fair("a 2", LONG)).await.token;
        assert!(
            fallen < next && next < token(CLOCK),
            "whoever knew of the raise: {next:?} after {fallen:?}"
        );
        assert_eq!(
            granted(&client, &held).await.token,
            before.token,
            "a hold is what it was"
        );
        new.raise(token(CLOCK)).await.unwrap();
        assert!(granted(&new, &fair("b", LONG)).await.token > token(CLOCK));
        assert_eq!(granted(&client, &held).await.token, before.token);

        for junk in ["", "x", "-1", "9223372036854775808", "1\n2"] {
            raw.set_data("/test/.leasehold/base", junk.as_bytes(), None)
                .await
                .unwrap();
            assert_eq!(
                new.mark().await.unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{junk}"
            );
            assert_eq!(
                new.raise(token(1)).await.unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{junk}"
            );
            let claim = fair("c", LONG);
            let refused = new.claim(&claim).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{junk}: {refused:?}");
            new.release(&claim, None).await.unwrap();
        }
    })
    .await;
}

/// What is beyond the limit is refused, and changes nothing; a floor changes nothing.
#[tokio::test]
async fn what_is_beyond_the_limit_is_refused() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let Raises::Places(limit) = client.raises() else {
            panic!("places are raised")
        };
        let beyond = token(limit.get() + 1);
        assert_eq!(
            client.raise(beyond).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let mut floored = fair("a", LONG);
        floored.floor = Some(beyond);
        assert_eq!(
            client.claim(&floored).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert!(
            raw(&server)
                .await
                .check_stat("/test/.leasehold/base")
                .await
                .unwrap()
                .is_none()
        );
        floored.floor = Some(limit);
        assert!(granted(&client, &floored).await.token < token(CLOCK));
        client.raise(limit).await.unwrap();
        let (high, mark) = (
            granted(&client, &fair("b", LONG)).await.token,
            client.mark().await.unwrap(),
        );
        assert!(limit < high && token(high.get() + 255) <= mark && mark < token(u64::MAX));
    })
    .await;
}

/// A place of another tool between ours is raised like ours: all are in one order.
#[tokio::test]
async fn other_tools_entries_are_in_the_same_order() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (first, last) = (fair("a", LONG), fair("a", LONG));
        let before = granted(&client, &first).await.token;
        client.raise(token(CLOCK)).await.unwrap();
        let theirs = raw(&server).await;
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        theirs
            .create(
                "/test/a/_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-",
                b"curator",
                &mode,
            )
            .await
            .unwrap();
        waiting(&client, &last).await;
        client.release(&first, None).await.unwrap();
        let holder = client.inspect(&"a".into()).await.unwrap().holders.remove(0);
        let between = holder.token.unwrap();
        assert!(holder.foreign && before < between && between > token(CLOCK));
        assert!(client.evict(&"a".into(), between).await.unwrap());
        assert!(becomes_granted(&client, &last).await > between);
    })
    .await;
}

/// The node stays, and what it is in; before the first raise only the identity of the store stays.
#[tokio::test]
async fn only_a_raise_leaves_something() {
    limited(async {
        let server = server().await;
        let client = client(&server).await;
        let (raw, one) = (raw(&server).await, fair("a", LONG));
        let grant = granted(&client, &one).await;
        release(&client, &one, &grant.place).await;
        let session = raw.list_children("/test/.leasehold").await.unwrap();
        assert!(
            session
                .iter()
                .all(|node| node.ends_with("-notify") || node == "store"),
            "{session:?}"
        );
        client.raise(token(CLOCK)).await.unwrap();
        client.close().await.unwrap();
        until(|| async {
            let mut left = raw.list_children("/test/.leasehold").await.unwrap();
            left.sort();
            left == ["base", "store"]
        })
        .await;
        assert!(granted(&at(server.addr()).await, &one).await.token > token(CLOCK));
    })
    .await;
}
