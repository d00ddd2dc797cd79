//! Requests without answers, connections that break, notifications that nobody gets, and rows that somebody has locked.

use leasehold_core::backend::TokenFloor;
use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_conformance::Link;
use leasehold_core::backend::{Backend, Claim, Claimed, ClaimedAll, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Store};
use leasehold_postgres::Postgres;
use leasehold_testbed::{Proxy, away};
use tokio::task::JoinSet;

/// A client by way of a proxy, which gives requests up after this many milliseconds.
async fn linked(server: &Server, timeout: u32) -> (Postgres, Proxy) {
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let (user, password, database) = (Server::USER, Server::PASSWORD, Server::DATABASE);
    let url = format!(
        "postgres://{user}:{password}@{}/{database}?timeout={timeout}",
        proxy.addr()
    );
    (connected(|| Postgres::connect(&url)).await, proxy)
}

/// Ends every connection of clients.
async fn terminate(server: &Server, whose: &str) {
    let all = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {whose}"
    );
    server.query(&all).await.unwrap();
}

/// A program may start before its server does.
#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() {
    bounded(async {
        let server = server().await;
        let url = url(&server, "");
        let store = away::connected_before_the_server(&server, || Postgres::connect(&url)).await;
        let guard = Store::new(store).lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_verb_whose_reply_is_lost_may_be_asked_again() {
    bounded(async {
        let server = server().await;
        let (mine, proxy) = linked(&server, 1000).await;
        let other = client(&server).await;
        let verb = claim("a", WaitPolicy::Try);
        let lost = async |answer: leasehold_core::Result<()>| {
            let found = kind(answer);
            assert!(
                matches!(found, ErrorKind::Ambiguous | ErrorKind::Unavailable),
                "{found:?}"
            );
            Link::heal(&proxy).await;
        };
        // A claim: the same grant.
        Link::lose_replies(&proxy).await;
        lost(mine.claim(&verb).await.map(drop)).await;
        let seen = other.inspect(&"a".into()).await.unwrap();
        until(async || matches!(mine.claim(&verb).await, Ok(Claimed::Granted(_)))).await;
        let grant = granted(&mine, &verb).await;
        assert!(seen.holders.is_empty() || seen.holders[0].token == Some(grant.token));
        // A renewal: not known.
        Link::lose_replies(&proxy).await;
        let leases = [lease(&verb, grant.token)];
        let renewal = mine.renew(&leases).await;
        assert!(
            renewal.is_err() || matches!(renewal.as_deref(), Ok([Renewal::Unknown(_)])),
            "{renewal:?}"
        );
        Link::heal(&proxy).await;
        until(async || {
            matches!(
                mine.renew(&leases).await.as_deref(),
                Ok([Renewal::Renewed(_)])
            )
        })
        .await;
        // An eviction: there is none any more, or still.
        Link::lose_replies(&proxy).await;
        lost(mine.evict(&"a".into(), grant.token).await.map(drop)).await;
        until(async || mine.evict(&"a".into(), grant.token).await.is_ok()).await;
        // A release, and one for later.
        for rest in [None, Some(Duration::from_millis(10))] {
            let verb = claim("a", WaitPolicy::Fair);
            until(async || matches!(mine.claim(&verb).await, Ok(Claimed::Granted(_)))).await;
            let release = async || match rest {
                None => mine.release(&verb, None).await,
                Some(rest) => mine.release_after(&verb, None, rest).await,
            };
            Link::lose_replies(&proxy).await;
            lost(release().await).await;
            until(async || release().await.is_ok()).await;
            until(async || other.inspect(&"a".into()).await.unwrap().holders.is_empty()).await;
        }
        // Several at once: the same grants.
        let verbs = ["a", "b"].map(|name| claim(name, WaitPolicy::Try));
        Link::lose_replies(&proxy).await;
        lost(mine.claim_all(&verbs).await.map(drop)).await;
        until(async || matches!(mine.claim_all(&verbs).await, Ok(ClaimedAll::Granted(_)))).await;
    })
    .await;
}

#[tokio::test]
async fn a_waiter_whose_bell_was_cut_off_hears_of_its_grant() {
    bounded(async {
        let server = server().await;
        let (one, two) = (
            Store::new(client(&server).await),
            Store::new(client(&server).await),
        );
        let lock = two.lock("a").ttl(Duration::from_secs(60));
        let guard = one
            .lock("a")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        let waits = tokio::spawn(lock.acquire());
        until(async || one.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
        // Every connection but the one that releases: nobody gets the notification.
        terminate(&server, "query LIKE 'LISTEN%'").await;
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_ring_that_never_went_is_found_by_the_next_renewal() {
    bounded(async {
        let server = server().await;
        let (one, two) = (client(&server).await, Store::new(client(&server).await));
        let mine = Claim::new(
            "a",
            Mode::Exclusive,
            WaitPolicy::Fair,
            Duration::from_secs(60),
            "first",
        );
        granted(&one, &mine).await;
        let waits = tokio::spawn(two.lock("a").ttl(Duration::from_secs(3)).acquire());
        until(async || one.inspect(&"a".into()).await.unwrap().waiters.len() == 1).await;
        // The releaser died before it rang.
        let release = format!(
            "SELECT what FROM leasehold.release_1('a', '{}'::uuid, 1000)",
            mine.id
        );
        assert_eq!(server.text(&release).await.unwrap(), "done");
        waits.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_bell_that_died_in_silence_is_missed_before_the_next_renewal() {
    bounded(async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        let url = url(&server, &format!("&listen={}", proxy.addr()));
        // A place is renewed after some minutes.
        let ttl = Duration::from_secs(600);
        let waiting = Store::new(connected(|| Postgres::connect(&url)).await).ttl(ttl);
        let other = Store::new(client(&server).await).ttl(ttl);
        let guard = other.lock("a").acquire().await.unwrap();
        let waits = tokio::spawn(waiting.lock("a").acquire());
        until(async || other.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
        proxy.freeze();
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

/// What is asked of the server by way of notifications is optional: without it waiters poll.
#[tokio::test]
async fn a_client_starts_and_waits_while_notifications_cannot_be_listened_to() {
    within(60, async {
        let server = server().await;
        let proxy = Proxy::to(server.addr()).await.unwrap();
        proxy.cut().await;
        let url = url(&server, &format!("&listen={}", proxy.addr()));
        let [one, two] = [
            Postgres::connect(&url).await.unwrap(),
            Postgres::connect(&url).await.unwrap(),
        ];
        let said = one.guarantees();
        assert!(
            !said.pushed_wake()
                && said
                    .warnings()
                    .iter()
                    .any(|warning| warning.contains("otifications")),
            "{said:?}"
        );
        let ttl = Duration::from_secs(600);
        let one = Arc::new(one);
        let stores = [Store::new(one.clone()).ttl(ttl), Store::new(two).ttl(ttl)];
        hand_over(&stores[0], &stores[1]).await;
        // It is tried again, and said.
        proxy.heal().await;
        until(async || one.guarantees().pushed_wake()).await;
        let warnings = one.guarantees().warnings().to_vec();
        assert!(
            !warnings
                .iter()
                .any(|warning| warning.contains("otifications")),
            "{warnings:?}"
        );
        hand_over(&stores[1], &stores[0]).await;
        proxy.cut().await;
        until(async || !one.guarantees().pushed_wake()).await;
        hand_over(&stores[1], &stores[0]).await;
    })
    .await;
}

async fn hand_over(from: &Store, to: &Store) {
    let guard = from.lock("a").acquire().await.unwrap();
    let waits = tokio::spawn(to.lock("a").acquire());
    until(async || from.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
    guard.release().await.unwrap();
    waits.await.unwrap().unwrap().release().await.unwrap();
}

/// Whoever may have no more connections than it has holds, renews, waits, notifies and releases by these.
#[tokio::test]
async fn a_full_server_ends_no_holder_that_has_a_connection() {
    bounded(async {
        let (server, ttl) = (server().await, Duration::from_secs(2));
        let limit = async |most: i32| {
            let role = format!("ALTER ROLE {} CONNECTION LIMIT {most}", Server::USER);
            server.query(&role).await.unwrap();
        };
        let url = url(&server, "");
        drop(connected(|| Postgres::connect(&url)).await);
        for most in [1, 2] {
            until(async || server.clients().await.unwrap() == 0).await;
            limit(most).await;
            let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(ttl);
            let held = store.lock("held").acquire().await.unwrap();
            let end = "SELECT (extract(epoch FROM until) * 1000)::bigint FROM leasehold.place WHERE name = 'held'";
            let first = server.number(end).await.unwrap();
            let guard = store.lock("a").acquire().await.unwrap();
            let mut waits = JoinSet::new();
            for _ in 0..8 {
                let lock = store.lock("a");
                waits.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
            }
            until(async || store.lock("a").inspect().await.unwrap().waiters.len() == 8).await;
            // Renewed for longer than a lease.
            until(async || {
                assert!(held.is_valid(), "it ended with {most} connections");
                server.number(end).await.unwrap() > first + 4_000
            })
            .await;
            guard.release().await.unwrap();
            while let Some(served) = waits.join_next().await {
                served.unwrap();
            }
            held.release().await.unwrap();
            store.close(Duration::from_secs(10)).await.unwrap();
        }
    })
    .await;
}

/// The server takes no more connections after the client has connected; then the one for claims breaks, and the one that listens is left.
#[tokio::test]
async fn renewals_have_whatever_connection_is_left_where_the_server_takes_no_more() {
    bounded(async {
        let server = server().await;
        let limit = async |most: i32| {
            let role = format!("ALTER ROLE {} CONNECTION LIMIT {most}", Server::USER);
            server.query(&role).await.unwrap();
        };
        for words in ["&connections=1&listen=off", ""] {
            limit(-1).await;
            let url = url(&server, words);
            let store =
                Store::new(connected(|| Postgres::connect(&url)).await).ttl(Duration::from_secs(3));
            let held = store.lock("held").acquire().await.unwrap();
            limit(1).await;
            if words.is_empty() {
                terminate(&server, "backend_type = 'client backend' AND query NOT LIKE '%LISTEN%'").await;
            }
            let end = "SELECT (extract(epoch FROM until) * 1000)::bigint FROM leasehold.place WHERE name = 'held'";
            let first = server.number(end).await.unwrap();
            until(async || {
                assert!(held.is_valid(), "no connection for its renewals");
                server.number(end).await.unwrap() > first + 4_000
            })
            .await;
            held.release().await.unwrap();
            store.close(Duration::from_secs(10)).await.unwrap();
            until(async || server.clients().await.unwrap() == 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn renewals_do_not_wait_for_verbs_that_wait() {
    bounded(async {
        let server = server().await;
        let url = url(&server, "&connections=1");
        let store = Store::new(connected(|| Postgres::connect(&url)).await);
        let held = store
            .lock("held")
            .ttl(Duration::from_secs(3))
            .acquire()
            .await
            .unwrap();
        store
            .lock("stuck")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let mut program = program(&server).await;
        let tx = program.transaction().await.unwrap();
        tx.batch_execute("SELECT 1 FROM leasehold.lines WHERE name = 'stuck' FOR UPDATE")
            .await
            .unwrap();
        let mut waits = JoinSet::new();
        for _ in 0..8 {
            let lock = store.lock("stuck").ttl(Duration::from_secs(60));
            waits.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
        // For two leases, each claim waits for that row until it gives up, and the next one does.
        sleep(6_000).await;
        assert!(held.is_valid(), "{:?}", held.lost().await);
        tx.rollback().await.unwrap();
        while let Some(served) = waits.join_next().await {
            served.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn who_closes_at_once_has_rung_before() {
    bounded(async {
        let server = server().await;
        let ttl = Duration::from_secs(600);
        let (one, two) = (
            Store::new(client(&server).await).ttl(ttl),
            Store::new(client(&server).await).ttl(ttl),
        );
        let guard = one.lock("a").acquire().await.unwrap();
        let waits = tokio::spawn(two.lock("a").acquire());
        until(async || two.lock("a").inspect().await.unwrap().waiters.len() == 1).await;
        guard.release().await.unwrap();
        one.close(Duration::from_secs(10)).await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

/// A commit that notifies waits for those of the whole database, and here one waits for a replica that is away.
#[tokio::test]
async fn a_notification_that_is_stuck_holds_up_no_verb() {
    bounded(async {
        let server = server().await;
        let role = Server::USER;
        server
            .query(&format!("ALTER ROLE {role} SET synchronous_commit = local"))
            .await
            .unwrap();
        let url = url(&server, "&connections=2");
        let (store, others) = (
            connected(|| Postgres::connect(&url)).await,
            client(&server).await,
        );
        server
            .set("synchronous_standby_names", "nobody")
            .await
            .unwrap();
        until(async || server.text("SHOW synchronous_standby_names").await.unwrap() == "nobody")
            .await;
        let (stuck, connection) = leasehold_postgres::client::connect(
            &url.replace("?timeout=5000&connections=2", ""),
            leasehold_postgres::client::NoTls,
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        let notify = "SET synchronous_commit = on; CREATE TABLE public.t (n int); NOTIFY somebody";
        let stuck = tokio::spawn(async move { stuck.batch_execute(notify).await });
        // Others may wait, too, such as the server's own vacuum.
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%NOTIFY somebody'";
        until(async || server.number(waits).await.unwrap() == 1).await;
        // More releases that notify than it has connections, within less time than a notification waits.
        let begin = leasehold_core::backend::Moment::now();
        for i in 0..20 {
            let (mine, next) = (
                claim(&format!("{i}"), WaitPolicy::Fair),
                claim(&format!("{i}"), WaitPolicy::Fair),
            );
            granted(&store, &mine).await;
            waiting(&others, &next).await;
            store.release(&mine, None).await.unwrap();
        }
        let took = leasehold_core::backend::Moment::now().since(begin);
        println!("20 releases that notify took {took:?}");
        // Each notification that kept a connection would have done so for two seconds.
        assert!(took < Duration::from_secs(5), "{took:?}");
        server.set("synchronous_standby_names", "").await.unwrap();
        stuck.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn connections_that_are_ended_are_made_again() {
    bounded(async {
        let server = server().await;
        let store = Store::new(client(&server).await);
        let held = store
            .lock("held")
            .ttl(Duration::from_secs(60))
            .acquire()
            .await
            .unwrap();
        for round in 0..5 {
            terminate(&server, "backend_type = 'client backend'").await;
            let guard = store.lock(("a", round)).acquire().await.unwrap();
            guard.release().await.unwrap();
        }
        until(async || held.confirm().await.is_ok()).await;
        server.restart_with_data().await.unwrap();
        until(async || held.confirm().await.is_ok()).await;
        held.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_row_that_somebody_keeps_is_the_trouble_of_its_name_only() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mine = claim("a", WaitPolicy::Try);
        granted(&store, &mine).await;
        let (mut superuser, connection) = leasehold_postgres::client::connect(
            &server.url_as(Server::SUPERUSER),
            leasehold_postgres::client::NoTls,
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        let tx = superuser.transaction().await.unwrap();
        tx.batch_execute("SELECT 1 FROM leasehold.lines WHERE name = 'a' FOR UPDATE")
            .await
            .unwrap();
        // The server gives up before the client does, so that it is known that nothing was done.
        let refused = store.release(&mine, None).await.unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Unavailable && refused.to_string().contains("55P03"),
            "{refused}"
        );
        granted(&store, &claim("b", WaitPolicy::Try)).await;
        assert!(matches!(
            renewed(&store, &mine, None).await,
            Renewal::Renewed(_) | Renewal::Granted(_)
        ));
        busy(&store, &claim("a", WaitPolicy::Try)).await;
        tx.rollback().await.unwrap();
        store.release(&mine, None).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_stepped_back_keeps_nobody_out_for_ever() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let mine = Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, Duration::from_secs(1), "first");
        let token = granted(&store, &mine).await.token;
        // As if all of it had been written two hours later, by a clock that was ahead.
        let shift = "UPDATE leasehold.place SET until = until + interval '2 hours', token = token + 7200000000;
                     UPDATE leasehold.lines SET token = token + 7200000000";
        server.query(shift).await.unwrap();
        let next = claim("a", WaitPolicy::Fair);
        until(async || matches!(store.claim(&next).await, Ok(Claimed::Granted(_)))).await;
        let later = granted(&store, &next).await.token;
        assert_eq!(later.get(), token.get() + 7_200_000_001);
        // What is swept away keeps its order, too.
        store.release(&next, None).await.unwrap();
        server
            .query("UPDATE leasehold.lines SET used = used - interval '1 minute'; SELECT leasehold.sweep_1(1000, 100)")
            .await
            .unwrap();
        assert_eq!(server.number("SELECT count(*) FROM leasehold.lines").await.unwrap(), 0);
        assert_eq!(granted(&store, &claim("a", WaitPolicy::Try)).await.token.get(), later.get() + 1);
        let two = ["c", "d"].map(|name| claim(name, WaitPolicy::Try));
        let Ok(ClaimedAll::Granted(grants)) = store.claim_all(&two).await else { panic!("both are free") };
        assert!(grants.iter().all(|grant| grant.token > later), "{grants:?}");
    })
    .await;
}

/// One that is made anew from the places that are there, and one of which no place was given yet.
#[tokio::test]
async fn no_line_grants_below_what_all_were_raised_to() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let far = FencingToken::new(store.mark().await.unwrap().get() + 86_400_000_000);
        let [mine, next] = [(); 2].map(|()| claim("a", WaitPolicy::Fair));
        let before = granted(&store, &mine).await.token;
        server.query("DELETE FROM leasehold.lines").await.unwrap();
        store.raise(far).await.unwrap();
        waiting(&store, &next).await;
        store.release(&mine, None).await.unwrap();
        let after = granted(&store, &next).await.token;
        assert!(before < far && far < after, "{before} {far} {after}");
        // The hold at the head of `b` has ended, and a waiter gets it: so this claim of both is refused, and `c` has a line by then.
        granted(&store, &claim("b", WaitPolicy::Fair)).await;
        waiting(&store, &claim("b", WaitPolicy::Fair)).await;
        server
            .query("UPDATE leasehold.place SET until = '-infinity' WHERE name = 'b' AND token IS NOT NULL")
            .await
            .unwrap();
        let both = ["b", "c"].map(|name| claim(name, WaitPolicy::Try));
        assert!(matches!(store.claim_all(&both).await, Ok(ClaimedAll::Busy(0, _))));
        assert_eq!(server.number("SELECT token FROM leasehold.lines WHERE name = 'c'").await.unwrap(), 0);
        // All are above this number already.
        store.raise(FencingToken::new(1)).await.unwrap();
        let first = granted(&store, &claim("c", WaitPolicy::Fair)).await.token;
        assert!(first > far, "{first} {far}");
    })
    .await;
}

/// An installation that its caller gave up, and that the server ended, leaves a transaction that executes nothing any more.
#[tokio::test]
async fn an_installation_that_was_given_up_leaves_no_connection_that_serves_nobody() {
    bounded(async {
        let server = server().await;
        let store = client(&server).await;
        let other = program(&server).await;
        other
            .batch_execute("DROP SCHEMA leasehold CASCADE")
            .await
            .unwrap();
        other
            .batch_execute("BEGIN; CREATE SCHEMA leasehold")
            .await
            .unwrap();
        let mine = claim("a", WaitPolicy::Try);
        let count = async |what: &str| {
            let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {what}");
            server.number(&count).await.unwrap()
        };
        let waits = "wait_event_type = 'Lock'";
        tokio::select! {
            answer = store.claim(&mine) => panic!("{answer:?}"),
            () = until(async || count(waits).await == 1) => {}
        }
        let cancel = format!("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {waits}");
        server.query(&cancel).await.unwrap();
        until(async || count("state = 'idle in transaction (aborted)'").await == 1).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        let migration = leasehold_postgres::migration("leasehold").unwrap();
        other.batch_execute(&migration).await.unwrap();
        let refused = store.claim(&mine).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(matches!(store.claim(&mine).await, Ok(Claimed::Granted(_))));
    })
    .await;
}
