//! Standbys: the server that may write is found, a promotion is followed, and what it loses is told by tokens. And a crash.

use std::fs;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Store};
use leasehold_postgres::{HELD, LOST, Postgres};
use leasehold_testbed::{PostgresOptions, Proxy};
use tokio::time::timeout;

/// Longer than it takes to kill a server, to promote another, and to connect to that.
const LEASE: Duration = Duration::from_secs(60);

/// A primary and a standby that has all of its data.
pub(crate) async fn pair() -> (Server, Server) {
    let primary = server().await;
    drop(client(&primary).await);
    let standby = primary.standby("one").await.unwrap();
    caught_up(&primary).await;
    (primary, standby)
}

/// All that was committed is at the standby. Behind a switch of segments the position at which the
/// next record is inserted is ahead of that, until a record comes.
async fn caught_up(primary: &Server) {
    let behind =
        "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()";
    until(async || primary.number(behind).await.unwrap() == 1).await;
}

/// The standby is named first.
async fn of_both(primary: &Server, standby: &Server) -> Postgres {
    let user = Server::USER;
    let password = Server::PASSWORD;
    let database = Server::DATABASE;
    let hosts = format!("{},{}", standby.addr(), primary.addr());
    let url = format!(
        "postgres://{user}:{password}@{hosts}/{database}?timeout=5000&target_session_attrs=read-write"
    );
    connected(|| Postgres::connect(&url)).await
}

/// What is said of a hold once its own connections have followed, too.
async fn known(store: &Postgres, claim: &Claim, token: FencingToken) -> Renewal {
    let asked = [lease(claim, token)];
    loop {
        match store
            .renew(&asked)
            .await
            .map(|mut answers| answers.remove(0))
        {
            Ok(Renewal::Unknown(_)) | Err(_) => sleep(10).await,
            Ok(said) => return said,
        }
    }
}

fn long(name: &str) -> Claim {
    Claim::new(name, Mode::Exclusive, WaitPolicy::Fair, LEASE, "test")
}

#[tokio::test]
async fn a_promotion_is_followed_and_a_replicated_hold_is_kept() {
    bounded(async {
        let (primary, standby) = pair().await;
        let store = Store::new(of_both(&primary, &standby).await).ttl(LEASE);
        let held = store.lock("a").acquire().await.unwrap();
        caught_up(&primary).await;
        primary.kill().await.unwrap();
        standby.promote().await.unwrap();
        until(async || held.confirm().await.is_ok()).await;
        let token = held.fencing_token();
        held.release().await.unwrap();
        let next = store.lock("a").acquire().await.unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
    })
    .await;
}

/// A standby is promoted while its primary lives: programs that can reach both use the promoted one,
/// whichever their URL names first, and a program that has seen it refuses the former primary.
#[tokio::test]
async fn of_two_primaries_the_promoted_one_is_used() {
    bounded(async {
        let (primary, standby) = pair().await;
        standby.promote().await.unwrap();
        let one = of_both(&primary, &standby).await;
        let two = of_both(&standby, &primary).await;
        assert_eq!(one.identity(), two.identity());
        let claim = long("a");
        granted(&one, &claim).await;
        let there = client(&standby).await;
        let former = client(&primary).await;
        for (store, is_granted) in [(&two, false), (&there, false), (&former, true)] {
            let other = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, LEASE, "test");
            let answer = store.claim(&other).await.unwrap();
            assert_eq!(matches!(answer, Claimed::Granted(_)), is_granted);
        }
        standby.kill().await.unwrap();
        let refused = async || {
            let error = one.inspect(&"a".into()).await.unwrap_err();
            error.kind() == ErrorKind::OtherStore && error.to_string().contains("former primary")
        };
        until(refused).await;
    })
    .await;
}

/// Two databases in one URL are refused: each has locks of its own.
#[tokio::test]
async fn hosts_that_are_different_databases_are_refused() {
    bounded(async {
        let [one, two] = [server().await, server().await];
        let user = Server::USER;
        let password = Server::PASSWORD;
        let database = Server::DATABASE;
        let hosts = format!("{},{}", one.addr(), two.addr());
        let url = format!("postgres://{user}:{password}@{hosts}/{database}?timeout=5000");
        let error = Postgres::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        for host in [one.addr(), two.addr()] {
            assert!(error.to_string().contains(host), "{error}");
        }
        // A program that names its store uses that one.
        let id = client(&two).await.identity().unwrap();
        let store = Postgres::connect(&format!("{url}&store={id}"))
            .await
            .unwrap();
        granted(&store, &long("a")).await;
        let other = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, LEASE, "test");
        let answer = client(&two).await.claim(&other).await.unwrap();
        assert!(matches!(answer, Claimed::Busy(_)), "{answer:?}");
        let error = Postgres::connect(&format!("{url}&store=postgres-other")).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::OtherStore);
    })
    .await;
}

/// Makes a primary of a standby without a promotion, as a copy of the data is that somebody starts: it writes the same timeline.
pub(crate) async fn start_as_copy(standby: &Server) {
    standby.stop().await.unwrap();
    fs::remove_file(standby.data().join("standby.signal")).unwrap();
    standby.start_again().await.unwrap();
}

fn url_of(hosts: [&str; 2], words: &str) -> String {
    let user = Server::USER;
    let password = Server::PASSWORD;
    let database = Server::DATABASE;
    let hosts = hosts.join(",");
    format!("postgres://{user}:{password}@{hosts}/{database}?timeout=5000{words}")
}

/// Two hosts are found to be two primaries.
async fn is_refused(store: &Store) -> bool {
    match store.lock("free").try_acquire().await {
        Ok(guard) => {
            let _ = guard.release().await;
            false
        }
        Err(e) if e.kind() == ErrorKind::OtherStore => true,
        Err(e) => {
            assert!(e.is_retryable(), "{e}");
            false
        }
    }
}

/// A host that was silent for a moment, as on a busy machine, is compared later, so something may be granted first.
async fn until_refused(store: &Store) {
    until(async || is_refused(store).await).await;
}

/// Ends the links of all programs.
async fn end_links(server: &Server) {
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'app'";
    server.query(end).await.unwrap();
}

/// One database, one timeline, and two primaries: each has locks of its own.
#[tokio::test]
async fn a_copy_that_is_started_beside_its_primary_is_refused() {
    bounded(async {
        let (primary, standby) = pair().await;
        let before = Store::new(of_both(&primary, &standby).await).ttl(LEASE);
        let held = before.lock("a").acquire().await.unwrap();
        start_as_copy(&standby).await;
        let id = client(&primary).await.identity().unwrap();
        assert_eq!(client(&standby).await.identity(), Some(id.clone()));
        for hosts in [
            [primary.addr(), standby.addr()],
            [standby.addr(), primary.addr()],
        ] {
            for words in [String::new(), format!("&store={id}")] {
                let url = url_of(hosts, &words);
                // A host that was silent for a moment, as on a busy machine, is compared later.
                let said = loop {
                    match Postgres::connect(&url).await {
                        Ok(store) => drop(store),
                        Err(e) if e.kind() == ErrorKind::OtherStore => break e.to_string(),
                        Err(e) => assert!(e.is_retryable(), "{e}"),
                    }
                };
                assert!(
                    hosts.iter().all(|host| said.contains(host)) && said.contains("a copy"),
                    "{said}"
                );
            }
        }
        // Links that are there lead to the primary, as before.
        held.confirm().await.unwrap();
        // A link that is ended while hosts are compared leaves one of them out until the next break.
        until(async || {
            end_links(&standby).await;
            end_links(&primary).await;
            is_refused(&before).await
        })
        .await;
        standby.kill().await.unwrap();
        until(async || held.confirm().await.is_ok()).await;
        held.release().await.unwrap();
    })
    .await;
}

/// The copy is silent while a program connects.
#[tokio::test]
async fn a_copy_that_answers_later_is_refused_as_well() {
    bounded(async {
        let (primary, standby) = pair().await;
        start_as_copy(&standby).await;
        let slow = Proxy::to(standby.addr()).await.unwrap();
        // Each of its answers, of which connecting takes several.
        slow.delay_replies(Duration::from_millis(150));
        let url = url_of([primary.addr(), slow.addr()], "");
        match Postgres::connect(&url).await {
            Ok(store) => until_refused(&Store::new(store).ttl(LEASE)).await,
            Err(e) => assert_eq!(e.kind(), ErrorKind::OtherStore, "{e}"),
        }
    })
    .await;
}

/// A program that has links finds the copy as it opens one more.
#[tokio::test]
async fn a_copy_is_refused_by_a_program_that_has_links_to_the_primary() {
    bounded(async {
        let (primary, standby) = pair().await;
        let way = Proxy::to(primary.addr()).await.unwrap();
        let url = url_of([standby.addr(), way.addr()], "");
        let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(LEASE);
        let held = store.lock("a").acquire().await.unwrap();
        start_as_copy(&standby).await;
        // Claims at once open further links.
        let places = "SELECT count(*) FROM leasehold.place WHERE name LIKE 'b%'";
        for round in 0..5 {
            let all = (0..8).map(|n| store.lock(format!("b-{round}-{n}")).acquire());
            for claimed in futures_util::future::join_all(all).await {
                drop(claimed.unwrap());
            }
            assert_eq!(standby.number(places).await.unwrap(), 0);
        }
        held.confirm().await.unwrap();
        // A host that takes longer than `timeout`, as on a busy machine, is compared after the next break.
        until(async || {
            way.disconnect().await;
            end_links(&standby).await;
            is_refused(&store).await
        })
        .await;
    })
    .await;
}

/// Two names of one server: after its restart it is still one.
#[tokio::test]
async fn a_server_with_two_names_may_be_restarted() {
    bounded(async {
        let server = server().await;
        let [one, two] = [
            Proxy::to(server.addr()).await.unwrap(),
            Proxy::to(server.addr()).await.unwrap(),
        ];
        let url = url_of([one.addr(), two.addr()], "");
        let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(LEASE);
        for _ in 0..3 {
            let held = store.lock("a").acquire().await.unwrap();
            server.restart_with_data().await.unwrap();
            until(async || held.confirm().await.is_ok()).await;
            held.release().await.unwrap();
        }
    })
    .await;
}

/// A server that says who it is, and not its timeline, as one with storage of its own may be.
#[tokio::test]
async fn a_server_that_does_not_tell_its_timeline_is_compared_all_the_same() {
    bounded(async {
        let [one, two] = [server().await, server().await];
        let told = async |server: &Server| client(server).await.guarantees().warnings().to_vec();
        let has = |warnings: &[String], words: &str| warnings.iter().any(|it| it.contains(words));
        let id = client(&one).await.identity();
        for server in [&one, &two] {
            let revoke = "REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn) FROM PUBLIC";
            server.query(revoke).await.unwrap();
        }
        let warnings = told(&one).await;
        assert!(
            has(&warnings, "pg_walfile_name") && !has(&warnings, "GRANT"),
            "{warnings:?}"
        );
        assert!(id.is_some() && client(&one).await.identity() == id);
        let error = Postgres::connect(&url_of([one.addr(), two.addr()], ""))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OtherStore, "{error}");
        let revoke = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC";
        one.query(revoke).await.unwrap();
        let warnings = told(&one).await;
        assert!(
            has(&warnings, "GRANT EXECUTE ON FUNCTION pg_control_system()"),
            "{warnings:?}"
        );
        assert_eq!(client(&one).await.identity(), None);
        let pinned = url(&one, &format!("&store={}", id.unwrap()));
        let error = Postgres::connect(&pinned).await.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("GRANT EXECUTE"),
            "{error}"
        );
    })
    .await;
}

/// An address moves, and no link is cut. The store goes on where its links lead: nothing that it opens anew is used at the other server, so a
/// hold is renewed at its own.
#[tokio::test]
async fn a_hold_is_renewed_in_its_own_database_while_the_address_leads_to_another() {
    bounded(async {
        let [right, other] = [server().await, server().await];
        let proxy = Proxy::to(right.addr()).await.unwrap();
        let user = Server::USER;
        let password = Server::PASSWORD;
        let database = Server::DATABASE;
        let at = proxy.addr();
        let url = format!("postgres://{user}:{password}@{at}/{database}?timeout=5000");
        let ttl = Duration::from_secs(3);
        let misled = Store::new(connected(|| Postgres::connect(&url)).await).ttl(ttl);
        let beside = Store::new(client(&right).await).ttl(ttl);
        // As a program that came later uses it.
        let there = Store::new(client(&other).await).ttl(ttl);
        let mut holds = Vec::new();
        for n in 0..6 {
            holds.push(misled.lock(format!("a-{n}")).acquire().await.unwrap());
        }
        proxy.lead_to(other.addr());
        let end = tokio::time::Instant::now() + 3 * ttl;
        while tokio::time::Instant::now() < end {
            for n in 0..6 {
                let taken = beside.lock(format!("a-{n}")).try_acquire().await;
                assert_eq!(taken.unwrap_err().kind(), ErrorKind::Contended, "a-{n}");
            }
            assert!(holds.iter().all(leasehold_core::Guard::is_valid));
            sleep(100).await;
        }
        assert_eq!(
            other
                .number("SELECT count(*) FROM leasehold.place")
                .await
                .unwrap(),
            0
        );
        // With its links cut it says where the address leads.
        proxy.disconnect().await;
        let told = until_other_store(&misled).await;
        for store in [&beside, &there] {
            let id = store.identity().unwrap();
            assert!(told.contains(id.as_str()), "{told}: {id}");
        }
        assert_eq!(
            other
                .number("SELECT count(*) FROM leasehold.place")
                .await
                .unwrap(),
            0
        );
    })
    .await;
}

/// What a program is told whose links were cut.
async fn until_other_store(store: &Store) -> String {
    loop {
        match store.lock("free").try_acquire().await.unwrap_err() {
            e if e.kind() == ErrorKind::OtherStore => return e.to_string(),
            e => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

/// Both hosts are primaries, and the one that the URL names first is slow to answer one of the programs.
#[tokio::test]
async fn of_two_primaries_the_promoted_one_is_used_also_if_the_first_is_slow() {
    bounded(async {
        let (primary, standby) = pair().await;
        standby.promote().await.unwrap();
        let slow = Proxy::to(primary.addr()).await.unwrap();
        slow.delay_replies(Duration::from_millis(500));
        let user = Server::USER;
        let password = Server::PASSWORD;
        let database = Server::DATABASE;
        let url = |first: &str| {
            let hosts = format!("{first},{}", standby.addr());
            format!("postgres://{user}:{password}@{hosts}/{database}?timeout=5000")
        };
        let [behind, near] = [url(slow.addr()), url(primary.addr())];
        let behind = Store::new(connected(|| Postgres::connect(&behind)).await).ttl(LEASE);
        let near = loop {
            let near = connected(|| Postgres::connect(&near)).await;
            let is_left = until(async || primary.clients().await.unwrap() == 0);
            // It has not compared a host that was silent for a moment, as one on a busy machine may be.
            if timeout(Duration::from_secs(2), is_left).await.is_ok() {
                break Store::new(near).ttl(LEASE);
            }
        };
        for (one, two) in [(&behind, &near), (&near, &behind)] {
            let guard = one.lock("a").acquire().await.unwrap();
            let taken = two.lock("a").try_acquire().await;
            assert_eq!(taken.unwrap_err().kind(), ErrorKind::Contended);
            guard.release().await.unwrap();
        }
        assert_eq!(
            primary
                .number("SELECT count(*) FROM leasehold.place")
                .await
                .unwrap(),
            0
        );
    })
    .await;
}

/// Both hosts are primaries, and the promoted one is silent while a program connects.
#[tokio::test]
async fn a_promoted_host_that_answers_later_takes_the_place_of_the_former_primary() {
    bounded(async {
        let (primary, standby) = pair().await;
        standby.promote().await.unwrap();
        let slow = Proxy::to(standby.addr()).await.unwrap();
        // Each of its answers, of which connecting takes several.
        slow.delay_replies(Duration::from_millis(150));
        let user = Server::USER;
        let password = Server::PASSWORD;
        let database = Server::DATABASE;
        let hosts = format!("{},{}", primary.addr(), slow.addr());
        let url = format!("postgres://{user}:{password}@{hosts}/{database}?timeout=5000");
        let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(LEASE);
        until(async || {
            let Ok(guard) = store.lock("a").try_acquire().await else {
                return false;
            };
            let held = "SELECT count(*) FROM leasehold.place";
            let is_there = standby.number(held).await.is_ok_and(|held| held == 1);
            let _ = guard.release().await;
            is_there
        })
        .await;
    })
    .await;
}

/// The promoted host cannot be reached while a program connects, nor when it is asked again.
#[tokio::test]
async fn a_promoted_host_that_was_cut_off_takes_the_place_of_the_former_primary() {
    bounded(async {
        let (primary, standby) = pair().await;
        standby.promote().await.unwrap();
        let way = Proxy::to(standby.addr()).await.unwrap();
        way.hold();
        let url = url_of([primary.addr(), way.addr()], "").replace("5000", "1000");
        let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(LEASE);
        let before = way.connections();
        until(async || way.connections() > before + 1).await;
        way.heal().await;
        until(async || {
            let Ok(guard) = store.lock("a").try_acquire().await else {
                return false;
            };
            let held = "SELECT count(*) FROM leasehold.place";
            let is_there = standby.number(held).await.is_ok_and(|held| held == 1);
            let _ = guard.release().await;
            is_there
        })
        .await;
    })
    .await;
}

/// A standby is promoted while its primary lives, and a program goes on over its links. Once they break it compares the hosts again.
#[tokio::test]
async fn a_program_whose_links_break_moves_to_the_promoted_host() {
    bounded(async {
        let (primary, standby) = pair().await;
        let way = Proxy::to(primary.addr()).await.unwrap();
        let user = Server::USER;
        let password = Server::PASSWORD;
        let database = Server::DATABASE;
        let hosts = format!("{},{}", way.addr(), standby.addr());
        let url = format!("postgres://{user}:{password}@{hosts}/{database}?timeout=5000");
        let store = Store::new(connected(|| Postgres::connect(&url)).await).ttl(LEASE);
        drop(store.lock("a").acquire().await.unwrap());
        standby.promote().await.unwrap();
        way.disconnect().await;
        let held = "SELECT count(*) FROM leasehold.place WHERE name = 'b'";
        until(async || {
            let Ok(guard) = store.lock("b").try_acquire().await else {
                return false;
            };
            let is_there = standby.number(held).await.is_ok_and(|held| held == 1);
            let _ = guard.release().await;
            is_there
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn what_an_asynchronous_standby_lacks_is_granted_again_with_a_greater_token() {
    bounded(async {
        let (primary, standby) = pair().await;
        let store = of_both(&primary, &standby).await;
        // It hears no more of it.
        standby.set("primary_conninfo", "").await.unwrap();
        until(async || {
            primary
                .number("SELECT count(*) FROM pg_stat_replication")
                .await
                .unwrap()
                == 0
        })
        .await;
        let (mine, other) = (long("a"), long("a"));
        let lost = granted(&store, &mine).await;
        primary.kill().await.unwrap();
        standby.promote().await.unwrap();
        until(async || store.inspect(&"a".into()).await.is_ok()).await;
        // Its holder hears of it by its next renewal, and its transactions are refused.
        assert!(matches!(
            known(&store, &mine, lost.token).await,
            Renewal::Lost(_)
        ));
        let program = program(&standby).await;
        assert_eq!(
            state(program.execute(HELD, &[&"a", &lost.token.as_i64()]).await),
            LOST
        );
        let next = granted(&store, &other).await;
        assert!(next.token > lost.token, "{next:?} after {lost:?}");
    })
    .await;
}

#[tokio::test]
async fn what_a_synchronous_standby_acknowledged_survives() {
    bounded(async {
        let (primary, standby) = pair().await;
        primary
            .set("synchronous_standby_names", "one")
            .await
            .unwrap();
        until(async || {
            primary
                .text("SHOW synchronous_standby_names")
                .await
                .unwrap()
                == "one"
        })
        .await;
        until(async || {
            primary
                .number("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")
                .await
                .unwrap()
                == 1
        })
        .await;
        let store = of_both(&primary, &standby).await;
        let (mine, other) = (long("a"), long("a"));
        let grant = granted(&store, &mine).await;
        // While it is away nothing is acknowledged, in bounded time; a try that is refused waits for nobody.
        standby.pause().await.unwrap();
        let unknown = kind(store.claim(&long("b")).await);
        assert!(
            matches!(unknown, ErrorKind::Ambiguous | ErrorKind::Unavailable),
            "{unknown:?}"
        );
        let tried = Claim::new("a", Mode::Exclusive, WaitPolicy::Try, LEASE, "test");
        until(async || matches!(store.claim(&tried).await, Ok(Claimed::Busy(_)))).await;
        primary.kill().await.unwrap();
        standby.resume().unwrap();
        standby.promote().await.unwrap();
        until(async || store.inspect(&"a".into()).await.is_ok()).await;
        assert!(matches!(
            known(&store, &mine, grant.token).await,
            Renewal::Renewed(_)
        ));
        waiting(&store, &other).await;
    })
    .await;
}

#[tokio::test]
async fn a_primary_that_became_read_only_is_left() {
    bounded(async {
        let primary = server().await;
        let store = client(&primary).await;
        granted(&store, &long("a")).await;
        primary.query(&format!("ALTER ROLE {} SET default_transaction_read_only = on", Server::USER)).await.unwrap();
        primary
            .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            .await
            .unwrap();
        let words = loop {
            match store.claim(&long("early")).await {
                Err(e) if e.to_string().contains("25006") => {
                    assert_eq!(e.kind(), ErrorKind::Unavailable);
                    break e.to_string();
                }
                // By a connection that is not ended yet, or as it was.
                _ => sleep(5).await,
            }
        };
        assert!(words.contains("read-only"), "{words}");
        primary.query(&format!("ALTER ROLE {} RESET default_transaction_read_only", Server::USER)).await.unwrap();
        until(async || store.claim(&long("b")).await.is_ok()).await;
    })
    .await;
}

/// A release that nobody waits behind is not stored before it is answered. So the hold may be back after a crash, for what was left of its
/// lease, and never once somebody was granted anything: that is stored behind it.
#[tokio::test]
async fn a_release_may_be_lost_with_the_server_until_anything_is_granted() {
    bounded(async {
        let server = Server::start_with(&PostgresOptions::default().set("wal_writer_delay", "10s"))
            .await
            .unwrap();
        let store = client(&server).await;
        // So that the grant that stores it is of a line that is there, as most are.
        let other = claim("b", WaitPolicy::Try);
        granted(&store, &other).await;
        store.release(&other, None).await.unwrap();
        let mut before = FencingToken::new(0);
        for is_stored in [false, true, false] {
            let mut mine = claim("a", WaitPolicy::Try);
            mine.ttl = Duration::from_secs(3);
            // The server was started anew since it was asked before.
            until(async || matches!(store.claim(&mine).await, Ok(Claimed::Granted(_)))).await;
            let token = granted(&store, &mine).await.token;
            assert!(token > before, "{token} {before}");
            before = token;
            store.release(&mine, None).await.unwrap();
            if is_stored {
                granted(&store, &claim("b", WaitPolicy::Try)).await;
            }
            server.restart_with_data().await.unwrap();
            let back = server
                .number("SELECT count(*) FROM leasehold.place WHERE name = 'a'")
                .await
                .unwrap();
            assert!(back == 0 || !is_stored);
            let kept = server
                .number("SELECT count(*) FROM leasehold.place WHERE name = 'b'")
                .await
                .unwrap();
            assert!(kept == 1 || !is_stored, "a grant is lost");
            let store = Store::new(client(&server).await);
            let next = store.lock("a").acquire_timeout(mine.ttl * 2).await.unwrap();
            assert!(
                next.fencing_token() > before,
                "{} {before}",
                next.fencing_token()
            );
            before = next.fencing_token();
            next.release().await.unwrap();
            // This one is stored.
            store
                .lock("c")
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    })
    .await;
}
