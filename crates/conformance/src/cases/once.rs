//! Is work done once: one body, one record, told to all, and nothing recorded without a hold?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::backend::{
    Backend, Claim, Claimed, Complete, Completed, Completions, LeaseRef, Moment, WaitPolicy,
};
use leasehold_core::{
    Begun, Completion, ErrorKind, FencingToken, Keep, MAX_KEEP, MAX_RESULT_BYTES, Once,
    OnceOutcome, Store, TryOnceOutcome,
};

use crate::context::{
    LONG, TestContext, answered, busy, expect_kind, give_back, given_back, granted, taken, until,
    waiting, within,
};
use crate::faulty::Faults;

/// A keep that no case outlives.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The completions of a store that has them.
fn completions(client: &dyn Backend) -> &dyn Completions {
    client.completions().expect("the store records completions")
}

/// A claim for work that is done once.
fn once(ctx: &TestContext, policy: WaitPolicy) -> Claim {
    ctx.claim("a", policy).once(0)
}

/// A request to complete the work of this hold, kept for a day.
fn request(lease: &LeaseRef) -> Complete {
    let token = lease.token.expect("a hold");
    Complete::new(token, lease.place.clone(), Keep::For(DAY))
}

/// Completes the work of this hold, which must be answered as done.
async fn completed(client: &dyn Backend, lease: &LeaseRef) -> Completion {
    done(
        completions(client)
            .complete(&lease.claim, &request(lease))
            .await,
    )
}

fn done(answer: leasehold_core::Result<Completed>) -> Completion {
    match answer {
        Ok(Completed::Done(completion)) => completion,
        other => panic!("expected a completion, got {other:?}"),
    }
}

fn not_held(what: &str, answer: &leasehold_core::Result<Completed>) {
    assert!(
        matches!(answer, Ok(Completed::NotHeld)),
        "{what}: {answer:?}"
    );
}

/// The completion in an answer to a claim, or a failure.
fn told(what: &str, answer: leasehold_core::Result<Claimed>) -> Completion {
    match answer {
        Ok(Claimed::Done(completion)) => completion,
        other => panic!("{what}: {other:?}"),
    }
}

/// Runs a body that does nothing. Under faults it is asked again until it is answered.
async fn ran(once: &Once) -> bool {
    let outcome = answered(LONG, "once", || async {
        once.run(async |_| Ok::<_, ()>(())).await
    })
    .await;
    matches!(outcome, Ok(OnceOutcome::Ran(())))
}

/// P1: of many callers in several clients, one body runs, and no body begins after somebody was told
/// that the work is done.
pub(crate) async fn runs_one_body(ctx: TestContext) {
    let inside = Arc::new(AtomicUsize::new(0));
    let bodies = Arc::new(AtomicUsize::new(0));
    let is_done = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for _ in 0..3 {
        let store = ctx.store().await;
        for _ in 0..4 {
            let once = store.once("a").keep(DAY);
            let inside = inside.clone();
            let bodies = bodies.clone();
            let is_done = is_done.clone();
            callers.push(tokio::spawn(async move {
                let body = async || {
                    once.run(async |_| {
                        assert!(
                            !is_done.load(Ordering::SeqCst),
                            "a body after done was told"
                        );
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two bodies");
                        bodies.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, ()>(())
                    })
                    .await
                };
                let outcome = answered(LONG, "once", body).await;
                is_done.store(true, Ordering::SeqCst);
                outcome
            }));
        }
    }
    let mut ran = 0;
    for caller in callers {
        ctx.step();
        let outcome = within(LONG * 3, "every caller to be told", caller).await;
        ran += usize::from(matches!(outcome.unwrap(), Ok(OnceOutcome::Ran(()))));
    }
    let bodies = bodies.load(Ordering::SeqCst);
    assert!(bodies >= 1 && ran <= 1, "{bodies} bodies, {ran} told so");
    if !ctx.is_faulty() {
        assert_eq!(
            (bodies, ran),
            (1, 1),
            "bodies, and callers told that theirs ran"
        );
    }
    ctx.becomes_empty("a").await;
}

/// S19: each kind of claim that comes after the completion, or waited for it, is told; a lock ignores
/// it.
pub(crate) async fn is_told_to_each_kind_of_claim(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let lease = taken(&*one, once(&ctx, WaitPolicy::Fair)).await;
    let waiter = once(&ctx, WaitPolicy::Fair);
    waiting(two.claim(&waiter).await);
    let lock = ctx.claim("a", WaitPolicy::Fair);
    waiting(two.claim(&lock).await);
    busy(
        "a try while the body runs",
        two.claim(&once(&ctx, WaitPolicy::Try)).await,
    );
    let completion = completed(&*one, &lease).await;
    assert_eq!(Some(completion.token), lease.token);
    assert_eq!(&*completion.label, "suite");
    let claims = [
        ("a claim that waited", waiter),
        ("a try", once(&ctx, WaitPolicy::Try)),
        ("a new claim", once(&ctx, WaitPolicy::Fair)),
        ("the claim that completed", (*lease.claim).clone()),
    ];
    for (what, claim) in &claims {
        for client in [&one, &two] {
            let seen = told(what, client.claim(claim).await);
            assert_eq!(seen.token, completion.token, "{what}");
            assert_eq!(seen.at, completion.at, "{what}");
        }
    }
    let held = granted(two.claim(&lock).await);
    let store = ctx.store().await;
    ctx.queue_is(&store, "a", 1, 0).await;
    assert!(held.token > completion.token, "P2: tokens rise beyond it");
    given_back(
        &*two,
        &LeaseRef::new(Arc::new(lock), held.place, Some(held.token)),
    )
    .await;
    ctx.becomes_empty("a").await;
}

/// S19: waiters in several clients are told by a notification, all at once.
pub(crate) async fn wakes_all_at_once(ctx: TestContext) {
    // A lease so long that neither a poll nor a renewal can do the work of the notification.
    let ttl = Duration::from_secs(55);
    let holder = ctx.store().await;
    let Ok(Begun::Attempt(guard)) = holder.once("a").ttl(ttl).keep(DAY).begin().await else {
        panic!("the name is free");
    };
    let mut waiters = Vec::new();
    for _ in 0..8 {
        // Tasks of one client would wait behind one claim.
        let store = ctx.store().await;
        let once = store.once("a").ttl(ttl).keep(DAY);
        waiters.push(tokio::spawn(async move {
            let outcome = once.run(async |_| Ok::<_, ()>(())).await;
            drop(store);
            outcome
        }));
    }
    ctx.queue_is(&holder, "a", 1, 8).await;
    let completion = guard.complete().await.unwrap();
    for waiter in waiters {
        let outcome = within(Duration::from_secs(15), "the push of a completion", waiter);
        match outcome.await.unwrap() {
            Ok(Ok(OnceOutcome::AlreadyDone(by))) => assert_eq!(by.token, completion.token),
            other => panic!("a waiter was told {other:?}"),
        }
    }
    ctx.becomes_empty("a").await;
}

/// P5: after a body that fails, is dropped or panics, the next one runs.
pub(crate) async fn is_left_to_the_next_by_a_failure(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let here = one.once("a").keep(DAY);
    let there = two.once("a").keep(DAY);
    let failed = answered(LONG, "a body that fails", || {
        here.run(async |_| Err::<(), _>("no"))
    });
    assert_eq!(failed.await.unwrap_err(), "no");
    ctx.becomes_empty("a").await;
    let began = Arc::new(AtomicBool::new(false));
    let dropped = {
        let here = here.clone();
        let began = began.clone();
        tokio::spawn(async move {
            here.run(async |_| {
                began.store(true, Ordering::SeqCst);
                std::future::pending::<Result<(), ()>>().await
            })
            .await
        })
    };
    until(LONG, "the body to begin", || async {
        began.load(Ordering::SeqCst) || dropped.is_finished()
    })
    .await;
    dropped.abort();
    assert!(dropped.await.is_err() || ctx.is_faulty());
    ctx.becomes_empty("a").await;
    let panics = {
        let there = there.clone();
        tokio::spawn(async move {
            answered(LONG, "a body that panics", || {
                there.run(async |_| -> Result<(), ()> { panic!("by the suite") })
            })
            .await
        })
    };
    assert!(panics.await.is_err());
    assert_eq!(answered(LONG, "done", || there.done()).await, None);
    if !ctx.is_faulty() {
        assert!(ran(&there).await, "the body that comes after the failures");
        assert!(!ran(&here).await, "it is done now");
    }
}

/// P3: a body whose hold is evicted completes nothing, and the next one runs.
pub(crate) async fn is_left_to_the_next_by_a_loss(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let Ok(Begun::Attempt(guard)) = one.once("a").keep(DAY).begin().await else {
        panic!("the name is free");
    };
    let token = guard.fencing_token();
    assert!(two.evict("a", token).await.unwrap());
    expect_kind(guard.complete().await, ErrorKind::Lost);
    assert_eq!(two.once("a").done().await.unwrap(), None);
    assert!(ran(&two.once("a").keep(DAY)).await, "the next one runs");
    let done = one.once("a").done().await.unwrap().unwrap();
    assert!(done.token > token, "P2");
}

/// S19: a completion that is asked for again is the same, whoever asks since, and nothing is
/// extended.
pub(crate) async fn completes_again_with_one_answer(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let lease = taken(&*one, once(&ctx, WaitPolicy::Fair)).await;
    let first = completed(&*one, &lease).await;
    // A lock's hold in between changes nothing.
    let between = taken(&*two, ctx.claim("a", WaitPolicy::Fair)).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for client in [&one, &two, &one] {
        let again = completed(&**client, &lease).await;
        assert_eq!((again.token, again.at), (first.token, first.at));
        let first_left = first.left.expect("it ends");
        let left = again.left.expect("it ends");
        assert!(
            left < first_left,
            "a repeat extended the keep: {left:?} after {first_left:?}"
        );
    }
    given_back(&*two, &between).await;
    ctx.becomes_empty("a").await;
}

/// S19: nothing is recorded for a hold that has ended, for another token, or beside another's
/// completion.
pub(crate) async fn records_nothing_without_a_hold(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let store = ctx.store().await;
    let nothing = async |what| {
        let seen = store.once("a").done().await.unwrap();
        assert_eq!(seen, None, "{what}");
    };
    let lease = taken(&*one, once(&ctx, WaitPolicy::Fair)).await;
    let mut other = request(&lease);
    other.token = FencingToken::new(other.token.get() + 1);
    not_held(
        "another token",
        &completions(&*one).complete(&lease.claim, &other).await,
    );
    nothing("recorded with another token").await;
    let mut stranger = (*lease.claim).clone();
    stranger.id = leasehold_core::backend::ClaimId::fresh();
    not_held(
        "another claim",
        &completions(&*two)
            .complete(&stranger, &request(&lease))
            .await,
    );
    nothing("recorded for another claim").await;
    given_back(&*one, &lease).await;
    not_held(
        "a hold that was released",
        &completions(&*one)
            .complete(&lease.claim, &request(&lease))
            .await,
    );
    nothing("recorded for a hold that was released").await;
    let next = taken(&*two, once(&ctx, WaitPolicy::Fair)).await;
    not_held(
        "a hold that another has now",
        &completions(&*one)
            .complete(&lease.claim, &request(&lease))
            .await,
    );
    nothing("recorded although another holds").await;
    let completion = completed(&*two, &next).await;
    not_held(
        "a hold whose work another has completed",
        &completions(&*one)
            .complete(&lease.claim, &request(&lease))
            .await,
    );
    let seen = store.once("a").done().await.unwrap().unwrap();
    assert_eq!(seen.token, completion.token, "another's was overwritten");
    ctx.becomes_empty("a").await;
}

/// S19: the claim of a hold that ended, sent again, takes a new hold: a late completion with the
/// first token records nothing.
pub(crate) async fn compares_the_token_of_a_hold_taken_anew(ctx: TestContext) {
    let one = ctx.backend().await;
    let lease = taken(&*one, once(&ctx, WaitPolicy::Fair)).await;
    assert!(
        one.evict(&lease.claim.name, lease.token.expect("a hold"))
            .await
            .unwrap()
    );
    let anew = taken(&*one, (*lease.claim).clone()).await;
    assert!(anew.token > lease.token, "P2");
    not_held(
        "the token of a hold before",
        &completions(&*one)
            .complete(&lease.claim, &request(&lease))
            .await,
    );
    let completion = completed(&*one, &anew).await;
    assert_eq!(Some(completion.token), anew.token);
    ctx.becomes_empty("a").await;
}

/// S19: the answer to a completion is lost, or its caller leaves: it is done all the same.
pub(crate) async fn outlives_a_lost_reply_and_its_caller(ctx: TestContext) {
    let faults = Faults::default();
    let store = ctx.store_with(&faults).await;
    let other = ctx.store().await;
    faults.lose_completion_replies(2);
    let outcome = store
        .once("a")
        .keep(DAY)
        .run(async |_| Ok::<_, ()>(7))
        .await;
    assert_eq!(outcome.unwrap(), Ok(OnceOutcome::Ran(7)));
    assert!(!ran(&other.once("a").keep(DAY)).await);
    let Ok(Begun::Attempt(guard)) = store.once("b").keep(DAY).begin().await else {
        panic!("the name is free");
    };
    let token = guard.fencing_token();
    faults.lose_completion_replies(3);
    {
        let mut completing = Box::pin(guard.complete());
        // The request is on its way when its caller leaves.
        tokio::select! {
            biased;
            answer = &mut completing => panic!("answered with {answer:?}"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    let once = other.once("b").keep(DAY);
    until(LONG, "the completion in the background", || async {
        once.done().await.unwrap().is_some()
    })
    .await;
    assert_eq!(once.done().await.unwrap().unwrap().token, token);
    assert!(!ran(&once).await);
    ctx.become_empty(&["a", "b"]).await;
    store.close(LONG).await.unwrap();
}

/// S19: a record is forgotten by its own token only, and then the work is done anew.
pub(crate) async fn is_forgotten_by_its_token(ctx: TestContext) {
    let store = ctx.store().await;
    let a = store.once("a").keep(DAY);
    assert!(ran(&a).await && !ran(&a).await);
    let first = a.done().await.unwrap().unwrap();
    let old = FencingToken::new(first.token.get() - 1);
    assert!(!a.forget(old).await.unwrap(), "by another token");
    assert!(!ran(&a).await);
    assert!(a.forget(first.token).await.unwrap());
    assert!(!a.forget(first.token).await.unwrap(), "it is gone");
    assert_eq!(a.done().await.unwrap(), None);
    assert!(ran(&a).await);
    let second = a.done().await.unwrap().unwrap();
    assert!(second.token > first.token, "P2");
    assert!(
        !a.forget(first.token).await.unwrap(),
        "the token of the one before"
    );
    assert!(!ran(&a).await);
}

/// S19: the keep ends by the store's clock, not sooner; the work is then done anew with a greater
/// token. One that is kept for ever has no end.
pub(crate) async fn ends_with_its_keep(ctx: TestContext) {
    let store = ctx.store().await;
    let keep = ctx.ttl().max(Duration::from_secs(2));
    let a = store.once("a").keep(keep);
    let before = Moment::now();
    assert!(ran(&a).await);
    let first = a.done().await.unwrap().expect("it counts");
    assert!(first.left.expect("it ends") <= keep + Duration::from_secs(2));
    assert!(ran(&store.once("b").keep_forever()).await);
    let b = store.once("b").done().await.unwrap().expect("it counts");
    assert_eq!(b.left, None, "for ever");
    // The work is done again as soon as it may be.
    let again = Box::pin(within(keep + LONG, "the end of the keep", async {
        loop {
            if ran(&a).await {
                return Moment::now().since(before);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
    .await;
    assert!(
        again >= keep.mul_f64(0.99),
        "it ended after {again:?} of {keep:?}"
    );
    let second = a.done().await.unwrap().expect("it counts");
    assert!(second.token > first.token, "P2");
    assert!(!ran(&store.once("b").keep_forever()).await);
    ctx.become_empty(&["a", "b"]).await;
}

/// S19: a record counts for the fires up to its own.
pub(crate) async fn counts_for_fires_up_to_its_own(ctx: TestContext) {
    let store = ctx.store().await;
    let fire = |n| store.once("a").keep(DAY).fire(n);
    assert!(ran(&fire(7)).await);
    for n in [0, 6, 7] {
        assert!(!ran(&fire(n)).await, "fire {n} after fire 7");
        let done = fire(n).done().await.unwrap().map(|done| done.fire);
        assert_eq!(done, Some(7), "fire {n} after fire 7");
    }
    assert_eq!(fire(8).done().await.unwrap(), None);
    assert!(ran(&fire(8)).await, "fire 8 after fire 7");
    assert!(!ran(&fire(7)).await, "fire 7 after fire 8");
    assert!(ran(&fire(u64::MAX)).await && !ran(&fire(u64::MAX)).await);
    // A fire that waits for the one before it is granted, not told.
    let one = ctx.backend().await;
    let claim = |n| ctx.claim("b", WaitPolicy::Fair).once(n);
    let lease = taken(&*one, claim(1)).await;
    let later = claim(2);
    waiting(one.claim(&later).await);
    let same = claim(1);
    waiting(one.claim(&same).await);
    completed(&*one, &lease).await;
    told("a claim of the same fire", one.claim(&same).await);
    let grant = granted(one.claim(&later).await);
    let later = LeaseRef::new(Arc::new(later), grant.place, Some(grant.token));
    let second = completed(&*one, &later).await;
    assert_eq!(second.fire, 2);
    ctx.become_empty(&["a", "b"]).await;
}

/// A result comes back as it was left, up to its limit in bytes, and says if it was cut.
pub(crate) async fn keeps_its_result(ctx: TestContext) {
    let store = ctx.store().await;
    let odd = "\u{1}\"'\\{}%~\n\r\t é 漢 \u{1f600}".repeat(60);
    let full = "é".repeat(MAX_RESULT_BYTES / 2);
    let long = format!("x{full}");
    let cases = [
        ("none", None, None, false),
        ("empty", Some(String::new()), Some(String::new()), false),
        ("odd", Some(odd.clone()), Some(odd), false),
        ("full", Some(full.clone()), Some(full), false),
        (
            "long",
            Some(long.clone()),
            Some(long[..MAX_RESULT_BYTES - 1].to_owned()),
            true,
        ),
        ("nul", Some("a\0b".into()), Some("a\u{fffd}b".into()), false),
    ];
    for (name, left, kept, is_cut) in cases {
        let once = store.once(name).keep(DAY).label("a label, ünïcode");
        let outcome = once.run(async |attempt| {
            if let Some(text) = left {
                attempt.result(text);
            }
            Ok::<_, ()>(())
        });
        assert_eq!(outcome.await.unwrap(), Ok(OnceOutcome::Ran(())));
        let seen = once.done().await.unwrap().unwrap();
        assert_eq!(seen.result.as_deref(), kept.as_deref(), "{name}");
        assert_eq!(seen.is_cut, is_cut, "{name}");
        assert_eq!(&*seen.label, "a label, ünïcode");
        let TryOnceOutcome::AlreadyDone(told) = once
            .try_run(async |_| Ok::<_, ()>(()))
            .await
            .unwrap()
            .unwrap()
        else {
            panic!("{name} is done");
        };
        assert_eq!((told.result, told.token), (seen.result, seen.token));
    }
}

/// P10: records of different names do not interact, and are listed in order, in pages and by
/// namespace.
pub(crate) async fn is_of_its_own_name(ctx: TestContext) {
    let store = ctx.store().await.namespace("n");
    let names = ["a", "a/b", "a b", "A", "a/", "aé", "a%2Fb", ":d", "a:d"];
    for name in names {
        let once = store.once(name).keep(DAY);
        assert_eq!(once.done().await.unwrap(), None, "{name:?}");
        assert!(ran(&once).await, "{name:?}");
        give_back(store.lock(name).acquire().await.unwrap()).await;
    }
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let mut listed: Vec<String> = Vec::new();
    loop {
        let after = listed.last().map(leasehold_core::Name::new);
        let page = store.list_done("", after.as_ref(), 4).await.unwrap();
        if page.is_empty() {
            break;
        }
        listed.extend(page.iter().map(|(name, _)| name.as_str().to_owned()));
    }
    assert_eq!(listed, sorted);
    let under = store.list_done("a/", None, 10).await.unwrap();
    let under: Vec<_> = under.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(under, ["a/", "a/b"]);
    let locks = store.list("", None, 10).await.unwrap();
    assert!(locks.is_empty(), "records are no locks: {locks:?}");
    let other = ctx.store().await.namespace("m");
    assert!(other.list_done("", None, 10).await.unwrap().is_empty());
}

/// Work and a lock of one name exclude each other, and each is served behind the other.
pub(crate) async fn shares_the_queue_with_locks(ctx: TestContext) {
    let one = ctx.store().await;
    let two = ctx.store().await;
    let guard = one.lock("a").acquire().await.unwrap();
    let once = two.once("a").keep(DAY);
    let refused = once.try_run(async |_| Ok::<_, ()>(())).await.unwrap();
    assert!(
        matches!(refused, Ok(TryOnceOutcome::Running(_))),
        "{refused:?}"
    );
    let late = once.clone().wait(Duration::from_millis(50));
    expect_kind(
        late.run(async |_| Ok::<_, ()>(())).await,
        ErrorKind::TimedOut,
    );
    let working = tokio::spawn(async move { once.begin().await });
    ctx.queue_is(&one, "a", 1, 1).await;
    give_back(guard).await;
    let Begun::Attempt(work) = ctx.served("work behind a lock", working).await else {
        panic!("nobody has done it");
    };
    expect_kind(one.lock("a").try_acquire().await, ErrorKind::Contended);
    let locking = tokio::spawn(one.lock("a").acquire());
    ctx.queue_is(&one, "a", 1, 1).await;
    let completion = work.complete().await.unwrap();
    let guard = ctx.served("a lock behind work", locking).await;
    assert!(guard.fencing_token() > completion.token, "P2");
    give_back(guard).await;
    ctx.becomes_empty("a").await;
}

/// Tasks of one client stand behind one place in the store; a failure is no other task's.
pub(crate) async fn is_asked_for_by_one_task_of_a_client(ctx: TestContext) {
    let store = ctx.store().await;
    let other = ctx.store().await;
    let guard = other.lock("a").acquire().await.unwrap();
    let bodies = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let once = store.once("a").keep(DAY);
            let bodies = bodies.clone();
            tokio::spawn(async move {
                once.run(async |_| match bodies.fetch_add(1, Ordering::SeqCst) {
                    0 => Err("the first one fails"),
                    _ => Ok(()),
                })
                .await
            })
        })
        .collect();
    ctx.queue_is(&other, "a", 1, 1).await;
    give_back(guard).await;
    let mut failed = 0;
    let mut ran = 0;
    let mut done = 0;
    for task in tasks {
        match within(LONG, "a task of a client", task).await.unwrap() {
            Ok(Err(_)) => failed += 1,
            Ok(Ok(OnceOutcome::Ran(()))) => ran += 1,
            Ok(Ok(OnceOutcome::AlreadyDone(_))) => done += 1,
            Err(e) => panic!("a task was told {e:?}"),
        }
    }
    assert_eq!((failed, ran, done), (1, 1, 18));
    ctx.becomes_empty("a").await;
}

/// P8: bad input is refused before the body, and nothing is sent.
pub(crate) async fn refuses_bad_input(ctx: TestContext) {
    let store = ctx.store().await;
    let ttl = ctx.ttl();
    let body = async |once: Once| {
        once.run(async |_| -> Result<(), ()> { panic!("no body") })
            .await
    };
    for (what, once) in [
        ("no keep", store.once("a")),
        ("keep 0", store.once("a").keep(Duration::ZERO)),
        ("a keep below the ttl", store.once("a").keep(ttl / 2)),
        (
            "a keep of more than a century",
            store.once("a").keep(MAX_KEEP + Duration::from_secs(1)),
        ),
        ("a long name", store.once("x".repeat(513)).keep(DAY)),
        ("an empty name", store.once("").keep(DAY)),
        ("NUL", store.once("a\0").keep(DAY)),
        ("no ttl", store.once("a").ttl(Duration::ZERO).keep(DAY)),
        (
            "a long label",
            store.once("a").keep(DAY).label("x".repeat(257)),
        ),
    ] {
        let refused = body(once).await;
        assert!(
            refused
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::Invalid),
            "{what}: {refused:?}"
        );
    }
    assert!(store.list("", None, 10).await.unwrap().is_empty());
    assert!(ran(&store.once("x".repeat(512)).keep(MAX_KEEP)).await);
    store.close(LONG).await.unwrap();
    expect_kind(
        store
            .once("a")
            .keep(DAY)
            .run(async |_| Ok::<_, ()>(()))
            .await,
        ErrorKind::Closed,
    );
}

/// A record survives a restart of the server, as a grant does.
pub(crate) async fn survives_a_restart(ctx: TestContext) {
    let ctx = ctx.private().await;
    let store: Store = ctx.store().await;
    assert!(ran(&store.once("a").keep(DAY)).await);
    assert!(ran(&store.once("b").keep_forever()).await);
    let before = store.once("a").done().await.unwrap().unwrap();
    // A store without a server restarts when its last client has gone.
    store.close(LONG).await.unwrap();
    ctx.harness().restart().await;
    let store = ctx.store().await;
    for name in ["a", "b"] {
        let once = store.once(name).keep(DAY);
        assert!(!ran(&once).await, "{name:?} was done before the restart");
    }
    let after = store.once("a").done().await.unwrap().unwrap();
    assert_eq!(after.token, before.token);
    let guard = store.lock("a").acquire().await.unwrap();
    assert!(guard.fencing_token() > after.token, "P2");
    give_back(guard).await;
}
