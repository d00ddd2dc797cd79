//! What claims and releases leave in doubt, or half done: no key that nobody releases, and none
//! that two claims use.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use etcd_client::{AlarmAction, AlarmType};
use futures_util::poll;
use leasehold_core::backend::{Backend, Claim, LeaseRef, Place, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, Loss};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;

/// A client whose first request for `test/a/` is held up in the network, so that the second
/// endpoint answers it.
struct Doubtful {
    server: testbed::Etcd,
    late: testbed::Proxy,
    second: testbed::Proxy,
    etcd: Etcd,
    /// Something that it holds meanwhile.
    session: String,
    trap: testbed::Trap,
}

impl Doubtful {
    /// Which of the two endpoints it asks first is chosen at random: `after` what it asks first.
    async fn after(first: impl AsyncFn(&Doubtful)) -> Doubtful {
        loop {
            let server = server().await;
            let (late, second) = (
                testbed::Proxy::to(server.addr()).await.unwrap(),
                testbed::Proxy::to(server.addr()).await.unwrap(),
            );
            let url = format!("etcd://{},{}/test?timeout=1500", late.addr(), second.addr());
            let etcd = Etcd::connect(&url).await.unwrap();
            let grant = becomes_granted(&etcd, &claim("x", WaitPolicy::Fair, LONG)).await;
            let lease = grant
                .place
                .as_str()
                .strip_prefix("test/x/")
                .unwrap()
                .strip_suffix("-0")
                .unwrap();
            let session = format!("test/%session/{lease}");
            let trap = late.hold_matching("test/a/");
            let doubtful = Doubtful {
                server,
                late,
                second,
                etcd,
                session,
                trap,
            };
            first(&doubtful).await;
            if doubtful.trap.has_sprung() {
                return doubtful;
            }
        }
    }

    /// The request that was held up arrives now.
    async fn late_request_arrives(&self) {
        self.late.deliver_held();
        self.trap.done().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// What a request contains that closes the session.
    fn closes(&self) -> Vec<u8> {
        let length = u8::try_from(self.session.len()).unwrap();
        [&[0x0a, length], self.session.as_bytes()].concat()
    }
}

async fn full(server: &testbed::Etcd, action: AlarmAction) {
    raw(server)
        .await
        .alarm(action, AlarmType::Nospace, None)
        .await
        .unwrap();
}

/// The key of this claim, whose answer nobody has seen.
async fn unanswered(server: &testbed::Etcd, etcd: &Etcd, claim: &Claim) -> String {
    loop {
        let mut request = etcd.claim(claim);
        loop {
            if let Some(key) = keys(server, "test/a/").await.pop() {
                return key;
            }
            if poll!(&mut request).is_ready() {
                break;
            }
        }
        drop(request);
        release(etcd, claim).await;
    }
}

fn lasting(policy: WaitPolicy) -> Claim {
    claim("a", policy, LONG)
}

/// It waits for the same lease as another claim, whose key is not to be used again.
#[tokio::test]
async fn a_session_that_is_closed_before_it_is_used_is_not_used() {
    within(30, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (first, second) = (fair("a"), fair("a"));
        let (mut one, mut two) = (etcd.claim(&first), etcd.claim(&second));
        assert!(poll!(&mut one).is_pending() && poll!(&mut two).is_pending());
        let before = granted(one.await).place;
        {
            let mut under_way = etcd.release(&first, None);
            assert!(poll!(&mut under_way).is_pending());
            release(&etcd, &first).await;
            under_way.await.unwrap();
        }
        assert_ne!(granted(two.await).place, before);
        release(&etcd, &second).await;
    })
    .await;
}

/// An earlier release of the same claim is confirmed when the claim was made anew, and is being
/// released again.
#[tokio::test]
async fn a_release_that_is_confirmed_late_gives_no_key_back_that_is_in_use() {
    within(30, async {
        let server = server().await;
        let etcd = client(server.addr()).await;
        let (first, other) = (fair("a"), fair("a"));
        becomes_granted(&etcd, &first).await;
        let mut late = etcd.release(&first, None);
        assert!(poll!(&mut late).is_pending());
        release(&etcd, &first).await;
        let place = becomes_granted(&etcd, &first).await.place;
        let mut under_way = etcd.release(&first, None);
        assert!(poll!(&mut under_way).is_pending());
        late.await.unwrap();
        assert_ne!(
            becomes_granted(&etcd, &other).await.place,
            place,
            "its deletion may be late"
        );
        under_way.await.unwrap();
        release(&etcd, &other).await;
    })
    .await;
}

#[tokio::test]
async fn claims_that_were_never_sent_leave_no_trace_in_the_client() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let etcd = client(proxy.addr()).await;
        becomes_granted(&etcd, &claim("x", WaitPolicy::Fair, LONG)).await;
        proxy.cut().await;
        // Until it is known that there is no connection.
        while etcd
            .claim(&claim("y", WaitPolicy::Fair, LONG))
            .await
            .unwrap_err()
            .kind()
            != ErrorKind::Unavailable
        {}
        for _ in 0..5 {
            let error = etcd.claim(&lasting(WaitPolicy::Fair)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        }
        proxy.heal().await;
        let grant = becomes_granted(&etcd, &lasting(WaitPolicy::Fair)).await;
        assert!(grant.place.as_str().ends_with("-0"), "{:?}", grant.place);
    })
    .await;
}

/// Core withdraws nothing of a claim that was surely not executed.
#[tokio::test]
async fn a_refused_try_that_may_still_be_executed_is_ambiguous() {
    within(120, async {
        let error = std::sync::Mutex::new(None);
        let all = Doubtful::after(async |all| {
            let rival = client(all.server.addr()).await;
            let (held, tried) = (fair("a"), lasting(WaitPolicy::Try));
            becomes_granted(&rival, &held).await;
            // Its withdrawal is refused: the server has become full.
            let closing = all.second.hold_matching(all.closes());
            let mut trying = all.etcd.claim(&tried);
            let answer = tokio::select! {
                answer = &mut trying => answer,
                () = closing.sprung() => {
                    full(&all.server, AlarmAction::Activate).await;
                    all.late.cut().await;
                    all.second.deliver_held();
                    trying.await
                }
            };
            *error.lock().unwrap() = answer.err().map(|error| error.kind());
            full(&all.server, AlarmAction::Deactivate).await;
            release(&rival, &held).await;
            if error.lock().unwrap().is_some() {
                while all.etcd.release(&tried, None).await.is_err() {}
            }
        })
        .await;
        assert_eq!(*error.lock().unwrap(), Some(ErrorKind::Ambiguous));
        assert!(keys(&all.server, "test/a/").await.is_empty());
    })
    .await;
}

/// A late request of the claim may come, so the release is not confirmed; but the lock is free.
#[tokio::test]
async fn a_server_that_is_full_frees_a_lock_whose_claim_was_in_doubt() {
    within(60, async {
        let server = server().await;
        let (etcd, held) = (client(server.addr()).await, lasting(WaitPolicy::Fair));
        becomes_granted(&etcd, &claim("x", WaitPolicy::Fair, LONG)).await;
        unanswered(&server, &etcd, &held).await;
        full(&server, AlarmAction::Activate).await;
        assert_eq!(
            etcd.release(&held, None).await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
        assert!(keys(&server, "test/a/").await.is_empty());
        full(&server, AlarmAction::Deactivate).await;
        release(&etcd, &held).await;
    })
    .await;
}

/// The client has forgotten it by then, and renews the lease of the session for what else it holds.
#[tokio::test]
async fn a_late_request_of_a_hold_that_has_lapsed_takes_nothing() {
    within(120, async {
        let held = lasting(WaitPolicy::Fair);
        let all = Doubtful::after(async |all| drop(becomes_granted(&all.etcd, &held).await)).await;
        while all
            .etcd
            .release_after(&held, None, Duration::from_secs(1))
            .await
            .is_err()
        {}
        while !keys(&all.server, "test/a/").await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        all.late_request_arrives().await;
        assert!(keys(&all.server, "test/a/").await.is_empty());
    })
    .await;
}

/// Nothing of it is in doubt.
#[tokio::test]
async fn a_waiter_that_is_abandoned_closes_no_session() {
    within(60, async {
        let server = server().await;
        let (etcd, ttl) = (client(server.addr()).await, Duration::from_secs(2));
        let held = Arc::new(claim("a", WaitPolicy::Fair, ttl));
        let place = granted(etcd.claim(&held).await).place;
        waiting(etcd.claim(&claim("a", WaitPolicy::Fair, ttl)).await);
        let lease = LeaseRef::new(held.clone(), place.clone(), None);
        while keys(&server, "test/a/").await.len() == 2 {
            etcd.renew(std::slice::from_ref(&lease)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let next = granted(etcd.claim(&claim("b", WaitPolicy::Fair, ttl)).await).place;
        assert_eq!(
            next.as_str().replace("/b/", "/a/"),
            place.as_str(),
            "the same lease"
        );
    })
    .await;
}

/// A former leader knows nothing of a lease that was granted since. What it says of a session
/// without a known key is believed, also if a claim is on its way.
#[tokio::test]
async fn a_session_that_is_taken_for_lost_leaves_no_key_of_a_claim_on_its_way() {
    within(60, async {
        let server = server().await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (etcd, held) = (
            client(proxy.addr()).await,
            Arc::new(lasting(WaitPolicy::Fair)),
        );
        let key = unanswered(&server, &etcd, &held).await;
        let lease = key
            .strip_prefix("test/a/")
            .unwrap()
            .strip_suffix("-0")
            .unwrap();
        // As a message names it: seven bits in each byte. The next to it is not there.
        let mut number = vec![0x08];
        let mut rest = i64::from_str_radix(lease, 16).unwrap();
        while rest >= 0x80 {
            number.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        number.push(u8::try_from(rest).unwrap());
        let mut other = number.clone();
        other[1] ^= 1;
        proxy.rewrite_requests(&number, &other);
        let session = format!("test/%session/{lease}");
        let read = proxy.hold_matching(
            [
                &[0x0a, u8::try_from(session.len()).unwrap()],
                session.as_bytes(),
            ]
            .concat(),
        );
        let asked = [LeaseRef::new(held.clone(), Place::new(&*key), None)];
        let (answers, ()) = tokio::join!(etcd.renew(&asked), async {
            read.sprung().await;
            proxy.rewrite_requests(&other, &number);
            proxy.deliver_held();
        });
        assert!(matches!(answers.unwrap()[..], [Renewal::Lost(Loss::Gone)]));
        release(&etcd, &held).await;
        assert!(keys(&server, "test/a/").await.is_empty());
    })
    .await;
}
