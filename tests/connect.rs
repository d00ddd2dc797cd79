//! URLs: what `connect` says to good and to bad ones. No server is needed.

use leasehold::{ErrorKind, connect};

async fn refused(url: &str) -> leasehold::Error {
    match connect(url).await {
        Ok(store) => panic!("{url} gave {store:?}"),
        Err(e) => e,
    }
}

#[tokio::test]
async fn what_is_no_url_of_ours_is_invalid() {
    for url in ["", "localhost", "redis", "mysql://localhost", "://x", "memory://host", "REDIS:/x"] {
        assert_eq!(refused(url).await.kind(), ErrorKind::Invalid, "{url}");
    }
    assert!(refused("mysql://localhost").await.to_string().contains("etcd"), "the known schemes are named");
}

#[cfg(not(feature = "redis"))]
#[tokio::test]
async fn a_feature_that_is_off_is_named_and_no_secret_is_shown() {
    let error = refused("redis://user:s3ntinel@localhost").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("feature \"redis\""), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3ntinel"));
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn memory_is_a_world_of_its_own_each_time() -> leasehold::Result<()> {
    let (one, two) = (connect("memory://").await?, connect("memory://").await?);
    let _guard = one.lock("a").try_acquire().await?;
    let _other = two.lock("a").try_acquire().await?;
    assert!(one.clone().lock("a").try_acquire().await.is_err_and(|e| e.is_contended()));
    Ok(())
}
