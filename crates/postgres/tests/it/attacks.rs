//! What somebody would try who wants two holders: verbs that meet in the midst, clocks that step, rows that are gone, types of others.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{
    Backend, Claim, Claimed, ClaimedAll, Mode, Moment, Renewal, WaitPolicy,
};
use leasehold_core::{ErrorKind, FencingToken, Name, Store};
use leasehold_postgres::client::Client;
use leasehold_postgres::{HELD, Postgres, migration};

/// A renewal that has been executed, and is not committed yet.
async fn renewing(by: &Client, claim: &Claim) {
    let ttl = TTL.as_millis();
    let renew = format!(
        "SELECT leasehold.renew_1(ARRAY['{}']::uuid[], '{{0}}', '{{{ttl}}}', 1, 1000)",
        claim.id
    );
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
    let end = format!(
        "SELECT (extract(epoch FROM until) * 1000000)::int8 FROM leasehold.place WHERE claim = '{}'",
        claim.id
    );
    server.number(&end).await.unwrap()
}

/// As if all of it had been written two hours later, by a clock that was ahead.
async fn by_a_clock_that_was_ahead(server: &Server) {
    let shift =
        "UPDATE leasehold.place SET until = until + interval '2 hours', token = token + 7200000000;
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
            let Ok(ClaimedAll::Granted(_)) = store.claim_all(&mine).await else {
                panic!("both are free")
            };
            renewing(&beside, &mine[1]).await;
            let (by, again) = (store.clone(), mine.clone());
            let claiming = tokio::spawn(async move {
                if several {
                    by.claim_all(&again).await.map(drop)
                } else {
                    by.claim(&again[1]).await.map(drop)
                }
            });
            waits_for_a_row(&server, if several { "claim_all_1" } else { "claim_1" }).await;
            // A renewal that began later than the claim: to its end the holder was told that it holds.
            sleep(300).await;
            renewing(&beside, &mine[1]).await;
            let late = beside
                .query_one(
                    "SELECT until::text FROM leasehold.place WHERE name = 'b'",
                    &[],
                )
                .await
                .unwrap();
            beside.batch_execute("COMMIT").await.unwrap();
            claiming.await.unwrap().unwrap();
            let until: String = late.get(0);
            let kept = format!(
                "SELECT count(*) FROM leasehold.place WHERE name = 'b' AND until >= '{until}'"
            );
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
        let mine = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(2),
            "first",
        );
        let token = granted(&*store, &mine).await.token;
        renewing(&beside, &mine).await;
        let past = format!(
            "SELECT count(*) FROM leasehold.place WHERE claim = '{}' AND until < clock_timestamp()",
            mine.id
        );
        until(async || server.number(&past).await.unwrap() == 1).await;
        let (by, again) = (store.clone(), mine.clone());
        let claiming = tokio::spawn(async move { by.claim(&again).await });
        waits_for_a_row(&server, "claim_1").await;
        beside.batch_execute("COMMIT").await.unwrap();
        let answer = claiming.await.unwrap().unwrap();
        // The renewal was executed before the end of the lease, and was answered so.
        assert!(
            matches!(&answer, Claimed::Granted(grant) if grant.token == token),
            "{answer:?}"
        );
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
        let mine = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(1),
            "first",
        );
        let next = claim("a", WaitPolicy::Fair);
        granted(&*store, &mine).await;
        waiting(&*store, &next).await;
        renewing(&beside, &next).await;
        let (by, again) = (store.clone(), next.clone());
        let claiming = tokio::spawn(async move { by.claim(&again).await });
        waits_for_a_row(&server, "claim_1").await;
        let past =
            "SELECT count(*) FROM leasehold.place WHERE token > 0 AND until < clock_timestamp()";
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
        assert!(matches!(
            renewed(&*store, &mine, token).await,
            Renewal::Renewed(_)
        ));
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
        let (one, two) = (
            Store::new(client(&server).await).ttl(ttl),
            Store::new(client(&server).await).ttl(ttl),
        );
        let held = one.lock("a").acquire().await.unwrap();
        let waits = tokio::spawn(two.lock("a").acquire());
        until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
        // A waiter behind another one is looked at by nobody.
        let behind = tokio::spawn(two.lock("a").acquire());
        until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 2).await;
        server
            .query("UPDATE leasehold.place SET until = until + interval '2 hours'")
            .await
            .unwrap();
        sleep(2 * 3_000).await;
        assert!(held.is_valid(), "{:?}", held.lost().await);
        let ahead =
            "SELECT count(*) FROM leasehold.place WHERE until > now() + interval '1 minute'";
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
        let token = server
            .number("SELECT token FROM leasehold.place")
            .await
            .unwrap();
        assert!(
            store
                .evict(&"c".into(), FencingToken::new(token))
                .await
                .unwrap()
        );
        sweep(&server).await;
        assert_eq!(
            server
                .number("SELECT count(*) FROM leasehold.lines")
                .await
                .unwrap(),
            0
        );
        // Several names, of which the first is not free, and is only found so under its lock.
        let (dead, reader) = (shared("b", Duration::from_millis(100)), shared("b", TTL));
        granted(&store, &dead).await;
        granted(&store, &reader).await;
        sleep(150).await;
        let several = ["b", "c"].map(|name| claim(name, WaitPolicy::Try));
        let answer = store.claim_all(&several).await;
        assert!(matches!(answer, Ok(ClaimedAll::Busy(0, _))), "{answer:?}");
        assert_eq!(
            server
                .number("SELECT count(*) FROM leasehold.lines WHERE name = 'c'")
                .await
                .unwrap(),
            1
        );
        let next = granted(&store, &claim("c", WaitPolicy::Try)).await.token;
        assert!(next.get() > token, "{next:?} after {token}");
    })
    .await;
}

/// A role may leave a transaction open, or prepared, in which it has swept or observes.
#[tokio::test]
async fn a_transaction_that_is_left_open_stops_no_sweep() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mut eve = as_role(&server, Server::SUPERUSER).await;
        let swept = "SELECT leasehold.sweep_1(1000, 1000)";
        eve.batch_execute(swept).await.unwrap();
        eve.batch_execute("SELECT leasehold.observe_1('b', 'eve', 1)")
            .await
            .unwrap();
        sleep(10).await;
        for left_open in ["SELECT leasehold.observe_1('b', 'eve', 3600000)", swept] {
            let mine = claim("a", WaitPolicy::Try);
            granted(&store, &mine).await;
            store.release(&mine, None).await.unwrap();
            let again = "UPDATE leasehold.meta SET swept = '-infinity'";
            server.query(again).await.unwrap();
            let tx = eve.transaction().await.unwrap();
            tx.batch_execute(left_open).await.unwrap();
            // It answers, and does not end by `lock_timeout`.
            let began = Moment::now();
            server.query(swept).await.unwrap();
            let took = Moment::now().since(began);
            assert!(took < Duration::from_millis(900), "{left_open}: {took:?}");
            tx.rollback().await.unwrap();
        }
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
        assert!(matches!(
            renewed(&store, &mine, token).await,
            Renewal::Renewed(_)
        ));
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
        let month = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Try,
            Duration::from_secs(30 * 86_400),
            "long",
        );
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
        let name: String = std::iter::repeat_with(fastrand::alphanumeric)
            .take(2_601)
            .collect();
        let longest = claim(&name[..2_600], WaitPolicy::Fair);
        granted(&store, &longest).await;
        let _observed = store.observe(&longest.name);
        until(async || {
            server
                .number("SELECT count(*) FROM leasehold.observer")
                .await
                .unwrap()
                == 1
        })
        .await;
        waiting(&store, &claim(&name[..2_600], WaitPolicy::Fair)).await;
        assert_eq!(
            store.list("", None, 9).await.unwrap(),
            std::slice::from_ref(&longest.name)
        );
        let longer = [claim(&name, WaitPolicy::Try), claim("a", WaitPolicy::Try)];
        assert_eq!(kind(store.claim(&longer[0]).await), ErrorKind::Invalid);
        assert_eq!(kind(store.claim_all(&longer).await), ErrorKind::Invalid);
        store.release(&longer[0], None).await.unwrap();
        assert!(
            store
                .inspect(&longer[0].name)
                .await
                .unwrap()
                .holders
                .is_empty()
        );
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
                        client pg_temp.bigtext, label bytea, since timestamptz, ttl int8, until timestamptz, sent int8, said int8, parted bool, floor int8, once numeric);
                    CREATE TEMPORARY TABLE completion (name pg_temp.bigtext, claim uuid, token int8, label bytea, at timestamptz, until timestamptz,
                        fire numeric, result pg_temp.bigtext, cut bool);
                    CREATE TEMPORARY TABLE lines (name pg_temp.bigtext, seq int8, head int8, size int4, token int8, used timestamptz);
                    CREATE TEMPORARY TABLE observer (name text, client text, until timestamptz);
                    SET search_path = pg_temp, pg_catalog";
        guest.batch_execute(evil).await.unwrap();
        for helper in [
            "settle_1('a', NULL, now(), 1, 0, 0)",
            "lock_1('a', false)",
            "notify_observers_1('a', '{}', '{}')",
            "remove_1('a', 1)",
            "enters_1(1000)",
            "next_1(1, NULL, now())",
            "finish_1('a', NULL, 1)",
            "shown_1(NULL)",
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
        let once = "SELECT what FROM leasehold.once_1('b', gen_random_uuid(), '1', true, 10000, '', 1, '', 1000, NULL)";
        for verb in [claim(true), once.into(), "SELECT leasehold.done('b', (SELECT token FROM leasehold.inspect_1('b') LIMIT 1), 10000, 'text')".into(),
            "SELECT leasehold.recorded_1('b', gen_random_uuid(), 1, 1000)".into(), "SELECT leasehold.completions_1('', NULL, 9)".into(),
            "SELECT leasehold.evict_1('a', (SELECT token FROM leasehold.inspect_1('a') LIMIT 1), 1000)".into()] {
            guest.batch_execute(&verb).await.unwrap_or_else(|e| panic!("{verb}: {:?}", e.as_db_error()));
        }
    })
    .await;
}

/// Its defaults are a role's own.
#[tokio::test]
async fn a_role_that_waits_for_no_disk_keeps_what_it_was_granted() {
    bounded(async {
        let server = Server::start_with(&options().set("wal_writer_delay", "10000"))
            .await
            .unwrap();
        let role = Server::USER;
        let careless = [
            "synchronous_commit = off",
            "lock_timeout = 1",
            "statement_timeout = 60000",
            "search_path = pg_temp",
        ];
        for setting in careless {
            server
                .query(&format!("ALTER ROLE {role} SET {setting}"))
                .await
                .unwrap();
        }
        let store = client(&server).await;
        let mine = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Try,
            Duration::from_secs(600),
            "first",
        );
        let token = granted(&store, &mine).await.token;
        server.restart_with_data().await.unwrap();
        until(async || store.inspect(&"a".into()).await.is_ok()).await;
        assert!(matches!(
            renewed(&store, &mine, token).await,
            Renewal::Renewed(_)
        ));
    })
    .await;
}

/// A way in which `eve` might have code executed with the rights of somebody else. `{s}` is the schema of the way, `{n}` its number.
struct Way {
    name: &'static str,
    /// What the superuser did, and perhaps should not have done.
    admin: &'static str,
    /// What she does before the superuser installs.
    before: &'static str,
    /// And afterwards.
    after: &'static str,
}

const fn before(name: &'static str, admin: &'static str, before: &'static str) -> Way {
    Way {
        name,
        admin,
        before,
        after: "",
    }
}

const fn after(name: &'static str, admin: &'static str, after: &'static str) -> Way {
    Way {
        name,
        admin,
        before: "",
        after,
    }
}

const OPEN: &str = "CREATE SCHEMA {s}; GRANT ALL ON SCHEMA {s} TO PUBLIC";

/// Those that need a schema, or settings of the database, of their own.
const WAYS: [Way; 17] = [
    before(
        "a trigger on the tables of her own installation",
        "",
        "{migration}
         CREATE TRIGGER t AFTER INSERT OR UPDATE ON {s}.meta EXECUTE FUNCTION eve.trigger_{n}();
         CREATE TRIGGER t AFTER INSERT OR UPDATE ON {s}.lines EXECUTE FUNCTION eve.trigger_{n}()",
    ),
    before(
        "a default of her table meta",
        "",
        "CREATE SCHEMA {s}; CREATE TABLE {s}.meta (one bool PRIMARY KEY DEFAULT eve.strike({n}), floor int8 DEFAULT 0, swept timestamptz DEFAULT now())",
    ),
    before(
        "a constraint of her table meta",
        "",
        "CREATE SCHEMA {s};
         CREATE TABLE {s}.meta (one bool PRIMARY KEY DEFAULT true CHECK (eve.strike({n})), floor int8 DEFAULT 0, swept timestamptz DEFAULT now())",
    ),
    before(
        "a rule of her view meta",
        "",
        "CREATE SCHEMA {s}; CREATE VIEW {s}.meta AS SELECT true AS one, 0::int8 AS floor, now() AS swept;
         CREATE RULE r AS ON INSERT TO {s}.meta DO INSTEAD SELECT eve.strike({n})",
    ),
    before(
        "her function protocol",
        "",
        "CREATE SCHEMA {s}; GRANT USAGE ON SCHEMA {s} TO PUBLIC;
         CREATE FUNCTION {s}.protocol() RETURNS int LANGUAGE sql AS 'SELECT CASE WHEN eve.strike({n}) THEN 1 END'",
    ),
    before(
        "her function inspect_1, which is executed with the rights of its caller",
        "",
        "{migration} GRANT ALL ON SCHEMA {s} TO PUBLIC; GRANT ALL ON ALL FUNCTIONS IN SCHEMA {s} TO PUBLIC;
         CREATE OR REPLACE FUNCTION {s}.inspect_1(p_name text) RETURNS TABLE (mode smallint, n bigint, of bigint, token bigint, label bytea, since bigint)
            LANGUAGE sql AS 'SELECT 0::int2, 1::int8, 1::int8, NULL::int8, ''x''::bytea, 0::int8 WHERE eve.strike({n})'",
    ),
    before(
        "her function revision",
        "",
        "CREATE SCHEMA {s}; CREATE FUNCTION {s}.revision() RETURNS int LANGUAGE sql AS 'SELECT CASE WHEN eve.strike({n}) THEN 0 END'",
    ),
    Way {
        name: "a function that every verb calls, made first, and replaced afterwards",
        admin: OPEN,
        before: "CREATE FUNCTION {s}.enters_1(p_patience integer) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN eve.strike({n}); END'",
        after: "CREATE OR REPLACE FUNCTION {s}.enters_1(p_patience integer) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN eve.strike({n}); END'",
    },
    before(
        "overloads of functions that a verb calls",
        OPEN,
        "CREATE FUNCTION {s}.next_1(bigint, bigint, timestamptz, VARIADIC text[]) RETURNS bigint LANGUAGE sql AS 'SELECT 1::int8 WHERE eve.strike({n})';
         CREATE FUNCTION {s}.greatest(bigint, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::int8 WHERE eve.strike({n})';
         CREATE FUNCTION {s}.octet_length(varchar) RETURNS int LANGUAGE sql AS 'SELECT 1 WHERE eve.strike({n})'",
    ),
    before(
        "an operator that fits better than the server's",
        OPEN,
        "CREATE FUNCTION {s}.times(bigint, interval) RETURNS interval LANGUAGE sql AS 'SELECT interval ''1 hour'' WHERE eve.strike({n})';
         CREATE OPERATOR {s}.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = {s}.times)",
    ),
    after(
        "an operator, afterwards, by default privileges on schemas",
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO PUBLIC, eve",
        "CREATE OPERATOR {s}.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = eve.times_{n})",
    ),
    after(
        "a trigger, afterwards, by default privileges on tables",
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC, eve",
        "CREATE TRIGGER t AFTER INSERT OR UPDATE ON {s}.lines EXECUTE FUNCTION eve.trigger_{n}()",
    ),
    before(
        "functions in a schema of the path, which all may write to",
        "GRANT CREATE ON SCHEMA public TO PUBLIC",
        "CREATE FUNCTION public.to_regnamespace(varchar) RETURNS regnamespace LANGUAGE sql AS 'SELECT NULL::regnamespace WHERE eve.strike({n})';
         CREATE FUNCTION public.pg_advisory_xact_lock(numeric) RETURNS void LANGUAGE sql AS 'SELECT eve.strike({n}); SELECT';
         CREATE FUNCTION public.same(name, text) RETURNS bool LANGUAGE sql AS 'SELECT eve.strike({n})';
         CREATE OPERATOR public.<-> (LEFTARG = name, RIGHTARG = text, FUNCTION = public.same)",
    ),
    before(
        "the path of a database that she owns, for who installs",
        "ALTER DATABASE postgres OWNER TO eve",
        "CREATE FUNCTION eve.to_regnamespace(text) RETURNS regnamespace LANGUAGE sql AS 'SELECT NULL::regnamespace WHERE eve.strike({n})';
         CREATE FUNCTION eve.pg_advisory_xact_lock(bigint) RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM eve.strike({n}); END';
         CREATE FUNCTION eve.set_config(text, text, boolean) RETURNS text LANGUAGE sql AS 'SELECT $2 WHERE eve.strike({n})';
         ALTER DATABASE postgres SET search_path = eve, pg_catalog",
    ),
    Way {
        name: "the path of a database that she owns, for a client of the superuser",
        admin: "{migration} ALTER DATABASE postgres OWNER TO eve",
        before: "CREATE FUNCTION eve.pg_is_in_recovery() RETURNS bool LANGUAGE sql AS 'SELECT NOT eve.strike({n})';
            CREATE FUNCTION eve.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT eve.strike({n}); SELECT pg_catalog.pg_notify($1, $2)';
            CREATE FUNCTION eve.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT pg_catalog.current_setting($1) WHERE eve.strike({n})';
            CREATE DOMAIN eve.uuid AS pg_catalog.uuid CHECK (eve.strike({n}));
            CREATE DOMAIN eve.text AS pg_catalog.text CHECK (eve.strike({n}));
            ALTER DATABASE postgres SET search_path = eve, pg_catalog",
        after: "",
    },
    before(
        "the role of a database that she owns, and her function revision, for who installs",
        "ALTER DATABASE postgres OWNER TO eve",
        "CREATE SCHEMA {s};
         CREATE FUNCTION {s}.revision() RETURNS int LANGUAGE plpgsql AS
            'BEGIN PERFORM set_config(''role'', ''none'', false), eve.strike({n}); RETURN 0; END';
         ALTER DATABASE postgres SET role = eve",
    ),
    before(
        "the role of a database that she owns, and her installation, for a client of the superuser",
        "ALTER DATABASE postgres OWNER TO eve",
        "{migration}
         CREATE OR REPLACE FUNCTION {s}.inspect_1(p_name text) RETURNS TABLE (mode smallint, n bigint, of bigint, token bigint, label bytea, since bigint)
            LANGUAGE sql AS 'SELECT 0::int2, 1::int8, 1::int8, NULL::int8, ''x''::bytea, 0::int8 WHERE set_config(''role'', ''none'', false) = ''none'' AND eve.strike({n})';
         ALTER DATABASE postgres SET role = eve",
    ),
];

/// Those that begin in a schema which the superuser has installed. Each statement may be refused.
const LATER: [(&str, &str); 17] = [
    (
        "columns of the type of the store's rows, so that they can be given no other",
        "CREATE TABLE eve.rows (one leasehold.place, many leasehold.lines[])",
    ),
    (
        "CREATE OR REPLACE of a function of the store",
        "CREATE OR REPLACE FUNCTION leasehold.enters_1(p_patience integer) RETURNS boolean LANGUAGE sql AS 'SELECT eve.strike({n})'",
    ),
    (
        "ALTER FUNCTION",
        "ALTER FUNCTION leasehold.claim_1 SET search_path = eve",
    ),
    (
        "a trigger",
        "CREATE TRIGGER t AFTER INSERT OR UPDATE ON leasehold.lines EXECUTE FUNCTION eve.trigger_{n}()",
    ),
    (
        "a rule",
        "CREATE RULE r AS ON UPDATE TO leasehold.lines DO ALSO SELECT eve.strike({n})",
    ),
    (
        "a policy",
        "CREATE POLICY p ON leasehold.lines USING (eve.strike({n}))",
    ),
    (
        "a table that inherits",
        "CREATE TABLE eve.child (CHECK (eve.strike({n}))) INHERITS (leasehold.place)",
    ),
    (
        "a foreign key",
        "CREATE TABLE eve.other (name text REFERENCES leasehold.lines ON DELETE CASCADE)",
    ),
    (
        "an index with a function",
        "CREATE INDEX ON leasehold.lines ((eve.strike({n})))",
    ),
    (
        "an event trigger",
        "CREATE EVENT TRIGGER e ON ddl_command_start EXECUTE FUNCTION eve.event()",
    ),
    (
        "a cast of the server's types",
        "CREATE CAST (bigint AS interval) WITH FUNCTION eve.cast(bigint) AS IMPLICIT",
    ),
    (
        "default privileges of the installer",
        "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON TABLES TO eve",
    ),
    (
        "an operator in the schema",
        "CREATE OPERATOR leasehold.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = eve.times_{n})",
    ),
    (
        "the schema under another name, and hers in its place",
        "ALTER SCHEMA leasehold RENAME TO was; CREATE SCHEMA leasehold",
    ),
    (
        "a schema of hers, given to the installer",
        "CREATE SCHEMA gift; ALTER SCHEMA gift OWNER TO postgres",
    ),
    (
        "types, tables and functions of hers that come first, in a helper and then in a verb",
        "CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (eve.strike({n}));
         CREATE DOMAIN pg_temp.timestamptz AS pg_catalog.timestamptz CHECK (eve.strike({n}));
         CREATE TEMPORARY TABLE lines (name pg_temp.text, seq int8, head int8, size int4, token int8, used pg_catalog.timestamptz);
         CREATE TEMPORARY TABLE meta (one bool DEFAULT eve.strike({n}), floor int8, swept pg_catalog.timestamptz);
         CREATE FUNCTION pg_temp.enters_1(integer) RETURNS boolean LANGUAGE sql AS 'SELECT eve.strike({n})';
         SET search_path = pg_temp, eve, pg_catalog;
         SELECT leasehold.lock_1('a', true); SELECT leasehold.settle_1('a', NULL, now(), 1, 0, 0);
         {claim}; SELECT leasehold.sweep_1(1000, 10)",
    ),
    (
        "settings of her session, and an argument that takes another role",
        "SET search_path = eve; SET transform_null_equals = on; SET row_security = on; SET plan_cache_mode = force_generic_plan; {claim}; {claim};
         SELECT what FROM leasehold.claim_1(pg_catalog.set_config('role', 'postgres', false), pg_catalog.gen_random_uuid(), 0::int2, 1, 1, 1, true, 10000, '', 1,
            eve.strike({n})::text, 1000, NULL)",
    ),
];

const CLAIM: &str = "SELECT what FROM leasehold.claim_1('a', pg_catalog.gen_random_uuid(), 0::int2, 1, 1, 1, true, 10000, '', 1, '', 1000, NULL)";

/// What she has ready. What is executed as somebody else is counted by sequences, which no transaction takes back.
const ARMS: &str = "CREATE SCHEMA eve; GRANT USAGE ON SCHEMA eve TO PUBLIC;
    CREATE FUNCTION eve.strike(n int) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$ BEGIN
        IF current_user <> 'eve' THEN PERFORM nextval('eve.loot_' || n); END IF; RETURN true; END $$;
    CREATE FUNCTION eve.event() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN END $$;
    CREATE FUNCTION eve.cast(bigint) RETURNS interval LANGUAGE sql AS $$ SELECT interval '1 hour' $$;";

/// She has what the page says a role needs that takes locks, and may create schemas.
#[tokio::test]
async fn no_code_of_a_role_runs_with_the_rights_of_the_installer() {
    bounded(async {
        let server = server().await;
        let eve = role(&server, "eve").await;
        server.query("GRANT CREATE ON DATABASE postgres TO eve").await.unwrap();
        let count = WAYS.len() + LATER.len();
        let mut arms = ARMS.to_owned();
        for n in 0..=count {
            arms += &format!(
                "CREATE SEQUENCE eve.loot_{n}; GRANT ALL ON SEQUENCE eve.loot_{n} TO PUBLIC; CREATE FUNCTION eve.trigger_{n}() RETURNS trigger
                 LANGUAGE plpgsql AS $$ BEGIN PERFORM eve.strike({n}); RETURN NULL; END $$;
                 CREATE FUNCTION eve.times_{n}(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT $2 WHERE eve.strike({n}) $$;"
            );
        }
        eve.batch_execute(&arms).await.unwrap();
        let struck = async |n: usize| {
            let called = format!("SELECT is_called FROM eve.loot_{n}");
            server.text(&called).await.unwrap() == "t"
        };
        // A strike is seen, also one that is rolled back.
        let _ = server.query(&format!("BEGIN; SELECT eve.strike({count}); ROLLBACK")).await;
        assert!(struck(count).await);

        let mut won = Vec::new();
        for (n, way) in WAYS.iter().enumerate() {
            let schema = format!("way_{n}");
            let sql = migration(&schema).unwrap();
            let fill = |text: &str| text.replace("{migration}", &sql).replace("{s}", &schema).replace("{n}", &n.to_string());
            server.query(&fill(way.admin)).await.unwrap();
            eve.batch_execute(&fill(way.before)).await.unwrap_or_else(|e| panic!("{}: {:?}", way.name, e.as_db_error()));
            let as_superuser = format!("{}?timeout=5000&schema={schema}", server.url_as(Server::SUPERUSER));
            let uses = async || {
                let client = Postgres::connect(&as_superuser).await?;
                let _ = client.inspect(&"a".into()).await;
                let mine = claim("a", WaitPolicy::Try);
                client.claim(&mine).await?;
                client.release(&mine, None).await
            };
            let used = uses().await.map_err(|e| e.to_string());
            let tool = as_role(&server, Server::SUPERUSER).await;
            let installed = tool.batch_execute(&sql).await.map_err(|e| e.as_db_error().unwrap().message().to_owned());
            drop(tool);
            let _ = uses().await;
            let _ = server.query(&grants(&schema, "eve")).await;
            let tried = eve.batch_execute(&fill(way.after)).await.map_err(|e| e.to_string());
            let _ = uses().await;
            let _ = server.query(&sql).await;
            let undone = "ALTER DATABASE postgres RESET ALL; ALTER DATABASE postgres OWNER TO postgres; REVOKE CREATE ON SCHEMA public FROM PUBLIC;
                ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM PUBLIC, eve; ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM PUBLIC, eve";
            let admin = as_role(&server, Server::SUPERUSER).await;
            admin.batch_execute(&format!("SET ROLE NONE; SET search_path = pg_catalog; {undone}")).await.unwrap();
            println!("{n}. {}: installed {installed:?}, used {used:?}, then {tried:?}", way.name);
            won.extend(struck(n).await.then_some(way.name));
        }

        server.query(&migration("leasehold").unwrap()).await.unwrap();
        server.query(&grants("leasehold", "eve")).await.unwrap();
        for (i, (name, sql)) in LATER.iter().enumerate() {
            let n = WAYS.len() + i;
            let sql = sql.replace("{claim}", CLAIM).replace("{n}", &n.to_string());
            let mut tried = Vec::new();
            for statement in sql.split(';') {
                let code = eve.batch_execute(statement).await.err().and_then(|e| e.code().map(|code| code.code().to_owned()));
                tried.push(code.unwrap_or_default());
            }
            eve.batch_execute("RESET ROLE; RESET ALL; DISCARD TEMP").await.unwrap();
            // Others use the store, and it is installed again.
            server.query(CLAIM).await.unwrap();
            server.query(&migration("leasehold").unwrap()).await.unwrap();
            server.query("SELECT leasehold.sweep_1(1000, 10)").await.unwrap();
            let column = "ALTER TABLE leasehold.place ADD COLUMN later boolean NOT NULL DEFAULT false";
            server.query(&format!("BEGIN; {column}; ROLLBACK")).await.unwrap_or_else(|e| panic!("{name}: {e}"));
            println!("{n}. {name}: {tried:?}");
            won.extend(struck(n).await.then_some(*name));
        }
        let is_superuser = "SELECT count(*) FROM pg_roles WHERE rolname = 'eve' AND rolsuper";
        assert_eq!(server.number(is_superuser).await.unwrap(), 0);
        println!("{count} ways, {} succeeded", won.len());
        assert!(won.is_empty(), "{won:#?}");
    })
    .await;
}

/// `GRANT ALL ON SCHEMA` has `CREATE` among it. What she makes then fits better than what is there, if the verbs look for it.
const LURES: &str = "CREATE OPERATOR leasehold.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = eve.times_0);
    CREATE FUNCTION leasehold.refuse_1(pg_catalog.name) RETURNS void LANGUAGE sql AS 'SELECT eve.strike(0)';
    CREATE FUNCTION leasehold.refuse_1(pg_catalog.varchar) RETURNS void LANGUAGE sql AS 'SELECT eve.strike(0)';
    CREATE FUNCTION leasehold.octet_length(pg_catalog.varchar) RETURNS int LANGUAGE sql AS 'SELECT 1 WHERE eve.strike(0)';
    CREATE FUNCTION leasehold.settle_1(p_name text, p_quiet text, p_now timestamptz, INOUT l_head bigint, INOUT l_size integer, INOUT l_token bigint,
        OUT holders integer, OUT kind smallint, OUT taken bigint, OUT room bigint, OUT who_label bytea, OUT who_token bigint, OUT who_since timestamptz,
        OUT ends timestamptz, OUT waits bigint, OUT changed boolean, OUT channels text[], OUT payloads text[])
        LANGUAGE plpgsql AS 'BEGIN PERFORM eve.strike(0); END'";

#[tokio::test]
async fn what_a_role_may_create_in_the_schema_later_is_not_used() {
    bounded(async {
        let server = server().await;
        let eve = role(&server, "eve").await;
        server.query("GRANT CREATE ON DATABASE postgres TO eve").await.unwrap();
        let arms = "CREATE SEQUENCE eve.loot_0; GRANT ALL ON SEQUENCE eve.loot_0 TO PUBLIC;
            CREATE FUNCTION eve.times_0(bigint, interval) RETURNS interval LANGUAGE sql AS $$ SELECT interval '1 hour' WHERE eve.strike(0) $$";
        eve.batch_execute(&format!("{ARMS} {arms}")).await.unwrap();
        server.query(&migration("leasehold").unwrap()).await.unwrap();
        server.query("GRANT ALL ON SCHEMA leasehold TO eve").await.unwrap();
        eve.batch_execute(LURES).await.unwrap();
        let again = ["a", "b"].map(|name| claim(name, WaitPolicy::Fair));
        let store = Postgres::connect(&server.url_as(Server::SUPERUSER)).await;
        // Who is a superuser does not even begin.
        assert_eq!(kind(store), ErrorKind::Unsupported);
        role(&server, "friend").await;
        server.query(&grants("leasehold", "friend")).await.unwrap();
        let as_friend = server.url_as("friend");
        let store = connected(|| Postgres::connect(&as_friend)).await;
        let _observed = store.observe(&"a".into());
        let Ok(ClaimedAll::Granted(_)) = store.claim_all(&again).await else {
            panic!("both are free")
        };
        let next = claim("a", WaitPolicy::Fair);
        waiting(&store, &next).await;
        let token = store.inspect(&"a".into()).await.unwrap().holders[0].token.unwrap();
        renewed(&store, &again[0], token).await;
        store.release_after(&again[1], None, Duration::from_millis(1)).await.unwrap();
        store.evict(&"a".into(), token).await.unwrap();
        store.release(&next, None).await.unwrap();
        sweep(&server).await;
        let refused = "SELECT leasehold.observe_1('a', '', 1)";
        assert!(server.query(refused).await.is_err());
        assert_eq!(server.text("SELECT is_called FROM eve.loot_0").await.unwrap(), "f");
    })
    .await;
}

/// An extension that the server trusts is made by a superuser for whoever may create schemas, in whichever schema that role names.
#[tokio::test]
async fn an_extension_of_another_role_in_the_schema_keeps_nobody_from_bringing_it_up_to_date() {
    bounded(async {
        let server = server().await;
        let eve = role(&server, "eve").await;
        drop(client(&server).await);
        server
            .query("GRANT CREATE ON DATABASE postgres TO eve")
            .await
            .unwrap();
        for extension in ["citext", "intarray", "tablefunc"] {
            let create = format!("CREATE EXTENSION {extension} SCHEMA leasehold");
            // A server without it has nothing to show.
            println!(
                "{extension}: {:?}",
                eve.batch_execute(&create).await.map_err(|e| e.to_string())
            );
        }
        let owner = as_role(&server, Server::USER).await;
        owner
            .batch_execute(&migration("leasehold").unwrap())
            .await
            .unwrap();
        let store = client(&server).await;
        let mine = claim("a", WaitPolicy::Try);
        granted(&store, &mine).await;
        store.release(&mine, None).await.unwrap();
        // Her own function is no extension's.
        server
            .query("GRANT CREATE ON SCHEMA leasehold TO eve")
            .await
            .unwrap();
        eve.batch_execute(
            "CREATE FUNCTION leasehold.hers() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        .await
        .unwrap();
        server
            .query("REVOKE CREATE ON SCHEMA leasehold FROM eve")
            .await
            .unwrap();
        assert_eq!(
            state(owner.batch_execute(&migration("leasehold").unwrap()).await),
            "LH002"
        );
    })
    .await;
}

/// What she asks of the store with the functions that she may execute, and with those that she may not.
const ENDS: [(&str, &str); 35] = [
    (
        "all tokens to the last number",
        "raise_1(9223372036854775807, 1000)",
    ),
    (
        "all tokens to the limit",
        "raise_1(4611686018427387904, 1000)",
    ),
    ("a mark of all names", "mark_1()"),
    (
        "a token before the last",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, 1000, '', 1, '', 1000, 9223372036854775806)",
    ),
    (
        "a token that no other store goes to",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, 1000, '', 1, '', 1000, 4611686018427387904)",
    ),
    (
        "several tokens before the last",
        "claim_all_1(ARRAY['a'], ARRAY[gen_random_uuid()], 1, 1000, '', 1, '', 1000, ARRAY[9223372036854775806])",
    ),
    (
        "a token below zero",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, 1000, '', 1, '', 1000, -9223372036854775807)",
    ),
    (
        "all turns",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 2147483647, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "turns that lower a token",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, -2147483647, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "a mode that nobody knows",
        "claim_1('a', gen_random_uuid(), 9::int2, 1, 1, 1, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "no permits",
        "claim_1('a', gen_random_uuid(), 2::int2, 0, 0, 1, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "more permits than anybody counts",
        "claim_1('a', gen_random_uuid(), 2::int2, 1, 9223372036854775807, 1, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "a lease beyond all dates",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, 6300000000000000, '', 1, '', 1000, NULL)",
    ),
    (
        "a lease that is over",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, -1000, '', 1, '', 1000, NULL)",
    ),
    (
        "a renewal beyond all dates",
        "renew_1(ARRAY[gen_random_uuid()], '{0}', '{6300000000000000}', 1, 1000)",
    ),
    (
        "a rest beyond all dates",
        "release_after_1('a', gen_random_uuid(), 6300000000000000, 1000)",
    ),
    (
        "a name that no client can ask for",
        "claim_1('', gen_random_uuid(), 0::int2, 1, 1, 1, false, 31622400000000, '', 1, '', 1000, NULL)",
    ),
    (
        "several names, of which no client can ask for one",
        "claim_all_1(ARRAY['a', ''], ARRAY[gen_random_uuid(), gen_random_uuid()], 1, 31622400000000, '', 1, '', 1000, NULL)",
    ),
    (
        "a name that no notification has room for",
        "claim_1(repeat('a', 100000), gen_random_uuid(), 0::int2, 1, 1, 1, false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "a label of megabytes",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, false, 1000, repeat('a', 5000000)::bytea, 1, '', 1000, NULL)",
    ),
    (
        "a channel that nobody can notify",
        "claim_1('a', gen_random_uuid(), 0::int2, 1, 1, 1, true, 1000, '', 1, repeat('a', 64), 1000, NULL)",
    ),
    ("an observer without a channel", "observe_1('a', '', 1000)"),
    (
        "an observer for ever",
        "observe_1('a', 'eve', 6300000000000000)",
    ),
    (
        "one name twice",
        "claim_all_1(ARRAY['a', 'a'], ARRAY[gen_random_uuid(), gen_random_uuid()], 1, 1000, '', 1, '', 1000, '{}')",
    ),
    (
        "a name that no client can look up",
        "claim_1('', gen_random_uuid(), 0::int2, 1, 1, 1, true, 31622400000000, '', 1, '', 1000, NULL)",
    ),
    ("a sweep of everything", "sweep_1(-1000000000, 2147483647)"),
    (
        "a fire below zero",
        "once_1('a', gen_random_uuid(), '-1', false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "a fire that no client counts to",
        "once_1('a', gen_random_uuid(), '18446744073709551616', false, 1000, '', 1, '', 1000, NULL)",
    ),
    (
        "work for a lease beyond all dates",
        "once_1('a', gen_random_uuid(), '0', false, 6300000000000000, '', 1, '', 1000, NULL)",
    ),
    (
        "a completion of megabytes",
        "complete_1('a', gen_random_uuid(), 1, '0', 1000, repeat('a', 5000000), false, 1000)",
    ),
    (
        "a completion beyond all dates",
        "complete_1('a', gen_random_uuid(), 1, '0', 6300000000000000, NULL, false, 1000)",
    ),
    (
        "work that is done beyond all dates",
        "done('a', 1, 6300000000000000, NULL)",
    ),
    (
        "the end of work by a function that is not for clients",
        "finish_1('a', gen_random_uuid(), 9)",
    ),
    ("the rows by hand", "lines FOR UPDATE"),
    ("a function that is not for clients", "remove_1('a', 1)"),
];

#[tokio::test]
async fn a_role_that_may_execute_the_verbs_ends_them_for_nobody() {
    bounded(async {
        let server = server().await;
        let eve = role(&server, "eve").await;
        let store = client(&server).await;
        server.query(&grants("leasehold", "eve")).await.unwrap();
        eve.execute("SELECT pg_advisory_lock(7812185219467)", &[])
            .await
            .unwrap();
        let mut won = Vec::new();
        let mut last = 0;
        for (name, asked) in ENDS {
            let asked = format!("SELECT * FROM leasehold.{asked}");
            let tried = eve
                .batch_execute(&asked)
                .await
                .map_err(|e| e.code().unwrap().code().to_owned());
            println!("{name}: {tried:?}");
            let is_refused = tried.is_err_and(|code| ["LH004", "42501"].contains(&&*code));
            // Others go on, with tokens that rise, and to which each store can be raised.
            let goes_on = async {
                for holder in store.inspect(&"a".into()).await?.holders {
                    store.evict(&"a".into(), holder.token.unwrap()).await?;
                }
                let mine = claim("a", WaitPolicy::Try);
                let Claimed::Granted(grant) = store.claim(&mine).await? else {
                    return Ok(false);
                };
                store.release(&mine, None).await?;
                let token = grant.token.get();
                let rises = token > last && token < 1 << 52;
                last = token;
                Ok::<_, leasehold_core::Error>(rises)
            };
            won.extend((!matches!(goes_on.await, Ok(true)) || !is_refused).then_some(name));
        }
        println!("{} ways, {} succeeded", ENDS.len(), won.len());
        assert!(won.is_empty(), "{won:#?}");
        // What she keeps locked keeps nobody from installing.
        let other = url(&server, "&schema=other");
        drop(connected(|| Postgres::connect(&other)).await);
    })
    .await;
}
