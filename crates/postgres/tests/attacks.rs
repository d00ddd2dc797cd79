//! What somebody would try who wants two holders: verbs that meet in the midst, clocks that step, rows that are gone, types of others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::seam::{Backend, Claim, Claimed, ClaimedAll, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Name, Store};
use leasehold_postgres::HELD;
use leasehold_postgres::client::Client;
use support::*;

/// A renewal that has been executed, and is not committed yet.
async fn renewing(by: &Client, claim: &Claim) {
    let ttl = TTL.as_millis();
    let renew = format!("SELECT leasehold.renew_1(ARRAY['{}']::uuid[], '{{0}}', '{{{ttl}}}', 1, 1000)", claim.id);
    by.batch_execute(&format!("BEGIN; {renew}")).await.unwrap();
}

/// A function of the store waits for a row.
async fn waits_for_a_row(server: &Server, function: &str) {
    let waits = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.{function}(%' AND pid <> pg_backend_pid()"
    );
    until(async || server.number(&waits).await.unwrap() > 0).await;
}

/// When the lease of a claim ends, in microseconds.
async fn end_of(server: &Server, claim: &Claim) -> u64 {
    let end =
        format!("SELECT (extract(epoch FROM until) * 1000000)::int8 FROM leasehold.place WHERE claim = '{}'", claim.id);
    server.number(&end).await.unwrap()
}

/// As if all of it had been written two hours later, by a clock that was ahead.
async fn by_a_clock_that_was_ahead(server: &Server) {
    let shift = "UPDATE leasehold.place SET until = until + interval '2 hours', token = token + 7200000000;
                 UPDATE leasehold.lines SET token = token + 7200000000";
    server.query(shift).await.unwrap();
}

async fn sweep(server: &Server) {
    let sweep =
        "UPDATE leasehold.lines SET used = used - interval '1 hour'; UPDATE leasehold.meta SET swept = '-infinity';
                 SELECT leasehold.sweep_1(1000, 1000)";
    server.query(sweep).await.unwrap();
}

fn shared(name: &str, ttl: Duration) -> Claim {
    Claim::new(name, Mode::Shared, WaitPolicy::Fair, ttl, "reader")
}

/// Core claims again for `confirm`, beside the renewals.
#[tokio::test]
async fn a_claim_that_meets_a_renewal_shortens_nothing() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        for several in [false, true] {
            let mine = ["a", "b"].map(|name| claim(name, WaitPolicy::Try));
            let Ok(ClaimedAll::Granted(_)) = store.claim_all(&mine).await else { panic!("both are free") };
            renewing(&beside, &mine[1]).await;
            let (by, again) = (store.clone(), mine.clone());
            let claiming = tokio::spawn(async move {
                if several { by.claim_all(&again).await.map(drop) } else { by.claim(&again[1]).await.map(drop) }
            });
            waits_for_a_row(&server, if several { "claim_all_1" } else { "claim_1" }).await;
            // A renewal that began later than the claim: to its end the holder was told that it holds.
            sleep(300).await;
            renewing(&beside, &mine[1]).await;
            let late = beside.query_one("SELECT until::text FROM leasehold.place WHERE name = 'b'", &[]).await.unwrap();
            beside.batch_execute("COMMIT").await.unwrap();
            claiming.await.unwrap().unwrap();
            let until: String = late.get(0);
            let kept = format!("SELECT count(*) FROM leasehold.place WHERE name = 'b' AND until >= '{until}'");
            assert_eq!(server.number(&kept).await.unwrap(), 1, "{several}");
            for claim in &mine {
                store.release(claim, None).await.unwrap();
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_does_not_end_a_hold_that_is_being_renewed() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        let mine = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, Duration::from_secs(2), "first");
        let token = granted(&*store, &mine).await.token;
        renewing(&beside, &mine).await;
        let past =
            format!("SELECT count(*) FROM leasehold.place WHERE claim = '{}' AND until < clock_timestamp()", mine.id);
        until(async || server.number(&past).await.unwrap() == 1).await;
        let (by, again) = (store.clone(), mine.clone());
        let claiming = tokio::spawn(async move { by.claim(&again).await });
        waits_for_a_row(&server, "claim_1").await;
        beside.batch_execute("COMMIT").await.unwrap();
        let answer = claiming.await.unwrap().unwrap();
        // The renewal was executed before the end of the lease, and was answered so.
        assert!(matches!(&answer, Claimed::Granted(grant) if grant.token == token), "{answer:?}");
        // An eviction that meets one finds its hold, too.
        renewing(&beside, &mine).await;
        until(async || server.number(&past).await.unwrap() == 1).await;
        let by = store.clone();
        let evicting = tokio::spawn(async move { by.evict(&Name::from("a"), token).await });
        waits_for_a_row(&server, "evict_1").await;
        beside.batch_execute("COMMIT").await.unwrap();
        assert!(evicting.await.unwrap().unwrap());
    })
    .await;
}

/// The holder's lease ends while it waits for its own row: no second look may grant it what it is not told.
#[tokio::test]
async fn a_claim_is_told_what_it_was_granted() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        let mine = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, Duration::from_secs(1), "first");
        let next = claim("a", WaitPolicy::Fair);
        granted(&*store, &mine).await;
        waiting(&*store, &next).await;
        renewing(&beside, &next).await;
        let (by, again) = (store.clone(), next.clone());
        let claiming = tokio::spawn(async move { by.claim(&again).await });
        waits_for_a_row(&server, "claim_1").await;
        let past = "SELECT count(*) FROM leasehold.place WHERE token > 0 AND until < clock_timestamp()";
        until(async || server.number(past).await.unwrap() == 1).await;
        beside.batch_execute("COMMIT").await.unwrap();
        let answer = claiming.await.unwrap().unwrap();
        let waits = !store.inspect(&"a".into()).await.unwrap().waiters.is_empty();
        assert_eq!(waits, matches!(answer, Claimed::Waiting(_)), "{answer:?}");
    })
    .await;
}

/// A request of another client read the clock, and was stopped; meanwhile the holder renewed.
#[tokio::test]
async fn a_verb_that_is_late_takes_no_renewal_for_a_clock_that_stepped_back() {
    bounded(async {
        let server = server().await;
        let (store, beside) = (Arc::new(client(&server).await), program(&server).await);
        let (mine, next) = (claim("a", WaitPolicy::Fair), claim("a", WaitPolicy::Fair));
        let token = granted(&*store, &mine).await.token;
        waiting(&*store, &next).await;
        renewing(&beside, &next).await;
        let by = store.clone();
        let releasing = tokio::spawn(async move { by.release(&next, None).await });
        waits_for_a_row(&server, "release_1").await;
        sleep(200).await;
        assert!(matches!(renewed(&*store, &mine, token).await, Renewal::Renewed(_)));
        let end = end_of(&server, &mine).await;
        beside.batch_execute("COMMIT").await.unwrap();
        releasing.await.unwrap().unwrap();
        assert_eq!(end_of(&server, &mine).await, end);
    })
    .await;
}

#[tokio::test]
async fn who_renews_keeps_its_hold_and_its_place_when_the_clock_steps_back() {
    bounded(async {
        let server = server().await;
        let ttl = Duration::from_secs(3);
        let (one, two) = (Store::new(client(&server).await).ttl(ttl), Store::new(client(&server).await).ttl(ttl));
        let held = one.lock("a").acquire().await.unwrap();
        let waits = tokio::spawn(two.lock("a").acquire());
        until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
        // A waiter behind another one is looked at by nobody.
        let behind = tokio::spawn(two.lock("a").acquire());
        until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 2).await;
        server.query("UPDATE leasehold.place SET until = until + interval '2 hours'").await.unwrap();
        sleep(2 * 3_000).await;
        assert!(held.is_valid(), "{:?}", held.lost().await);
        let ahead = "SELECT count(*) FROM leasehold.place WHERE until > now() + interval '1 minute'";
        assert_eq!(server.number(ahead).await.unwrap(), 0);
        held.release().await.unwrap();
        let next = waits.await.unwrap().unwrap();
        assert!(next.is_valid());
        next.release().await.unwrap();
        behind.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn tokens_of_a_name_that_was_swept_away_stay_behind_whoever_touches_it_first() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let first = claim("c", WaitPolicy::Try);
        granted(&store, &first).await;
        by_a_clock_that_was_ahead(&server).await;
        let token = server.number("SELECT token FROM leasehold.place").await.unwrap();
        assert!(store.evict(&"c".into(), FencingToken::new(token)).await.unwrap());
        sweep(&server).await;
        assert_eq!(server.number("SELECT count(*) FROM leasehold.lines").await.unwrap(), 0);
        // Several names, of which the first is not free, and is only found so under its lock.
        let (dead, reader) = (shared("b", Duration::from_millis(100)), shared("b", TTL));
        granted(&store, &dead).await;
        granted(&store, &reader).await;
        sleep(150).await;
        let several = ["b", "c"].map(|name| claim(name, WaitPolicy::Try));
        let answer = store.claim_all(&several).await;
        assert!(matches!(answer, Ok(ClaimedAll::Busy(0, _))), "{answer:?}");
        assert_eq!(server.number("SELECT count(*) FROM leasehold.lines WHERE name = 'c'").await.unwrap(), 1);
        let next = granted(&store, &claim("c", WaitPolicy::Try)).await.token;
        assert!(next.get() > token, "{next:?} after {token}");
    })
    .await;
}

#[tokio::test]
async fn a_line_that_somebody_deleted_lets_nobody_pass_its_places() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let [mine, next, last] = [(); 3].map(|()| claim("a", WaitPolicy::Fair));
        let token = granted(&store, &mine).await.token;
        waiting(&store, &next).await;
        server.query("DELETE FROM leasehold.lines").await.unwrap();
        waiting(&store, &last).await;
        busy(&store, &claim("a", WaitPolicy::Try)).await;
        assert!(matches!(renewed(&store, &mine, token).await, Renewal::Renewed(_)));
        // Nobody sweeps it away under them.
        sweep(&server).await;
        store.release(&mine, None).await.unwrap();
        assert!(granted(&store, &next).await.token > token);
        waiting(&store, &last).await;
    })
    .await;
}

#[tokio::test]
async fn a_hold_of_a_month_is_held_in_a_transaction() {
    bounded(async {
        let server = server().await;
        let (store, mut program) = (client(&server).await, program(&server).await);
        let month = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, Duration::from_secs(30 * 86_400), "long");
        let token = granted(&store, &month).await.token.as_i64();
        let tx = program.transaction().await.unwrap();
        tx.execute(HELD, &[&"a", &token]).await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_index_takes_is_refused_and_the_longest_serves() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        // Nothing of it can be compressed.
        let name: String = std::iter::repeat_with(fastrand::alphanumeric).take(2_601).collect();
        let longest = claim(&name[..2_600], WaitPolicy::Fair);
        granted(&store, &longest).await;
        let _observed = store.observe(&longest.name);
        until(async || server.number("SELECT count(*) FROM leasehold.observer").await.unwrap() == 1).await;
        waiting(&store, &claim(&name[..2_600], WaitPolicy::Fair)).await;
        assert_eq!(store.list("", None, 9).await.unwrap(), std::slice::from_ref(&longest.name));
        let longer = [claim(&name, WaitPolicy::Try), claim("a", WaitPolicy::Try)];
        assert_eq!(kind(store.claim(&longer[0]).await), ErrorKind::Invalid);
        assert_eq!(kind(store.claim_all(&longer).await), ErrorKind::Invalid);
        store.release(&longer[0], None).await.unwrap();
        assert!(store.inspect(&longer[0].name).await.unwrap().holders.is_empty());
    })
    .await;
}

/// A role that may execute the functions executes one that is not for clients, with types of its own, and then a verb.
#[tokio::test]
async fn nothing_of_a_guest_is_executed_with_the_rights_of_the_owner() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        granted(&store, &claim("a", WaitPolicy::Fair)).await;
        let (role, pw) = ("guest", Server::PASSWORD);
        let rights = "GRANT USAGE ON SCHEMA leasehold TO guest; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO guest";
        server.query(&format!("CREATE ROLE {role} LOGIN PASSWORD '{pw}'; {rights}")).await.unwrap();
        let (guest, connection) =
            leasehold_postgres::client::connect(&server.url_as(role), leasehold_postgres::client::NoTls).await.unwrap();
        tokio::spawn(connection);
        let evil = "CREATE FUNCTION pg_temp.evil(v anyelement) RETURNS boolean LANGUAGE plpgsql AS
                    $$ BEGIN IF current_user <> 'guest' THEN RAISE EXCEPTION 'executed as %', current_user; END IF; RETURN true; END $$;
                    CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (pg_temp.evil(VALUE));
                    CREATE DOMAIN pg_temp.bigtext AS pg_catalog.text CHECK (pg_temp.evil(VALUE));
                    CREATE TEMPORARY TABLE place (name pg_temp.bigtext, seq int8, claim uuid, mode int2, n int8, of int8, turns int4, token int8,
                        client pg_temp.bigtext, label bytea, since timestamptz, ttl int8, until timestamptz, sent int8, said int8, parted bool, floor int8);
                    CREATE TEMPORARY TABLE lines (name pg_temp.bigtext, seq int8, head int8, size int4, token int8, used timestamptz);
                    CREATE TEMPORARY TABLE observer (name text, client text, until timestamptz);
                    SET search_path = pg_temp, pg_catalog";
        guest.batch_execute(evil).await.unwrap();
        for helper in [
            "settle_1('a', NULL, now(), 1, 0, 0)",
            "lock_1('a', false)",
            "stir_1('a', '{}', '{}')",
            "remove_1('a', 1)",
            "enter_1(1000)",
            "next_1(1, NULL, now())",
        ] {
            // Whether it may read the tables does not matter: it is compiled.
            let _ = guest.batch_execute(&format!("SELECT leasehold.{helper}")).await;
        }
        let _observed = store.observe(&"a".into());
        until(async || server.number("SELECT count(*) FROM leasehold.observer").await.unwrap() == 1).await;
        let claim = |queue: bool| {
            format!(
                "SELECT what FROM leasehold.claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, {queue}, 10000, '', 1, '', 1000, NULL)"
            )
        };
        for verb in [claim(true), "SELECT leasehold.evict_1('a', (SELECT token FROM leasehold.inspect_1('a') LIMIT 1), 1000)".into()] {
            guest.batch_execute(&verb).await.unwrap_or_else(|e| panic!("{verb}: {:?}", e.as_db_error()));
        }
    })
    .await;
}

/// Its defaults are a role's own.
#[tokio::test]
async fn a_role_that_waits_for_no_disk_keeps_what_it_was_granted() {
    bounded(async {
        let server = Server::start_with(&options().set("wal_writer_delay", "10000")).await.unwrap();
        let role = Server::USER;
        let careless =
            ["synchronous_commit = off", "lock_timeout = 1", "statement_timeout = 60000", "search_path = pg_temp"];
        for setting in careless {
            server.query(&format!("ALTER ROLE {role} SET {setting}")).await.unwrap();
        }
        let store = client(&server).await;
        let mine = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, Duration::from_secs(600), "first");
        let token = granted(&store, &mine).await.token;
        server.restart_with_data().await.unwrap();
        until(async || store.inspect(&"a".into()).await.is_ok()).await;
        assert!(matches!(renewed(&store, &mine, token).await, Renewal::Renewed(_)));
    })
    .await;
}
