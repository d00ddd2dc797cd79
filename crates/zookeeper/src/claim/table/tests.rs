//! The table of a session's claims: who waits for whom, and what is known without asking.

use leasehold_core::seam::WaitPolicy;
use tokio::sync::watch;

use super::*;
use crate::client::SessionHandler as _;

const LEASE: Duration = Duration::from_secs(60);

fn at(s: u64) -> Moment {
    Moment::from_nanos(s * 1_000_000_000)
}

fn claimed(claims: &mut Claims, s: u64) -> (ClaimId, Node) {
    let claim = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, LEASE, "");
    let entry = Node::new("/a", "lock-");
    assert!(claims.track(&entry, &claim, LEASE, at(s)));
    (claim.id, entry)
}

#[test]
fn a_session_is_needed_until_nothing_of_its_claims_can_be_left() {
    let mut claims = Claims::default();
    assert!(claims.is_idle());
    let (id, entry) = claimed(&mut claims, 30);
    assert!(!claims.is_idle());
    claims.abandon(id);
    assert!(!claims.is_idle());
    claims.removed(id, &entry, false);
    assert!(claims.is_idle());
}

#[test]
fn a_claim_that_is_not_renewed_is_abandoned() {
    let mut claims = Claims::default();
    let (id, entry) = claimed(&mut claims, 30);
    claims.abandon_unused(at(89));
    assert!(claims.mark_used(id, at(40)).is_some());
    claims.abandon_unused(at(99));
    assert!(claims.with_entry(id, &entry).is_some());
    claims.abandon_unused(at(100));
    assert!(claims.with_entry(id, &entry).is_none());
    assert_eq!(claims.abandoned[&id].iter().filter(|left| left.is_same(&entry)).count(), 1);
}

/// Its session is kept by others.
#[test]
fn a_hold_that_is_not_renewed_has_ended_when_it_is_abandoned() {
    let mut claims = Claims::default();
    let (id, entry) = claimed(&mut claims, 30);
    let mut liveness = Liveness::new(at(30), LEASE);
    for s in (40..120).step_by(10) {
        liveness.answered(at(s), at(s));
        let Some(tracked) = claims.with_entry(id, &entry) else { break };
        tracked.verified(at(s));
        assert!(tracked.validity(&liveness).until(at(s)) < at(90), "at {s}");
        claims.abandon_unused(at(s + 10));
    }
    assert!(claims.with_entry(id, &entry).is_none());
}

#[test]
fn who_holds_is_verified_at_each_renewal_and_who_waits_once_in_a_lease() {
    let mut claims = Claims::default();
    let (id, entry) = claimed(&mut claims, 30);
    let due = |claims: &Claims| [40, 60, 80, 100].map(|s| claims.due(LEASE, at(s)));
    assert_eq!(due(&claims), [Due::None, Due::None, Due::All, Due::All], "it came at 30");
    claims.last_verified = Some(at(40));
    assert_eq!(due(&claims), [Due::None, Due::None, Due::None, Due::All]);
    claims.with_entry(id, &entry).unwrap().held = Some(NonZeroI64::MIN);
    assert_eq!(due(&claims), [Due::All; 4]);
    for _ in 0..3 {
        claimed(&mut claims, 30);
    }
    assert_eq!(due(&claims), [Due::Holds, Due::Holds, Due::Holds, Due::All], "one of four");
}

#[test]
fn a_claim_that_comes_back_has_another_entry() {
    let mut claims = Claims::default();
    let (id, first) = claimed(&mut claims, 30);
    claims.abandon(id);
    let second = Node::new("/a", "lock-");
    let mut again = Claim::new("a", Mode::Shared, WaitPolicy::Fair, LEASE, "");
    again.id = id;
    assert!(claims.track(&second, &again, LEASE, at(31)));
    assert!(claims.with_entry(id, &first).is_none() && claims.with_entry(id, &second).is_some());
}

/// Its node is there, with this number.
fn created(claims: &mut Claims, number: u32) -> (ClaimId, Node) {
    let (id, entry) = claimed(claims, 30);
    let entry = entry.as_created(number, 7);
    claims.created(id, &entry);
    (id, entry)
}

fn path(entry: &Node) -> Arc<str> {
    entry.created().unwrap().0.clone()
}

fn waiting(claims: &mut Claims, id: ClaimId, followed: &Node) -> (Hint, watch::Sender<()>) {
    let (hint, (open, connection)) = (Hint::default(), watch::channel(()));
    let (who, watched, watches) = (Contention::unknown(), Vec::new(), JoinSet::new());
    let followed = vec![claims.follow(&path(followed), id, &hint).unwrap()];
    let wait = Wait { who, watched, followed, looks: 0, hint: hint.clone(), connection, _watches: watches };
    claims.tracked.get_mut(&id).unwrap().wait = Some(Box::new(wait));
    (hint, open)
}

/// It was released, and that was answered.
fn released(claims: &mut Claims, id: ClaimId, entry: &Node) -> Vec<ClaimId> {
    claims.abandon(id);
    claims.removed(id, entry, false)
}

fn known(claims: &mut Claims, id: ClaimId) -> &'static str {
    match claims.tracked.get_mut(&id).unwrap().known() {
        Known::Held => "held",
        Known::Waits(..) => "waits",
        Known::First => "first",
        Known::Unknown => "unknown",
    }
}

/// What is known of a hold that was alone is known of those before it, too. Of any other it is not.
#[test]
fn only_the_end_of_a_hold_that_was_alone_needs_no_look_at_the_queue() {
    for (mode, after) in
        [(Mode::Exclusive, "first"), (Mode::Shared, "unknown"), (Mode::Permits { n: 1, of: 1 }, "unknown")]
    {
        let mut claims = Claims::default();
        let ((holder, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
        let (_, _open) = waiting(&mut claims, id, &before);
        assert_eq!((claims.holds_as(&before, mode, false).len(), known(&mut claims, id)), (0, "waits"));
        assert_eq!(released(&mut claims, holder, &before), [id]);
        assert_eq!(known(&mut claims, id), after, "{mode:?}");
        assert!(released(&mut claims, holder, &before).is_empty());
    }
    // One that died while it waited.
    let mut claims = Claims::default();
    let ((first, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
    let (_, _open) = waiting(&mut claims, id, &before);
    assert_eq!((released(&mut claims, first, &before), known(&mut claims, id)), (vec![id], "unknown"));
}

/// A permit may be free, or not, when all that was waited for is gone: others hold some, or wait for more.
#[test]
fn a_waiter_for_permits_looks_at_the_queue_whatever_has_ended() {
    for (mode, after) in [(Mode::Permits { n: 1, of: 2 }, "unknown"), (Mode::Shared, "first")] {
        let mut claims = Claims::default();
        let ((holder, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
        claims.tracked.get_mut(&id).unwrap().stored.0 = mode;
        let (_, _open) = waiting(&mut claims, id, &before);
        claims.holds_as(&before, Mode::Exclusive, false);
        assert_eq!((released(&mut claims, holder, &before), known(&mut claims, id)), (vec![id], after), "{mode:?}");
    }
}

#[test]
fn a_waiter_reads_the_queue_after_a_downgrade_a_change_and_a_new_connection() {
    let mut claims = Claims::default();
    let ((_, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
    let (_, _open) = waiting(&mut claims, id, &before);
    assert_eq!((claims.holds_as(&before, Mode::Shared, true), known(&mut claims, id)), (vec![id], "unknown"));
    let (hint, _open) = waiting(&mut claims, id, &before);
    assert_eq!(known(&mut claims, id), "waits");
    hint.change();
    assert_eq!(known(&mut claims, id), "unknown");
    let (_, open) = waiting(&mut claims, id, &before);
    open.send_replace(());
    assert_eq!(known(&mut claims, id), "unknown", "the connection was abandoned");
    let (_, open) = waiting(&mut claims, id, &before);
    drop(open);
    assert_eq!(known(&mut claims, id), "unknown", "the connection was lost");
}

/// It may have been downgraded already: a reader behind it would wait for its end.
#[test]
fn who_comes_after_an_exclusive_grant_watches_the_holder() {
    for followed in [false, true] {
        let mut claims = Claims::default();
        let ((_, before), (id, _), (late, _)) =
            (created(&mut claims, 1), created(&mut claims, 2), created(&mut claims, 3));
        let _waits = followed.then(|| waiting(&mut claims, id, &before));
        claims.holds_as(&before, Mode::Exclusive, false);
        assert!(claims.follow(&path(&before), late, &Hint::default()).is_none());
        assert_eq!(claims.holds_as(&before, Mode::Exclusive, true).len(), usize::from(followed));
        assert!(claims.follow(&path(&before), late, &Hint::default()).is_none());
    }
}

/// Nothing else asks the server whether what a waiter follows is still there.
#[test]
fn a_waiter_looks_at_what_it_follows_at_each_eighth_time() {
    let mut claims = Claims::default();
    let ((_, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
    let (_, _open) = waiting(&mut claims, id, &before);
    let looked = (1..25).filter(|_| {
        let known = claims.tracked.get_mut(&id).unwrap().known();
        matches!(known, Known::Waits(_, nodes) if nodes == [path(&before)])
    });
    assert_eq!(looked.collect::<Vec<_>>(), [8, 16, 24]);
}

/// The node of a name that is used once, and seen by a try meanwhile.
#[test]
fn a_lock_s_node_that_is_gone_is_not_remembered() {
    let mut claims = Claims::default();
    let (id, entry) = created(&mut claims, 1);
    claims.seen("/a", true);
    claims.abandon(id);
    assert!(claims.exists("/a") && claims.bytes > 0);
    claims.removed(id, &entry, true);
    assert!(!claims.exists("/a") && claims.bytes == 0 && claims.is_idle());
}

#[test]
fn who_has_left_is_not_remembered() {
    let mut claims = Claims::default();
    let (first, before) = created(&mut claims, 1);
    for _ in 0..1_000 {
        let (id, entry) = created(&mut claims, 2);
        drop(waiting(&mut claims, id, &before));
        released(&mut claims, id, &entry);
    }
    assert_eq!(claims.own.len(), 1);
    let followers = &claims.own[&path(&before)].followers;
    assert!(followers.len() <= 4, "{}", followers.len());
    assert!(released(&mut claims, first, &before).is_empty() && claims.own.is_empty());
}

#[test]
fn a_session_takes_as_many_entries_as_a_packet_can_name() {
    let mut claims = Claims::default();
    let claim = || Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, LEASE, "");
    let node = Node::new("/leasehold/a", "lock-");
    let most = ROOM / node.bytes();
    assert!(most > 8_000);
    let taken = (0..most + 10).filter(|_| claims.track(&node, &claim(), LEASE, at(0))).count();
    assert_eq!(taken, most);
    let id = *claims.tracked.keys().next().unwrap();
    claims.abandon(id);
    assert!(!claims.track(&node, &claim(), LEASE, at(0)), "it may be there until its removal is answered");
    claims.removed(id, &node, false);
    assert!(claims.track(&node, &claim(), LEASE, at(0)));
}

/// Whatever the server has: who waits, who leaves, and whose creation was not answered keep their nodes.
#[test]
fn nodes_that_no_claim_has_are_abandoned_and_no_others() {
    let mut claims = Claims::default();
    let (_, waits) = created(&mut claims, 1);
    let (id, leaves) = created(&mut claims, 2);
    claims.abandon(id);
    let (_, unanswered) = claimed(&mut claims, 30);
    let stray = Node::new("/a", "lock-").as_created(4, 7);
    let nodes = [&waits, &leaves, &unanswered.as_created(3, 7), &stray].map(|node| path(node).to_string());
    let others = ["/.leasehold/0000000000000001-notify", "/a/lock-0000000005"].map(str::to_owned);
    let bytes = claims.bytes;
    for _ in 0..2 {
        claims.abandon_strays(nodes.iter().chain(&others).cloned());
        let abandoned: Vec<&Node> = claims.abandoned.values().flatten().collect();
        assert!(
            abandoned.len() == 2 && [&leaves, &stray].iter().all(|it| abandoned.iter().any(|left| left.is_same(it)))
        );
        assert_eq!(claims.bytes, bytes + stray.bytes());
    }
    let ids: Vec<ClaimId> = claims.abandoned.keys().copied().collect();
    ids.into_iter().for_each(|id| drop(claims.removed(id, &stray, false)));
    assert_eq!((claims.bytes, claims.abandoned.len(), claims.tracked.len()), (bytes, 1, 2));
}

#[test]
fn a_hold_is_found_by_its_place_and_its_number() {
    let mut claims = Claims::default();
    let ((id, entry), (_, other)) = (created(&mut claims, 1), created(&mut claims, 2));
    let number = NonZeroI64::new(9);
    claims.tracked.get_mut(&id).unwrap().held = number;
    let at = |entry: &Node, number| claims.holds(&Place::new(path(entry)), number);
    assert!(at(&entry, 9));
    assert!(!at(&entry, 8) && !at(&other, 9) && !at(&other, 0));
}

/// An answer that comes late takes nothing back.
#[test]
fn what_was_verified_last_counts() {
    let mut claims = Claims::default();
    let (id, _) = created(&mut claims, 1);
    let tracked = claims.tracked.get_mut(&id).unwrap();
    for (asked, verified) in [(at(50), at(50)), (at(40), at(50)), (at(60), at(60))] {
        tracked.verified(asked);
        assert_eq!(tracked.verified, verified);
    }
}
