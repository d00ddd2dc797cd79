//! Cases about operated servers, with users of few rights and with host names, that every store's
//! tests share under common names. Each refusal is a typed error in time that names the server and
//! the remedy, shows no secret, and leaves nothing behind.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests are tests"
)]
#![allow(missing_docs, reason = "each case says by its name what it judges")]

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    thread,
    time::Duration,
};

use leasehold_core::{Error, ErrorKind::Denied, Result, Store};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::{
    Proxy,
    tls_cases::works,
    verbs::{connected, sleep, within, words_without},
};

/// The servers of one store, with a user who has the rights that locks need and no others.
#[allow(async_fn_in_trait, reason = "a test waits for them where it is")]
pub trait FleetStore: Sized {
    /// A part of the error about a wrong password.
    const WRONG: &'static str;
    /// A part of the error about missing rights.
    const RIGHTS: &'static str;

    /// A hold is confirmed by data that a user without the right to write may still read.
    const CONFIRMED_BY_READING: bool = false;

    /// Starts the servers. The user has this password.
    async fn start(password: &str) -> Self;

    /// The URL with which the user connects with this password. Its time-outs suit a busy machine,
    /// too.
    fn url(&self, password: &str) -> String;

    /// The addresses of the servers: `host:port`.
    fn addrs(&self) -> Vec<String>;

    async fn connect(url: &str) -> Result<Store>;

    /// Revokes the user's right to write; the user stays connected.
    async fn revoke(&self);

    /// Restores the right to write.
    async fn restore(&self);

    /// Waits until nothing of a client is left, or fails if something remains.
    async fn nothing_is_left(&self);
}

const PASSWORD: &str = "s3cret";
const WRONG: &str = "wr0ng";
/// Short, so that a hold that is not renewed ends while a test waits for it.
const TTL: Duration = Duration::from_secs(4);

/// Checks that one of these servers refused the request, for this reason.
fn refused<S: FleetStore>(store: &S, error: Error, says: &str) {
    let kind = error.kind();
    let words = words_without(&[PASSWORD, WRONG], Err::<(), _>(error));
    assert_eq!(kind, Denied, "{words}");
    assert!(
        words.contains(says) && store.addrs().iter().any(|addr| words.contains(&**addr)),
        "{words}"
    );
}

pub async fn a_wrong_password<S: FleetStore>() {
    let servers = S::start(PASSWORD).await;
    // The time limit suits a busy machine.
    refused(
        &servers,
        within(30, S::connect(&servers.url(WRONG)))
            .await
            .unwrap_err(),
        S::WRONG,
    );
    servers.nothing_is_left().await;
    let url = servers.url(PASSWORD);
    works(connected(|| S::connect(&url)).await).await;
}

/// Requests fail with the reason, the hold ends in time, and its lock is free once the rights are
/// back.
pub async fn rights_that_are_revoked_in_the_middle_of_a_hold<S: FleetStore>() {
    let servers = S::start(PASSWORD).await;
    let url = servers.url(PASSWORD);
    let store = connected(|| S::connect(&url)).await.ttl(TTL);
    let held = store.lock("a").acquire().await.unwrap();
    servers.revoke().await;
    refused(
        &servers,
        within(30, store.lock("b").try_acquire()).await.unwrap_err(),
        S::RIGHTS,
    );
    match within(30, held.confirm()).await {
        Ok(()) => assert!(S::CONFIRMED_BY_READING),
        Err(e) => refused(&servers, e, S::RIGHTS),
    }
    within(30, held.lost()).await;
    assert!(!held.is_valid());
    servers.restore().await;
    let next = within(60, store.lock("a").acquire()).await.unwrap();
    assert!(next.fencing_token() > held.fencing_token());
    next.release().await.unwrap();
    drop(held);
    store.close(TTL).await.unwrap();
    servers.nothing_is_left().await;
}

/// The address behind a name changes, and nothing answers at the old one: new connections go to the
/// new address.
///
/// The case runs in a process of its own, with an `/etc/hosts` of the testbed.
pub async fn a_name_is_looked_up_anew_for_each_connection<S: FleetStore>() {
    const HOSTS: &str = "LEASEHOLD_HOSTS";
    let Some(hosts) = env::var_os(HOSTS) else {
        let hosts = tempfile::NamedTempFile::new().unwrap();
        let program = env::current_exe().unwrap();
        let here = thread::current();
        let script = r#"mount --bind "$LEASEHOLD_HOSTS" /etc/hosts && exec "$@""#;
        let mut child = Command::new("unshare");
        child
            .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
            .arg(program);
        // A case runs on the thread of its test, which is named like the test.
        child
            .args(["--exact", here.name().unwrap(), "--nocapture"])
            .env(HOSTS, hosts.path());
        let output = child.output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{printed}"
        );
        return;
    };
    let at =
        |host: &str| fs::write(&hosts, format!("127.0.0.1 localhost\n{host} {NAME}\n")).unwrap();
    at("127.0.0.1");
    let servers = S::start(PASSWORD).await;
    let mut url = servers.url(PASSWORD);
    let mut ways = Vec::new();
    for addr in servers.addrs() {
        let way = Proxy::to(&*addr).await.unwrap();
        assert!(url.contains(&addr), "{url}");
        url = url.replace(&addr, &format!("{NAME}:{}", way.port()));
        lead((Ipv4Addr::new(127, 0, 0, 2), way.port()).into(), addr).await;
        ways.push(way);
    }
    let store = connected(|| S::connect(&url))
        .await
        .ttl(Duration::from_secs(60));
    let guard = store.lock("a").acquire().await.unwrap();
    at("127.0.0.2");
    for way in &ways {
        way.cut().await;
    }
    while let Err(e) = guard.confirm().await {
        assert!(e.is_retryable(), "{e:?}");
        sleep(10).await;
    }
    guard.release().await.unwrap();
}

const NAME: &str = "store.test";

/// Leads connections to `from` to this server.
async fn lead(from: SocketAddr, to: String) {
    let listener = TcpListener::bind(from).await.unwrap();
    tokio::spawn(async move {
        loop {
            let ((mut client, _), to) = (listener.accept().await.unwrap(), to.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
}

/// Defines one test for each case, with the servers of this type.
#[macro_export]
macro_rules! fleet_cases {
    ($store:ty) => {
        $crate::fleet_cases! { $store:
            a_wrong_password rights_that_are_revoked_in_the_middle_of_a_hold a_name_is_looked_up_anew_for_each_connection
        }
    };
    ($store:ty: $($case:ident)*) => { $(
        #[tokio::test]
        async fn $case() {
            $crate::verbs::bounded($crate::fleet_cases::$case::<$store>()).await;
        }
    )* };
}
