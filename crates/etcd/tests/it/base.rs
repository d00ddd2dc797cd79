//! Tokens that are raised above those of another store: who gets which, what it costs, and what
//! faults do to it.

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::common::*;
use etcd_client::Txn;
use futures_util::future::join_all;
use leasehold_core::backend::Raises;
use leasehold_core::backend::{Backend, LeaseRef, Mode, Renewal};
use leasehold_core::{ErrorKind, FencingToken, Name, Store};
use leasehold_testbed as testbed;

/// A clock's microseconds: how far the tokens of other stores are.
const CLOCK: u64 = 1_795_000_000_000_000;

fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

/// Places that stand keep their numbers, in all that is asked of them, and those behind them have
/// greater ones.
#[tokio::test]
async fn places_that_stand_keep_their_numbers_and_later_ones_exceed() {
    within(60, async {
        let server = server().await;
        let (etcd, other) = (client(server.addr()).await, client(server.addr()).await);
        let name = Name::from("a");
        let (holder, waiter, late) = (fair("a"), fair("a"), fair("a"));
        let first = granted(etcd.claim(&holder).await);
        waiting(other.claim(&waiter).await);
        let mark = other.mark().await.unwrap();
        assert!(
            token(first.token.get() + 255) <= mark && mark < token(first.token.get() + 100 * 256)
        );

        other.raise(token(CLOCK)).await.unwrap();
        assert!(etcd.mark().await.unwrap() > token(CLOCK));
        assert_eq!(granted(etcd.claim(&holder).await).token, first.token);
        let lease = LeaseRef::new(
            Arc::new(holder.clone()),
            first.place.clone(),
            Some(first.token),
        );
        assert!(matches!(
            renewals(&etcd, &[lease]).await[..],
            [Renewal::Renewed(_)]
        ));
        // It does not know of it yet: its transaction is refused, and sent again.
        waiting(etcd.claim(&late).await);
        release(&etcd, &holder).await;
        let second = becomes_granted(&other, &waiter).await;
        assert!(first.token < second.token && second.token < token(CLOCK));
        release(&other, &waiter).await;
        let third = becomes_granted(&etcd, &late).await;
        assert!(third.token > token(CLOCK), "{:?}", third.token);

        // All know the hold by that token: who looks, who claims again, a fence, and who evicts it.
        assert_eq!(
            other.inspect(&name).await.unwrap().holders[0].token,
            Some(third.token)
        );
        let mut label = late.clone();
        label.label = "another".into();
        assert_eq!(granted(etcd.claim(&label).await).token, third.token);
        let mut shared = label;
        shared.mode = Mode::Shared;
        assert_eq!(granted(etcd.claim(&shared).await).token, third.token);
        let read = other.inspect(&name).await.unwrap().holders.remove(0);
        assert_eq!(
            (read.token, read.label.as_deref()),
            (Some(third.token), Some("another"))
        );
        let place = third.token.get() & !255;
        assert!(
            !other.evict(&name, token(place - 1)).await.unwrap()
                && !other.evict(&name, token(place + 256)).await.unwrap()
        );
        assert!(
            !other
                .evict(&name, token(place - (CLOCK & !255)))
                .await
                .unwrap()
        );
        assert!(other.evict(&name, token(place + 255)).await.unwrap());
        let gone = LeaseRef::new(Arc::new(shared), third.place, Some(third.token));
        while !matches!(
            etcd.renew(std::slice::from_ref(&gone)).await.unwrap()[..],
            [Renewal::Lost(_)]
        ) {}
    })
    .await;
}

/// A guard's fence compares the key's own create_revision, whatever was added to it. That of a
/// `fast` lock has none.
#[tokio::test]
async fn a_raised_hold_is_fenced() {
    within(60, async {
        let server = server().await;
        let etcd = Arc::new(client(server.addr()).await);
        etcd.raise(token(CLOCK)).await.unwrap();
        let guard = Store::new(etcd.clone()).lock("a").acquire().await.unwrap();
        assert!(guard.fencing_token() > token(CLOCK));
        let holds = etcd.still_holds(&guard).unwrap();
        assert!(
            raw(&server)
                .await
                .txn(Txn::new().when([holds.clone()]))
                .await
                .unwrap()
                .succeeded()
        );
        guard.release().await.unwrap();
        assert!(
            !raw(&server)
                .await
                .txn(Txn::new().when([holds]))
                .await
                .unwrap()
                .succeeded()
        );
        // A transaction that arrives late would be executed in the turn of the next task.
        let store = Store::new(etcd.clone());
        let guard = store.lock("a").fast().acquire().await.unwrap();
        let refused = etcd.still_holds(&guard).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    })
    .await;
}

/// Nothing is asked: a client that knows sends what it sent before, and one that does not, one
/// request more, once.
#[tokio::test]
async fn a_raised_cycle_is_two_requests() {
    within(60, async {
        let server = server().await;
        let (etcd, rival) = (client(server.addr()).await, client(server.addr()).await);
        for etcd in [&etcd, &rival] {
            let warm = fair("warm");
            granted(etcd.claim(&warm).await);
            release(etcd, &warm).await;
        }
        etcd.raise(token(CLOCK)).await.unwrap();
        let cycles = async || {
            for i in 0..10 {
                let claim = fair(&format!("name {i}"));
                assert!(granted(rival.claim(&claim).await).token > token(CLOCK));
                release(&rival, &claim).await;
            }
        };
        let before = requests(&server).await;
        cycles().await;
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("DeleteRange", 10), ("Txn", 11)])
        );
        let before = requests(&server).await;
        cycles().await;
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("DeleteRange", 10), ("Txn", 10)])
        );
        // It is true already: two reads, and nothing is written.
        let (before, mark) = (requests(&server).await, rival.mark().await.unwrap());
        rival.raise(token(CLOCK)).await.unwrap();
        rival.raise(token(1)).await.unwrap();
        assert_eq!(
            requests_since(&server, &before).await,
            counts(&[("Range", 3)])
        );
        assert_eq!(etcd.mark().await.unwrap(), mark);
    })
    .await;
}

/// In a long queue grants come of what a client knows: they are raised all the same, and cost what
/// they cost before.
#[tokio::test]
async fn turns_of_a_long_queue_rise_over_a_raise() {
    within(120, async {
        let server = server().await;
        let (mut circle, raiser) = (Circle::of(&server, 20).await, client(server.addr()).await);
        circle.hand_over_often(60).await;
        raiser.raise(token(CLOCK)).await.unwrap();
        let (mut last, mut raised) = (token(0), 0);
        for _ in 0..80 {
            circle.hand_over().await;
            let now = raiser.inspect(&"a".into()).await.unwrap().holders[0]
                .token
                .unwrap();
            assert!(now > last, "{now} after {last}");
            raised += usize::from(now > token(CLOCK));
            last = now;
        }
        assert!(raised >= 60, "those that came since: {raised}");
    })
    .await;
}

/// Clients count under a lock while others raise: no token falls, and each place that was taken
/// after an answer exceeds its number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_token_falls_while_many_raise() {
    within(120, async {
        let server = server().await;
        let (answered, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let raisers = (0..3u64).map(|i| {
            let (addr, answered) = (server.addr().to_owned(), answered.clone());
            tokio::spawn(async move {
                let etcd = client(&addr).await;
                for round in 1..=20u64 {
                    // Each needs more than a day ahead of the one before.
                    let number = CLOCK + round * 200_000_000_000 + i * 1_000;
                    etcd.raise(token(number)).await.unwrap();
                    answered.fetch_max(number, SeqCst);
                    assert!(etcd.mark().await.unwrap() > token(number));
                }
            })
        });
        let counters = (0..4).map(|_| {
            let (addr, answered, last) = (server.addr().to_owned(), answered.clone(), last.clone());
            tokio::spawn(async move {
                let store = Store::new(client(&addr).await);
                while answered.load(SeqCst) < CLOCK + 20 * 200_000_000_000 {
                    let before = answered.load(SeqCst);
                    let guard = store.lock("a").fair().acquire().await.unwrap();
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
        for task in join_all(
            raisers
                .collect::<Vec<_>>()
                .into_iter()
                .chain(counters.collect::<Vec<_>>()),
        )
        .await
        {
            task.unwrap();
        }
    })
    .await;
}

/// A claim whose request arrives after the answer to a raise, and one whose answer is lost before
/// it.
#[tokio::test]
async fn a_claim_that_is_under_way_has_what_was_true_when_it_was_taken() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (etcd, raiser) = (
            Arc::new(client(proxy.addr()).await),
            client(server.addr()).await,
        );
        granted(etcd.claim(&fair("warm")).await);
        let (late, lost) = (fair("late"), fair("lost"));
        let held = proxy.hold_matching("test/late/");
        let claiming = tokio::spawn({
            let (etcd, late) = (etcd.clone(), late.clone());
            async move { etcd.claim(&late).await }
        });
        held.sprung().await;
        raiser.raise(token(CLOCK)).await.unwrap();
        proxy.disarm();
        assert!(granted(claiming.await.unwrap()).token > token(CLOCK));

        let held = proxy.hold_reply_matching("test/lost/");
        let claiming = tokio::spawn({
            let (etcd, lost) = (etcd.clone(), lost.clone());
            async move { etcd.claim(&lost).await }
        });
        held.sprung().await;
        until(async || !keys(&server, "test/lost/").await.is_empty()).await;
        raiser.raise(token(1 << 60)).await.unwrap();
        claiming.abort();
        proxy.disarm();
        proxy.disconnect().await;
        // It stands since before, and the client knows more by now: its value says by how much it
        // is raised.
        assert!(becomes_granted(&etcd, &fair("other")).await.token > token(1 << 60));
        let grant = becomes_granted(&etcd, &lost).await;
        assert!(
            token(CLOCK) < grant.token && grant.token < token(1 << 60),
            "{:?}",
            grant.token
        );
        assert_eq!(
            raiser.inspect(&"lost".into()).await.unwrap().holders[0].token,
            Some(grant.token)
        );
        release(&etcd, &lost).await;
        assert!(becomes_granted(&etcd, &lost).await.token > token(1 << 60));
    })
    .await;
}

/// One that is late is smaller than what was answered meanwhile, and changes nothing.
#[tokio::test]
async fn a_late_raise_lowers_nothing() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (late, other) = (client(proxy.addr()).await, client(server.addr()).await);
        // What it is about to write, but for the revision of now.
        let held = proxy.hold_matching(((CLOCK + 86_400_000_000) / 256 / 1_000 - 1).to_string());
        let raising = tokio::spawn(async move { late.raise(token(CLOCK)).await });
        held.sprung().await;
        other.raise(token(1 << 60)).await.unwrap();
        proxy.disarm();
        raising.await.unwrap().unwrap();
        assert!(other.mark().await.unwrap() > token(1 << 60));
    })
    .await;
}

/// Whether the answer to it is lost or the server starts anew, it was done once.
#[tokio::test]
async fn a_raise_survives_a_lost_answer_and_a_restart() {
    within(90, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let raiser = usual(proxy.addr()).await;
        let lost = proxy.lose_reply_matching("test/%base\u{12}");
        while let Err(error) = raiser.raise(token(CLOCK)).await {
            assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error:?}");
        }
        lost.sprung().await;
        let read = raw(&server).await.get("test/%base", None).await.unwrap();
        assert_eq!(read.kvs()[0].version(), 1, "it was written once");
        server.restart_with_data().await.unwrap();
        let etcd = client(server.addr()).await;
        let grant = becomes_granted(&etcd, &fair("a")).await;
        assert!(grant.token > token(CLOCK));
        assert_eq!(keys(&server, "test/%").await, ["test/%base"]);
        assert!(etcd.list("", None, 9).await.unwrap() == [Name::from("a")]);
    })
    .await;
}

/// Deleted by hand, it is lost data: tokens fall, and nothing else fails. Written by hand, it is
/// refused.
#[tokio::test]
async fn a_base_that_is_lost_or_junk_is_seen() {
    within(60, async {
        let server = server().await;
        let (etcd, mut raw) = (client(server.addr()).await, raw(&server).await);
        etcd.raise(token(CLOCK)).await.unwrap();
        let held = fair("held");
        let before = granted(etcd.claim(&held).await);
        raw.delete("test/%base", None).await.unwrap();
        assert!(granted(etcd.claim(&fair("a")).await).token < token(CLOCK));
        assert_eq!(
            granted(etcd.claim(&held).await).token,
            before.token,
            "a hold is what it was"
        );
        assert!(etcd.mark().await.unwrap() < token(CLOCK));
        etcd.raise(token(CLOCK)).await.unwrap();
        assert!(granted(etcd.claim(&fair("b")).await).token > token(CLOCK));

        for junk in ["", "x", "-1", "9223372036854775808"] {
            raw.put("test/%base", junk, None).await.unwrap();
            for refused in [
                etcd.claim(&fair("c")).await.map(drop),
                etcd.mark().await.map(drop),
                etcd.raise(token(1)).await,
            ] {
                assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corrupt, "{junk}");
            }
            assert_eq!(granted(etcd.claim(&held).await).token, before.token);
        }
    })
    .await;
}

/// What is beyond the limit is refused, and changes nothing; a floor changes nothing.
#[tokio::test]
async fn what_is_beyond_the_limit_is_refused() {
    within(60, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let Raises::Places(limit) = etcd.raises() else {
            panic!("places are raised")
        };
        let (mark, beyond) = (etcd.mark().await.unwrap(), token(limit.get() + 1));
        assert_eq!(
            etcd.raise(beyond).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        let mut floored = fair("a");
        floored.floor = Some(beyond);
        assert_eq!(
            etcd.claim(&floored).await.unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            (etcd.mark().await.unwrap(), keys(&server, "").await.len()),
            (mark, 0)
        );
        floored.floor = Some(limit);
        let low = granted(etcd.claim(&floored).await);
        assert!(low.token < token(CLOCK));
        etcd.raise(limit).await.unwrap();
        let (high, mark) = (
            granted(etcd.claim(&fair("b")).await),
            etcd.mark().await.unwrap(),
        );
        assert!(
            limit < high.token && token(high.token.get() + 255) <= mark && mark < token(u64::MAX)
        );
    })
    .await;
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
