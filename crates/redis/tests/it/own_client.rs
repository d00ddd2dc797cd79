//! A client that the program has: its server, its credentials and its TLS are used, and what is wrong with it is said at once. And credentials
//! that the program is asked for.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use leasehold_core::{Error, ErrorKind, Guard, Store};
use leasehold_redis::client::{Client, cmd};
use leasehold_redis::{Config, Redis};
use leasehold_testbed::{
    RedisCluster, RedisClusterOptions, RedisOptions, RedisSentinel, SentinelOptions,
};

/// Nothing is renewed within twenty seconds.
const LONG: Duration = Duration::from_secs(60);

async fn works(store: Redis) {
    let store = Store::new(store);
    let guard = store.lock("orders/42").ttl(TTL).acquire().await.unwrap();
    guard.confirm().await.unwrap();
    guard.release().await.unwrap();
    store.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn it_is_used_and_never_closed() {
    bounded(async {
        let options = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let theirs = Client::open(format!("redis://:s3cret@{}/3", server.addr())).unwrap();
        let mut connection = theirs.get_multiplexed_async_connection().await.unwrap();
        works(Redis::with_client(&theirs).await.unwrap()).await;
        works(
            Redis::with_config(Config::new(theirs.get_connection_info().clone()).prefix("app:"))
                .await
                .unwrap(),
        )
        .await;
        let pong: String = cmd("PING").query_async(&mut connection).await.unwrap();
        assert_eq!(pong, "PONG");
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_with_it_is_said_at_once() {
    bounded(async {
        let options = RedisOptions {
            password: Some("s3cret".into()),
            ..RedisOptions::default()
        };
        let server = Server::start_with(&options).await.unwrap();
        let addr = server.addr();
        for (url, kind) in [
            (format!("redis://{addr}"), ErrorKind::Denied),
            (format!("redis://:wr0ng@{addr}"), ErrorKind::Denied),
            (format!("redis://:s3cret@{addr}/99"), ErrorKind::Invalid),
            ("redis://127.0.0.1:1".to_owned(), ErrorKind::Unavailable),
        ] {
            let error = Redis::with_client(&Client::open(url).unwrap())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(!format!("{error:?}").contains("wr0ng"));
        }
    })
    .await;
}

/// What the function says.
#[derive(Clone)]
enum Said {
    /// The password of this number.
    Password(u32),
    Failure(ErrorKind),
    Nothing,
}

/// The lock, whatever outages there are.
async fn patient(store: &Store, name: &str) -> Guard {
    loop {
        match store.lock(name).ttl(LONG).acquire().await {
            Ok(guard) => return guard,
            Err(e) => assert!(e.is_retryable(), "{e:?}"),
        }
    }
}

async fn confirmed(guard: &Guard) {
    while let Err(e) = guard.confirm().await {
        assert!(e.is_retryable(), "{e:?}");
        sleep(10).await;
    }
}

/// Changes the user, and ends its connections.
async fn change(servers: &[&Server], words: &str) {
    for server in servers {
        let words: Vec<&str> = ["ACL", "SETUSER", "app"]
            .into_iter()
            .chain(words.split(' '))
            .collect();
        server.command(&words).await.unwrap();
        let _ = server.command(&["CLIENT", "KILL", "USER", "app"]).await;
    }
}

/// With a function that says this.
fn asking(config: Config, now: &Arc<Mutex<Said>>) -> Config {
    let now = now.clone();
    config.timeout(Duration::from_secs(8)).credentials(move || {
        let said = now.lock().unwrap().clone();
        async move {
            match said {
                Said::Password(n) => Ok(("app".to_owned(), format!("s3cret-{n}"))),
                Said::Failure(kind) => Err(Error::new(kind, "the vault")),
                Said::Nothing => pending().await,
            }
        }
    })
}

/// What the function says instead of the password is said as what it is, and shows none.
async fn refused(config: &Config, now: &Arc<Mutex<Said>>) {
    for (failure, kind) in [
        (
            Said::Failure(ErrorKind::Unavailable),
            ErrorKind::Unavailable,
        ),
        (Said::Failure(ErrorKind::Denied), ErrorKind::Denied),
        (Said::Password(0), ErrorKind::Denied),
        (Said::Nothing, ErrorKind::Unavailable),
    ] {
        let short = matches!(failure, Said::Nothing);
        let config = config
            .clone()
            .timeout(Duration::from_millis(if short { 500 } else { 8000 }));
        let good = std::mem::replace(&mut *now.lock().unwrap(), failure);
        let error = Redis::with_config(config.clone()).await.unwrap_err();
        let text = format!("{error} {error:?} {config:?}");
        assert!(
            error.kind() == kind && text.contains("127.0.0.1:") && !text.contains("s3cret"),
            "{text}"
        );
        *now.lock().unwrap() = good;
    }
}

/// The rights that the documentation names, for the names `x` and `y`, with what a Cluster needs.
const RIGHTS: &str = "on >s3cret-0 resetkeys ~x* ~{x* ~y* ~{y* ~{}:f ~{}:f:* resetchannels &leasehold:* \
    -@all +@scripting +@read +@write +@pubsub +@connection +time +info +config|get +cluster|slots";

/// The user's password is changed again and again, and connections end: no hold and no waiter is lost by that.
async fn rotate(servers: &[&Server], config: Config) {
    change(servers, RIGHTS).await;
    let now = Arc::new(Mutex::new(Said::Password(0)));
    let config = asking(config, &now);
    let store = Store::new(Redis::with_config(config.clone()).await.unwrap());
    let held = patient(&store, "x").await;
    let waiter = tokio::spawn(store.lock("x").ttl(LONG).acquire());
    until(async || {
        store
            .lock("x")
            .inspect()
            .await
            .is_ok_and(|queue| queue.waiters.len() == 1)
    })
    .await;
    for n in 1..=3 {
        *now.lock().unwrap() = Said::Password(n);
        change(servers, &format!("resetpass >s3cret-{n}")).await;
        confirmed(&held).await;
        drop(patient(&store, "y").await);
    }
    refused(&config, &now).await;
    // Who was connected is so meanwhile. And where a connection ends as the function fails, who holds or waits goes on (unless it is
    // `Denied`, which ends an acquire).
    confirmed(&held).await;
    *now.lock().unwrap() = Said::Failure(ErrorKind::Unavailable);
    change(servers, "on").await;
    let vault =
        |e: Error| e.kind() == ErrorKind::Unavailable && e.to_string().contains("the vault");
    until(async || store.lock("y").try_acquire().await.is_err_and(vault)).await;
    *now.lock().unwrap() = Said::Password(3);
    until(async || store.lock("y").try_acquire().await.is_ok()).await;
    until(async || held.confirm().await.is_ok()).await;
    assert!(held.is_valid() && !waiter.is_finished());
    let token = held.fencing_token();
    if let Err(e) = held.release().await {
        assert!(e.is_retryable(), "{e:?}");
    }
    assert!(waiter.await.unwrap().unwrap().fencing_token() > token);
}

#[tokio::test]
async fn credentials_that_are_asked_for_are_rotated_without_a_restart() {
    bounded(async {
        let server = server().await;
        rotate(&[&server], Config::from_url(&server.url()).unwrap()).await;
    })
    .await;
}

/// The sentinels have passwords of their own.
#[tokio::test]
async fn they_are_asked_for_wherever_sentinels_say_that_the_master_is() {
    within(200, async {
        let options = SentinelOptions {
            password: Some("s3ntinel".into()),
            ..SentinelOptions::default()
        };
        let all = RedisSentinel::start_with(&options).await.unwrap();
        let servers: Vec<&Server> = all.servers().iter().collect();
        rotate(&servers, Config::from_url(&all.url()).unwrap()).await;
    })
    .await;
}

#[tokio::test]
async fn they_are_asked_for_at_each_node_of_a_cluster() {
    within(200, async {
        let cluster = RedisCluster::start(&RedisClusterOptions {
            replicas: 0,
            ..Default::default()
        })
        .await
        .unwrap();
        let servers: Vec<&Server> = cluster.nodes().iter().map(AsRef::as_ref).collect();
        rotate(&servers, Config::from_url(&cluster.url()).unwrap()).await;
    })
    .await;
}

/// With the client crate's own TLS, of which this store knows nothing.
#[cfg(feature = "tls-no-provider")]
#[tokio::test]
async fn its_tls_is_used() {
    use leasehold_redis::client::{ClientTlsConfig, TlsCertificates};
    use leasehold_testbed::{Certificates, TlsPort};

    let read = |path: &std::path::Path| std::fs::read(path).unwrap();
    bounded(async {
        let authority = Certificates::new().unwrap();
        let port = TlsPort::new(&authority).unwrap().mutual();
        let options = RedisOptions {
            extra: port.redis(),
            ..RedisOptions::default()
        };
        let _server = Server::start_with(&options).await.unwrap();
        let files = authority.issue("client").unwrap();
        let shown = ClientTlsConfig {
            client_cert: read(&files.certificate),
            client_key: read(&files.key),
        };
        let mut tls = TlsCertificates {
            client_tls: Some(shown),
            root_cert: Some(read(authority.ca())),
        };
        let url = format!("rediss://{}", port.addr());
        works(
            Redis::with_client(&Client::build_with_tls(&*url, tls.clone()).unwrap())
                .await
                .unwrap(),
        )
        .await;
        tls.root_cert = Some(read(Certificates::new().unwrap().ca()));
        let error = Redis::with_client(&Client::build_with_tls(&*url, tls).unwrap())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    })
    .await;
}
