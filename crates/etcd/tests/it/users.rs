//! Users and their tokens: whatever is changed among users and roles, whatever runs out, the locks
//! go on.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use etcd_client::{AlarmAction, AlarmType, Client, ConnectOptions, Permission};
use leasehold_core::backend::{Backend, LeaseRef, Renewal};
use leasehold_core::{Error, ErrorKind, Store};
use leasehold_etcd::Etcd;
use leasehold_testbed as testbed;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// This is found nowhere by chance.
const CANARY: &str = "c4n4ry-p4ssw0rd";

/// A server with a user for everything, and one for the locks.
async fn guarded(extra: Vec<String>) -> (testbed::Etcd, Client) {
    // A password's hash is cheap: a busy machine is not to look as if it did not answer.
    let extra = [extra, vec!["--bcrypt-cost=4".into()]].concat();
    let options = testbed::EtcdOptions {
        extra,
        ..Default::default()
    };
    let server = testbed::Etcd::start_with(&options).await.unwrap();
    let mut open = Client::connect([server.url()], None).await.unwrap();
    open.user_add("root", "pass", None).await.unwrap();
    open.user_grant_role("root", "root").await.unwrap();
    open.role_add("locks").await.unwrap();
    open.role_grant_permission("locks", Permission::read_write("test/").with_prefix())
        .await
        .unwrap();
    open.user_add("me", CANARY, None).await.unwrap();
    open.user_grant_role("me", "locks").await.unwrap();
    open.auth_enable().await.unwrap();
    let root = ConnectOptions::new()
        .with_user("root", "pass")
        .with_auto_token_refresh(true);
    let root = Client::connect([server.url()], Some(root)).await.unwrap();
    (server, root)
}

/// A key pair for tokens that servers sign.
async fn jwt(folder: &Path, ttl: &str) -> String {
    let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let openssl = |args: Vec<String>| async move {
        let ran = tokio::process::Command::new("openssl")
            .args(args)
            .stderr(Stdio::null())
            .status()
            .await;
        assert!(ran.unwrap().success(), "openssl");
    };
    openssl(vec![
        "genrsa".into(),
        "-out".into(),
        file("key"),
        "2048".into(),
    ])
    .await;
    openssl(vec![
        "rsa".into(),
        "-in".into(),
        file("key"),
        "-pubout".into(),
        "-out".into(),
        file("pub"),
    ])
    .await;
    format!(
        "--auth-token=jwt,pub-key={},priv-key={},sign-method=RS256,ttl={ttl}",
        file("pub"),
        file("key")
    )
}

async fn mine(addr: &str) -> Etcd {
    Etcd::connect(&format!("etcd://me:{CANARY}@{addr}/test?timeout=3000"))
        .await
        .unwrap()
}

/// Any change of users or roles makes all signed tokens old.
async fn change(root: &mut Client, to: u32) {
    // Our own token is old, too, after each change.
    root.refresh_token().await.unwrap();
    root.user_add(format!("newcomer {to}"), "x", None)
        .await
        .unwrap();
}

/// Each verb is the first after a change once.
async fn every_verb_survives_a_change(server: &testbed::Etcd, mut root: Client) {
    let (etcd, operator) = (mine(server.addr()).await, mine(server.addr()).await);
    let root = &mut root;
    let held = Arc::new(fair("a"));
    let grant = granted(etcd.claim(&held).await);
    change(root, 1).await;
    let lease = LeaseRef::new(held.clone(), grant.place.clone(), Some(grant.token));
    let answers = renewals(&etcd, &[lease]).await;
    assert!(matches!(answers[..], [Renewal::Renewed(_)]), "{answers:?}");
    change(root, 2).await;
    granted(etcd.claim(&fair("b")).await);
    change(root, 3).await;
    assert_eq!(etcd.inspect(&"a".into()).await.unwrap().holders.len(), 1);
    change(root, 4).await;
    assert_eq!(etcd.list("", None, 10).await.unwrap().len(), 2);
    change(root, 5).await;
    assert!(
        operator
            .evict(
                &"b".into(),
                etcd.inspect(&"b".into()).await.unwrap().holders[0]
                    .token
                    .unwrap()
            )
            .await
            .unwrap()
    );
    change(root, 6).await;
    // A lease of another length.
    granted(
        etcd.claim(&claim(
            "c",
            leasehold_core::backend::WaitPolicy::Fair,
            TTL * 2,
        ))
        .await,
    );
    change(root, 7).await;
    release(&etcd, &held).await;
    assert!(keys(&*root, "test/a/").await.is_empty());
    change(root, 8).await;
    etcd.close().await.unwrap();
}

async fn keys(root: &Client, prefix: &str) -> Vec<String> {
    root.refresh_token().await.unwrap();
    let read = root
        .clone()
        .get(prefix, Some(etcd_client::GetOptions::new().with_prefix()))
        .await
        .unwrap();
    read.kvs()
        .iter()
        .map(|kv| kv.key_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn signed_tokens_are_renewed_after_every_change_of_users() {
    within(90, async {
        let folder = tempfile::tempdir().unwrap();
        let (server, root) = guarded(vec![jwt(folder.path(), "10m").await]).await;
        every_verb_survives_a_change(&server, root).await;
    })
    .await;
}

#[tokio::test]
async fn simple_tokens_are_renewed_after_every_change_of_users() {
    within(90, async {
        let (server, root) = guarded(Vec::new()).await;
        every_verb_survives_a_change(&server, root).await;
    })
    .await;
}

/// Many requests whose token is stale at once authenticate once, and no hold is lost.
#[tokio::test]
async fn many_holds_survive_a_change_of_users() {
    within(90, async {
        let folder = tempfile::tempdir().unwrap();
        let (server, mut root) = guarded(vec![jwt(folder.path(), "10m").await]).await;
        let store = Store::new(mine(server.addr()).await).ttl(Duration::from_secs(5));
        let mut guards = Vec::new();
        for i in 0..50 {
            guards.push(store.lock(("a", i)).acquire().await.unwrap());
        }
        let before = requests(&server).await;
        change(&mut root, 1).await;
        let more: Vec<_> = (0..50)
            .map(|i| tokio::spawn(store.lock(("b", i)).acquire()))
            .collect();
        for one in more {
            guards.push(one.await.unwrap().unwrap());
        }
        let authenticated = requests_since(&server, &before).await["Authenticate"];
        assert!(authenticated <= 4, "{authenticated} times");
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(guards.iter().all(|guard| guard.is_valid()));
    })
    .await;
}

/// The token has run out, or is too old, when the stream of the watch is opened anew.
#[tokio::test]
async fn a_waiter_is_notified_after_a_reconnect_with_a_stale_token() {
    within(90, async {
        let folder = tempfile::tempdir().unwrap();
        for extra in [jwt(folder.path(), "10m").await, "--auth-token-ttl=1".into()] {
            let (server, mut root) = guarded(vec![extra]).await;
            let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
            let ttl = Duration::from_secs(60);
            let (one, two) = (
                Store::new(mine(server.addr()).await).ttl(ttl),
                Store::new(mine(proxy.addr()).await).ttl(ttl),
            );
            let guard = one.lock("a").acquire().await.unwrap();
            let waiter = tokio::spawn(two.lock("a").acquire());
            until_waiting(&one, "a", 1).await;
            change(&mut root, 1).await;
            tokio::time::sleep(Duration::from_millis(2500)).await;
            proxy.disconnect().await;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            give_back(guard).await;
            // By itself it would ask again after twenty seconds.
            give_back(within(15, waiter).await.unwrap().unwrap()).await;
        }
    })
    .await;
}

/// Its token runs out while it holds, and its server is restarted, which forgets tokens that are
/// not signed.
#[tokio::test]
async fn a_hold_outlives_its_signed_tokens_and_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    outlives_its_tokens_and_a_restart(jwt(folder.path(), "2s").await).await;
}

#[tokio::test]
async fn a_hold_outlives_its_simple_tokens_and_a_restart() {
    outlives_its_tokens_and_a_restart("--auth-token-ttl=1".into()).await;
}

async fn outlives_its_tokens_and_a_restart(tokens: String) {
    within(90, async {
        let (server, _root) = guarded(vec![tokens]).await;
        let store = Store::new(mine(server.addr()).await).ttl(Duration::from_secs(5));
        let guard = store.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(store.lock("a").acquire());
        until_waiting(&store, "a", 1).await;
        for restart in [false, true] {
            if restart {
                server.restart_with_data().await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert!(
                guard.is_valid() && !waiter.is_finished(),
                "restarted: {restart}, {:?}",
                guard.check()
            );
        }
        let before = guard.fencing_token();
        guard.release().await.unwrap();
        let next = within(20, waiter).await.unwrap().unwrap();
        assert!(next.fencing_token() > before);
        next.release().await.unwrap();
    })
    .await;
}

/// A password that was changed and is changed back in time costs no hold. One that stays ends it,
/// in time, and its lock is free for who knows the new one.
#[tokio::test]
async fn a_hold_ends_in_time_if_its_password_is_changed() {
    within(90, async {
        let folder = tempfile::tempdir().unwrap();
        for extra in [vec![jwt(folder.path(), "10m").await], Vec::new()] {
            let (server, mut root) = guarded(extra).await;
            let store = Store::new(mine(server.addr()).await).ttl(Duration::from_secs(5));
            let guard = store.lock("a").acquire().await.unwrap();
            let mut set = async |password: &str| {
                root.refresh_token().await.unwrap();
                root.user_change_password("me", password).await.unwrap();
            };
            set("another").await;
            let denied = store.lock("b").try_acquire().await.unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::Denied, "{denied:?}");
            set(CANARY).await;
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert!(guard.is_valid(), "{:?}", guard.check());
            set("another").await;
            let before = guard.fencing_token();
            within(10, guard.lost()).await;
            let rotated = Etcd::connect(&format!("etcd://me:another@{}/test", server.addr()))
                .await
                .unwrap();
            let next = within(30, Store::new(rotated).lock("a").acquire())
                .await
                .unwrap();
            assert!(next.fencing_token() > before);
            next.release().await.unwrap();
        }
    })
    .await;
}

/// Whoever may use the locks is told, and nobody needs more rights for that.
#[tokio::test]
async fn what_a_member_says_of_itself_is_a_warning() {
    within(60, async {
        let (server, mut root) = guarded(Vec::new()).await;
        let version = root.status().await.unwrap().version().to_owned();
        let warned = async || {
            Store::new(mine(server.addr()).await)
                .guarantees()
                .warnings()
                .to_vec()
        };
        // Debian 12 has 3.4.23. A newer one in its place has nothing to warn of.
        let old = ["3.4.1", "3.4.2", "3.5.0", "3.5.1"]
            .iter()
            .any(|old| version.starts_with(old));
        let found = warned().await;
        assert_eq!(found.len(), usize::from(old), "etcd {version}: {found:?}");
        assert!(
            found
                .iter()
                .all(|text| text.contains(&version) && text.contains("15247")),
            "{found:?}"
        );
        root.alarm(AlarmAction::Activate, AlarmType::Nospace, None)
            .await
            .unwrap();
        let full = warned().await;
        assert!(
            full.len() == found.len() + 1 && full.iter().any(|text| text.contains("NOSPACE")),
            "{full:?}"
        );
    })
    .await;
}

/// What is said of an error anywhere.
fn all_of(error: &Error) -> String {
    let mut said = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let _ = write!(said, " {cause} {cause:?}");
        source = cause.source();
    }
    said
}

/// Through every kind of failure: no error and no event has the password or the claim's id.
#[tokio::test]
async fn no_error_and_no_event_has_a_password_or_a_claims_id() {
    let events = tempfile::NamedTempFile::new().unwrap();
    let file = Arc::new(events.reopen().unwrap());
    // With one subscriber alone, `tracing` asks none about an event that another test's thread
    // comes to first. With two it asks both.
    let _second = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::sink)
        .finish()
        .set_default();
    let _told = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_writer(file)
        .finish()
        .set_default();
    within(120, async {
        let (server, mut root) = guarded(Vec::new()).await;
        let proxy = testbed::Proxy::to(server.addr()).await.unwrap();
        let (wrong, canary) = (format!("{CANARY}2"), fair("a"));
        let mut said = String::new();
        for (user, name) in [
            ("me", "test"),
            ("nobody", "test"),
            ("me", "a%00b"),
            ("m%65%0a", "test"),
            ("me", "a//b"),
        ] {
            let error = Etcd::connect(&format!("etcd://{user}:{wrong}@{}/{name}", server.addr()))
                .await
                .unwrap_err();
            said += &all_of(&error);
        }
        let etcd = Arc::new(mine(proxy.addr()).await);
        said += &format!("{etcd:?}");
        let grant = granted(etcd.claim(&canary).await);
        let lease = LeaseRef::new(Arc::new(canary.clone()), grant.place, Some(grant.token));
        let guard = Store::new(etcd.clone())
            .lock("b")
            .ttl(Duration::from_secs(3))
            .acquire()
            .await
            .unwrap();
        root.role_revoke_permission(
            "locks",
            "test/",
            Some(etcd_client::RoleRevokePermissionOptions::new().with_prefix()),
        )
        .await
        .unwrap();
        let denied = etcd.claim(&canary).await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied);
        said += &all_of(&denied);
        said += &format!(
            "{:?}",
            etcd.renew(std::slice::from_ref(&lease)).await.unwrap()
        );
        said += &all_of(&etcd.release(&canary, None).await.unwrap_err());
        said += &all_of(
            &etcd
                .release_after(&canary, None, Duration::from_secs(9))
                .await
                .unwrap_err(),
        );
        said += &all_of(&etcd.inspect(&"a".into()).await.unwrap_err());
        root.user_change_password("me", "another").await.unwrap();
        said += &all_of(&etcd.claim(&canary).await.unwrap_err());
        root.user_delete("me").await.unwrap();
        said += &all_of(&etcd.claim(&canary).await.unwrap_err());
        for fault in 0..3 {
            match fault {
                0 => proxy.hold(),
                1 => proxy.drop_replies(),
                _ => proxy.cut().await,
            }
            said += &all_of(&etcd.claim(&canary).await.unwrap_err());
            said += &format!(
                "{:?}",
                etcd.renew(std::slice::from_ref(&lease)).await.unwrap()
            );
            said += &all_of(&etcd.list("", None, 1).await.unwrap_err());
            proxy.heal().await;
        }
        server.kill().await.unwrap();
        said += &all_of(&etcd.claim(&canary).await.unwrap_err());
        let _ = etcd.close().await.map_err(|error| said += &all_of(&error));
        guard.lost().await;
        said += &std::fs::read_to_string(events.path()).unwrap();
        assert!(
            !said.contains(CANARY) && !said.contains(&canary.id.to_string()),
            "{said}"
        );
        assert!(
            said.contains("lock lost") && said.contains("h2::"),
            "{said}"
        );
    })
    .await;
}
