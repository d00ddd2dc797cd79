//! Every state of each model within its bounds keeps its promises, and with one rule less the
//! checker finds what the rule prevents.
//!
//! What was seen is printed with `--nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests that say what they saw"
)]

mod bridge;
mod etcd;
mod queue;
mod redis;
mod redlock;
mod redlock_nodes;
mod turns;
mod zookeeper;

use std::fmt::Debug;
use std::hash::Hash;

use leasehold_models::{counterexample, visit_all};
use stateright::Model;

use bridge::{Bridge, Faults, Kind, Stage};
use etcd::Etcd;
use queue::Queue;
use redis::Redis;
use redlock::Redlock;
use redlock_nodes::{Changes, Program, RedlockNodes, Set, list};
use turns::Turns;
use zookeeper::Zookeeper;

// The promises, as the models name them.
const ONE_HOLDER: &str = "two clients never say at one instant that they are valid";
const KEPT: &str = "who says that it is valid is the holder in the store";
const TOKENS_RISE: &str = "each grant has a greater token than all before it";
const ENDS_IN_A_TTL: &str = "nothing is left a TTL after the last request for it was executed";
const NOT_PASSED_OVER: &str = "no release leaves the lock free beside a live waiter";
const DELETED_ENDS_IN_A_TTL: &str =
    "a hold that somebody else deleted is valid for no longer than a TTL";
const EVICTED_KNOWS: &str = "who has heard of its eviction is not valid";
const NOTHING_FORGOTTEN: &str = "nothing is in the store of which its client knows nothing";
const KNOWN_IN_ALL: &str =
    "who says that it is valid is the holder in each of its stores, by that token";
const NOBODY_STUCK: &str = "nobody waits where nothing will happen any more";
const ONE_LIST: &str = "no number has two lists of nodes";
const NOT_FOR_EVER: &str = "nobody gives its place up again and again";

/// The model keeps its promises everywhere.
fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let seen = visit_all(model).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {} states, {} steps deep", seen.states, seen.depth);
}

/// Without the rule this promise is broken.
fn breaks<M>(name: &str, model: M, promise: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + PartialEq + Hash + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    match counterexample(model, promise) {
        Some(steps) => println!("{name}: without it not so: {promise}\n{steps}"),
        None => panic!("{name}: without it the checker finds nothing against: {promise}"),
    }
}

fn redis(without: Option<redis::Rule>) -> Redis {
    Redis {
        clients: 3,
        ttl: 2,
        end: 4,
        claims: 2,
        renewals: 1,
        requests: 3,
        losses: 0,
        without,
    }
}

#[test]
fn redis_hands_over() {
    holds("redis", redis(None));
}

#[test]
fn redis_loses_its_data() {
    holds(
        "redis, data lost",
        Redis {
            losses: 1,
            clients: 2,
            ..redis(None)
        },
    );
}

#[test]
fn redis_needs_its_rules() {
    use redis::Rule::*;
    for (rule, promise) in [
        (PushNamesItsAttempt, ONE_HOLDER),
        (CountsFromTheSend, ONE_HOLDER),
        (RepeatExtends, ONE_HOLDER),
        (PlaceIsALease, ENDS_IN_A_TTL),
        (ReleaseNamesItsClaim, KEPT),
        (ReleaseHandsOver, NOT_PASSED_OVER),
    ] {
        breaks(&format!("redis, {rule:?}"), redis(Some(rule)), promise);
    }
    let lost = Redis {
        losses: 1,
        ..redis(Some(TokensFollowTheClock))
    };
    breaks("redis, TokensFollowTheClock", lost, TOKENS_RISE);
}

fn redlock(without: Option<redlock::Rule>) -> Redlock {
    Redlock {
        clients: 2,
        ttl: 2,
        end: 0,
        attempts: 2,
        attempts_of_one: 1,
        losses: 0,
        at_once: false,
        without,
    }
}

#[test]
fn redlock_agrees() {
    holds("redlock, two clients", redlock(None));
    let at_once = Redlock {
        at_once: true,
        clients: 3,
        attempts: 3,
        ..redlock(None)
    };
    holds("redlock, three clients", at_once.clone());
    holds(
        "redlock, leases",
        Redlock {
            clients: 2,
            attempts_of_one: 2,
            ttl: 1,
            end: 1,
            ..at_once
        },
    );
}

#[test]
fn redlock_needs_its_rules() {
    use redlock::Rule::*;
    let late = |rule| redlock(Some(rule));
    let at_once = |rule| Redlock {
        at_once: true,
        ..late(rule)
    };
    for (model, promise) in [
        (at_once(WriteBack), TOKENS_RISE),
        (
            Redlock {
                attempts: 3,
                attempts_of_one: 2,
                ..at_once(OnlyWhereItHolds)
            },
            TOKENS_RISE,
        ),
        (
            Redlock {
                attempts: 3,
                attempts_of_one: 2,
                ..late(ReleaseNamesItsAttempt)
            },
            ONE_HOLDER,
        ),
        (
            Redlock {
                end: 1,
                ttl: 1,
                ..late(CountsFromTheSend)
            },
            ONE_HOLDER,
        ),
        (at_once(Majority), ONE_HOLDER),
    ] {
        breaks(&format!("redlock, {:?}", model.without), model, promise);
    }
    // What the guarantees exclude.
    breaks(
        "redlock, a node loses its data",
        Redlock {
            losses: 1,
            ..redlock(None)
        },
        ONE_HOLDER,
    );
}

const AB: Set = list("ab");
const BC: Set = list("bc");
const BD: Set = list("bd");
const ABC: Set = list("abc");
const ABD: Set = list("abd");
const BCD: Set = list("bcd");
const ABCD: Set = list("abcd");
const ABCDE: Set = list("abcde");

const SAME: Changes = &[(ABC, ABC)];
const VIA_FOUR: Changes = &[(ABC, ABCD), (ABCD, BCD)];
const VIA_TWO: Changes = &[(ABC, AB), (AB, ABD)];
/// Another operator, who wants less nodes where `VIA_FOUR` wants more.
const LESS: Changes = &[(ABC, AB), (AB, ABD), (ABCD, ABC)];

const fn program(list: Set, lease: u8) -> Program {
    Program {
        list,
        lease,
        is_numbered: true,
        least: 0,
    }
}

const fn without_number(list: Set) -> Program {
    Program {
        is_numbered: false,
        ..program(list, 1)
    }
}

const fn programs(first: Set, second: Set) -> [Program; 2] {
    [program(first, 1), program(second, 1)]
}

/// One operator replaces a by d, by way of four nodes.
fn nodes(without: Option<redlock_nodes::Rule>) -> RedlockNodes {
    RedlockNodes {
        first: ABC,
        unnumbered: false,
        last: 2,
        programs: programs(ABC, BCD),
        wants: [VIA_FOUR, &[]],
        ballots: [2, 0],
        empties: 0,
        empties_from: 0,
        silent: false,
        lost: 0,
        releases: false,
        holds: None,
        down: Some(0),
        alike: &[],
        without,
    }
}

/// `OLD OLD`, twice: a node is emptied, listed as absent, and opened again.
fn emptied(without: Option<redlock_nodes::Rule>) -> RedlockNodes {
    RedlockNodes {
        programs: programs(ABC, ABC),
        wants: [SAME, &[]],
        empties: 1,
        silent: true,
        ..nodes(without)
    }
}

/// The list gets its first numbers, and its programs start then. A node is emptied after that.
fn first_numbers(without: Option<redlock_nodes::Rule>) -> RedlockNodes {
    let later = Program {
        least: 1,
        ..program(ABC, 1)
    };
    RedlockNodes {
        unnumbered: true,
        programs: [later; 2],
        empties_from: 1,
        ..emptied(without)
    }
}

/// Two operators at once, of whom one adds d and one removes c.
fn two_operators(without: Option<redlock_nodes::Rule>) -> RedlockNodes {
    RedlockNodes {
        last: 1,
        programs: programs(AB, ABCD),
        wants: [VIA_FOUR, LESS],
        ballots: [1, 1],
        ..nodes(without)
    }
}

/// One removes a, and one d. Two majorities of what they want need have no node in common.
fn two_removals(without: Option<redlock_nodes::Rule>) -> RedlockNodes {
    RedlockNodes {
        first: ABCD,
        last: 1,
        programs: programs(BCD, ABC),
        wants: [&[(ABCD, BCD)], &[(ABCD, ABC)]],
        ballots: [1, 1],
        ..nodes(without)
    }
}

#[test]
fn redlock_changes_its_nodes() {
    let via_four = RedlockNodes {
        alike: &[BC],
        ..nodes(None)
    };
    for (name, model) in [
        (
            "via four",
            RedlockNodes {
                ballots: [3, 0],
                down: Some(list("a")),
                ..via_four
            },
        ),
        (
            "via four, without a node that stays",
            RedlockNodes {
                down: Some(list("b")),
                ..nodes(None)
            },
        ),
        (
            "via four, a new node is silent to the next run",
            RedlockNodes {
                silent: true,
                down: Some(list("b")),
                ..nodes(None)
            },
        ),
        (
            "via four, leases",
            RedlockNodes {
                programs: [program(ABC, 2), program(BCD, 1)],
                releases: true,
                ..via_four
            },
        ),
        (
            "via four, answers lost",
            RedlockNodes {
                lost: 2,
                ..via_four
            },
        ),
        (
            "via two, without a dead node",
            RedlockNodes {
                programs: programs(ABC, ABD),
                wants: [VIA_TWO, &[]],
                ballots: [3, 0],
                down: Some(list("c")),
                alike: &[AB],
                ..nodes(None)
            },
        ),
        (
            "three changes",
            RedlockNodes {
                last: 3,
                programs: programs(ABC, BD),
                wants: [&[(ABC, ABCD), (ABCD, BCD), (BCD, BD)], &[]],
                ballots: [3, 0],
                ..nodes(None)
            },
        ),
        (
            "three to five",
            RedlockNodes {
                programs: programs(ABC, ABCDE),
                wants: [&[(ABC, ABCD), (ABCD, ABCDE)], &[]],
                ballots: [3, 0],
                down: Some(list("a")),
                alike: &[BC],
                ..nodes(None)
            },
        ),
        (
            "five to three",
            RedlockNodes {
                first: ABCDE,
                programs: programs(ABC, ABCDE),
                wants: [&[(ABCDE, ABCD), (ABCD, ABC)], &[]],
                alike: &[ABC],
                ..nodes(None)
            },
        ),
        (
            "tokens",
            RedlockNodes {
                holds: Some(3),
                ..via_four
            },
        ),
        (
            "a program without a number beside the next list",
            RedlockNodes {
                programs: [without_number(ABC), program(ABCD, 1)],
                ..via_four
            },
        ),
        (
            "a program without a number beside the list before",
            RedlockNodes {
                programs: [without_number(BCD), program(ABCD, 1)],
                ..via_four
            },
        ),
    ] {
        holds(&format!("nodes, {name}"), model);
    }
}

#[test]
fn redlock_operators_agree_on_its_nodes() {
    for (name, model) in [
        (
            "two operators want one change",
            RedlockNodes {
                wants: [VIA_FOUR, &[(ABCD, BCD)]],
                ballots: [2, 1],
                alike: &[BC],
                ..nodes(None)
            },
        ),
        (
            "two operators, via four",
            RedlockNodes {
                wants: [VIA_FOUR, LESS],
                ballots: [2, 1],
                alike: &[AB],
                ..nodes(None)
            },
        ),
        (
            "two operators, via two",
            RedlockNodes {
                programs: programs(ABC, ABD),
                wants: [VIA_FOUR, LESS],
                ballots: [1, 2],
                alike: &[AB],
                ..nodes(None)
            },
        ),
        (
            "two operators, two ballots each",
            RedlockNodes {
                ballots: [2, 2],
                down: Some(list("c")),
                alike: &[AB],
                ..two_operators(None)
            },
        ),
        (
            "two operators, a node is emptied",
            RedlockNodes {
                ballots: [2, 1],
                empties: 1,
                down: None,
                alike: &[AB],
                ..two_operators(None)
            },
        ),
        (
            "two operators, an answer lost",
            RedlockNodes {
                ballots: [2, 1],
                lost: 1,
                alike: &[AB],
                ..two_operators(None)
            },
        ),
        ("two removals", two_removals(None)),
        (
            "two operators give the first number",
            RedlockNodes {
                unnumbered: true,
                last: 1,
                programs: programs(ABC, ABC),
                wants: [SAME, SAME],
                ballots: [2, 1],
                alike: &[ABC],
                ..nodes(None)
            },
        ),
        (
            "first numbers, a node is emptied",
            RedlockNodes {
                ballots: [3, 0],
                alike: &[ABC],
                ..first_numbers(None)
            },
        ),
        (
            "first numbers, a node is emptied, two operators",
            RedlockNodes {
                wants: [SAME, SAME],
                ballots: [2, 1],
                alike: &[ABC],
                ..first_numbers(None)
            },
        ),
        (
            "first numbers, without a node",
            RedlockNodes {
                empties: 0,
                down: Some(list("a")),
                ..first_numbers(None)
            },
        ),
        (
            "first numbers, beside a program without one",
            RedlockNodes {
                unnumbered: true,
                programs: [without_number(ABC), program(ABCD, 1)],
                wants: [&[(ABC, ABC), (ABC, ABCD)], &[]],
                alike: &[ABC],
                ..nodes(None)
            },
        ),
    ] {
        holds(&format!("nodes, {name}"), model);
    }
    if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|on| on == "1") {
        for (name, model) in [
            (
                "via four, four ballots",
                RedlockNodes {
                    ballots: [4, 0],
                    alike: &[BC],
                    ..nodes(None)
                },
            ),
            (
                "via four, leases, three ballots",
                RedlockNodes {
                    programs: [program(ABC, 2), program(BCD, 1)],
                    ballots: [3, 0],
                    alike: &[BC],
                    ..nodes(None)
                },
            ),
            (
                "two operators, two changes",
                RedlockNodes {
                    last: 2,
                    ballots: [2, 1],
                    alike: &[AB],
                    ..two_operators(None)
                },
            ),
        ] {
            holds(&format!("nodes, {name}"), model);
        }
    }
}

#[test]
fn redlock_bears_an_emptied_node() {
    let emptied = RedlockNodes {
        alike: &[ABC],
        ..emptied(None)
    };
    for (name, model) in [
        (
            "absent and back",
            RedlockNodes {
                last: 3,
                ballots: [3, 0],
                ..emptied
            },
        ),
        (
            "emptied twice",
            RedlockNodes {
                last: 3,
                ballots: [3, 0],
                empties: 2,
                down: None,
                ..emptied
            },
        ),
        (
            "absent and back, two operators",
            RedlockNodes {
                wants: [SAME, SAME],
                ballots: [1, 1],
                ..emptied
            },
        ),
        (
            "absent and back, tokens",
            RedlockNodes {
                holds: Some(3),
                ..emptied
            },
        ),
        (
            "via four, emptied",
            RedlockNodes {
                empties: 1,
                alike: &[BC],
                ..nodes(None)
            },
        ),
    ] {
        holds(&format!("nodes, {name}"), model);
    }
}

#[test]
fn redlock_needs_its_rules_to_change_nodes() {
    use redlock_nodes::Rule::*;
    let of = |rule| nodes(Some(rule));
    let emptied = |rule| emptied(Some(rule));
    // A run for the first number stalls while another one gives it.
    let first_twice = |rule| RedlockNodes {
        wants: [SAME, SAME],
        ballots: [1, 1],
        ..first_numbers(Some(rule))
    };
    for (model, promise) in [
        (of(ClosesOld), ONE_HOLDER),
        (of(ClosesMajority), ONE_HOLDER),
        (of(RefusesFromClosing), ONE_HOLDER),
        (of(OperatorOpens), ONE_HOLDER),
        (of(Waits), ONE_HOLDER),
        (of(FoldsDeadlines), ONE_HOLDER),
        (of(RefusesNewer), ONE_HOLDER),
        (two_removals(Some(LearnsFromRecords)), ONE_HOLDER),
        (of(RefusesOlder), ONE_HOLDER),
        (emptied(RefusesWithoutRecord), ONE_HOLDER),
        (of(EveryAttempt), ONE_HOLDER),
        (
            RedlockNodes {
                programs: [program(ABC, 2), program(BCD, 1)],
                alike: &[BC],
                ..of(Renewals)
            },
            ONE_HOLDER,
        ),
        (emptied(ComparesNumbers), ONE_HOLDER),
        (emptied(AbsentFirst), ONE_HOLDER),
        (
            RedlockNodes {
                down: Some(list("b")),
                ..of(FreshAgain)
            },
            NOBODY_STUCK,
        ),
        (
            RedlockNodes {
                silent: true,
                down: Some(list("b")),
                ..of(FreshIfSilent)
            },
            NOBODY_STUCK,
        ),
        (
            RedlockNodes {
                empties: 2,
                alike: &[ABC],
                ..emptied(SameLife)
            },
            ONE_HOLDER,
        ),
        (emptied(EmptiedIsNotZero), ONE_HOLDER),
        (
            RedlockNodes {
                empties: 1,
                ..two_operators(Some(EmptiedHasNoVote))
            },
            ONE_LIST,
        ),
        (first_numbers(Some(FirstHearsAll)), ONE_HOLDER),
        (first_numbers(Some(FirstOnce)), ONE_HOLDER),
        (
            RedlockNodes {
                empties: 0,
                down: Some(list("a")),
                ..first_numbers(Some(FirstByAll))
            },
            NOBODY_STUCK,
        ),
        (first_twice(FirstKeepsText), ONE_HOLDER),
        (first_twice(FirstReadsAgain), ONE_HOLDER),
        (two_operators(Some(KeepsPromises)), ONE_LIST),
        (two_operators(Some(Adopts)), ONE_LIST),
        (two_operators(Some(EndsWhereOpen)), ONE_LIST),
        (two_removals(Some(KeepsPromises)), ONE_HOLDER),
        (two_removals(Some(Adopts)), ONE_HOLDER),
        (two_removals(Some(HasBallots)), NOBODY_STUCK),
        (
            RedlockNodes {
                last: 3,
                programs: programs(ABC, BD),
                wants: [&[(ABC, ABCD), (ABCD, BCD), (BCD, BD)], &[]],
                ballots: [3, 0],
                ..of(StartsWhenOpen)
            },
            ONE_HOLDER,
        ),
        (
            RedlockNodes {
                holds: Some(2),
                ..of(OpensWithToken)
            },
            TOKENS_RISE,
        ),
        (
            RedlockNodes {
                holds: Some(2),
                ..emptied(OpensWithToken)
            },
            TOKENS_RISE,
        ),
        (
            RedlockNodes {
                holds: Some(2),
                ..of(ResumesWithToken)
            },
            TOKENS_RISE,
        ),
        (
            RedlockNodes {
                last: 3,
                wants: [&[(ABC, ABCD), (ABCD, BCD), (BCD, BCD)], &[]],
                ballots: [3, 0],
                holds: Some(2),
                alike: &[BC],
                ..of(LearnsWithToken)
            },
            TOKENS_RISE,
        ),
    ] {
        breaks(&format!("nodes, {:?}", model.without), model, promise);
    }
    // Mistakes of those who change the lists, and what the guarantees exclude.
    for (name, model) in [
        (
            "two nodes at once",
            RedlockNodes {
                last: 1,
                programs: programs(ABC, ABD),
                wants: [&[(ABC, ABD)], &[]],
                ..nodes(None)
            },
        ),
        (
            "a program without a number, two lists away",
            RedlockNodes {
                programs: [without_number(ABC), program(BCD, 1)],
                ..nodes(None)
            },
        ),
        (
            "a node is emptied before it has a number",
            RedlockNodes {
                unnumbered: true,
                ..self::emptied(None)
            },
        ),
        (
            "a node is emptied while programs send the number 0",
            RedlockNodes {
                unnumbered: true,
                empties_from: 1,
                ..self::emptied(None)
            },
        ),
    ] {
        breaks(&format!("nodes, {name}"), model, ONE_HOLDER);
    }
}

fn etcd(without: Option<etcd::Rule>) -> Etcd {
    Etcd {
        clients: 2,
        ttl: 2,
        end: 4,
        elections: 1,
        deletions: 0,
        keep_alives: 1,
        without,
    }
}

#[test]
fn etcd_proves_holds() {
    holds("etcd", etcd(None));
}

#[test]
fn etcd_proves_holds_that_may_be_deleted() {
    holds(
        "etcd, deleted",
        Etcd {
            end: 3,
            deletions: 1,
            ..etcd(None)
        },
    );
}

#[test]
fn etcd_needs_its_rules() {
    use etcd::Rule::*;
    for (rule, deletions, promise) in [
        (OneTerm, 0, ONE_HOLDER),
        (ReadsTheLeader, 0, ONE_HOLDER),
        (KeysProve, 1, DELETED_ENDS_IN_A_TTL),
        (EvictionComesFirst, 1, EVICTED_KNOWS),
        (CountsFromTheRenewal, 0, ONE_HOLDER),
        (CountsFromTheClaim, 1, DELETED_ENDS_IN_A_TTL),
    ] {
        breaks(
            &format!("etcd, {rule:?}"),
            Etcd {
                deletions,
                ..etcd(Some(rule))
            },
            promise,
        );
    }
}

fn zookeeper(without: Option<zookeeper::Rule>) -> Zookeeper {
    Zookeeper {
        clients: 3,
        limits: [5, 4, 5],
        end: 7,
        requests: 3,
        connects: 1,
        faults: 1,
        deletions: 0,
        late: 0,
        without,
    }
}

#[test]
fn zookeeper_proves_holds() {
    holds("zookeeper", zookeeper(None));
}

#[test]
fn zookeeper_bears_late_connect_requests() {
    holds(
        "zookeeper, late",
        Zookeeper {
            clients: 2,
            late: 1,
            connects: 2,
            requests: 2,
            ..zookeeper(None)
        },
    );
}

#[test]
fn zookeeper_needs_its_rules() {
    use zookeeper::Rule::*;
    for (rule, promise) in [
        (LimitIsTakenOver, ONE_HOLDER),
        (LimitIsAskedFirst, ONE_HOLDER),
        (PromiseIsKept, ONE_HOLDER),
        (TouchIsReported, ONE_HOLDER),
        (ReadsVerifyNothing, ONE_HOLDER),
    ] {
        breaks(
            &format!("zookeeper, {rule:?}"),
            zookeeper(Some(rule)),
            promise,
        );
    }
    let deleted = Zookeeper {
        deletions: 1,
        ..zookeeper(Some(NodesProve))
    };
    breaks("zookeeper, NodesProve", deleted, DELETED_ENDS_IN_A_TTL);
}

fn queue(without: Option<queue::Rule>) -> Queue {
    Queue {
        clients: 3,
        claims: [2, 1],
        sends: 2,
        releases: 2,
        requests: 5,
        crashes: 1,
        without,
    }
}

#[test]
fn queue_bears_lost_replies() {
    holds("queue", queue(None));
}

#[test]
fn queue_needs_its_rules() {
    use queue::Rule::*;
    for (rule, promise) in [
        (RepeatNamesTheKey, NOTHING_FORGOTTEN),
        (DoubtClosesTheSession, NOTHING_FORGOTTEN),
        (DoubtStays, NOTHING_FORGOTTEN),
        (SecondReleaseCloses, KEPT),
        (ForgottenWhenReleased, KEPT),
    ] {
        breaks(&format!("queue, {rule:?}"), queue(Some(rule)), promise);
    }
}

fn turns(without: Option<turns::Rule>) -> Turns {
    Turns {
        clients: 3,
        plain: 0,
        claims: 1,
        deletions: 1,
        repeats: 1,
        without,
    }
}

#[test]
fn an_etcd_queue_is_handed_on() {
    holds("turns", turns(None));
    holds(
        "turns, keys used again",
        Turns {
            clients: 2,
            claims: 2,
            ..turns(None)
        },
    );
    holds(
        "turns, beside one that takes none",
        Turns {
            clients: 4,
            plain: 1,
            deletions: 0,
            repeats: 0,
            ..turns(None)
        },
    );
    holds(
        "turns, a longer line",
        Turns {
            clients: 4,
            deletions: 0,
            repeats: 0,
            ..turns(None)
        },
    );
}

#[test]
fn an_etcd_queue_needs_its_rules() {
    use turns::Rule::*;
    breaks(
        "turns, NamesTheNumber",
        Turns {
            claims: 2,
            ..turns(Some(NamesTheNumber))
        },
        ONE_HOLDER,
    );
    breaks(
        "turns, OneTransaction",
        Turns {
            clients: 4,
            ..turns(Some(OneTransaction))
        },
        KEPT,
    );
    breaks(
        "turns, LineHasNoGaps",
        Turns {
            clients: 4,
            plain: 1,
            ..turns(Some(LineHasNoGaps))
        },
        KEPT,
    );
    breaks(
        "turns, NamesTheFirst",
        turns(Some(NamesTheFirst)),
        ONE_HOLDER,
    );
}

/// Clients of each stage, and how often each acquires.
type Clients = &'static [(Stage, u8)];

const MIXED: Clients = &[(Stage::Bridge, 1), (Stage::One, 1), (Stage::Three, 1)];
const TWO_BRIDGES: Clients = &[(Stage::Bridge, 1), (Stage::Bridge, 1), (Stage::Three, 1)];
const AND_BACK: Clients = &[(Stage::Bridge, 2), (Stage::One, 2), (Stage::Three, 1)];

const NONE: Faults = Faults {
    ends: 0,
    crashes: 0,
    lost: 0,
    late: 0,
    cancels: 0,
    evictions: 0,
    jumps: 0,
};
const ENDS: Faults = Faults { ends: 1, ..NONE };
const JUMPS: Faults = Faults { jumps: 1, ..NONE };
const ENDS_LATE: Faults = Faults { late: 1, ..ENDS };
const ENDS_JUMPS: Faults = Faults { jumps: 1, ..ENDS };
const LATE: Faults = Faults {
    cancels: 1,
    ..ENDS_LATE
};
const DEATHS: Faults = Faults {
    crashes: 1,
    evictions: 1,
    ..JUMPS
};
const LOST: Faults = Faults { lost: 1, ..DEATHS };

const HOLDS: [Kind; 2] = [Kind::Holds; 2];
const TO_PLACES: [Kind; 2] = [Kind::Holds, Kind::Places];
const TO_HOLDS: [Kind; 2] = [Kind::Places, Kind::Holds];

/// Old is further than new.
fn bridge(without: Option<bridge::Rule>) -> Bridge {
    Bridge {
        clients: MIXED,
        kinds: HOLDS,
        marks: [3, 0],
        back: false,
        faults: NONE,
        without,
    }
}

fn moves(each: &[([Kind; 2], Clients, Faults)]) {
    for &(kinds, clients, faults) in each {
        let model = Bridge {
            kinds,
            clients,
            faults,
            back: clients == AND_BACK,
            ..bridge(None)
        };
        holds(&format!("bridge, {kinds:?} {clients:?} {faults:?}"), model);
    }
}

#[test]
fn a_fleet_moves() {
    moves(&[
        (HOLDS, MIXED, LATE),
        (HOLDS, MIXED, LOST),
        (HOLDS, TWO_BRIDGES, ENDS_LATE),
        (HOLDS, AND_BACK, ENDS_JUMPS),
        (TO_PLACES, MIXED, ENDS_LATE),
        (TO_PLACES, MIXED, DEATHS),
        (TO_PLACES, TWO_BRIDGES, ENDS_JUMPS),
        (TO_PLACES, AND_BACK, ENDS),
        (TO_HOLDS, MIXED, ENDS_LATE),
        (TO_HOLDS, MIXED, DEATHS),
        (TO_HOLDS, TWO_BRIDGES, ENDS_JUMPS),
        (TO_HOLDS, AND_BACK, ENDS),
    ]);
    if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some_and(|on| on == "1") {
        moves(&[
            (HOLDS, AND_BACK, ENDS_LATE),
            (TO_PLACES, MIXED, LATE),
            (TO_PLACES, MIXED, LOST),
            (TO_PLACES, TWO_BRIDGES, ENDS_LATE),
            (TO_HOLDS, MIXED, LATE),
            (TO_HOLDS, MIXED, LOST),
            (TO_HOLDS, AND_BACK, ENDS_LATE),
        ]);
    }
}

#[test]
fn a_fleet_needs_the_rules_of_the_bridge() {
    use bridge::Rule::*;
    let of = |rule| bridge(Some(rule));
    for (model, promise) in [
        (
            Bridge {
                clients: TWO_BRIDGES,
                ..of(OneOrder)
            },
            NOBODY_STUCK,
        ),
        (
            Bridge {
                clients: TWO_BRIDGES,
                faults: ENDS,
                ..of(WithdrawsFromNew)
            },
            NOBODY_STUCK,
        ),
        (
            Bridge {
                faults: ENDS,
                ..of(EarlierEnd)
            },
            ONE_HOLDER,
        ),
        (
            Bridge {
                marks: [0, 3],
                ..of(FloorInOld)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                faults: JUMPS,
                ..of(FloorInNew)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                faults: LATE,
                ..of(NeverLower)
            },
            TOKENS_RISE,
        ),
        (of(Seal), TOKENS_RISE),
        (
            Bridge {
                clients: AND_BACK,
                back: true,
                marks: [0, 3],
                ..of(Seal)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                kinds: TO_PLACES,
                ..of(Base)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                kinds: TO_HOLDS,
                marks: [0, 3],
                ..of(Base)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                kinds: TO_PLACES,
                faults: JUMPS,
                ..of(StandsAnew)
            },
            TOKENS_RISE,
        ),
        (
            Bridge {
                kinds: TO_HOLDS,
                clients: TWO_BRIDGES,
                ..of(RaisesByMore)
            },
            NOT_FOR_EVER,
        ),
        (of(NeverOneAndThree), ONE_HOLDER),
        (
            Bridge {
                clients: TWO_BRIDGES,
                faults: LATE,
                ..of(IdPerStay)
            },
            ONE_HOLDER,
        ),
    ] {
        breaks(&format!("bridge, {:?}", model.without), model, promise);
    }
}
