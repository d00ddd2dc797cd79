//! Is a lease as long as the store said, and never shorter than it said before?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::backend::{Backend, Claimed, LeaseRef, Mode, Moment, Renewal, WaitPolicy};

use crate::context::{TestContext, given_back, granted, renewed, taken, within};

/// Fails if another client is granted `name` before the validity that the store answered has ended.
pub(super) async fn not_granted_before(
    ctx: &TestContext,
    rival: &dyn Backend,
    name: &str,
    valid_until: Moment,
) {
    let limit = ctx.ttl() * 4 + rival.guarantees().recovery() + Duration::from_secs(10);
    within(limit, "the rival to be granted", async {
        let claim = ctx.claim(name, WaitPolicy::Fair);
        loop {
            if let Ok(Claimed::Granted(grant)) = rival.claim(&claim).await {
                let now = Moment::now();
                assert!(
                    now >= valid_until,
                    "granted {:?} too early",
                    valid_until.since(now)
                );
                return rival.release(&claim, Some(&grant.place)).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The end of validity that a renewal, sent after `stamp`, has answered.
fn end(answer: &Renewal, stamp: Moment) -> Moment {
    let Renewal::Renewed(validity) = answer else {
        panic!("it was there: {answer:?}")
    };
    validity.until(stamp)
}

/// Returns the answers to a renewal, and an instant before it was sent. It is repeated while the
/// store has no answer in time, as may happen on a busy machine.
async fn answered(client: &dyn Backend, leases: &[LeaseRef]) -> (Moment, Vec<Renewal>) {
    loop {
        let stamp = Moment::now();
        let answers = client.renew(leases).await.unwrap();
        if !answers
            .iter()
            .any(|answer| matches!(answer, Renewal::Unknown(_)))
        {
            return (stamp, answers);
        }
    }
}

/// A renewal extends by as much as it says: no other client is granted before the end that it answered.
pub(crate) async fn is_as_long_as_a_renewal_says(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let lease = taken(&*one, ctx.claim("a", WaitPolicy::Fair)).await;
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let (stamp, answers) = answered(&*one, &[lease]).await;
    not_granted_before(&ctx, &*two, "a", end(&answers[0], stamp)).await;
}

/// A renewal of readers and permits also extends by as much as it says.
pub(crate) async fn is_as_long_as_a_renewal_says_in_every_mode(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let reader = taken(
        &*one,
        ctx.claim_as("reader", Mode::Shared, WaitPolicy::Fair),
    )
    .await;
    let permits = taken(
        &*one,
        ctx.claim_as("permits", Mode::Permits { n: 2, of: 3 }, WaitPolicy::Fair),
    )
    .await;
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let (stamp, answers) = answered(&*one, &[reader, permits]).await;
    let [reader, permits] = [0, 1].map(|i| end(&answers[i], stamp));
    tokio::join!(
        not_granted_before(&ctx, &*two, "reader", reader),
        not_granted_before(&ctx, &*two, "permits", permits)
    );
}

/// Several leases are renewed together, and one of them is gone: it is reported as lost, and those
/// before and behind it are really extended.
pub(crate) async fn is_renewed_beside_a_lost_one(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let mut batch = Vec::new();
    for name in ["before", "gone", "behind"] {
        batch.push(taken(&*one, ctx.claim(name, WaitPolicy::Fair)).await);
    }
    given_back(&*one, &batch[1]).await;
    tokio::time::sleep(ctx.ttl() * 3 / 5).await;
    let (stamp, answers) = answered(&*one, &batch).await;
    assert_eq!(answers.len(), batch.len());
    assert!(
        matches!(answers[1], Renewal::Lost(_)),
        "it has gone: {:?}",
        answers[1]
    );
    let [before, behind] = [0, 2].map(|i| end(&answers[i], stamp));
    tokio::join!(
        not_granted_before(&ctx, &*two, "before", before),
        not_granted_before(&ctx, &*two, "behind", behind)
    );
}

/// Several claims hold together, and each has the lease that it asked for, regardless of the
/// others.
pub(crate) async fn is_each_ones_own(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    let mut ends = Vec::new();
    for (name, leases) in [("rising", [1, 2]), ("falling", [2, 1])] {
        let mut end = Moment::now();
        for ttls in leases {
            let mut claim = ctx.claim_as(name, Mode::Shared, WaitPolicy::Fair);
            claim.ttl = ctx.ttl() * ttls;
            let stamp = Moment::now();
            end = end.max(granted(one.claim(&claim).await).validity.until(stamp));
        }
        ends.push(end);
    }
    tokio::join!(
        not_granted_before(&ctx, &*two, "rising", ends[0]),
        not_granted_before(&ctx, &*two, "falling", ends[1])
    );
}

/// S13: requests of many tasks overtake one another, and some are given up midway; each validity
/// that was answered stays true.
pub(crate) async fn never_gets_shorter(ctx: TestContext) {
    let one = ctx.backend().await;
    let two = ctx.backend().await;
    for name in ["first", "second"] {
        let lease = taken(&*one, ctx.claim(name, WaitPolicy::Fair)).await;
        let latest = Arc::new(AtomicU64::new(0));
        let until = Moment::now() + ctx.ttl() * 2 / 5;
        let tasks: Vec<_> = (0..6_u64)
            .map(|i| {
                let one = one.clone();
                let lease = lease.clone();
                let latest = latest.clone();
                let mut random = fastrand::Rng::with_seed(ctx.seed() ^ i);
                tokio::spawn(async move {
                    while Moment::now() < until {
                        let stamp = Moment::now();
                        let asked = extended(&*one, &lease, i % 2 == 0, stamp);
                        let end = match random.u8(0..4) {
                            0 => tokio::time::timeout(
                                Duration::from_micros(random.u64(0..500)),
                                asked,
                            )
                            .await
                            .ok(),
                            _ => Some(asked.await),
                        };
                        latest
                            .fetch_max(end.flatten().map_or(0, Moment::as_nanos), Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        not_granted_before(
            &ctx,
            &*two,
            name,
            Moment::from_nanos(latest.load(Ordering::SeqCst)),
        )
        .await;
    }
}

/// Renews, or claims again. Returns the end of validity if the store answered one.
async fn extended(
    client: &dyn Backend,
    lease: &LeaseRef,
    renews: bool,
    stamp: Moment,
) -> Option<Moment> {
    let validity = if renews {
        match renewed(client, lease).await.ok()? {
            Renewal::Renewed(validity) => validity,
            Renewal::Granted(grant) => grant.validity,
            Renewal::Unknown(_) => return None,
            Renewal::Lost(loss) => panic!("it was there, and is said to be lost: {loss:?}"),
        }
    } else {
        match client.claim(&lease.claim).await {
            Ok(Claimed::Granted(grant)) => grant.validity,
            Ok(other) => panic!("it was there: {other:?}"),
            Err(_) => return None,
        }
    };
    Some(validity.until(stamp))
}
