//! The table of a session's claims, and the knowledge of places without a request.

use leasehold_core::backend::WaitPolicy;
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
    assert_eq!(
        claims.abandoned[&id]
            .iter()
            .filter(|left| left.is_same(&entry))
            .count(),
        1
    );
}

/// The hold's session is kept alive by other claims.
#[test]
fn a_hold_that_is_not_renewed_has_ended_when_it_is_abandoned() {
    let mut claims = Claims::default();
    let (id, entry) = claimed(&mut claims, 30);
    let mut liveness = Liveness::new(at(30), LEASE);
    for s in (40..120).step_by(10) {
        liveness.answered(at(s), at(s));
        let Some(tracked) = claims.with_entry(id, &entry) else {
            break;
        };
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
    assert_eq!(
        due(&claims),
        [Due::None, Due::None, Due::All, Due::All],
        "it came at 30"
    );
    claims.last_verified = Some(at(40));
    assert_eq!(due(&claims), [Due::None, Due::None, Due::None, Due::All]);
    claims.with_entry(id, &entry).unwrap().held = Some(NonZeroI64::MIN);
    assert_eq!(due(&claims), [Due::All; 4]);
    for _ in 0..3 {
        claimed(&mut claims, 30);
    }
    assert_eq!(
        due(&claims),
        [Due::Holds, Due::Holds, Due::Holds, Due::All],
        "one of four"
    );
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

/// A claim whose node was created with this number.
fn created(claims: &mut Claims, number: u32) -> (ClaimId, Node) {
    let (id, entry) = claimed(claims, 30);
    let entry = entry.as_created(number, 7);
    claims.created(id, &entry);
    (id, entry)
}

fn path(entry: &Node) -> Arc<str> {
    entry.created().unwrap().0.clone()
}

/// Lets the claim wait for the entry of `before`.
fn waiting(claims: &mut Claims, id: ClaimId, before: &Node) -> (Hint, watch::Sender<()>) {
    let (hint, (open, connection)) = (Hint::default(), watch::channel(()));
    let wait = Wait {
        who: Contention::unknown(),
        watched: vec![path(before)],
        hint: hint.clone(),
        connection,
        _watches: JoinSet::new(),
    };
    claims.tracked.get_mut(&id).unwrap().wait = Some(Box::new(wait));
    (hint, open)
}

fn known(claims: &mut Claims, id: ClaimId) -> &'static str {
    match claims.tracked.get_mut(&id).unwrap().known() {
        Known::Held => "held",
        Known::Waits(_) => "waits",
        Known::Unknown => "unknown",
    }
}

#[test]
fn a_waiter_reads_the_queue_after_a_change_and_a_new_connection() {
    let mut claims = Claims::default();
    let ((_, before), (id, _)) = (created(&mut claims, 1), created(&mut claims, 2));
    assert_eq!(known(&mut claims, id), "unknown");
    let (hint, _open) = waiting(&mut claims, id, &before);
    assert_eq!(known(&mut claims, id), "waits");
    hint.change();
    assert_eq!(known(&mut claims, id), "unknown");
    let (_, open) = waiting(&mut claims, id, &before);
    open.send_replace(());
    assert_eq!(
        known(&mut claims, id),
        "unknown",
        "the connection was abandoned"
    );
    let (_, open) = waiting(&mut claims, id, &before);
    drop(open);
    assert_eq!(known(&mut claims, id), "unknown", "the connection was lost");
}

/// The node of a name that is used once and that a try sees meanwhile.
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
fn a_session_takes_as_many_entries_as_a_packet_can_name() {
    let mut claims = Claims::default();
    let claim = || Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, LEASE, "");
    let node = Node::new("/leasehold/a", "lock-");
    let most = ROOM / node.bytes();
    assert!(most > 8_000);
    let taken = (0..most + 10)
        .filter(|_| claims.track(&node, &claim(), LEASE, at(0)))
        .count();
    assert_eq!(taken, most);
    let id = *claims.tracked.keys().next().unwrap();
    claims.abandon(id);
    assert!(
        !claims.track(&node, &claim(), LEASE, at(0)),
        "it may be there until its removal is answered"
    );
    claims.removed(id, &node, false);
    assert!(claims.track(&node, &claim(), LEASE, at(0)));
}

/// Whatever nodes the server has: claims that wait, that leave, and whose creation was not answered
/// keep their nodes.
#[test]
fn nodes_that_no_claim_has_are_abandoned_and_no_others() {
    let mut claims = Claims::default();
    let (_, waits) = created(&mut claims, 1);
    let (id, leaves) = created(&mut claims, 2);
    claims.abandon(id);
    let (_, unanswered) = claimed(&mut claims, 30);
    let stray = Node::new("/a", "lock-").as_created(4, 7);
    let nodes =
        [&waits, &leaves, &unanswered.as_created(3, 7), &stray].map(|node| path(node).to_string());
    let others = ["/.leasehold/0000000000000001-notify", "/a/lock-0000000005"].map(str::to_owned);
    let bytes = claims.bytes;
    for _ in 0..2 {
        claims.abandon_strays(nodes.iter().chain(&others).cloned());
        let abandoned: Vec<&Node> = claims.abandoned.values().flatten().collect();
        assert!(
            abandoned.len() == 2
                && [&leaves, &stray]
                    .iter()
                    .all(|it| abandoned.iter().any(|left| left.is_same(it)))
        );
        assert_eq!(claims.bytes, bytes + stray.bytes());
    }
    let ids: Vec<ClaimId> = claims.abandoned.keys().copied().collect();
    ids.into_iter()
        .for_each(|id| claims.removed(id, &stray, false));
    assert_eq!(
        (claims.bytes, claims.abandoned.len(), claims.tracked.len()),
        (bytes, 1, 2)
    );
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

/// A late answer takes nothing back.
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
