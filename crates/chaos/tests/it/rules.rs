//! Each rule of the checker finds what it is for, and no other rule finds it: without the rule it would be missed.

mod story;

use leasehold_chaos::Rule;

use self::story::{found, report};

/// What only this rule finds.
const FOUND: &[(Rule, &str)] = &[
    (Rule::Sense, "10 granted 1, 20 ends"),
    (Rule::Complete, "10 holds 1 x, 20 releases 1"),
    (
        Rule::Overlap,
        "10 holds 1 r, 20 holds 2 x, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        Rule::Resumed,
        "10 holds 1 x, 1500 holds 2 x, 1510 releases 2, 1520 uses 1, 1530 releases 1, 1600 ends",
    ),
    (
        Rule::Permits,
        "10 holds 1 2of3, 20 holds 2 2of3, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        Rule::Leaders,
        "10 holds 1 leader, 20 holds 2 leader, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        Rule::Downgraded,
        "10 holds 1 x, 15 downgrades 1, 20 holds 2 r, 25 releases 2, 30 holds 3 x, 40 releases 3, 50 releases 1, 60 ends",
    ),
    (Rule::StaleWrite, "10 accepts 7, 20 accepts 6, 30 ends"),
    (Rule::FreshWrite, "10 accepts 7, 20 rejects 7, 30 ends"),
    (
        Rule::TokenOrder,
        "10 asks 1 x, 11 granted 1 9, 20 releases 1, 30 asks 2 r, 31 granted 2 8, 40 releases 2, 50 ends",
    ),
    (
        Rule::TokenUnique,
        "10 asks 1 x, 10 asks 2 x, 11 granted 1 5, 20 releases 1, 21 granted 2 5, 30 releases 2, 40 ends",
    ),
    (
        Rule::TokenReentry,
        "10 holds 1 x owner=1, 20 holds 2 x owner=1, 30 releases 2, 40 releases 1, 50 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 20 asks 2 x, 30 releases 1, 400 granted 2, 410 releases 2, 5000 ends",
    ),
    (
        Rule::Forgotten,
        "10 holds 1 x, 20 asks 2 x, 30 releases 1, 5000 ends",
    ),
    // The one that was passed has a greater token: in that order they were granted.
    (
        Rule::Passed,
        "10 holds 1 x, 20 asks 2 x, 25 is-queued 2 @9, 30 asks 3 x, 40 releases 1, 42 granted 3, 50 releases 3, 52 granted 2 4, 60 releases 2, 70 ends",
    ),
    (
        Rule::BegunAfterDone,
        "10 does 1 1, 11 granted 1, 20 releases 1, 21 told 1 1 900, 30 does 2 1, 31 granted 2, 40 releases 2, 50 ends",
    ),
    (Rule::LateLoss, "10 holds 1 x, 1063 loses 1, 5000 ends"),
    (Rule::ValidInPast, "10 asks 1 x, 20 finds-over 1, 30 ends"),
    (
        Rule::Revived,
        "10 holds 1 x, 20 loses 1, 30 uses 1, 40 ends",
    ),
    (
        Rule::LostReleased,
        "10 holds 1 x, 20 loses 1, 30 releases 1, 40 ends",
    ),
    (
        Rule::ReleasedTwice,
        "10 holds 1 x, 20 releases 1, 30 is-released 1, 40 ends",
    ),
    (
        Rule::ReleasedTwice,
        "10 holds 1 x, 20 releases 1, 30 uses 1, 40 ends",
    ),
    (
        Rule::ReleasedTwice,
        "10 holds 1 x, 20 releases 1, 30 drops 1, 40 ends",
    ),
    (
        Rule::ForeignRelease,
        "10 holds 1 x, 20 releases 1 @2, 40 ends",
    ),
    (Rule::Left, "10 left 2 1, 40 ends"),
    (
        Rule::RefusedByNobody,
        "10 holds 9 x, 20 asks 1 x lock=a/b try, 21 busy 1, 30 releases 9, 40 ends",
    ),
    (
        Rule::ObservedOrder,
        "10 observes 1 5, 20 observes 1 5, 30 observes 1 4, 40 ends",
    ),
    (
        Rule::Growth,
        "10 had 1 100, 20 has 1 101, 30 has 1 102, 40 ends",
    ),
    (
        Rule::LateReturn,
        "5 holds 9 x, 10 asks 1 x until=100, 151 times-out 1, 160 releases 9, 5000 ends",
    ),
];

/// What is legal, and what a simpler checker would refuse.
const LEGAL: &[(&str, &str)] = &[
    (
        "a reader waits behind a writer who was there before, also once a reader holds",
        "10 holds 1 x, 12 asks 3 x, 15 asks 2 r, 20 is-queued 2 @9, 30 downgrades 1, 400 releases 1, 402 granted 3, 410 releases 3, \
        412 granted 2 4, 420 releases 2, 5000 ends",
    ),
    (
        "readers share",
        "10 holds 1 r, 20 holds 2 r, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        "a window ends when its release is called",
        "10 holds 1 x, 15 asks 2 x, 20 calls-release 1, 21 granted 2, 22 is-released 1, 30 releases 2, 40 ends",
    ),
    (
        "a turn of a claim from before the data was lost",
        "10 asks 1 x, 11 goes-by 1 77, 12 granted 1, 20 fault exclusion, 30 healed, 40 holds 3 x, 50 releases 1, \
        51 asks 2 x, 52 goes-by 2 77, 53 granted 2, 60 releases 2, 70 releases 3, 80 ends",
    ),
    (
        "a window ends with its validity",
        "10 holds 1 x, 1011 holds 2 x, 1012 loses 1, 1020 releases 2, 1100 ends",
    ),
    (
        "an owner re-enters",
        "10 holds 1 x owner=1, 20 asks 2 x owner=1, 21 granted 2 1, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        "its first guard may be released meanwhile",
        "10 holds 1 x owner=1, 20 asks 2 x owner=1, 21 releases 1, 23 granted 2 1, 40 releases 2, 50 ends",
    ),
    (
        "tokens of what was under way at once have no order",
        "10 asks 1 x, 11 asks 2 x, 12 granted 2 9, 20 releases 2, 22 granted 1 8, 30 releases 1, 40 ends",
    ),
    (
        "who has no token is compared with nobody",
        "10 asks 1 x, 11 granted 1 9, 20 releases 1, 30 asks 2 x, 31 granted 2 0, 40 releases 2, 50 asks 3 x, 51 granted 3 0, \
        60 releases 3, 70 asks 4 x, 71 granted 4 10, 80 releases 4, 90 ends",
    ),
    (
        "nor have those of readers",
        "10 asks 1 r, 11 granted 1 9, 12 asks 2 r, 13 granted 2 8, 20 releases 1, 30 releases 2, 40 ends",
    ),
    (
        "lost data",
        "10 holds 1 x, 20 fault exclusion, 30 healed, 40 holds 2 x, 50 uses 1, 60 releases 1, 70 releases 2, 80 ends",
    ),
    (
        "an older leader is seen where old data are there again",
        "10 observes 1 5, 20 fault exclusion, 30 healed, 35 observes 1 4, 40 ends",
    ),
    (
        "lost tokens",
        "10 asks 1 x, 11 granted 1 9, 12 releases 1, 13 accepts 9, 20 fault order, 30 healed, 40 holds 2 x, 42 accepts 2, 50 releases 2, 60 ends",
    ),
    (
        "tokens begin anew, and the resource knows nothing of it",
        "10 asks 1 x, 11 granted 1 9, 12 releases 1, 13 accepts 9, 20 fault order, 25 holds 2 x, 27 rejects 2, 30 releases 2, 40 healed, 50 holds 3 x, 52 rejects 3, 60 releases 3, 70 ends",
    ),
    (
        "who has left is in the way for a moment",
        "10 holds 1 x, 20 asks 2 x, 25 asks 3 x, 30 releases 1, 200 leaves 2, 440 granted 3, 450 releases 3, 5000 ends",
    ),
    (
        "who waits for two locks has the first one meanwhile",
        "10 holds 1 x, 15 asks 2 x try until=300, 20 asks 3 x, 30 releases 1, 250 times-out 2, 440 granted 3, 450 releases 3, 5000 ends",
    ),
    (
        "nobody is served while there is a fault",
        "10 holds 1 x, 20 asks 2 x, 25 fault nothing, 30 releases 1, 60000 ends",
    ),
    (
        "nor just after it",
        "10 holds 1 x, 20 asks 2 x, 25 fault nothing, 30 releases 1, 40 healed, 12000 ends",
    ),
    (
        "what is dropped is released later",
        "10 holds 1 x, 20 asks 2 x, 30 drops 1, 1100 granted 2, 1110 releases 2, 5000 ends",
    ),
    (
        "who was killed holds nothing",
        "10 holds 1 x, 20 killed 1 @0, 21 uses 1, 30 holds 2 x, 40 releases 2, 50 ends",
    ),
    (
        "a process that stood still is late",
        "10 holds 1 x, 2000 loses 1, 2001 stalled 1 980, 6000 ends",
    ),
    (
        "a call that stood still when it began is due later",
        "5 holds 9 x, 10 asks 1 x until=100, 60 stalled 1 55, 195 times-out 1, 210 releases 9, 5000 ends",
    ),
    (
        "so is a thread beside",
        "10 holds 1 x, 2000 loses-aside 1, 2001 stalled-aside 1 980, 6000 ends",
    ),
    (
        "a place that was seen too late is not passed",
        "10 holds 1 x, 20 asks 2 x, 30 asks 3 x, 31 is-queued 2, 40 releases 1, 42 granted 3, 50 releases 3, 52 granted 2 4, 60 releases 2, 70 ends",
    ),
    (
        "nor is one that its process could not renew",
        "10 holds 1 x, 20 asks 2 x, 25 is-queued 2, 26 stalled 2 20, 30 asks 3 x, 40 releases 1, 42 granted 3, 50 releases 3, 52 granted 2 4, 60 releases 2, 70 ends",
    ),
    (
        "nor by a re-entry whose answer comes after the release of who held",
        "10 holds 1 x owner=1, 15 asks 2 x, 16 is-queued 2 @9, 20 asks 3 x owner=1, 30 releases 1, 31 granted 3 1, 40 releases 3, 42 granted 2 4, 50 releases 2, 60 ends",
    ),
    (
        "a refusal because of somebody who came later",
        "10 asks 1 x try, 11 asks 2 x, 12 granted 2, 13 busy 1, 20 releases 2, 40 ends",
    ),
    (
        "a downgrade that is refused because of the loss",
        "10 holds 1 x, 20 loses 1, 30 downgrades 1, 40 calls-release 1, 41 is-not-released 1, 50 ends",
    ),
    (
        "a release that is refused because of the loss",
        "10 holds 1 x, 20 loses 1, 30 calls-release 1, 31 is-not-released 1, 40 ends",
    ),
];

/// The same stories, each a little further than its excuse goes.
const FURTHER: &[(Rule, &str)] = &[
    (
        Rule::Passed,
        "10 holds 1 x owner=1, 15 asks 2 x, 16 is-queued 2 @9, 20 asks 3 x owner=1, 30 releases 1, 31 granted 3 3, 40 releases 3, 42 granted 2 4, 50 releases 2, 60 ends",
    ),
    (
        Rule::ObservedOrder,
        "10 fault exclusion, 30 healed, 60000 observes 1 5, 60001 observes 1 4, 60002 ends",
    ),
    (
        Rule::TokenOrder,
        "10 asks 1 x, 11 granted 1 9, 20 releases 1, 30 asks 2 x, 31 granted 2 0, 40 releases 2, 50 asks 3 x, 51 granted 3 8, \
        60 releases 3, 90 ends",
    ),
    (
        Rule::Overlap,
        "10 holds 1 x, 20 asks 2 x, 21 granted 2 0, 40 releases 1, 50 releases 2, 90 ends",
    ),
    (
        Rule::Overlap,
        "10 holds 1 x, 1009 holds 2 x, 1012 loses 1, 1020 releases 2, 1100 ends",
    ),
    (
        Rule::Overlap,
        "10 holds 1 x owner=1, 20 holds 2 x owner=2, 30 releases 1, 40 releases 2, 50 ends",
    ),
    (
        Rule::Overlap,
        "10 holds 1 x, 20 fault exclusion, 30 healed, 40 holds 2 x, 50 holds 3 x, 60 releases 2, 70 releases 3, 80 ends",
    ),
    (
        Rule::TokenOrder,
        "10 asks 1 x, 11 goes-by 1 77, 12 granted 1, 20 fault exclusion, 30 healed, 40 holds 3 x, 50 releases 1, \
        52 releases 3, 54 asks 2 x, 55 goes-by 2 78, 56 granted 2, 60 releases 2, 80 ends",
    ),
    (
        Rule::TokenOrder,
        "10 asks 1 x, 11 goes-by 1 77, 12 granted 1, 20 releases 1, 40 holds 3 x, 45 releases 3, 51 asks 2 x, \
        52 goes-by 2 77, 53 granted 2, 60 releases 2, 80 ends",
    ),
    (
        Rule::Overlap,
        "10 holds 1 x, 20 fault exclusion, 30 healed, 40 holds 2 x, 9500 uses 2, 10031 uses 1, 10040 uses 1, 10050 releases 1, 10060 releases 2, 10070 ends",
    ),
    (
        Rule::Forgotten,
        "10 holds 1 x, 20 asks 2 x, 25 fault nothing, 30 releases 1, 40 healed, 12291 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 15 asks 3 x, 20 is-queued 3 @9, 25 asks 2 x try until=300, 30 releases 1, 250 times-out 2, 400 granted 3, \
        410 releases 3, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 15 asks 2 r, 20 is-queued 2 @9, 30 downgrades 1, 400 granted 2, 410 releases 2, 420 releases 1, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 20 asks 2 x, 25 asks 3 x, 30 releases 1, 200 leaves 2, 460 granted 3, 470 releases 3, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 20 asks 2 x, 25 is-queued 2 @9, 30 asks 3 x, 35 releases 1, 200 leaves 3, 320 granted 2, 330 releases 2, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 15 asks 2 x try until=300, 20 asks 3 x, 30 releases 1, 250 times-out 2, 501 granted 3, 510 releases 3, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 15 asks 2 x try, 20 asks 3 x, 30 releases 1, 250 busy 2, 440 granted 3, 450 releases 3, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 20 asks 2 x, 30 releases 1, 400 fault nothing, 410 healed, 420 granted 2, 430 releases 2, 5000 ends",
    ),
    (
        Rule::Stuck,
        "10 holds 1 x, 20 asks 2 x, 30 drops 1, 12291 granted 2, 12300 releases 2, 15000 ends",
    ),
    (
        Rule::LateReturn,
        "5 holds 9 x, 10 asks 1 x until=100, 60 stalled 1 55, 205 times-out 1, 210 releases 9, 5000 ends",
    ),
    (
        Rule::LateReturn,
        "5 holds 9 x, 10 asks 1 x until=100, 75 stalled 1 60, 160 times-out 1, 170 releases 9, 5000 ends",
    ),
    (
        Rule::LateLoss,
        "10 holds 1 x, 2000 loses 1, 2001 stalled 1 900, 6000 ends",
    ),
    (
        Rule::LateLoss,
        "10 holds 1 x, 2000 loses 1, 2001 stalled 2 980, 6000 ends",
    ),
    (
        Rule::LateLoss,
        "10 holds 1 x, 2000 loses-aside 1, 2001 stalled 1 980, 6000 ends",
    ),
    (
        Rule::LateLoss,
        "10 holds 1 x, 2000 loses 1, 2001 stalled-aside 1 980, 6000 ends",
    ),
];

#[test]
fn each_rule_finds_what_no_other_one_finds() {
    for (rule, story) in FOUND {
        assert_eq!(found(story, &[]), [*rule], "{story}");
        assert_eq!(found(story, &[*rule]), [], "without {rule:?}: {story}");
    }
    let untested = Rule::ALL
        .iter()
        .filter(|rule| FOUND.iter().all(|(found, _)| found != *rule));
    assert_eq!(untested.collect::<Vec<_>>(), Vec::<&Rule>::new());
}

#[test]
fn what_is_excused_is_not_found() {
    for (what, story) in LEGAL {
        assert_eq!(found(story, &[]), [], "{what}: {story}");
    }
}

#[test]
fn the_time_after_a_death_is_counted_for_who_waited() {
    let taken = |story: &str| {
        let report = report(story, &[]);
        let [all, calm] =
            [report.recovery, report.calm_recovery].map(|of| (of.len(), of.max() / 1_000_000));
        (all, calm)
    };
    let ((one, took), calm) =
        taken("10 holds 1 x, 20 asks 2 x, 30 killed 1 @0, 430 granted 2, 440 releases 2, 450 ends");
    assert!(one == 1 && (400..402).contains(&took) && calm == (one, took));
    let disturbed = "10 holds 1 x, 20 asks 2 x, 30 killed 1 @0, 40 fault nothing, 50 healed, 430 granted 2, 440 releases 2, 450 ends";
    assert_eq!(taken(disturbed), ((one, took), (0, 0)));
    let nobody =
        "10 holds 1 x, 30 killed 1 @0, 40 asks 2 x, 430 granted 2, 440 releases 2, 450 ends";
    assert_eq!(taken(nobody), ((0, 0), (0, 0)));
    let beside = "10 holds 1 r, 12 holds 3 r, 20 asks 2 x, 900 uses 1, 1100 killed 1 @0, 1500 releases 3, 1510 granted 2, 1520 releases 2, 1530 ends";
    assert_eq!(taken(beside), ((0, 0), (0, 0)));
    let kept = |until| {
        format!(
            "10 holds 1 x, 12 lasts 1 {until}, 20 asks 2 x, 30 killed 1 @0, 430 granted 2, 440 releases 2, 450 ends"
        )
    };
    assert_eq!(taken(&kept(400)), ((0, 0), (0, 0)));
    assert_eq!(taken(&kept(29)), ((one, took), calm));
}

#[test]
fn losses_are_counted_that_are_heard_of_beside_a_blocked_runtime() {
    let blocked = |story: &str| {
        let report = report(story, &[]);
        (
            report.lateness.len(),
            report.blocked.len(),
            report.blocked.max() / 1_000_000,
        )
    };
    let (losses, counted, late) =
        blocked("10 holds 1 x, 1052 loses-aside 1, 2000 stalled 1 1500, 6000 ends");
    assert!(losses == 1 && counted == 1 && (40..42).contains(&late));
    for not in [
        "loses 1, 2000 stalled 1 1500",
        "loses-aside 1",
        "loses-aside 1, 1100 stalled 1 50",
    ] {
        let story = format!("10 holds 1 x, 1052 {not}, 6000 ends");
        assert_eq!(blocked(&story), (1, 0, 0), "{not}");
    }
    let both = "10 holds 1 x, 1052 loses-aside 1, 1053 stalled-aside 1 900, 2000 stalled 1 1500, 6000 ends";
    assert_eq!(blocked(both), (1, 0, 0));
}

#[test]
fn writes_under_valid_holds_are_counted() {
    let held = |story| {
        let figures = report(story, &[]).figures;
        (figures.held_writes, figures.held_accepted)
    };
    assert_eq!(
        held("10 holds 7 x, 20 accepts 7, 30 releases 7, 40 ends"),
        (1, 1)
    );
    assert_eq!(
        held("5 accepts 9, 10 holds 7 x, 20 rejects 7, 30 releases 7, 40 ends"),
        (1, 0)
    );
    assert_eq!(
        held("10 holds 7 x, 20 releases 7, 30 accepts 7, 40 ends"),
        (0, 0)
    );
    assert_eq!(
        held("10 holds 7 x, 1020 accepts 7, 1030 loses 7, 6000 ends"),
        (0, 0)
    );
}

#[test]
fn a_place_is_not_renewed_by_a_process_that_stands_still_again_and_again() {
    let passed = |stalls: u64| {
        let stalls: String = (0..stalls)
            .map(|i| format!("{} stalled 2 16, ", 27 + 17 * i))
            .collect();
        let after = "1400 asks 3 x, 1410 releases 1, 1412 granted 3, 1420 releases 3, 1422 granted 2 4, 1430 releases 2, 1440 ends";
        found(
            &format!("10 holds 1 x, 20 asks 2 x, 25 is-queued 2, {stalls}1390 uses 1, {after}"),
            &[],
        )
    };
    assert_eq!((passed(78), passed(79)), (vec![Rule::Passed], vec![]));
}

#[test]
fn an_excuse_has_an_end() {
    for (rule, story) in FURTHER {
        assert_eq!(found(story, &[]), [*rule], "{story}");
    }
}
