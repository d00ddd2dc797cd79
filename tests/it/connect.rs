//! URLs: what `connect` says to good and to bad ones. No server is needed.

use leasehold::{ErrorKind, connect};

async fn refused(url: &str) -> leasehold::Error {
    connect(url).await.expect_err(url)
}

#[tokio::test]
async fn what_is_no_url_of_ours_is_invalid() {
    for url in [
        "",
        "localhost",
        "redis",
        "mysql://localhost",
        "://x",
        "memory://host",
        "REDIS:/x",
    ] {
        assert_eq!(refused(url).await.kind(), ErrorKind::Invalid, "{url}");
    }
}

/// Each scheme is listed once: as one of this build, or with the features that bring it.
#[tokio::test]
async fn an_unknown_scheme_is_told_all_that_there_are() {
    let said = refused("mysql://localhost").await.to_string();
    let (has, lacks) = said.split_once("; it lacks ").unwrap_or((&said, ""));
    for (feature, is_on, schemes) in [
        ("memory", cfg!(feature = "memory"), "memory"),
        ("sqlite", cfg!(feature = "sqlite"), "sqlite"),
        (
            "postgres",
            cfg!(feature = "postgres"),
            "postgres, postgresql",
        ),
        (
            "redis",
            cfg!(feature = "redis"),
            "redis, redis+sentinel, redis-sentinel, redis+cluster, redis+unix, redis+socket, unix, valkey, valkey+sentinel, valkey+cluster",
        ),
        ("redlock", cfg!(feature = "redlock"), "redlock"),
        ("etcd", cfg!(feature = "etcd"), "etcd"),
        ("zookeeper", cfg!(feature = "zookeeper"), "zookeeper"),
        ("bridge", cfg!(feature = "bridge"), "bridge+URL URL"),
    ] {
        let lacking = format!("{schemes} (feature {feature})");
        assert_eq!(has.contains(schemes), is_on, "{feature}: {said}");
        assert_eq!(lacks.contains(&lacking), !is_on, "{feature}: {said}");
    }
    for (tls, is_on) in [
        ("valkeys+cluster", cfg!(feature = "redis")),
        ("etcds", cfg!(feature = "etcd")),
    ] {
        let is_there = is_on && cfg!(feature = "tls-no-provider");
        assert_eq!(has.contains(tls), is_there, "{tls}: {said}");
        assert_eq!(lacks.contains(tls), !is_there, "{tls}: {said}");
    }
}

/// Any case of the letters is the same scheme.
#[cfg(feature = "memory")]
#[tokio::test]
async fn a_scheme_may_be_in_any_case() {
    assert!(connect("MeMoRy://").await.is_ok());
}

const STORES: [&str; 8] = [
    "memory",
    "sqlite",
    "postgres",
    "red",
    "etcd",
    "zookeeper",
    "unix",
    "valkey",
];

#[test]
fn whatever_a_scheme_is_it_is_known_or_refused_and_no_secret_is_shown() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let corpus = "mysql://me:S3CRET@h\nme:S3CRET@redis://h\nREDIS://:S3CRET@h\nredis:/h\n://x\n";
    leasehold_fuzz::fuzz_urls(corpus, |url| {
        // A store has a test of its own.
        let begin = url.trim().to_ascii_lowercase();
        if STORES.iter().any(|scheme| begin.starts_with(scheme)) {
            return String::new();
        }
        let error = runtime.block_on(refused(url));
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        format!("{error} {error:?}")
    });
}

#[cfg(not(all(feature = "redis", feature = "postgres")))]
#[tokio::test]
async fn a_feature_that_is_off_is_named_and_no_secret_is_shown() {
    for (feature, is_on, url) in [
        (
            "redis",
            cfg!(feature = "redis"),
            "redis://user:s3ntinel@localhost",
        ),
        (
            "postgres",
            cfg!(feature = "postgres"),
            "postgres://user:s3ntinel@localhost/db",
        ),
        (
            "postgres",
            cfg!(feature = "postgres"),
            "postgresql://user:s3ntinel@localhost/db",
        ),
    ] {
        if !is_on {
            let error = refused(url).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(
                error
                    .to_string()
                    .contains(&format!("feature \"{feature}\"")),
                "{error}"
            );
            assert!(!format!("{error} {error:?}").contains("s3ntinel"));
        }
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn both_schemes_of_postgres_reach_its_store() {
    for url in [
        "postgres://me:s3ntinel@localhost?timeout=0",
        "postgresql://me:s3ntinel@localhost/db?sslmode=no",
        "PostgreSQL+psycopg://me:s3ntinel@localhost/db?sslmode=no",
        "jdbc:postgresql://localhost/db?user=me&password=s3ntinel",
    ] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("the store's URL"), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3ntinel"));
    }
}

#[cfg(all(feature = "sqlite", not(target_os = "linux")))]
#[tokio::test]
async fn sqlite_elsewhere_says_that_it_needs_linux() {
    let error = refused("sqlite:///locks.db").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("needs Linux"), "{error}");
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn memory_is_a_world_of_its_own_each_time() -> leasehold::Result<()> {
    let (one, two) = (connect("memory://").await?, connect("memory://").await?);
    let _guard = one.lock("a").try_acquire().await?;
    let _other = two.lock("a").try_acquire().await?;
    assert!(
        one.clone()
            .lock("a")
            .try_acquire()
            .await
            .is_err_and(|e| e.is_contended())
    );
    Ok(())
}

/// A blocked runtime loses its lock, on time and visibly; with a thread of their own, the renewals go on.
#[cfg(feature = "memory")]
#[tokio::test(flavor = "current_thread")]
async fn a_blocked_runtime_needs_a_store_on_its_own_thread() -> leasehold::Result<()> {
    let ttl = std::time::Duration::from_secs(2);
    let (here, there) = (
        connect("memory://").await?,
        connect("memory://").on_own_thread().await?,
    );
    let lost = here.lock("a").ttl(ttl).acquire().await?;
    let kept = there.lock("a").ttl(ttl).acquire().await?;
    std::thread::sleep(ttl * 3 / 2); // what a careless program does
    assert!(!lost.is_valid(), "validity is computed, not reported");
    assert!(kept.is_valid(), "{:?}", kept.check());
    assert_eq!(lost.lost().await, leasehold::Loss::Expired);
    kept.release().await
}

/// It tries until its patience is over, and no mistake is waited for.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_store_that_is_away_is_waited_for_with_patience() {
    use std::time::Duration;

    let away = "redis://127.0.0.1:1";
    let patience = Duration::from_millis(300);
    let patient = || connect(away).patience(patience);
    for error in [
        patient().await.expect_err(away),
        patient().on_own_thread().await.expect_err(away),
        patient().backend().await.map(drop).expect_err(away),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let said = error.to_string();
        assert!(
            said.starts_with("not available for 0.3 s: ") && said.contains("127.0.0.1:1"),
            "{said}"
        );
    }
    let once = refused(away).await.to_string();
    assert!(!once.contains("not available for"), "{once}");
    for mistake in ["redis://h:x", "mysql://h"] {
        let error = connect(mistake)
            .patience(Duration::MAX)
            .await
            .expect_err(mistake);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

/// The message names the store of a bridge that is away.
#[cfg(all(feature = "redis", feature = "bridge"))]
#[tokio::test]
async fn either_store_of_a_bridge_is_waited_for() {
    let url = "bridge+redis://127.0.0.1:1 redis://127.0.0.2:1";
    let patience = std::time::Duration::from_millis(100);
    let error = connect(url).patience(patience).await.expect_err(url);
    let said = error.to_string();
    assert!(
        said.starts_with("not available for 0.1 s: the old store: "),
        "{said}"
    );
}
