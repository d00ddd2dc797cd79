//! What a server says of a refused request may repeat the request: no password and no claim's id gets into an error or an event.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use leasehold_core::backend::{Backend, WaitPolicy};
use leasehold_core::{ErrorKind, Store};
use leasehold_redis::Redis;
use leasehold_testbed::{RedisEcho, RedisOptions};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::util::SubscriberInitExt;

const CANARY: &str = "s3ntinel";

#[tokio::test]
async fn no_error_repeats_what_a_request_said() {
    bounded(async {
        let codes = [
            "ERR",
            "NOPERM",
            "NOAUTH",
            "WRONGPASS",
            "READONLY",
            "LOADING",
            "OOM",
            "WRONGTYPE",
            "MOVED",
            "NOSCRIPT",
            "BUSY",
            "X-s3ntinel",
            "ZZZ",
        ];
        for code in codes {
            let server = RedisEcho::start(code, true).await.unwrap();
            let url = format!("redis://:{CANARY}@{}", server.addr());
            for (verb, words) in
                refusals(async || Redis::connect(&url).await.unwrap(), CANARY).await
            {
                assert!(
                    verb == "release_after" || words.contains(server.addr()),
                    "does not name the server: {words}"
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn no_error_of_connecting_repeats_the_password() {
    bounded(async {
        for code in ["ERR", "NOPERM", "WRONGPASS", "LOADING", "ZZZ"] {
            let server = RedisEcho::start(code, false).await.unwrap();
            for user in ["", "app"] {
                let url = format!("redis://{user}:{CANARY}@{}", server.addr());
                words_without(&[CANARY], Redis::connect(&url).await);
            }
        }
        // A server as it really is, of a version that knows no HELLO.
        let extra = [
            "--rename-command",
            "HELLO",
            "",
            "--rename-command",
            "EVAL",
            "",
        ]
        .map(str::to_owned)
        .to_vec();
        let server = Server::start_with(&RedisOptions {
            extra,
            ..RedisOptions::default()
        })
        .await
        .unwrap();
        let url = format!("redis://app:{CANARY}@{}", server.addr());
        let words = words_without(&[CANARY], Redis::connect(&url).await);
        assert!(
            words.contains("HELLO 3") && words.contains("Redis 6"),
            "{words}"
        );
    })
    .await;
}

#[tokio::test]
async fn no_event_repeats_what_a_request_said() {
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
    bounded(async {
        // Events of a server that takes claims and then refuses all; the id is read from its own key.
        let server = server().await;
        let store = Store::new(client(&server).await);
        let guard = store
            .lock("x")
            .ttl(Duration::from_secs(1))
            .acquire()
            .await
            .unwrap();
        let id = held_by(&server, "x").await;
        server
            .command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"])
            .await
            .unwrap();
        guard.lost().await;
        let echo = RedisEcho::start("LOADING", true).await.unwrap();
        let refusing = Store::new(
            Redis::connect(&format!("redis://:{CANARY}@{}", echo.addr()))
                .await
                .unwrap(),
        );
        refusing
            .lock("x")
            .acquire_timeout(Duration::from_millis(300))
            .await
            .unwrap_err();
        let words = std::fs::read_to_string(events.path()).unwrap();
        assert!(
            words.contains("renewal") || words.contains("lost"),
            "nothing was told: {words}"
        );
        assert!(!words.contains(CANARY) && !words.contains(&id), "{words}");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_refused_with_its_reason() {
    bounded(async {
        let kind = |url: String| async move {
            let error = Redis::connect(&url).await.unwrap_err();
            (error.kind(), error.to_string())
        };
        let extra = vec!["--cluster-enabled".into(), "yes".into()];
        let cluster = Server::start_with(&RedisOptions {
            extra,
            ..RedisOptions::default()
        })
        .await
        .unwrap();
        let (refusal, words) = kind(cluster.url()).await;
        assert_eq!(refusal, ErrorKind::Unsupported, "{words}");
        assert!(
            words.contains("Cluster") && words.contains(cluster.addr()),
            "{words}"
        );
        let server = server().await;
        let (refusal, words) = kind(format!("{}/99", server.url())).await;
        assert_eq!(refusal, ErrorKind::Invalid, "{words}");
        assert!(
            words.contains("database") && words.contains(server.addr()),
            "{words}"
        );
        let (refusal, words) = kind("redis://127.0.0.1:1".to_owned()).await;
        assert!(
            refusal == ErrorKind::Unavailable && words.contains("127.0.0.1:1"),
            "{words}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_right_that_is_missing_inside_a_script_is_denied() {
    bounded(async {
        let server = server().await;
        for (nth, rights) in [
            "~* &leasehold:* +@scripting +@read +@pubsub +@connection +time",
            "~* resetchannels +@scripting +@read +@write +@pubsub +@connection +time",
            "~x &leasehold:* +@scripting +@read +@write +@pubsub +@connection +time",
        ]
        .iter()
        .enumerate()
        {
            let user = format!("u{nth}");
            let set: Vec<&str> = ["ACL", "SETUSER", &user, "on", ">pw"]
                .into_iter()
                .chain(rights.split(' '))
                .collect();
            server.command(&set).await.unwrap();
            let answer = match Redis::connect(&format!("redis://{user}:pw@{}", server.addr())).await
            {
                Ok(store) => store
                    .claim(&claim("x", WaitPolicy::Try, TTL, ""))
                    .await
                    .map(drop),
                Err(e) => Err(e),
            };
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{rights}: {error}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_password_is_rotated_while_a_lock_is_held() {
    bounded(async {
        let server = server().await;
        let rights =
            "on >0ld ~* &leasehold:* +@scripting +@read +@write +@pubsub +@connection +time";
        let user = async |words: &str| {
            let set: Vec<&str> = ["ACL", "SETUSER", "app"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            server.command(&set).await.unwrap();
            let _ = server.command(&["CLIENT", "KILL", "USER", "app"]).await;
        };
        user(rights).await;
        let store = Store::new(
            Redis::connect(&format!("redis://app:0ld@{}", server.addr()))
                .await
                .unwrap(),
        )
        .ttl(TTL);
        let held = store.lock("x").acquire().await.unwrap();
        let until = async |wanted: Option<ErrorKind>| loop {
            match store
                .lock("y")
                .try_acquire()
                .await
                .map_err(|e| (e.kind(), e.to_string()))
            {
                Ok(_) if wanted.is_none() => break,
                Err((kind, text)) if Some(kind) == wanted => {
                    break assert!(!text.contains("0ld"), "{text}");
                }
                _ => sleep(10).await,
            }
        };
        // While both are good, a connection that ends is made again.
        user(">n3w").await;
        until(None).await;
        while held.confirm().await.is_err_and(|e| e.is_retryable()) {}
        assert!(held.is_valid(), "{held:?}");
        // Without the password that this client has it is refused, and it goes on as soon as that is good again.
        user("<0ld").await;
        until(Some(ErrorKind::Denied)).await;
        user(">0ld").await;
        until(None).await;
    })
    .await;
}
