//! How a server is set up: what the store warns of at the start, and replicas that have to acknowledge a claim.

mod reasons;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Grant, Notification, Renewal, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{Proxy, RedisOptions};

/// No lease of it ends by accident.
const LONG: Duration = Duration::from_secs(60);

async fn set_up(extra: &[&str], persistent: bool) -> Server {
    let extra = extra.iter().map(|word| (*word).to_owned()).collect();
    Server::start_with(&RedisOptions {
        persistent,
        extra,
        ..RedisOptions::default()
    })
    .await
    .unwrap()
}

/// What is warned of: a word of each sentence.
async fn warned(url: &str) -> Vec<&'static str> {
    let store = Redis::connect(url).await.unwrap();
    let words = [
        "maxmemory-policy may delete",
        "may evict",
        "keeps nothing",
        "snapshots only",
        "on disk is not known",
        "once a second",
        "leaves it to the system",
        "no replica follows",
        "replicas follow it",
        "min-replicas-to-write is 0",
        "it is a replica",
    ];
    let known = |warning: &String| {
        words
            .into_iter()
            .find(|word| warning.contains(word))
            .unwrap()
    };
    store.guarantees().warnings().iter().map(known).collect()
}

#[tokio::test]
async fn a_server_that_may_forget_locks_is_warned_of() {
    bounded(async {
        let kept = set_up(
            &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"],
            true,
        )
        .await;
        assert_eq!(warned(&kept.url()).await, [""; 0]);
        // Without a limit nothing is evicted, whatever the policy says.
        let unlimited = set_up(&["--maxmemory-policy", "allkeys-lru"], true).await;
        assert_eq!(warned(&unlimited.url()).await, [""; 0]);
        for policy in ["allkeys-lru", "volatile-ttl", "volatile-lru"] {
            let evicts = set_up(
                &["--maxmemory", "100mb", "--maxmemory-policy", policy],
                false,
            )
            .await;
            assert_eq!(
                warned(&evicts.url()).await,
                ["maxmemory-policy may delete", "keeps nothing"],
                "{policy}"
            );
        }
        for (fsync, word) in [
            ("everysec", "once a second"),
            ("no", "leaves it to the system"),
        ] {
            let late = set_up(&["--appendfsync", fsync], true).await;
            assert_eq!(warned(&late.url()).await, [word]);
        }
        let snapshots = set_up(&["--save", "60", "1"], false).await;
        assert_eq!(warned(&snapshots.url()).await, ["snapshots only"]);
        // Who may not ask is told that it is not known.
        let rights =
            "on >pw ~* resetchannels &leasehold:* +@scripting +@read +@write +@pubsub +@connection +time";
        let user: Vec<&str> = ["ACL", "SETUSER", "app"]
            .into_iter()
            .chain(rights.split(' '))
            .collect();
        kept.command(&user).await.unwrap();
        let url = format!("redis://app:pw@{}", kept.addr());
        assert_eq!(warned(&url).await, ["may evict", "on disk is not known"]);
        kept.command(&["ACL", "SETUSER", "app", "+info", "+config|get"])
            .await
            .unwrap();
        assert_eq!(warned(&url).await, [""; 0]);
    })
    .await;
}

/// Also without sentinels: whoever sets up replicas means to promote one of them.
#[tokio::test]
async fn replicas_that_may_lack_grants_are_warned_of() {
    bounded(async {
        let server = set_up(&[], true).await;
        let sentinel = format!("sentinel monitor locks 127.0.0.1 {} 1\n", server.port());
        let sentinel = Server::start_sentinel(&sentinel).await.unwrap();
        let by_sentinel = format!("redis+sentinel://{}/locks", sentinel.addr());
        assert_eq!(warned(&by_sentinel).await, ["no replica follows"]);
        let replica = set_up(
            &["--replicaof", "127.0.0.1", &server.port().to_string()],
            true,
        )
        .await;
        until(async || {
            server
                .info("replication")
                .await
                .unwrap()
                .contains("state=online")
        })
        .await;
        for url in [server.url(), by_sentinel] {
            assert_eq!(
                warned(&url).await,
                ["replicas follow it", "min-replicas-to-write is 0"]
            );
        }
        server
            .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
            .await
            .unwrap();
        assert_eq!(warned(&server.url()).await, ["replicas follow it"]);
        // Nothing tells whether it is cut off.
        assert_eq!(warned(&replica.url()).await, ["it is a replica"]);
    })
    .await;
}

#[tokio::test]
async fn an_eviction_policy_really_deletes_held_locks() {
    bounded(async {
        let server = set_up(
            &["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-random"],
            false,
        )
        .await;
        let store = client(&server).await;
        assert!(!store.guarantees().warnings().is_empty());
        let claims: Vec<_> = (0..50).map(|n| fair(&format!("held/{n}"))).collect();
        for claim in &claims {
            granted(&store, claim).await;
        }
        let filler = "x".repeat(20_000);
        for n in 0..400 {
            server
                .command(&["SET", &format!("filler/{n}"), &filler])
                .await
                .unwrap();
        }
        let mut held = 0;
        for claim in &claims {
            held += number(&server, &["EXISTS", claim.name.as_str()]).await;
        }
        assert!(held < 50, "nothing was evicted");
    })
    .await;
}

/// A primary and its replica, connected.
async fn pair() -> (Server, Server) {
    let primary = set_up(&["--repl-diskless-sync-delay", "0"], false).await;
    let replica = set_up(
        &["--replicaof", "127.0.0.1", &primary.port().to_string()],
        false,
    )
    .await;
    // The first may come with the whole data; the second comes in the stream that is acknowledged.
    until_synced(&primary, &replica).await;
    until_synced(&primary, &replica).await;
    (primary, replica)
}

/// Returns when what is written to the primary arrives at the replica.
async fn until_synced(primary: &Server, replica: &Server) {
    let mark = format!("{:?}", now());
    primary.command(&["SET", "mark", &mark]).await.unwrap();
    while text(replica, &["GET", "mark"]).await.as_ref() != Some(&mark) {
        sleep(10).await;
    }
}

/// Each claim takes so many milliseconds without enough replicas.
async fn replicated(server: &Server, least: u32, within: u32) -> Redis {
    let url = format!(
        "{}?timeout=10000&min_replicas={least}&min_replicas_timeout={within}",
        server.url()
    );
    Redis::connect(&url).await.unwrap()
}

/// Claims until the replica has acknowledged it: on a busy machine it may be late.
async fn until_replicated(store: &Redis, claim: &Claim) -> Grant {
    loop {
        match store.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            Err(e) if e.kind() == ErrorKind::Ambiguous => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_claim_counts_once_the_replica_has_it() {
    bounded(async {
        let (primary, replica) = pair().await;
        let store = replicated(&primary, 1, 20_000).await;
        for n in 0..20 {
            let claim = fair(&format!("job/{n}"));
            granted(&store, &claim).await;
            let there = text(&replica, &["GET", claim.name.as_str()]).await;
            assert!(
                there.is_some_and(|value| value[1..].starts_with(&claim.id.to_string())),
                "{n}"
            );
            store.release(&claim, None).await.unwrap();
        }
        // More than there are.
        let claim = fair("x");
        let error = replicated(&primary, 2, 2000)
            .await
            .claim(&claim)
            .await
            .unwrap_err();
        assert!(
            error.is_retryable() && error.to_string().contains("1 of at least 2"),
            "{error}"
        );
    })
    .await;
}

/// The connection on which replicas are asked for is another one when the claim is answered: where that leads, the claim may be unknown,
/// and nothing is acknowledged but that.
#[tokio::test]
async fn what_is_acknowledged_over_a_later_connection_does_not_count() {
    bounded(async {
        let (primary, _replica) = pair().await;
        let way = Proxy::to(primary.addr()).await.unwrap();
        let url = format!(
            "redis://{}?timeout=40000&min_replicas=1&min_replicas_timeout=10000",
            way.addr()
        );
        let store = Arc::new(Redis::connect(&url).await.unwrap());
        until_replicated(&store, &fair("warm")).await;
        let waits = async || {
            let clients = text(&primary, &["CLIENT", "LIST", "TYPE", "pubsub"])
                .await
                .unwrap();
            let wait = clients.lines().find(|line| line.contains("cmd=info"));
            wait.map(|line| line["id=".len()..].split(' ').next().unwrap().to_owned())
        };
        let claim = fair("x");
        let _trap = way.hold_reply_matching(claim.id.to_string());
        let claiming = tokio::spawn({
            let (store, claim) = (store.clone(), claim.clone());
            async move { store.claim(&claim).await }
        });
        until(async || number(&primary, &["EXISTS", "x"]).await == 1).await;
        primary
            .command(&["CLIENT", "KILL", "ID", &waits().await.unwrap()])
            .await
            .unwrap();
        until(async || waits().await.is_none() && connections(&primary).await == 2).await;
        way.deliver_held();
        let error = claiming.await.unwrap().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Ambiguous && error.to_string().contains("replaced"),
            "{error:?}"
        );
        until_replicated(&store, &claim).await;
    })
    .await;
}

/// A claim is answered late: meanwhile its server became a replica of one without it, took over what that has, and is the primary again.
/// Its replicas acknowledge what there is, and the claim is not among it.
#[tokio::test]
async fn what_a_server_lost_as_a_replica_is_acknowledged_by_none() {
    bounded(async {
        let (primary, other) = pair().await;
        let way = Proxy::to(primary.addr()).await.unwrap();
        let url = format!(
            "redis://{}?timeout=40000&min_replicas=1&min_replicas_timeout=10000",
            way.addr()
        );
        let store = Arc::new(Redis::connect(&url).await.unwrap());
        until_replicated(&store, &fair("warm")).await;
        let claim = fair("x");
        let _trap = way.hold_reply_matching(claim.id.to_string());
        let claiming = tokio::spawn({
            let (store, claim) = (store.clone(), claim.clone());
            async move { store.claim(&claim).await }
        });
        until(async || number(&primary, &["EXISTS", "x"]).await == 1).await;
        other.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        other.command(&["DEL", "x"]).await.unwrap();
        follow(&primary, &other).await;
        assert_eq!(number(&primary, &["EXISTS", "x"]).await, 0);
        primary.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        follow(&other, &primary).await;
        way.deliver_held();
        let error = claiming.await.unwrap().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Ambiguous
                && error.to_string().contains("a replica meanwhile"),
            "{error:?}"
        );
        // It is asked again, and counts once the replica has it.
        until_replicated(&store, &claim).await;
        assert!(text(&other, &["GET", "x"]).await.is_some());
    })
    .await;
}

/// One address may lead to another server than before, as a DNS name or a virtual IP does in a failover: each connection
/// leads to the server that was there when it was made. The replicas of one acknowledge nothing of the other.
#[tokio::test]
async fn the_replicas_of_another_server_at_the_same_address_acknowledge_nothing() {
    bounded(async {
        let (first, second) = pair().await;
        let words = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
        second.command(&words).await.unwrap();
        let last = set_up(
            &["--replicaof", "127.0.0.1", &second.port().to_string()],
            false,
        )
        .await;
        until_synced(&first, &last).await;
        until_synced(&first, &last).await;
        let way = Proxy::to(first.addr()).await.unwrap();
        let url = format!(
            "redis://{}?timeout=40000&min_replicas=1&min_replicas_timeout=10000",
            way.addr()
        );
        let store = Redis::connect(&url).await.unwrap();
        until_replicated(&store, &fair("warm")).await;
        // The second one is promoted, and the first one goes on beside it. New connections lead to the second.
        second.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
        way.lead_to(second.addr());
        let clients = text(&first, &["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        let clients = clients.unwrap();
        let waits = clients.lines().find(|line| line.contains("cmd=info"));
        let id = waits.unwrap()["id=".len()..].split(' ').next().unwrap();
        first.command(&["CLIENT", "KILL", "ID", id]).await.unwrap();
        until(async || connections(&second).await == 1).await;
        // It counts where both connections lead to one server: those that lead elsewhere are made again.
        let claim = fair("x");
        loop {
            match store.claim(&claim).await {
                Ok(Claimed::Granted(_)) => break,
                Err(e) => assert!(e.is_retryable(), "{e:?}"),
                other => panic!("{other:?}"),
            }
            sleep(10).await;
        }
        assert_eq!(held_by(&second, "x").await, claim.id.to_string());
        assert_eq!(held_by(&last, "x").await, claim.id.to_string());
    })
    .await;
}

/// Makes it a replica of that one, and returns when it has all that that one has.
async fn follow(replica: &Server, of: &Server) {
    let port = of.port().to_string();
    replica
        .command(&["REPLICAOF", "127.0.0.1", &port])
        .await
        .unwrap();
    until(async || {
        let info = replica.info("replication").await.unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    until_synced(of, replica).await;
}

/// A user without `WAIT` is refused before a claim is there that nobody acknowledges, and one without `INFO`, since the replicas of any server
/// at the address would acknowledge it.
#[tokio::test]
async fn who_may_not_ask_for_replicas_is_refused_at_the_start() {
    bounded(async {
        let server = server().await;
        for right in ["wait", "info"] {
            let without = format!("-{right}");
            let user = [
                "ACL", "SETUSER", right, "on", ">pw", "~*", "&*", "+@all", &without,
            ];
            server.command(&user).await.unwrap();
            let url = format!("redis://{right}:pw@{}", server.addr());
            Redis::connect(&url).await.unwrap();
            let error = Redis::connect(&format!("{url}?min_replicas=1")).await;
            let error = error.unwrap_err();
            assert!(
                error.kind() == ErrorKind::Denied
                    && error.to_string().contains(&format!("+{right}")),
                "{error:?}"
            );
        }
    })
    .await;
}

/// A user that may not ask whether a replica takes writes uses none: it would be granted there what the primary grants too.
#[tokio::test]
async fn who_may_not_ask_whether_a_replica_takes_writes_uses_none() {
    bounded(async {
        let server = server().await;
        let user = [
            "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info",
        ];
        for command in [
            &user[..],
            &["CONFIG", "SET", "replica-read-only", "no"],
            &["REPLICAOF", "127.0.0.1", "1"],
        ] {
            server.command(command).await.unwrap();
        }
        let error = Redis::connect(&format!("redis://app:pw@{}", server.addr())).await;
        let error = error.unwrap_err();
        assert!(
            error.kind() == ErrorKind::Denied && error.to_string().contains("+info"),
            "{error:?}"
        );
    })
    .await;
}

/// How many clients listen for pushes.
async fn connections(server: &Server) -> usize {
    text(server, &["CLIENT", "LIST", "TYPE", "pubsub"])
        .await
        .unwrap()
        .lines()
        .count()
}

#[tokio::test]
async fn without_its_replica_a_claim_fails_and_nothing_stays() {
    bounded(async {
        let (primary, replica) = pair().await;
        let store = Store::new(replicated(&primary, 1, 700).await);
        let held = store.lock("held").ttl(LONG).acquire().await.unwrap();
        replica.pause().await.unwrap();
        let lock = store.lock("x").ttl(TTL);
        for error in [
            lock.try_acquire().await.unwrap_err(),
            lock.acquire_timeout(Duration::from_millis(1500))
                .await
                .unwrap_err(),
        ] {
            assert!(
                error.is_retryable() && error.to_string().contains("0 of at least 1"),
                "{error:?}"
            );
        }
        while !text(&primary, &["GET", "x"])
            .await
            .unwrap_or_default()
            .is_empty()
        {
            sleep(10).await;
        }
        // Who held before holds on: it is not known to be lost, and a question leaves it in place.
        assert_eq!(
            held.confirm().await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        assert!(held.is_valid() && text(&primary, &["GET", "held"]).await.is_some());
        replica.resume().unwrap();
        until_synced(&primary, &replica).await;
        while let Err(e) = held.confirm().await {
            assert!(e.is_retryable(), "{e:?}");
        }
        lock.acquire().await.unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn whoever_is_handed_the_lock_waits_for_the_replica_too() {
    bounded(async {
        let (primary, replica) = pair().await;
        let store = replicated(&primary, 1, 700).await;
        let [holder, next] = ["x"; 2].map(|name| claim(name, WaitPolicy::Fair, LONG, ""));
        until_replicated(&store, &holder).await;
        waiting(&store, &next).await;
        replica.pause().await.unwrap();
        store.release(&holder, None).await.unwrap();
        assert_eq!(held_by(&primary, "x").await, next.id.to_string());
        // The store holds it for the waiter, and a renewal does not say so before the replica has.
        assert!(matches!(
            renewed(&store, &next, None).await,
            Renewal::Renewed(_)
        ));
        assert_eq!(
            store.claim(&next).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        replica.resume().unwrap();
        until_synced(&primary, &replica).await;
        until_replicated(&store, &next).await;
        // With core: a push makes the waiter claim again.
        let (one, two) = (
            Store::new(replicated(&primary, 1, 700).await),
            Store::new(store),
        );
        // The waiter's place is renewed after twenty seconds.
        let held = one.lock("y").ttl(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn(two.lock("y").ttl(LONG).acquire());
        while in_line(&primary, "y").await == 0 {
            sleep(1).await;
        }
        held.release().await.unwrap();
        let guard = tokio::time::timeout(Duration::from_secs(15), waiter)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert!(guard.is_valid());
    })
    .await;
}

/// A raise that the replicas have not acknowledged counts as little as a grant: a renewal by the token of before does not tell it.
#[tokio::test]
async fn a_hold_that_was_raised_waits_for_the_replica_too() {
    bounded(async {
        let (primary, replica) = pair().await;
        let store = replicated(&primary, 1, 700).await;
        let mut mine = claim("x", WaitPolicy::Fair, LONG, "");
        let before = until_replicated(&store, &mine).await.token;
        let heard = Arc::new(AtomicBool::new(false));
        let again = heard.clone();
        let _listens = store.notifier().unwrap().subscribe(mine.id, move |said| {
            again.fetch_or(matches!(said, Notification::ClaimAgain), Ordering::Relaxed);
        });
        replica.pause().await.unwrap();
        mine.floor = Some(FencingToken::new(before.get() + 1_000_000_000));
        assert_eq!(
            store.claim(&mine).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        assert_eq!(
            store.inspect(&mine.name).await.unwrap().holders[0].token,
            mine.floor,
            "the primary has raised it"
        );
        let renewal = renewed(&store, &mine, before).await;
        assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
        assert!(heard.load(Ordering::Relaxed), "its answer to a claim tells");
        assert_eq!(
            store.claim(&mine).await.unwrap_err().kind(),
            ErrorKind::Ambiguous
        );
        replica.resume().unwrap();
        until_synced(&primary, &replica).await;
        assert_eq!(
            Some(until_replicated(&store, &mine).await.token),
            mine.floor
        );
    })
    .await;
}
