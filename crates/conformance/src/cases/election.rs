//! Is there one leader at a time, and does every observer see which, and its value?

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ErrorKind, Leader, Leadership, Loss, MAX_VALUE_BYTES, Observer, Store};

use crate::cases::protected::Protected;
use crate::context::{LONG, TestContext, answered, expect_kind, within};
use crate::faulty::Faults;

const SOON: Duration = Duration::from_secs(20);

/// Proclaims; under faults the store's answer may be lost, and it is asked again.
async fn proclaimed(leadership: &Leadership, value: &str) {
    answered(SOON, "the proclamation", || leadership.proclaim(value)).await;
}

/// Resigns; under faults it goes on in the background.
async fn resigned(leadership: Leadership) {
    if let Err(e) = leadership.resign().await {
        assert!(e.is_retryable(), "{e:?}");
    }
}

/// Fails unless this is the leader.
async fn is_led_by(store: &Store, value: &str, leadership: &Leadership) {
    let leader = store.election("a").leader().await.unwrap().unwrap();
    assert_eq!(
        (leader.value.as_str(), leader.token),
        (value, leadership.fencing_token())
    );
}

/// Watches until the observer sees this value, after any others.
async fn sees(observer: &mut Observer, value: Option<&str>) -> Option<Leader> {
    let what = format!("the observer to see {value:?}");
    within(SOON, &what, async {
        loop {
            let before = observer.current().cloned();
            observer.changed().await.unwrap();
            assert_ne!(before.as_ref(), observer.current(), "a change that is none");
            if observer.current().map(|leader| leader.value.as_str()) == value {
                return observer.current().cloned();
            }
        }
    })
    .await
}

/// P1, P2: candidates of several clients lead one after the other, each with a greater token.
pub(crate) async fn has_one_leader_at_a_time(ctx: TestContext) {
    let term = Arc::new(Protected::default());
    let mut tasks = Vec::new();
    for i in 0..3 {
        let election = ctx.store().await.election("a");
        let term = term.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..5 {
                let value = format!("{i} {round}");
                let leadership = election.campaign(value.clone()).await.unwrap();
                let token = leadership.fencing_token();
                term.enter(token.get());
                let leader = election.leader().await.unwrap().expect("a leader");
                assert_eq!((leader.value, leader.token), (value, token));
                term.leave();
                resigned(leadership).await;
            }
        }));
    }
    for task in tasks {
        within(SOON * 4, "fifteen terms", task).await.unwrap();
    }
}

/// A leader that resigns hands over to the next candidate at once; the leader is no secret.
pub(crate) async fn is_handed_over_by_resigning(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.election("a").ttl(LONG);
    let there = two.election("a").ttl(LONG);
    assert_eq!(there.leader().await.unwrap(), None);
    let first = here.campaign("first").await.unwrap();
    let who = expect_kind(there.try_campaign("second").await, ErrorKind::Contended)
        .into_contention()
        .unwrap();
    assert_eq!(
        (who.label.as_deref(), who.token),
        (Some("first"), Some(first.fencing_token()))
    );
    let short = Duration::from_millis(200);
    expect_kind(
        there.campaign_timeout("second", short).await,
        ErrorKind::TimedOut,
    );
    let second = tokio::spawn(there.campaign("second"));
    ctx.queue_is(&one, "a", 1, 1).await;
    is_led_by(&two, "first", &first).await;
    let before = first.fencing_token();
    first.confirm().await.unwrap();
    first.resign().await.unwrap();
    let second = within(Duration::from_secs(8), "the next leader", second)
        .await
        .unwrap()
        .unwrap();
    assert!(second.fencing_token() > before);
    is_led_by(&one, "second", &second).await;
    second.resign().await.unwrap();
    assert_eq!(here.leader().await.unwrap(), None);
}

/// An observer sees every change at least as its latest value: vacancy, a leader, its proclamations, its successor.
pub(crate) async fn is_observed(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let three = ctx.store().await;
    let mut observer = three.election("a").observe().await.unwrap();
    assert_eq!(observer.current(), None, "no candidate has led yet");
    let first = one.election("a").campaign("one").await.unwrap();
    let token = first.fencing_token();
    assert_eq!(sees(&mut observer, Some("one")).await.unwrap().token, token);
    proclaimed(&first, "two").await;
    assert_eq!(
        sees(&mut observer, Some("two")).await.unwrap().token,
        token,
        "a proclamation keeps the token"
    );
    // Not each of these needs to be seen; the latest does.
    for value in ["three", "four", "five"] {
        proclaimed(&first, value).await;
    }
    assert_eq!(
        sees(&mut observer, Some("five")).await.unwrap().token,
        token
    );
    let second = tokio::spawn(two.election("a").campaign("six"));
    ctx.queue_is(&three, "a", 1, 1).await;
    resigned(first).await;
    let second = ctx.served("the next leader", second).await;
    assert_eq!(
        sees(&mut observer, Some("six")).await.unwrap().token,
        second.fencing_token()
    );
    assert!(second.fencing_token() > token);
    // A new observer sees the present leader.
    let late = one.election("a").observe().await.unwrap();
    assert_eq!(
        late.current().map(|leader| leader.value.as_str()),
        Some("six")
    );
    drop(second);
    assert_eq!(
        sees(&mut observer, None).await,
        None,
        "a vacancy is a value"
    );
}

/// An equal value in another term is another leader, with another token.
pub(crate) async fn is_observed_by_its_token(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let first = one.election("a").campaign("same").await.unwrap();
    let mut observer = two.election("a").observe().await.unwrap();
    let before = observer.current().cloned().unwrap();
    assert_eq!(
        (before.value.as_str(), before.token),
        ("same", first.fencing_token())
    );
    resigned(first).await;
    let second = one.election("a").campaign("same").await.unwrap();
    within(SOON, "the other term", async {
        while observer.current().map(|leader| leader.token) != Some(second.fencing_token()) {
            observer.changed().await.unwrap();
        }
    })
    .await;
    resigned(second).await;
}

/// Two watch two elections of one client; each sees its own. Watching costs no place in the queue.
pub(crate) async fn is_observed_apart_from_others(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let mut left = two.election("left").observe().await.unwrap();
    let right = two.election("right").observe().await.unwrap();
    let leadership = one.election("left").campaign("l").await.unwrap();
    sees(&mut left, Some("l")).await;
    assert_eq!(right.current(), None);
    let queue = two.election("right").inspect().await.unwrap();
    assert_eq!((queue.holders.len(), queue.waiters.len()), (0, 0));
    drop(right);
    proclaimed(&leadership, "l2").await;
    sees(&mut left, Some("l2")).await;
    resigned(leadership).await;
}

/// A former leader proclaims nothing, whether there is another leader or none, and gets the loss as
/// the error.
pub(crate) async fn proclaims_nothing_after_loss(ctx: TestContext) {
    let faults = Faults::default();
    faults.lose_notifications();
    let deaf = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    let operator = ctx.store().await;
    let late = deaf
        .election("a")
        .ttl(LONG)
        .campaign("first")
        .await
        .unwrap();
    let next = tokio::spawn(two.election("a").ttl(LONG).campaign("second"));
    ctx.queue_is(&operator, "a", 1, 1).await;
    assert!(operator.evict("a", late.fencing_token()).await.unwrap());
    let next = within(Duration::from_secs(8), "the next leader", next)
        .await
        .unwrap()
        .unwrap();
    proclaims_too_late(&late).await;
    assert!(!late.is_valid());
    is_led_by(&operator, "second", &next).await;
    next.resign().await.unwrap();
    drop(late);
    // Without a candidate behind it: the repeated request must not make it the leader anew.
    let late = deaf
        .election("b")
        .ttl(LONG)
        .campaign("first")
        .await
        .unwrap();
    assert!(operator.evict("b", late.fencing_token()).await.unwrap());
    proclaims_too_late(&late).await;
    assert_eq!(
        operator.election("b").leader().await.unwrap(),
        None,
        "a late proclamation made it the leader anew"
    );
    let next = within(
        Duration::from_secs(8),
        "a successor",
        two.election("b").campaign("second"),
    )
    .await
    .unwrap();
    next.resign().await.unwrap();
    drop(late);
}

/// Proclaims after the end of the leadership. The store may learn of the end during the request,
/// and not know whether the request was executed.
async fn proclaims_too_late(late: &Leadership) {
    let answer = answered(LONG, "a late proclamation", async || {
        match late.proclaim("too late").await {
            Err(e) if e.kind() == ErrorKind::Lost => Ok(Err(e)),
            other => other.map(Ok),
        }
    });
    expect_kind(answer.await, ErrorKind::Lost);
}

/// The reply to a proclamation is lost: it is asked again, and it is the same term.
pub(crate) async fn proclaims_again_after_a_lost_reply(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    let leadership = one.election("a").campaign("one").await.unwrap();
    faults.lose_claim_replies(1);
    expect_kind(leadership.proclaim("two").await, ErrorKind::Ambiguous);
    leadership.proclaim("two").await.unwrap();
    is_led_by(&two, "two", &leadership).await;
    // A confirmation and renewals keep the value.
    tokio::time::sleep(ctx.ttl()).await;
    leadership.confirm().await.unwrap();
    is_led_by(&two, "two", &leadership).await;
    leadership.resign().await.unwrap();
}

/// Values of any characters, up to the longest, are seen as they were proclaimed; a longer one is refused and changes nothing.
pub(crate) async fn keeps_long_and_odd_values(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let longest = "\u{1F512}".repeat(MAX_VALUE_BYTES / 4);
    let too_long = format!("{longest}x");
    let odd = "a\nb\r\t\0 \"'\\ {} [] 3/4 é 漢 e\u{301} \u{FEFF}%2F:;,|\u{7F}";
    let leader = async || {
        two.election("a")
            .leader()
            .await
            .unwrap()
            .map(|leader| leader.value)
    };
    expect_kind(
        one.election("a").campaign(too_long.clone()).await,
        ErrorKind::Invalid,
    );
    assert_eq!(leader().await, None);
    for value in [longest.as_str(), odd, "", " ", "\n"] {
        let leadership = one.election("a").campaign(value).await.unwrap();
        assert_eq!(leader().await.as_deref(), Some(value), "campaigned");
        leadership.resign().await.unwrap();
    }
    let leadership = one.election("a").campaign("short").await.unwrap();
    for value in [longest.as_str(), odd, "", "short again"] {
        leadership.proclaim(value).await.unwrap();
        assert_eq!(leader().await.as_deref(), Some(value), "proclaimed");
    }
    expect_kind(leadership.proclaim(too_long).await, ErrorKind::Invalid);
    assert!(leadership.is_valid());
    assert_eq!(leader().await.as_deref(), Some("short again"));
    // A waiting candidate shows its value too.
    let waiter = tokio::spawn(two.election("a").campaign(longest.clone()));
    ctx.queue_is(&two, "a", 1, 1).await;
    assert_eq!(
        two.election("a").inspect().await.unwrap().waiters[0]
            .label
            .as_deref(),
        Some(longest.as_str())
    );
    leadership.resign().await.unwrap();
    ctx.served("the one with the long value", waiter)
        .await
        .resign()
        .await
        .unwrap();
}

/// Leadership is a lease: a dead leader is followed, `max_hold` ends it, `run` resigns.
pub(crate) async fn is_lost_like_any_lease(ctx: TestContext) {
    let faults = Faults::default();
    let one = ctx.store_with(&faults).await;
    let two = ctx.store().await;
    faults.hang_renewals(true);
    let stale = one.election("a").campaign("stale").await.unwrap();
    let limit = ctx.ttl() * 2 + two.guarantees().recovery() + Duration::from_secs(2);
    let next = within(limit, "a successor", two.election("a").campaign("next"))
        .await
        .unwrap();
    assert!(!stale.is_valid() && next.fencing_token() > stale.fencing_token());
    expect_kind(stale.proclaim("too late").await, ErrorKind::Lost);
    expect_kind(stale.resign().await, ErrorKind::Lost);
    assert!(next.confirm().await.is_ok());
    next.resign().await.unwrap();
    faults.hang_renewals(false);

    let brief = two
        .election("a")
        .max_hold(ctx.ttl() / 2)
        .campaign("brief")
        .await
        .unwrap();
    assert_eq!(
        within(ctx.ttl() * 2, "max_hold", brief.lost()).await,
        Loss::MaxHold
    );
    drop(brief);
    ctx.becomes_empty("a").await;
    let token = two
        .election("a")
        .run("running", |held| async move { held.fencing_token() })
        .await
        .unwrap();
    assert!(token.get() > 0);
    ctx.becomes_empty("a").await;
}

/// Bad names and closed stores are errors, for candidates and for observers.
pub(crate) async fn refuses_bad_input(ctx: TestContext) {
    let store = ctx.store().await;
    let long = "x".repeat(513);
    for bad in ["", "a\0b", &long] {
        expect_kind(store.election(bad).campaign("x").await, ErrorKind::Invalid);
        expect_kind(store.election(bad).observe().await, ErrorKind::Invalid);
    }
    expect_kind(store.election("").leader().await, ErrorKind::Invalid);
    let election = store.election("a");
    let mut observer = election.observe().await.unwrap();
    store.close(Duration::from_secs(5)).await.unwrap();
    expect_kind(election.campaign("x").await, ErrorKind::Closed);
    expect_kind(election.observe().await, ErrorKind::Closed);
    let ended = within(
        ctx.ttl() * 3 + SOON,
        "watching to end with the store",
        observer.changed(),
    )
    .await;
    assert!(ended.is_err());
}

/// S14: a renewal carries the current value, so that an entry that the store restores shows it.
pub(crate) async fn is_renewed_with_its_latest_value(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    let leadership = store.election("a").campaign("one").await.unwrap();
    proclaimed(&leadership, "two").await;
    for lease in ctx.renewed(&faults, "a leader").await {
        assert_eq!(
            &*lease.claim.label, "two",
            "a leader is renewed with an old value"
        );
    }
    resigned(leadership).await;
}
