//! A bridge of the facade: what its URL may be, and that it holds in both stores. No server is needed.

use leasehold::memory::Memory;
use leasehold::{ErrorKind, Store, bridge, connect};

async fn refused(url: &str) -> leasehold::Error {
    connect(url).await.expect_err(url)
}

#[tokio::test]
async fn its_url_is_two_urls_that_differ() {
    for url in [
        "bridge+",
        "bridge+memory://",
        "bridge+redis://a:1 redis://a:1",
        "bridge+memory:// memory:// memory://",
        "bridge+bridge+memory:// memory://",
        "bridge+memory:// bridge+memory://",
        "bridge+memory:// mysql://b",
        "bridge://a b",
    ] {
        assert_eq!(refused(url).await.kind(), ErrorKind::Invalid, "{url}");
    }
}

#[tokio::test]
async fn no_secret_of_either_url_is_shown() {
    for url in [
        "bridge+redis://me:S3CRET@h redis://me:S3CRET@h",
        "bridge+me:S3CRET@redis://h memory://",
        "bridge+memory:// mysql://me:S3CRET@h",
        "bridge+memory:// redis://:S3CRET@h:no/x y",
    ] {
        let error = refused(url).await;
        assert!(!format!("{error} {error:?}").contains("S3CRET"), "{error}");
    }
}

#[tokio::test]
async fn one_store_twice_is_refused_however_it_is_named() {
    let memory = Memory::new();
    let error = bridge(memory.another_client(), memory.another_client())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(memory.entries(), 0, "what was taken to find that out");
}

#[tokio::test]
async fn it_holds_in_both_stores() -> leasehold::Result<()> {
    let (old, new) = (Memory::new(), Memory::new());
    let both = Store::new(bridge(old.another_client(), new.another_client()).await?);
    let guard = both.lock("a").acquire().await?;
    for store in [Store::new(old), Store::new(new)] {
        let by = store
            .lock("a")
            .try_acquire()
            .await
            .expect_err("it is held")
            .into_contention()?;
        assert_eq!(by.token, Some(guard.fencing_token()));
    }
    guard.release().await
}
