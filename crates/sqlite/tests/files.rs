//! The three files of a store that are deleted, replaced, restored, damaged, or somebody else's.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "files/begun.rs"]
mod begun;
#[path = "files/boot.rs"]
mod boot;
#[path = "files/completions.rs"]
mod completions;
#[path = "files/identity.rs"]
mod identity;
#[path = "files/replaced.rs"]
mod replaced;
#[path = "it/support/mod.rs"]
mod support;
#[path = "files/tokens.rs"]
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use begun::*;
use boot::*;
use identity::*;
use leasehold_core::backend::Moment;
use leasehold_core::{Error, ErrorKind, FencingToken, Guard, Loss, Store};
use replaced::*;
use support::*;
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let roles: &[Role] = &[
        ("hold", hold),
        ("open_and_try", open_and_try),
        ("hold_with_a_guardian", hold_with_a_guardian),
        ("say_how_it_opens", say_how_it_opens),
        ("open_as_a_foreign_program", open_as_a_foreign_program),
        ("draw_blocks", tokens::draw_blocks),
        ("say_what_is_done", completions::say_what_is_done),
    ];
    let tests: &[Test] = &[
        (
            "gone/any_of_them_is_loss_and_no_double_hold",
            any_of_them_is_loss,
        ),
        (
            "gone/a_stopped_holder_is_waited_for",
            a_stopped_holder_is_waited_for,
        ),
        (
            "gone/a_holder_that_begins_them_anew_is_waited_for",
            a_holder_that_begins_them_anew_is_waited_for,
        ),
        ("gone/a_waiter_gets_its_turn", a_waiter_gets_its_turn),
        (
            "gone/nobody_waits_for_who_holds_nothing",
            nobody_waits_for_who_holds_nothing,
        ),
        ("gone/again_and_again_and_never_two_hold", never_two_hold),
        (
            "other/a_copy_in_their_place_is_loss",
            a_copy_in_their_place_is_loss,
        ),
        (
            "other/a_copy_of_older_content_is_loss",
            a_copy_of_older_content_is_loss,
        ),
        (
            "other/moved_away_and_back_is_loss",
            moved_away_and_back_is_loss,
        ),
        (
            "other/moved_away_and_back_at_once_is_noticed",
            moved_away_and_back_at_once_is_noticed,
        ),
        (
            "other/a_file_of_other_locks_is_loss",
            a_file_of_other_locks_is_loss,
        ),
        (
            "other/a_cut_log_is_an_error_that_says_what_to_do",
            a_cut_log_is_an_error,
        ),
        ("other/a_hard_link_is_refused", a_hard_link_is_refused),
        (
            "other/files_mounted_alone_are_refused",
            files_mounted_alone_are_refused,
        ),
        ("gone/while_they_are_opened", replaced_while_they_are_opened),
        (
            "gone/new_files_are_in_use_when_they_are_found",
            new_files_are_in_use_when_they_are_found,
        ),
        (
            "gone/cleaned_before_they_are_moved",
            cleaned_before_they_are_moved,
        ),
        (
            "gone/nobody_begins_while_another_opens",
            nobody_begins_while_another_opens,
        ),
        (
            "other/no_index_is_opened_beside_another_file",
            no_index_is_opened_beside_another_file,
        ),
        (
            "gone/a_foreign_program_opens_them_meanwhile",
            a_foreign_program_opens_them_meanwhile,
        ),
        (
            "gone/a_foreign_program_is_slow_to_open_them",
            a_foreign_program_is_slow_to_open_them,
        ),
        (
            "gone/a_foreign_program_is_slower_than_all_clients",
            a_foreign_program_is_slower_than_all_clients,
        ),
        (
            "other/restored_beside_a_guardian",
            restored_beside_a_guardian,
        ),
        (
            "gone/begun_anew_beside_a_guardian",
            begun_anew_beside_a_guardian,
        ),
        (
            "gone/a_lease_taken_until_then_is_waited_for",
            a_lease_taken_until_then_is_waited_for,
        ),
        ("rows/deleted_by_hand_are_loss", deleted_rows_are_loss),
        ("boot/another_ones_holds_are_free", another_boot_is_free),
        (
            "boot/another_one_beside_a_lease_is_refused",
            another_boot_beside_a_lease_is_refused,
        ),
        ("boot/two_ids_on_one_machine", two_boot_ids_on_one_machine),
        ("boot/looking_begins_nothing", looking_begins_nothing),
        ("foreign/of_no_version_says_so", of_no_version_says_so),
        (
            "boot/another_ones_damage_is_begun_anew",
            another_boots_damage_is_begun_anew,
        ),
        ("boot/owner_and_rights_stay", owner_and_rights_stay),
        (
            "damage/is_an_error_and_stays",
            damaged_is_an_error_and_stays,
        ),
        (
            "foreign/is_refused_and_not_touched",
            of_somebody_else_is_refused,
        ),
        (
            "foreign/of_another_version_is_refused",
            of_another_version_is_refused,
        ),
        ("fifo/of_nobody_is_swept", fifo_of_nobody_is_swept),
        ("identity/is_kept_with_the_data", is_kept_with_the_data),
        (
            "identity/of_new_files_is_taken_over",
            of_new_files_is_taken_over,
        ),
        (
            "identity/of_another_place_is_compared",
            of_another_place_is_compared,
        ),
        (
            "identity/that_is_named_is_demanded",
            that_is_named_is_demanded,
        ),
        (
            "identity/is_given_to_an_earlier_file",
            is_given_to_an_earlier_file,
        ),
        (
            "tokens/rise_after_many_blocks_and_a_loss",
            tokens::rise_after_many_blocks_and_a_loss,
        ),
        (
            "tokens/blocks_end_near_the_clock",
            tokens::blocks_end_near_the_clock,
        ),
        (
            "completions/outlive_new_files_and_another_boot",
            completions::outlive_new_files_and_another_boot,
        ),
        (
            "completions/of_another_boot_end_by_the_wall_clock",
            completions::of_another_boot_end_by_the_wall_clock,
        ),
        (
            "completions/each_of_their_files_may_go",
            completions::each_of_their_files_may_go,
        ),
        (
            "completions/are_restored_with_their_file",
            completions::are_restored_with_their_file,
        ),
        (
            "completions/left_halfway_are_all_there",
            completions::left_halfway_are_all_there,
        ),
        (
            "completions/in_a_file_that_is_unfit_are_an_error",
            completions::in_a_file_that_is_unfit_are_an_error,
        ),
        (
            "completions/mounted_alone_are_refused",
            completions::mounted_alone_are_refused,
        ),
        (
            "completions/of_former_files_are_not_recorded",
            completions::of_former_files_are_not_recorded,
        ),
        (
            "completions/are_seen_by_who_only_looks",
            completions::are_seen_by_who_only_looks,
        ),
    ];
    support::main(roles, tests, false)
}

const TTL: Duration = Duration::from_secs(2);

fn beside(place: &Place, what: &str) -> PathBuf {
    place.folder().join(format!("locks.db{what}"))
}

fn all(place: &Place) -> [PathBuf; 3] {
    ["", "-wal", "-shm"].map(|what| beside(place, what))
}

async fn refused(path: &Path) -> Error {
    open(path)
        .await
        .err()
        .unwrap_or_else(|| panic!("{} was opened", path.display()))
}

/// A holder is told within one renewal, and no other client gets the lock before its guard is invalid.
async fn is_lost_before_another_gets_it(place: &Place, first: Guard) {
    let done = Moment::now();
    let new = store(place.path()).await.ttl(TTL);
    let told = async {
        let loss = first.lost().await;
        (loss, since(done))
    };
    let next = async {
        let second = new.lock("a").acquire().await.unwrap();
        assert!(!first.is_valid(), "two hold");
        assert!(second.fencing_token() > first.fencing_token());
        second
    };
    let ((loss, told), second) = tokio::join!(told, next);
    assert_eq!(
        loss,
        Loss::Gone,
        "it was told nothing: its lease ran out after {told:?}"
    );
    assert!(first.confirm().await.is_err() && second.confirm().await.is_ok());
    let _ = first.release().await;
    assert!(second.confirm().await.is_ok());
    second.release().await.unwrap();
}

/// As a cleaner of old files does: main file, log, index, or several of them.
fn any_of_them_is_loss() {
    run(async {
        let mut all_subsets = JoinSet::new();
        for subset in 1..8usize {
            all_subsets.spawn(async move {
                let place = Place::new();
                let old = store(place.path()).await.ttl(TTL);
                let first = old.lock("a").acquire().await.unwrap();
                let chosen = all(&place)
                    .into_iter()
                    .enumerate()
                    .filter(|(i, _)| subset & (1 << i) != 0);
                chosen.for_each(|(_, file)| fs::remove_file(file).unwrap());
                is_lost_before_another_gets_it(&place, first).await;
                // All are in one queue again.
                let guard = old.lock("a").acquire().await.unwrap();
                let others = store(place.path()).await;
                assert!(
                    others
                        .lock("a")
                        .try_acquire()
                        .await
                        .is_err_and(|e| e.is_contended()),
                    "subset {subset}"
                );
                guard.release().await.unwrap();
            });
        }
        while let Some(done) = all_subsets.join_next().await {
            done.unwrap();
        }
    });
}

/// Holds a lock; on cue says whether it still does.
fn hold(words: &[String]) {
    let [locks, name, ttl] = words else {
        unreachable!()
    };
    run(async {
        let guard = store(locks)
            .await
            .lock(name)
            .ttl(ms(ttl.parse().unwrap()))
            .acquire()
            .await
            .unwrap();
        say("held");
        while tokio::task::spawn_blocking(await_cue).await.unwrap() {
            say(if guard.confirm().await.is_ok() {
                "valid"
            } else {
                "lost"
            });
        }
    });
}

/// Nobody can tell it anything, so its lease has to end, though not a byte of it is left; and no longer than that is waited.
fn a_stopped_holder_is_waited_for() {
    let place = Place::new();
    run(async {
        let mut holder = Actor::start("hold", &[&place.word(), "a", "3000"]);
        holder.says("held");
        let held = Moment::now();
        holder.signal("STOP");
        for file in fs::read_dir(place.folder()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let gone = Moment::now();
        let here = store(place.path()).await.ttl(TTL);
        let busy = here.lock("a").try_acquire().await;
        assert!(
            busy.is_err_and(|e| e.is_contended()) && since(held) < ms(3000),
            "a machine too slow to say"
        );
        // For any name: nobody knows which it was. In no step of a `multi` either.
        assert!(
            here.multi_lock(["b", "c"])
                .try_acquire()
                .await
                .is_err_and(|e| e.is_contended())
        );
        let guard = here.lock("a").acquire().await.unwrap();
        assert!(since(gone) >= ms(2900), "granted after {:?}", since(gone));
        drop(here.lock("b").try_acquire().await.unwrap());
        holder.signal("CONT");
        holder.cue();
        holder.says("lost");
        assert!(guard.confirm().await.is_ok());
        // A stopped one that has been waited for once is not waited for again: the file is not new any more.
        let mut stopped = Actor::start("hold", &[&place.word(), "z", "30000"]);
        stopped.says("held");
        stopped.kill();
        drop(
            store(place.path())
                .await
                .lock("z")
                .try_acquire()
                .await
                .unwrap(),
        );
    });
}

/// The holder's own client may be the first to see that they are gone, and its runtime may stand still just then: nobody has told the
/// guard.
fn a_holder_that_begins_them_anew_is_waited_for() {
    let place = Place::new();
    let program = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (here, first) = program.block_on(async {
        let here = store(place.path()).await.ttl(TTL);
        let first = here.lock("a").acquire().await.unwrap();
        (here, first)
    });
    all(&place)
        .iter()
        .for_each(|file| fs::remove_file(file).unwrap());
    assert!(
        program
            .block_on(here.lock("b").inspect())
            .unwrap()
            .holders
            .is_empty()
    );
    run(async {
        let second = store(place.path()).await.lock("a").acquire().await.unwrap();
        assert!(!first.is_valid(), "two hold");
        assert!(second.fencing_token() > first.fencing_token());
    });
}

/// A waiter in files that are gone waits in the new ones, and is granted.
fn a_waiter_gets_its_turn() {
    let place = Place::new();
    run(async {
        let (one, two) = (
            store(place.path()).await.ttl(TTL),
            store(place.path()).await.ttl(TTL),
        );
        let first = one.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(two.lock("a").acquire());
        while one.lock("a").inspect().await.unwrap().waiters.is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
        all(&place)[1..]
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        let second = waiter.await.unwrap().unwrap();
        assert!(!first.is_valid(), "two hold");
        second.release().await.unwrap();
    });
}

/// A new file grants at once if nobody lives who may hold something: an idle client is no reason to wait.
fn nobody_waits_for_who_holds_nothing() {
    let place = Place::new();
    run(async {
        let idle = store(place.path()).await.ttl(Duration::from_secs(3600));
        idle.lock("a")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let short = store(place.path())
            .await
            .ttl(TTL)
            .lock("b")
            .acquire()
            .await
            .unwrap();
        assert!(idle.lock("b").try_acquire().await.is_err());
        assert!(idle.multi_lock(["a", "b"]).try_acquire().await.is_err());
        short.release().await.unwrap();
        let other = place.folder().join("other.db");
        let _elsewhere = store(&other)
            .await
            .lock("a")
            .ttl(Duration::from_secs(3600))
            .acquire()
            .await
            .unwrap();
        all(&place)
            .iter()
            .for_each(|file| fs::remove_file(file).unwrap());
        store(place.path())
            .await
            .lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        idle.lock("a")
            .try_acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
}

/// Files that change while they are opened are tried again: their parts do not fit together, and nothing is damaged.
fn is_no_damage(e: &Error) {
    assert!(
        e.kind() != ErrorKind::Corrupt && !e.to_string().contains("changed by hand"),
        "{e}"
    );
}

/// Clients that come and go, and somebody who takes away some of the files again and again.
fn never_two_hold() {
    const TTL: Duration = Duration::from_millis(300);
    let place = Place::new();
    run(async {
        let end = Moment::now() + Duration::from_secs(4);
        let valid: Arc<Mutex<Vec<Arc<Guard>>>> = Arc::default();
        let mut clients = JoinSet::new();
        for _ in 0..6 {
            let (path, valid) = (place.path(), valid.clone());
            clients.spawn(async move {
                let mut grants = 0;
                while Moment::now() < end {
                    let Ok(client) = open(&path).await.inspect_err(is_no_damage) else {
                        continue;
                    };
                    let lock = Store::new(client).lock("a").ttl(TTL);
                    for _ in 0..4 {
                        let got = tokio::time::timeout(4 * TTL, lock.acquire()).await;
                        let Ok(Ok(guard)) = got.map(|got| got.inspect_err(is_no_damage)) else {
                            continue;
                        };
                        let guard = Arc::new(guard);
                        {
                            let mut valid = valid.lock().unwrap();
                            valid.retain(|other| other.is_valid());
                            // Asked in this order, so that one that ends just now is not taken for two.
                            let both = guard.is_valid()
                                && !valid.is_empty()
                                && valid.iter().any(|other| other.is_valid());
                            assert!(!both, "two hold: {guard:?} beside {valid:?}");
                            valid.push(guard.clone());
                        }
                        tokio::time::sleep(ms(fastrand::u64(0..TTL.as_millis() as u64))).await;
                        valid
                            .lock()
                            .unwrap()
                            .retain(|other| !Arc::ptr_eq(other, &guard));
                        grants += 1;
                        if let Some(guard) = Arc::into_inner(guard) {
                            let _ = guard.release().await;
                        }
                    }
                }
                grants
            });
        }
        let mut taken = 0;
        while Moment::now() < end {
            tokio::time::sleep(ms(fastrand::u64(50..900))).await;
            all(&place)
                .iter()
                .filter(|_| fastrand::bool())
                .for_each(|file| drop(fs::remove_file(file)));
            taken += 1;
        }
        let grants: usize = clients.join_all().await.into_iter().sum();
        println!("{grants} grants, files taken {taken} times");
        assert!(grants > 3, "nobody gets it any more");
    });
}
