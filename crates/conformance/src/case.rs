//! The table of cases.

use std::future::Future;
use std::pin::Pin;

use crate::arena::Arena;
use crate::cases::{
    at_once, cancel, cost, downgrade, election, exclusion, fence, holding, hygiene, input, lease, loss, modes, multi,
    names, permits, programs, reentry, shared, token, waiting,
};
use crate::harness::Need;

/// One named case.
#[derive(Debug)]
pub struct Case {
    /// Group and name.
    pub name: &'static str,
    /// The promises (P) and clauses of the seam (S) that it judges.
    pub clauses: &'static str,
    /// What the harness must be able to do.
    pub needs: &'static [Need],
    /// Whether it also runs behind the faulty decorator.
    pub in_bad_weather: bool,
    /// Whether it runs alone, because its load would disturb what others time.
    pub alone: bool,
    pub(crate) run: fn(Arena) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// `group::case: clauses, [needs], weather;` one line a case.
macro_rules! table {
    ($($group:ident::$case:ident: $clauses:literal, [$($need:ident),*], $weather:ident;)*) => {
        /// Every case. A store cannot pick.
        pub const CASES: &[Case] = &[$(Case {
            name: concat!(stringify!($group), "/", stringify!($case)),
            clauses: $clauses,
            needs: &[$(Need::$need),*],
            in_bad_weather: table!(@weather $weather),
            alone: table!(@alone $weather),
            run: |arena| Box::pin($group::$case(arena)),
        },)*];
    };
    (@weather any) => { true };
    (@weather $other:ident) => { false };
    (@alone alone) => { true };
    (@alone $other:ident) => { false };
}

// `any`: in bad weather too. `fair`: only in fair weather, because the case counts, times, or makes its own weather.
// `alone`: in fair weather, and while no other case runs.
table! {
    exclusion::contenders: "P1 P2", [], any;
    exclusion::counter: "P1 P2", [], alone;
    exclusion::two_of_one_client: "P1 S1", [], any;
    exclusion::try_says_who: "P8 S5", [], any;
    exclusion::claiming_again_is_idempotent: "S1 S3", [], fair;
    exclusion::a_failed_try_leaves_nothing: "S5 P9", [], fair;
    exclusion::fast_and_fair_together: "P1 P6", [Fair], any;
    exclusion::another_tool_is_waited_for: "P1 P8", [AnotherTool], fair;

    token::rises_across_release_and_eviction: "P2 S3", [], any;
    token::rises_across_expiry: "P2 S3", [], fair;
    token::rises_across_restart: "P2", [Private, Restart], fair;
    token::rises_across_data_loss: "P2", [Private, Wipe], fair;
    token::is_equal_within_a_hold: "P2 S1", [], any;
    token::is_reserved_for_each_turn: "P2 S3", [], fair;

    waiting::is_woken_by_a_release: "P5", [PushedWake], fair;
    waiting::is_in_order: "P6 S5", [Fair], fair;
    waiting::turns_do_not_starve_others: "P5 P6", [Fair], fair;
    waiting::gets_it_without_a_notification: "P5", [], fair;
    waiting::skips_the_dead: "P5 P6 S4", [], fair;
    waiting::a_dead_place_is_not_granted: "P1 P5 S4", [Fair], fair;
    waiting::outlives_what_its_client_forgot: "P4 P5 S4", [], fair;
    waiting::fast_never_passes_fair: "P6 S5", [Fair], fair;
    waiting::survives_a_dead_holder: "P5", [], fair;
    waiting::ends_at_its_deadline: "P8", [], any;
    waiting::that_gives_up_harms_nobody: "P4 P5", [], any;
    waiting::keeps_its_place: "P5 P6 S4", [Fair], fair;
    waiting::is_in_order_after_a_death: "P5 P6 S4", [Fair], fair;
    waiting::is_not_starved_by_refused_tries: "P5", [], fair;

    holding::outlives_its_ttl: "P3 S7", [], any;
    holding::is_confirmed_by_the_store: "P3", [], any;
    holding::ends_at_max_hold: "P3", [], any;
    holding::lasts_for_min_hold: "P4", [], any;
    holding::is_shared_by_its_owner: "P2", [], any;
    holding::runs_a_body: "P3 P4", [], any;
    holding::skips_a_body: "P8", [], any;
    holding::many_at_once: "P3", [], alone;
    holding::outlives_a_crowd: "P3 P4", [Fair], alone;
    holding::says_whether_min_hold_outlives_its_client: "S15", [], fair;
    holding::min_hold_outlives_its_client: "P4 S15", [MinHold], fair;
    holding::lapses_without_its_client: "P1 S15", [MinHold], fair;
    holding::lapses_for_those_who_wait: "P5 S15", [MinHold], fair;
    holding::lapses_beside_others: "S15", [MinHold, Shared, Permits], fair;

    lease::is_as_long_as_a_renewal_says: "P1 S2 S7", [], fair;
    lease::is_as_long_as_a_renewal_says_in_every_mode: "P1 S2 S7", [Shared, Permits], fair;
    lease::is_renewed_beside_a_lost_one: "P1 P3 S7", [], fair;
    lease::is_each_ones_own: "P1 S2", [Shared], fair;
    lease::never_gets_shorter: "P1 S2 S13", [], fair;

    loss::comes_before_another_grant_when_renewals_hang: "P1 P3", [], fair;
    loss::of_a_pushed_grant_comes_before_another_grant: "P1 P3 S2 S4", [], fair;
    loss::comes_before_another_grant_behind_a_black_hole: "P1 P3", [Link], fair;
    loss::comes_when_only_replies_are_lost: "P3", [Link], fair;
    loss::does_not_come_from_one_failed_renewal: "P3 S7", [], fair;
    loss::by_eviction_frees_the_next: "P3 P5", [], fair;
    loss::eviction_by_an_old_token_harms_nobody: "P2 S6", [], fair;
    loss::by_deletion_is_noticed: "P3 S7", [DeleteHolder], fair;
    loss::is_not_undone_by_a_renewal: "P3 S7", [], fair;
    loss::leaves_the_successor_alone: "P3 S6", [], fair;
    loss::is_followed_by_a_new_hold: "P3", [], fair;
    loss::grant_under_an_aged_session: "P1 S2", [], fair;
    loss::repeated_claim_counts_from_what_extended: "P1 S2", [], fair;
    loss::is_told_by_the_next_renewal: "P3 S14", [DeleteHolder, OwnEntry], fair;
    loss::is_told_by_the_next_renewal_in_every_mode: "P3 S14", [DeleteHolder, OwnEntry, Shared, Permits], fair;
    loss::by_eviction_at_any_moment_is_told: "P3 S14", [OwnEntry], fair;
    loss::by_eviction_before_the_answer_is_told: "P3 S14", [OwnEntry], fair;
    loss::by_eviction_of_any_turn: "P3 S6", [], fair;

    cancel::at_every_await_when_free: "P4 S6", [], any;
    cancel::at_every_await_when_held: "P4 S6", [], any;
    cancel::at_every_await_of_a_reader: "P4 S6", [Shared], any;
    cancel::at_every_await_of_permits: "P4 S6", [Permits], any;
    cancel::at_every_await_of_several_names: "P4 S6", [], any;
    cancel::after_a_lost_reply: "P4 S1 S6", [], fair;
    cancel::after_a_lost_reply_in_every_mode: "P4 S1 S6", [Shared, Permits], fair;
    cancel::withdraws_what_it_was_never_told: "P4 S6", [], fair;
    cancel::a_lost_release_reply: "P4 S6", [], fair;
    cancel::behind_a_cut_link: "P4 S9", [Link], fair;
    cancel::a_guard_frees_by_drop: "P4", [], any;
    cancel::many_guards_at_once: "P4 P9", [], any;
    cancel::outside_of_any_runtime: "P4", [], fair;

    names::do_not_interact: "P10 S8", [], fair;
    names::are_long: "P10 S8", [], fair;
    names::are_listed: "P10", [], fair;
    names::nest_in_namespaces: "P10", [], fair;
    names::show_who_holds_and_waits: "P8", [], fair;

    input::bad_names_and_words: "P8", [], fair;
    input::junk_in_the_store: "P8 S9", [Junk], fair;
    input::a_closed_store: "P8", [], fair;

    shared::readers_and_writers: "P1 P2 S10", [Shared], any;
    shared::readers_share_and_a_writer_excludes: "P1 P8 S10", [Shared], any;
    shared::one_line_for_readers_and_writers: "P2 P6 S10", [Shared, Fair], any;
    shared::claiming_again_follows_the_line: "P6 S5 S10", [Shared, Fair], fair;
    shared::a_writer_that_gives_up_lets_readers_in: "P4 P5", [Shared, Fair, PushedWake], fair;
    shared::skips_the_dead: "P5 S4", [Shared], fair;
    shared::each_reader_is_renewed: "P3 S7", [Shared], any;
    shared::one_reader_is_evicted: "P3 S6", [Shared], fair;
    shared::a_renewal_extends_only_who_is_there: "P3 S7", [Shared], fair;
    shared::ends_and_runs_as_any_lock: "P3 P4", [Shared], any;

    downgrade::lets_readers_in_and_no_writer: "P1 P2 S11", [Downgrade, Shared, Fair], any;
    downgrade::wakes_readers_at_once: "P5 S11", [Downgrade, Shared, Fair, PushedWake], fair;
    downgrade::lasts: "P3 S11", [Downgrade, Shared], any;
    downgrade::is_not_undone_by_a_late_claim: "S3 S11", [Downgrade, Shared], fair;
    downgrade::is_for_the_granted_only: "P1 S11", [Downgrade, Shared, Fair], fair;
    downgrade::may_be_asked_again: "P8 S11", [Downgrade, Shared], fair;
    downgrade::is_refused_where_others_count_on_it: "P8 S11", [Downgrade, Shared], fair;
    downgrade::counts_from_what_extended: "P1 S2 S11", [Downgrade, Shared], fair;
    downgrade::is_renewed_as_it_is_now: "S14", [Downgrade, Shared], fair;

    permits::never_more_than_there_are: "P1 S10", [Permits], any;
    permits::are_held_together: "P1 P2 S10", [Permits], any;
    permits::many_are_not_passed_by_few: "P6 S10", [Permits, Fair], any;
    permits::any_holder_may_make_room: "P5 S10", [Permits, Fair], fair;
    permits::come_back_from_the_dead: "P5 S4", [Permits, Fair], fair;
    permits::of_another_count_are_refused: "P8 S10", [Permits, Fair], fair;
    permits::of_another_count_than_waiters_are_refused: "P8 S10", [Permits, Fair], fair;
    permits::of_no_sense_are_refused: "P8", [Permits], fair;
    permits::of_one_holder_are_evicted: "P3 S6", [Permits, Fair], fair;
    permits::end_and_run_as_any_lock: "P3 P4", [Permits], any;

    modes::stand_in_one_line: "P1 P2 P6 S10", [Shared, Permits, Fair], any;
    modes::raise_one_anothers_tokens: "P2 S3", [Shared, Permits], fair;
    modes::are_each_claimed_idempotently: "S1 S3", [Shared, Permits], fair;

    election::has_one_leader_at_a_time: "P1 P2", [], any;
    election::is_handed_over_by_resigning: "P5 P8", [PushedWake], fair;
    election::is_observed: "P2 S1", [], any;
    election::is_observed_by_its_token: "P2", [], any;
    election::is_observed_apart_from_others: "P10", [], any;
    election::proclaims_nothing_after_loss: "P3 S6", [PushedWake], fair;
    election::proclaims_again_after_a_lost_reply: "P8 S1", [], fair;
    election::is_renewed_with_its_latest_value: "S14", [], fair;
    election::keeps_long_and_odd_values: "P8 S1", [Values], fair;
    election::is_lost_like_any_lease: "P1 P3", [], fair;
    election::refuses_bad_input: "P8", [], fair;

    multi::opposite_orders_do_not_deadlock: "P1 P5", [], any;
    multi::holds_each_of_them: "P2 P8", [], any;
    multi::takes_all_or_nothing: "P4 P8", [], any;
    multi::has_one_deadline: "P8", [], fair;
    multi::refuses_none_and_twice: "P8", [], fair;
    multi::is_lost_with_one_of_them: "P3", [], fair;
    multi::ends_and_runs_as_any_lock: "P3 P4", [], any;
    multi::says_whether_it_is_one_step: "S12", [], fair;

    at_once::is_not_seen_while_refused: "P4 P8 S12", [AtomicMulti], fair;
    at_once::is_not_seen_while_granted: "P1 S12", [AtomicMulti], fair;
    at_once::passes_nobody: "P6 P8 S12", [AtomicMulti], fair;
    at_once::is_refused_by_every_mode: "P1 S10 S12", [AtomicMulti, Shared, Permits], fair;
    at_once::is_idempotent: "S3 S12", [AtomicMulti], fair;
    at_once::repeated_counts_from_what_extended: "P1 S2 S12", [AtomicMulti], fair;
    at_once::after_a_lost_reply: "P4 S6 S12", [AtomicMulti], fair;
    at_once::each_is_renewed: "P3 S7", [AtomicMulti], fair;
    at_once::is_dropped_at_every_await: "P4 S6", [AtomicMulti], any;
    at_once::takes_as_many_as_it_says: "S12", [AtomicMulti], fair;

    reentry::a_writer_may_read_and_write: "P2", [Shared], any;
    reentry::a_reader_that_asks_to_write_is_refused: "P8", [Shared], any;
    reentry::passes_those_who_wait: "P5", [Shared], any;
    reentry::ends_with_the_hold: "P2 P3", [], fair;

    fence::refuses_a_paused_holder: "P2", [], fair;
    fence::lets_in_who_holds_and_not_who_did: "P2", [Fence], fair;
    fence::refuses_the_evicted: "P2 S6", [Fence], fair;
    fence::refuses_the_expired: "P2", [Fence], fair;
    fence::tells_names_of_one_step_apart: "P2 P10 S12", [Fence, AtomicMulti], fair;
    fence::goes_by_the_full_name: "P2 P10", [Fence], fair;
    fence::serves_every_mode: "P2 S10 S11", [Fence, Shared, Permits, Downgrade], fair;
    fence::serves_each_turn: "P2", [Fence], fair;
    fence::refuses_holders_of_another_store: "P2", [Fence, Private], fair;

    programs::follow_the_models: "P1 P2 P4 P5 P6 S3 S10 S11", [Shared, Permits, Downgrade, Fair], alone;

    cost::of_an_uncontended_cycle: "P7", [Private, Requests], alone;
    cost::of_a_hand_over: "P7", [Private, Requests, PushedWake, Fair], alone;
    cost::of_readers_and_writers: "P7", [Private, Requests, PushedWake, Shared, Fair], alone;
    cost::of_permits: "P7", [Private, Requests, PushedWake, Permits, Fair], alone;
    cost::of_several_names: "P7 S12", [Private, Requests, AtomicMulti], alone;
    cost::of_renewals: "P7", [Private, Requests], alone;

    hygiene::after_many_names: "P9", [Private, Footprint], fair;
    hygiene::after_many_failed_tries: "P9 S5", [Private, Footprint], fair;
}
