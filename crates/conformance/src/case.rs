//! The table of cases.

use std::future::Future;
use std::pin::Pin;

use crate::cases::{
    at_once, cancel, cost, downgrade, election, exclusion, fence, floor, holding, hygiene,
    identity, input, lease, loss, modes, multi, names, once, permits, programs, reentry, runtimes,
    scale, shared, token, waiting,
};
use crate::context::{TestContext, Variant};
use crate::harness::Need;

/// One named case.
#[derive(Debug)]
pub struct Case {
    /// Group and name.
    pub name: &'static str,
    /// The promises (P) and clauses of `Backend` (S) that it judges.
    pub clauses: &'static str,
    /// The abilities that the harness must have.
    pub needs: &'static [Need],
    /// True if it also runs behind the faulty decorator.
    pub with_faults: bool,
    /// True if it runs alone, because its load would disturb cases that measure time.
    pub alone: bool,
    pub(crate) run: fn(TestContext) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Case {
    /// The variants in which it runs.
    pub fn variants(&self) -> impl Iterator<Item = Variant> + use<> {
        let boxed = (self.name == "exclusion/contenders").then_some(Variant::Boxed);
        let faulty = self.with_faults.then_some(Variant::Faulty);
        [Some(Variant::Bare), boxed, faulty].into_iter().flatten()
    }

    /// Returns its title in one variant.
    #[must_use]
    pub fn title(&self, variant: Variant) -> String {
        let suffix = match variant {
            Variant::Bare => "",
            Variant::Boxed => " (boxed)",
            Variant::Faulty => " (faulty)",
        };
        format!("{}{suffix}", self.name)
    }
}

/// `group::case: clauses, [needs], faults;` one line a case.
macro_rules! table {
    ($($group:ident::$case:ident: $clauses:literal, [$($need:ident),*], $faults:ident;)*) => {
        /// All cases. A store cannot choose among them.
        pub const CASES: &[Case] = &[$(Case {
            name: concat!(stringify!($group), "/", stringify!($case)),
            clauses: $clauses,
            needs: &[$(Need::$need),*],
            with_faults: table!(@faults $faults),
            alone: table!(@alone $faults),
            run: |ctx| Box::pin($group::$case(ctx)),
        },)*];
    };
    (@faults faulty) => { true };
    (@faults $other:ident) => { false };
    (@alone alone) => { true };
    (@alone $other:ident) => { false };
}

// `faulty`: with faults too. `clean`: only without faults, because the case counts, times, or makes faults of its own.
// `alone`: without faults, and while no other case runs.
table! {
    exclusion::contenders: "P1 P2", [], faulty;
    exclusion::counter: "P1 P2", [], alone;
    exclusion::two_of_one_client: "P1 S1", [], faulty;
    exclusion::try_says_who: "P8 S5", [], faulty;
    exclusion::claiming_again_is_idempotent: "S1 S3", [], clean;
    exclusion::a_failed_try_leaves_nothing: "S5 P9", [], clean;
    exclusion::fast_and_fair_together: "P1 P6", [Fair], faulty;
    exclusion::another_tool_is_waited_for: "P1 P8", [AnotherTool], clean;

    token::rises_across_release_and_eviction: "P2 S3", [], faulty;
    token::rises_across_expiry: "P2 S3", [], clean;
    token::rises_across_restart: "P2", [Private, Restart], clean;
    token::rises_across_data_loss: "P2", [Private, Wipe], clean;
    token::is_equal_within_a_hold: "P2 S1", [], faulty;
    token::is_reserved_for_each_turn: "P2 S3", [], clean;

    floor::says_whether_it_raises: "S16 S17", [], clean;
    floor::is_the_least_token: "P2 S3 S16", [Private, Floor], clean;
    floor::raises_a_hold: "P2 S3 S16", [Private, Floor], clean;
    floor::is_renewed_when_raised: "P3 S7 S16", [Private, Floor, Shared], clean;
    floor::is_that_of_a_waiter: "S3 S16", [Private, Floor], clean;
    floor::is_that_of_a_push: "S3 S16", [Private, Floor, PushedWake], clean;
    floor::raises_one_of_several: "S3 S16", [Private, Floor, Shared, Permits], clean;
    floor::raises_a_downgrade: "S11 S16", [Private, Floor, Downgrade, Shared], clean;
    floor::is_each_ones_own: "S12 S16", [Private, Floor, AtomicMulti], clean;
    floor::has_a_limit: "S16 S17", [Private, Floor], clean;
    floor::may_be_the_limit: "S3 S16 S17", [Private, Floor], clean;
    floor::is_raised_for_all_names: "S17", [Private, Raise], clean;
    floor::is_raised_for_those_who_wait: "S17", [Private, Floor], clean;
    floor::is_raised_across_a_restart: "S17", [Private, Restart, Raise], clean;
    floor::is_marked: "S17", [Private, Raise], clean;

    waiting::is_woken_by_a_release: "P5", [PushedWake], clean;
    waiting::is_in_order: "P6 S5", [Fair], clean;
    waiting::turns_do_not_starve_others: "P5 P6", [Fair], clean;
    waiting::is_woken_behind_one_that_gave_up: "P4 P5", [Fair, PushedWake], clean;
    waiting::gets_it_without_a_notification: "P5", [], clean;
    waiting::skips_the_dead: "P5 P6 S4", [], clean;
    waiting::a_dead_place_is_not_granted: "P1 P5 S4", [Fair], clean;
    waiting::outlives_what_its_client_forgot: "P4 P5 S4", [], clean;
    waiting::fast_never_passes_fair: "P6 S5", [Fair], clean;
    waiting::survives_a_dead_holder: "P5", [], clean;
    waiting::ends_at_its_deadline: "P8", [], faulty;
    waiting::names_the_holder_at_its_deadline: "P8", [Fair], clean;
    waiting::does_not_count_itself: "P8", [Fair], clean;
    waiting::that_gives_up_harms_no_other: "P4 P5", [], faulty;
    waiting::keeps_its_place: "P5 P6 S4", [Fair], clean;
    waiting::is_in_order_after_a_death: "P5 P6 S4", [Fair], clean;
    waiting::is_not_starved_by_refused_tries: "P5", [], clean;

    holding::outlives_its_ttl: "P3 S7", [], faulty;
    holding::is_confirmed_by_the_store: "P3", [], faulty;
    holding::ends_at_max_hold: "P3", [], faulty;
    holding::lasts_for_min_hold: "P4", [], faulty;
    holding::is_shared_by_its_owner: "P2", [], faulty;
    holding::runs_a_body: "P3 P4", [], faulty;
    holding::skips_a_body: "P8", [], faulty;
    holding::says_whether_min_hold_outlives_its_client: "S15", [], clean;
    holding::min_hold_outlives_its_client: "P4 S15", [MinHold], clean;
    holding::lapses_without_its_client: "P1 S15", [MinHold], clean;
    holding::lapses_for_those_who_wait: "P5 S15", [MinHold], clean;
    holding::lapses_beside_others: "S15", [MinHold, Shared, Permits], clean;
    holding::may_last_exactly: "P3 P4", [], clean;
    holding::min_hold_keeps_several_names: "P4 S15", [], clean;
    holding::bound_each_turn: "P3 P4", [], clean;
    holding::turn_is_one_for_its_owner: "P2 P5", [], clean;

    lease::is_as_long_as_a_renewal_says: "P1 S2 S7", [], clean;
    lease::is_as_long_as_a_renewal_says_in_every_mode: "P1 S2 S7", [Shared, Permits], clean;
    lease::is_renewed_beside_a_lost_one: "P1 P3 S7", [], clean;
    lease::is_each_ones_own: "P1 S2", [Shared], clean;
    lease::never_gets_shorter: "P1 S2 S13", [], clean;

    identity::is_one_of_all_clients: "P1 S18", [], clean;
    identity::of_another_store_grants_nothing: "P1 P2 P5 S18", [Detour], clean;
    identity::of_another_store_ends_no_hold: "P3 S18", [Detour], clean;

    loss::comes_before_another_grant_when_renewals_hang: "P1 P3", [], clean;
    loss::of_a_pushed_grant_comes_before_another_grant: "P1 P3 S2 S4", [], clean;
    loss::comes_before_another_grant_behind_a_black_hole: "P1 P3", [Link], clean;
    loss::comes_when_only_replies_are_lost: "P3", [Link], clean;
    loss::does_not_come_from_one_failed_renewal: "P3 S7", [], clean;
    loss::by_eviction_frees_the_next: "P3 P5", [], clean;
    loss::eviction_by_an_old_token_ends_no_hold: "P2 S6", [], clean;
    loss::by_deletion_is_noticed: "P3 S7", [DeleteHolder], clean;
    loss::is_not_undone_by_a_renewal: "P3 S7", [], clean;
    loss::leaves_the_successor_alone: "P3 S6", [], clean;
    loss::is_followed_by_a_new_hold: "P3", [], clean;
    loss::grant_under_an_aged_session: "P1 S2", [], clean;
    loss::repeated_claim_counts_from_what_extended: "P1 S2", [], clean;
    loss::is_told_by_the_next_renewal: "P3 S14", [DeleteHolder, OwnEntry], clean;
    loss::is_told_by_the_next_renewal_in_every_mode: "P3 S14", [DeleteHolder, OwnEntry, Shared, Permits], clean;
    loss::is_told_though_the_claim_waits_again: "P1 S14", [OwnEntry], clean;
    loss::by_eviction_at_any_moment_is_told: "P3 S14", [OwnEntry], clean;
    loss::by_eviction_before_the_answer_is_told: "P3 S14", [OwnEntry], clean;
    loss::by_eviction_of_any_turn: "P3 S6", [], clean;

    cancel::at_every_await_when_free: "P4 S6", [], faulty;
    cancel::at_every_await_when_held: "P4 S6", [], faulty;
    cancel::at_every_await_of_a_reader: "P4 S6", [Shared], faulty;
    cancel::at_every_await_of_permits: "P4 S6", [Permits], faulty;
    cancel::at_every_await_of_several_names: "P4 S6", [], faulty;
    cancel::after_a_lost_reply: "P4 S1 S6", [], clean;
    cancel::after_a_lost_reply_in_every_mode: "P4 S1 S6", [Shared, Permits], clean;
    cancel::withdraws_what_it_was_never_told: "P4 S6", [], clean;
    cancel::a_lost_release_reply: "P4 S6", [], clean;
    cancel::behind_a_cut_link: "P4 S9", [Link], clean;
    cancel::a_guard_frees_by_drop: "P4", [], faulty;
    cancel::many_guards_at_once: "P4 P9", [], faulty;
    cancel::outside_of_any_runtime: "P4", [], clean;

    runtimes::another_goes_on_after_an_end: "P5", [], clean;
    runtimes::another_goes_on_beside_one_not_driven: "P5", [], clean;
    runtimes::another_goes_on_beside_a_blocked_one: "P5", [], clean;

    once::runs_one_body: "P1 S19", [Once], faulty;
    once::is_told_to_each_kind_of_claim: "P2 P4 S19", [Once], clean;
    once::wakes_all_at_once: "P5 S19", [Once, PushedWake], clean;
    once::is_left_to_the_next_by_a_failure: "P5 S19", [Once], faulty;
    once::is_left_to_the_next_by_a_loss: "P2 P3 S19", [Once], clean;
    once::completes_again_with_one_answer: "S19", [Once], clean;
    once::records_nothing_without_a_hold: "S19", [Once], clean;
    once::compares_the_token_of_a_hold_taken_anew: "P2 S19", [Once], clean;
    once::outlives_a_lost_reply_and_its_caller: "P4 S19", [Once], clean;
    once::is_forgotten_by_its_token: "P2 S19", [Once], clean;
    once::ends_with_its_keep: "P2 S19", [Once], clean;
    once::counts_for_fires_up_to_its_own: "S19", [Once], clean;
    once::keeps_its_result: "P8 S19", [Once], clean;
    once::is_of_its_own_name: "P10 S8 S19", [Once], clean;
    once::shares_the_queue_with_locks: "P1 P2 P5 S19", [Once], clean;
    once::is_asked_for_by_one_task_of_a_client: "P4 P5 S19", [Once], clean;
    once::refuses_bad_input: "P8", [Once], clean;
    once::survives_a_restart: "P2 S19", [Once, Private, Restart], clean;

    names::do_not_interact: "P10 S8", [], clean;
    names::are_long: "P10 S8", [], clean;
    names::are_listed: "P10", [], clean;
    names::nest_in_namespaces: "P10", [], clean;
    names::show_who_holds_and_waits: "P8", [], clean;

    input::bad_names_and_words: "P8", [], clean;
    input::junk_in_the_store: "P8 S9", [Junk], clean;
    input::a_closed_store: "P8", [], clean;
    input::says_whether_it_does_work_once: "P8 S19", [], clean;

    shared::readers_and_writers: "P1 P2 S10", [Shared], faulty;
    shared::readers_share_and_a_writer_excludes: "P1 P8 S10", [Shared], faulty;
    shared::one_line_for_readers_and_writers: "P2 P6 S10", [Shared, Fair], faulty;
    shared::claiming_again_follows_the_line: "P6 S5 S10", [Shared, Fair], clean;
    shared::a_writer_that_gives_up_lets_readers_in: "P4 P5", [Shared, Fair, PushedWake], clean;
    shared::skips_the_dead: "P5 S4", [Shared], clean;
    shared::each_reader_is_renewed: "P3 S7", [Shared], faulty;
    shared::one_reader_is_evicted: "P3 S6", [Shared], clean;
    shared::a_renewal_extends_only_who_is_there: "P3 S7", [Shared], clean;
    shared::ends_and_runs_as_any_lock: "P3 P4", [Shared], faulty;

    downgrade::lets_readers_in_and_no_writer: "P1 P2 S11", [Downgrade, Shared, Fair], faulty;
    downgrade::wakes_readers_at_once: "P5 S11", [Downgrade, Shared, Fair, PushedWake], clean;
    downgrade::lasts: "P3 S11", [Downgrade, Shared], faulty;
    downgrade::is_not_undone_by_a_late_claim: "S3 S11", [Downgrade, Shared], clean;
    downgrade::is_for_the_granted_only: "P1 S11", [Downgrade, Shared, Fair], clean;
    downgrade::may_be_asked_again: "P8 S11", [Downgrade, Shared], clean;
    downgrade::is_refused_where_others_count_on_it: "P8 S11", [Downgrade, Shared], clean;
    downgrade::counts_from_what_extended: "P1 S2 S11", [Downgrade, Shared], clean;
    downgrade::is_renewed_as_it_is_now: "S14", [Downgrade, Shared], clean;

    permits::never_more_than_there_are: "P1 S10", [Permits], faulty;
    permits::are_held_together: "P1 P2 S10", [Permits], faulty;
    permits::many_are_not_passed_by_few: "P6 S10", [Permits, Fair], faulty;
    permits::any_holder_may_make_room: "P5 S10", [Permits, Fair], clean;
    permits::come_back_from_the_dead: "P5 S4", [Permits, Fair], clean;
    permits::of_another_count_are_refused: "P8 S10", [Permits, Fair], clean;
    permits::of_another_count_than_waiters_are_refused: "P8 S10", [Permits, Fair], clean;
    permits::of_no_sense_are_refused: "P8", [Permits], clean;
    permits::of_one_holder_are_evicted: "P3 S6", [Permits, Fair], clean;
    permits::end_and_run_as_any_lock: "P3 P4", [Permits], faulty;

    modes::stand_in_one_line: "P1 P2 P6 S10", [Shared, Permits, Fair], faulty;
    modes::wake_one_another: "P5 S10", [Shared, Permits, Fair, PushedWake], clean;
    modes::raise_one_anothers_tokens: "P2 S3", [Shared, Permits], clean;
    modes::are_each_claimed_idempotently: "S1 S3", [Shared, Permits], clean;

    election::has_one_leader_at_a_time: "P1 P2", [], faulty;
    election::is_handed_over_by_resigning: "P5 P8", [PushedWake], clean;
    election::is_observed: "P2 S1", [], faulty;
    election::is_observed_by_its_token: "P2", [], faulty;
    election::is_observed_apart_from_others: "P10", [], faulty;
    election::proclaims_nothing_after_loss: "P3 S6", [PushedWake], clean;
    election::proclaims_again_after_a_lost_reply: "P8 S1", [], clean;
    election::is_renewed_with_its_latest_value: "S14", [], clean;
    election::keeps_long_and_odd_values: "P8 S1", [Values], clean;
    election::is_lost_like_any_lease: "P1 P3", [], clean;
    election::refuses_bad_input: "P8", [], clean;

    multi::opposite_orders_do_not_deadlock: "P1 P5", [], faulty;
    multi::holds_each_of_them: "P2 P8", [], faulty;
    multi::takes_all_or_nothing: "P4 P8", [], faulty;
    multi::has_one_deadline: "P8", [], clean;
    multi::refuses_none_and_twice: "P8", [], clean;
    multi::is_lost_with_one_of_them: "P3", [], clean;
    multi::ends_and_runs_as_any_lock: "P3 P4", [], faulty;
    multi::says_whether_it_is_one_step: "S12", [], clean;

    at_once::is_not_seen_while_refused: "P4 P8 S12", [AtomicMulti], clean;
    at_once::is_not_seen_while_granted: "P1 S12", [AtomicMulti], clean;
    at_once::passes_no_waiter: "P6 P8 S12", [AtomicMulti], clean;
    at_once::is_refused_by_every_mode: "P1 S10 S12", [AtomicMulti, Shared, Permits], clean;
    at_once::is_idempotent: "S3 S12", [AtomicMulti], clean;
    at_once::repeated_counts_from_what_extended: "P1 S2 S12", [AtomicMulti], clean;
    at_once::after_a_lost_reply: "P4 S6 S12", [AtomicMulti], clean;
    at_once::each_is_renewed: "P3 S7", [AtomicMulti], clean;
    at_once::is_dropped_at_every_await: "P4 S6", [AtomicMulti], faulty;
    at_once::takes_as_many_as_it_says: "S12", [AtomicMulti], clean;

    reentry::a_writer_may_read_and_write: "P2", [Shared], faulty;
    reentry::a_reader_that_asks_to_write_is_refused: "P8", [Shared], faulty;
    reentry::passes_those_who_wait: "P5", [Shared], faulty;
    reentry::ends_with_the_hold: "P2 P3", [], clean;

    fence::refuses_a_paused_holder: "P2", [], clean;
    fence::lets_in_who_holds_and_not_who_did: "P2", [Fence], clean;
    fence::refuses_the_evicted: "P2 S6", [Fence], clean;
    fence::refuses_the_expired: "P2", [Fence], clean;
    fence::tells_names_of_one_step_apart: "P2 P10 S12", [Fence, AtomicMulti], clean;
    fence::goes_by_the_full_name: "P2 P10", [Fence], clean;
    fence::serves_every_mode: "P2 S10 S11", [Fence, Shared, Permits, Downgrade], clean;
    fence::serves_each_turn: "P2", [Fence], clean;
    fence::refuses_holders_of_another_store: "P2", [Fence, Private], clean;
    fence::knows_a_raised_hold: "P2 S16", [Fence, Private, Floor, Shared], clean;

    programs::follow_the_models: "P1 P2 P4 P5 P6 S3 S10 S11", [Shared, Permits, Downgrade, Fair], alone;

    cost::of_an_uncontended_cycle: "P7", [Private, Requests], alone;
    cost::of_a_hand_over: "P7", [Private, Requests, PushedWake, Fair], alone;
    cost::of_readers_and_writers: "P7", [Private, Requests, PushedWake, Shared, Fair], alone;
    cost::of_permits: "P7", [Private, Requests, PushedWake, Permits, Fair], alone;
    cost::of_several_names: "P7 S12", [Private, Requests, AtomicMulti], alone;
    cost::of_renewals: "P7", [Private, Requests], alone;

    hygiene::after_many_names: "P9", [Private, Footprint], clean;
    hygiene::after_many_failed_tries: "P9 S5", [Private, Footprint], clean;

    scale::waiters_of_one_client: "P3 P4 P5", [Private], alone;
    scale::idle_waiters_of_one_client: "P7", [Private, Requests], clean;
    scale::clients_of_one_name: "P1 P2 P5", [Private], alone;
    scale::names_used_once: "P9", [Private, Contents], clean;
    scale::locks_of_one_client: "P3 P7", [Private], alone;
    scale::memory_of_many_cycles: "P9", [Private, Heap], alone;
}
