//! The mistakes: what is broken, which case must notice, and by which words.

/// One mistake that a store's author could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Defect {
    CountsFromTheRepeat,
    CountsFromTheClaim,
    PushCountsFromNow,
    GrantsLessThanItSays,
    ReleasesByName,
    ReleasesOnlyWithAPlace,
    ForgetsToWithdraw,
    EvictsByName,
    GrantsToTheDead,
    SwallowsItsNotifications,
    StaysInItsRuntime,
    RestsOnItsNotifications,
    NeverSaysLost,
    RevivesTheLost,
    CriesWolf,
    PretendsToRenew,
    RestartsItsCounter,
    OneTokenForAll,
    NewTokenEachTime,
    NewIdEachTime,
    LosesTheLabel,
    AllWatchTheHead,
    ServesTheLastFirst,
    FastPassesFair,
    TryLeavesAPlace,
    WaitsForTheDead,
    RenewsTheForgotten,
    FoldsNames,
    ListsBackwards,
    ReadersExclude,
    ReadersPassWriters,
    ReadersShareAToken,
    ModesCountApart,
    ManyCountAsOne,
    FewPassMany,
    CountsMayDiffer,
    EvictsAllHolders,
    DowngradeQueuesAgain,
    DowngradeChangesTheToken,
    DowngradeNotifiesNoWaiter,
    LateClaimUndoesDowngrade,
    ProclaimChangesTheToken,
    CutsValues,
    GrantsAPart,
    TakesOneByOne,
    RefusesItself,
    NamesTheFirst,
    RenewsForLess,
    StopsAtTheLost,
    RepeatsAllFromNow,
    DowngradesFromNow,
    ShortestOfAll,
    SaysMoreTurns,
    WaitersAreNotRenewed,
    WaitersAreNotKept,
    TellsWhoWasThere,
    LastFirstAfterADeath,
    CutsNames,
    CountsOfHoldersOnly,
    EvictsByTheFirstToken,
    OlderShortens,
    ProvesTheSession,
    ForgetsEarlyEvictions,
    LapsesWithItsLease,
    RenewsWhatLapses,
    LapsesSilently,
    FenceBelieves,
    FenceGoesByTheEnd,
    KeepsATraceOfEachName,
    DowngradeEndsRenewal,
    RenewalUndoesDowngrade,
    IgnoresFloors,
    LateRequestLowers,
    ForgetsFloors,
    WaiterForgetsItsFloor,
    RaisesAnyHoldAlike,
    RaiseForgetsThoseWhoWait,
    RaiseLowers,
    MarksTheFirstTurn,
    NamesItselfAnew,
    GrantsWhatIsDone,
    TellsLocks,
    TellsNoWaiter,
    RecordsWithoutAHold,
    ComparesNoToken,
    AnswersAnyRecord,
    ForgetsWhoCompleted,
    RepeatExtends,
    ForgetsByName,
    CutsTheKeep,
    IgnoresFires,
    RefusesLongResults,
}

/// A mistake and its judge.
pub(crate) struct Sentence {
    pub(crate) defect: Defect,
    /// In words.
    pub(crate) what: &'static str,
    /// The case that must fail.
    pub(crate) case: &'static str,
    /// What its failure must say, so that it does not fail for another reason; `|` between alternatives.
    pub(crate) says: &'static str,
}

macro_rules! sentences {
    ($($defect:ident: $what:literal => $case:literal, $says:literal;)*) => {
        pub(crate) const SENTENCES: &[Sentence] = &[$(Sentence {
            defect: Defect::$defect, what: $what, case: $case, says: $says,
        },)*];
    };
}

sentences! {
    CountsFromTheRepeat: "a repeated claim is answered from memory, extends nothing, and counts from the repeat"
        => "loss/repeated_claim_counts_from_what_extended", "too early";
    CountsFromTheClaim: "a grant under a session counts from the claim, not from the session's last renewal"
        => "loss/grant_under_an_aged_session", "too early";
    PushCountsFromNow: "a pushed grant counts from the push, not from the attempt that it grew from"
        => "loss/of_a_pushed_grant_comes_before_another_grant", "said valid";
    GrantsLessThanItSays: "the server rounds the lease down, the answer says what was asked for"
        => "loss/comes_before_another_grant_when_renewals_hang", "said valid";
    ReleasesByName: "release deletes whatever is at the name, without comparing the owner"
        => "loss/leaves_the_successor_alone", "next.confirm()";
    ReleasesOnlyWithAPlace: "a claim whose answer was lost has no place, so its withdrawal does nothing"
        => "cancel/withdraws_what_it_was_never_told", "free of traces";
    ForgetsToWithdraw: "a waiter that leaves is not taken out of the queue"
        => "waiting/that_gives_up_harms_no_other", "Busy";
    EvictsByName: "evict frees the holder of the name, whatever the token"
        => "loss/eviction_by_an_old_token_ends_no_hold", "another hold was evicted";
    GrantsToTheDead: "the predecessor is gone, so the waiter is granted: no check whether its own place still lives"
        => "waiting/a_dead_place_is_not_granted", "expected a place in the queue";
    SwallowsItsNotifications: "a release wakes no waiter, although the store states that it does"
        => "waiting/is_woken_by_a_release", "the push of a release";
    SwallowsItsNotifications: "a release wakes no waiter, although the store states that it does"
        => "waiting/is_woken_behind_one_that_gave_up", "the push of a release";
    SwallowsItsNotifications: "a release wakes no waiter, although the store states that it does"
        => "modes/wake_one_another", "the push to waiter 0";
    RestsOnItsNotifications: "no notification, no renewal and no early second look tells a waiter that it is granted"
        => "waiting/gets_it_without_a_notification", "the poll of a waiter without notifications";
    NeverSaysLost: "renewals are answered as good after the entry is gone, and no notification tells of the eviction"
        => "loss/by_eviction_frees_the_next", "the evicted to hear of it";
    RevivesTheLost: "a renewal of something that is gone takes the lock anew"
        => "loss/is_not_undone_by_a_renewal", "came back";
    CriesWolf: "every second renewal says lost although the entry is there"
        => "holding/outlives_its_ttl", "lost:";
    PretendsToRenew: "a renewal is answered as good without a request"
        => "holding/outlives_its_ttl", "is_err()";
    RestartsItsCounter: "the token is a counter that the server loses with its data"
        => "token/rises_across_data_loss", "token > last";
    OneTokenForAll: "every holder gets the same token"
        => "token/rises_across_release_and_eviction", "> last";
    NewTokenEachTime: "each answer mints a token, also within one hold"
        => "token/is_equal_within_a_hold", "left == right";
    NewIdEachTime: "a repeated claim is created anew, without the id of the first"
        => "exclusion/claiming_again_is_idempotent", "expected a grant";
    LosesTheLabel: "claiming again while granted does not store the new label"
        => "exclusion/claiming_again_is_idempotent", "left == right";
    AllWatchTheHead: "when the first in the queue leaves, every waiter believes that it is next"
        => "exclusion/contenders", "two are inside|came after";
    ServesTheLastFirst: "the newest waiter is served first"
        => "waiting/is_in_order", "left == right";
    FastPassesFair: "a fast newcomer takes the lock before a live fair waiter"
        => "waiting/fast_never_passes_fair", "passed a fair place";
    TryLeavesAPlace: "a failed try stays in the queue"
        => "exclusion/a_failed_try_leaves_nothing", "left a place";
    WaitsForTheDead: "the place of a dead waiter never ends"
        => "waiting/skips_the_dead", "behind dead ones";
    RenewsTheForgotten: "a renewal keeps all places of its session alive, also those that are neither claimed nor renewed any more"
        => "waiting/outlives_what_its_client_forgot", "a forgotten place to end";
    FoldsNames: "names are encoded without regard to case"
        => "names/do_not_interact", "\"A\"";
    ListsBackwards: "lists come in no order"
        => "names/are_listed", "left == right";
    ReadersExclude: "a reader's claim is as exclusive as a writer's"
        => "shared/readers_share_and_a_writer_excludes", "a second reader";
    ReadersExclude: "a reader's claim is as exclusive as a writer's"
        => "programs/follow_the_models", "expected|should|waited";
    ReadersPassWriters: "a reader gets in beside readers although a writer waits before it"
        => "shared/one_line_for_readers_and_writers", "should have 1 holders";
    ReadersShareAToken: "all readers that hold together have the token of the first"
        => "shared/readers_share_and_a_writer_excludes", "share a token";
    ModesCountApart: "readers' tokens come from a counter of their own"
        => "modes/raise_one_anothers_tokens", "after Some";
    ManyCountAsOne: "a claim for several permits is counted as one"
        => "permits/never_more_than_there_are", "permits are out";
    FewPassMany: "a claim that fits is granted before a larger one that came first"
        => "permits/many_are_not_passed_by_few", "should have 1 holders";
    CountsMayDiffer: "a claim with another count of permits is taken as if it had given the number of the queue"
        => "permits/of_another_count_are_refused", "expected Invalid|the refusal";
    EvictsAllHolders: "evict finds the token among the holders, and ends all of them"
        => "shared/one_reader_is_evicted", "evicted too|was evicted";
    DowngradeQueuesAgain: "a downgrade is a release and a new claim at the end of the queue"
        => "downgrade/lets_readers_in_and_no_writer", "Lost";
    DowngradeChangesTheToken: "a downgrade mints a new token"
        => "downgrade/is_not_undone_by_a_late_claim", "keeps token and place";
    DowngradeNotifiesNoWaiter: "a downgrade notifies none of those whom it lets in"
        => "downgrade/wakes_readers_at_once", "the push of a downgrade";
    LateClaimUndoesDowngrade: "an exclusive claim that comes after the downgrade makes it exclusive again"
        => "downgrade/is_not_undone_by_a_late_claim", "exclusive again";
    ProclaimChangesTheToken: "claiming again with another label mints a new token"
        => "election/is_observed", "Lost";
    LosesTheLabel: "claiming again while granted does not store the new label"
        => "election/is_observed", "to see Some(\"two\")";
    CutsValues: "a value is cut as if it were a label"
        => "election/keeps_long_and_odd_values", "campaigned";
    GrantsAPart: "several names are taken until one is refused, and those before it are kept"
        => "at_once/passes_no_waiter", "a part was left";
    TakesOneByOne: "several names are taken one after the other, and given back if one is refused"
        => "at_once/is_not_seen_while_refused", "a part of them was seen|who stood in the way";
    RefusesItself: "several names that are claimed again by the same ids are found held"
        => "at_once/is_idempotent", "got Ok(Busy";
    NamesTheFirst: "a refusal of several names is about the first, whichever is held"
        => "at_once/passes_no_waiter", "left == right";
    RenewsForLess: "a renewal extends by less than it says"
        => "lease/is_as_long_as_a_renewal_says", "too early";
    RenewsForLess: "a renewal extends by less than it says"
        => "lease/is_as_long_as_a_renewal_says_in_every_mode", "too early";
    StopsAtTheLost: "after one of a batch that is lost, the rest are answered as good and not extended"
        => "lease/is_renewed_beside_a_lost_one", "too early";
    RepeatsAllFromNow: "several names that are claimed again count from the repeat, which extended nothing"
        => "at_once/repeated_counts_from_what_extended", "too early";
    DowngradesFromNow: "a downgrade counts from itself, and extends nothing"
        => "downgrade/counts_from_what_extended", "too early";
    ShortestOfAll: "all claims in one queue get the shortest lease among them"
        => "lease/is_each_ones_own", "too early";
    SaysMoreTurns: "a grant says that it has more turns than were reserved"
        => "token/is_reserved_for_each_turn", "was reserved";
    WaitersAreNotRenewed: "a renewal of a place in the queue is answered as good and extends nothing"
        => "waiting/keeps_its_place", "kept by renewing is passed|by renewing";
    WaitersAreNotKept: "a waiting place that is claimed again is looked at and not extended"
        => "waiting/keeps_its_place", "kept by claiming again is passed";
    TellsWhoWasThere: "a waiter that asks again is told who held the lock when it came"
        => "waiting/names_the_holder_at_its_deadline", "the second";
    LastFirstAfterADeath: "after an expiry, and only then, the newest waiter is first"
        => "waiting/is_in_order_after_a_death", "left == right";
    CutsNames: "names are cut at 300 bytes"
        => "names/are_long", "one is taken for another";
    CountsOfHoldersOnly: "the count of permits is compared with holders, not with those who wait"
        => "permits/of_another_count_than_waiters_are_refused", "expected Invalid";
    EvictsByTheFirstToken: "evict knows a hold by the token of its first turn only"
        => "loss/by_eviction_of_any_turn", "no hold was evicted|is one of";
    OlderShortens: "a renewal that was overtaken sets the end of the lease back to its own"
        => "lease/never_gets_shorter", "too early";
    ProvesTheSession: "a renewal is good as long as the client's session lives, whether the hold is there or not"
        => "loss/is_told_by_the_next_renewal", "has no entry any more";
    ProvesTheSession: "a renewal is good as long as the client's session lives, whether the hold is there or not"
        => "loss/is_told_by_the_next_renewal_in_every_mode", "has no entry any more";
    ForgetsEarlyEvictions: "an eviction that comes before the claim's own answer is not reported"
        => "loss/by_eviction_at_any_moment_is_told", "the evicted to hear of it|was not told";
    LapsesWithItsLease: "a hold that is given back for later is left to its lease"
        => "holding/lapses_without_its_client", "free after|a hold that lapses";
    RenewsWhatLapses: "a renewal that comes late puts off the end of what was given back for later"
        => "holding/lapses_without_its_client", "free after|a hold that lapses";
    LapsesSilently: "waiters behind a hold that lapses are notified only when its lease would have ended"
        => "holding/lapses_for_those_who_wait", "behind a hold that lapses";
    FenceBelieves: "the store's condition is what the holder believes"
        => "fence/refuses_the_evicted", "the evicted: Ok(true)";
    FenceGoesByTheEnd: "the store's condition finds the hold by the end of its name"
        => "fence/tells_names_of_one_step_apart", "Ok(true)";
    KeepsATraceOfEachName: "a release leaves a key that ends by itself, hours later"
        => "scale/names_used_once", "to leave no more than";
    DowngradeEndsRenewal: "a renewal of what was downgraded is answered as good and extends nothing"
        => "downgrade/lasts", "expected Contended|a confirmation";
    RenewalUndoesDowngrade: "a renewal writes the mode with which the hold began"
        => "downgrade/is_not_undone_by_a_late_claim", "a renewal made it exclusive again";
    IgnoresFloors: "a claim's floor is not looked at"
        => "floor/is_the_least_token", "is below the floor";
    LateRequestLowers: "a hold's token is set to the floor of its latest request"
        => "floor/raises_a_hold", "changed by";
    ForgetsFloors: "a floor raises the token of one grant, and not the counter behind it"
        => "floor/is_the_least_token", "what others see|after all before";
    WaiterForgetsItsFloor: "a waiter is granted with the floor of its first request"
        => "floor/is_that_of_a_waiter", "is below the floor";
    RaisesAnyHoldAlike: "whoever shares a lock is raised to the floor itself, as a sole holder is"
        => "floor/raises_one_of_several", "raised to one token";
    RaiseForgetsThoseWhoWait: "a raise reaches those who come, and not those who stand in a queue"
        => "floor/is_raised_for_those_who_wait", "of who waited, after";
    StaysInItsRuntime: "the client works only as long as the runtime is driven in which it was connected"
        => "runtimes/another_goes_on_after_an_end", "a new lock";
    StaysInItsRuntime: "the client works only as long as the runtime is driven in which it was connected"
        => "runtimes/another_goes_on_beside_one_not_driven", "a new lock";
    StaysInItsRuntime: "the client works only as long as the runtime is driven in which it was connected"
        => "runtimes/another_goes_on_beside_a_blocked_one", "a new lock";
    RaiseLowers: "the last raise counts, whatever was raised before"
        => "floor/is_raised_for_all_names", "the mark says what was raised";
    MarksTheFirstTurn: "the mark is the first token of the last grant, without its turns"
        => "floor/is_marked", "is before the last of";
    NamesItselfAnew: "each client has another identity of the store"
        => "identity/is_one_of_all_clients", "left == right";
    GrantsWhatIsDone: "a claim for work that is done is granted as a lock is"
        => "once/is_told_to_each_kind_of_claim", "expected|a claim|a try|a new claim";
    GrantsWhatIsDone: "a claim for work that is done is granted as a lock is"
        => "once/runs_one_body", "a body after done|two bodies|bodies";
    TellsLocks: "a lock of a name whose work is done is refused"
        => "once/is_told_to_each_kind_of_claim", "expected a grant";
    TellsNoWaiter: "a completion notifies none of those who wait"
        => "once/wakes_all_at_once", "the push of a completion";
    RecordsWithoutAHold: "a completion is written without a look at the hold"
        => "once/records_nothing_without_a_hold", "a hold|another";
    ComparesNoToken: "a completion compares the claim, and not the token of its hold"
        => "once/compares_the_token_of_a_hold_taken_anew", "the token of a hold before";
    AnswersAnyRecord: "a completion is answered with whichever record is there"
        => "once/records_nothing_without_a_hold", "whose work another has completed";
    ForgetsWhoCompleted: "a repeated completion is answered by the hold alone"
        => "once/completes_again_with_one_answer", "expected a completion";
    RepeatExtends: "a repeated completion is kept for longer"
        => "once/completes_again_with_one_answer", "extended the keep";
    ForgetsByName: "forget removes the record of a name, whatever the token"
        => "once/is_forgotten_by_its_token", "by another token";
    CutsTheKeep: "a record ends before its keep"
        => "once/ends_with_its_keep", "it ended after|it counts";
    IgnoresFires: "a record counts for every fire"
        => "once/counts_for_fires_up_to_its_own", "fire";
    RefusesLongResults: "a long result is refused when the work has ended"
        => "once/keeps_its_result", "Invalid";
}
