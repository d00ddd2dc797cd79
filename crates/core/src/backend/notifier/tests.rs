//! Tests of the notifications that a subscriber receives, and of claims in doubt after an
//! interruption.

use std::time::Duration;

use super::*;
use crate::backend::claim::Place;
use crate::backend::token::FencingToken;

const TTL: Duration = Duration::from_secs(10);

/// Returns a notifier, a subscription, and the log of the notifications that the subscriber
/// received, as text.
fn heard(id: ClaimId) -> (Notifier, Subscription, Arc<Mutex<Vec<String>>>) {
    let notifier = Notifier::new();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    let subscription = notifier.subscribe(id, move |what| {
        let word = match what {
            Notification::ClaimAgain => "again".to_owned(),
            Notification::Granted(grant) => format!("granted {}", grant.token),
            Notification::Lost(loss) => format!("{loss:?}"),
            Notification::Shortened(validity) => format!("{:?}", validity.ttl()),
        };
        locked(&told).push(word);
    });
    (notifier, subscription, heard)
}

#[test]
fn a_subscriber_is_told_what_concerns_its_claim_until_it_leaves() {
    let mine = ClaimId::fresh();
    let other = ClaimId::fresh();
    let (notifier, subscription, heard) = heard(mine);
    assert_eq!(format!("{notifier:?}"), "Notifier(1 listeners)");
    for id in [mine, other] {
        notifier.claim_again(id);
        notifier.granted(
            id,
            Grant::new(Place::new("p"), FencingToken::new(7), Validity::from(TTL)),
        );
        notifier.lost(id, Loss::Evicted);
        notifier.shortened(id, Validity::since(Moment::from_nanos(1), TTL));
    }
    notifier.notify_all();
    assert_eq!(
        *locked(&heard),
        ["again", "granted 7", "Evicted", "10s", "again"]
    );
    drop(subscription);
    notifier.claim_again(mine);
    notifier.notify_all();
    assert_eq!(
        (locked(&heard).len(), format!("{notifier:?}")),
        (5, "Notifier(0 listeners)".into())
    );
}

#[test]
fn what_concerns_no_single_claim_is_said_to_the_store_over_it() {
    let upper = Notifier::new();
    let part = Notifier::new();
    part.is_part_of(&upper);
    part.is_part_of(&Notifier::new()); // the first call counts
    let renews = upper.renews_holds();
    let mut changes = upper.holder_changes();
    let before = *renews.borrow();
    part.notify_all();
    part.shortened(
        ClaimId::fresh(),
        Validity::since(Moment::from_nanos(1), TTL),
    );
    assert_ne!(*renews.borrow(), before);
    part.holder_changed(&Name::new("a"));
    assert_eq!(changes.try_recv(), Ok(Name::new("a")));
    part.interrupted(Moment::from_nanos(5));
    assert!(!upper.is_uninterrupted(Moment::from_nanos(5)));
}

#[test]
fn what_was_asked_before_the_last_interruption_is_in_doubt() {
    let notifier = Notifier::new();
    assert!(
        notifier.is_uninterrupted(Moment::from_nanos(0)),
        "there was none"
    );
    notifier.interrupted(Moment::from_nanos(5));
    notifier.interrupted(Moment::from_nanos(3)); // heard of late
    let sure = [4, 5, 6].map(|asked| notifier.is_uninterrupted(Moment::from_nanos(asked)));
    assert_eq!(sure, [false, false, true]);
}

#[test]
fn two_that_are_observed_are_notified_of_if_both_are() {
    let pushed = || Subscription::new(());
    assert!(pushed().is_pushed() && pushed().and(pushed()).is_pushed());
    let polled = [
        Subscription::none(),
        pushed().and(Subscription::none()),
        Subscription::none().and(pushed()),
    ];
    assert!(polled.iter().all(|subscription| !subscription.is_pushed()));
    assert_eq!(
        format!("{:?}", polled[0]),
        "Subscription(asked from time to time)"
    );
    assert_eq!(format!("{:?}", pushed()), "Subscription(notified)");
}
