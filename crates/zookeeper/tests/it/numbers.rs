//! The end of a lock's numbers: ZooKeeper counts the children that a node ever had, and stops
//! counting at 2³¹ − 1.

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use leasehold_core::Store;
use leasehold_core::backend::Backend;
use leasehold_testbed::{ZooKeeper as Server, ZooKeeperOptions};
use zookeeper_client::{Acls, Client, CreateMode};

/// A server on which the node of this name counts from here on.
async fn counting_from(node: &str, count: i32) -> Server {
    let options = ZooKeeperOptions {
        extra: vec!["digest.enabled=false".into()],
        ..ZooKeeperOptions::default()
    };
    let server = Server::start_with(&options).await.unwrap();
    let raw = Client::connect(server.addr()).await.unwrap();
    raw.mkdir(node, &CreateMode::Persistent.with_acls(Acls::anyone_all()))
        .await
        .unwrap();
    drop(raw);
    // It writes a snapshot when it starts.
    server.restart_with_data().await.unwrap();
    server.kill().await.unwrap();
    preset(server.data(), node, count);
    server.start_again().await.unwrap();
    server
}

/// Writes the count into the latest snapshot, and its checksum anew.
fn preset(data: &Path, node: &str, count: i32) {
    let folder = std::fs::read_dir(data.join("version-2")).unwrap();
    let files = folder.map(|file| file.unwrap().path());
    let zxid = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        i64::from_str_radix(name.strip_prefix("snapshot.")?, 16).ok()
    };
    let file = files.max_by_key(|path| zxid(path)).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    // A node is its path and its data, each behind its length, its ACL (8 bytes), and its stat:
    // four times 8 bytes, the version of its data, and the count.
    let mut path = (node.len() as u32).to_be_bytes().to_vec();
    path.extend(node.bytes());
    let at = bytes
        .windows(path.len())
        .position(|window| window == path)
        .unwrap()
        + path.len();
    let length = i32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()).max(0) as usize;
    let at = at + 4 + length + 8 + 4 * 8 + 4;
    bytes[at..at + 4].copy_from_slice(&count.to_be_bytes());
    // At the end: the checksum of all before it, and a path that is the root's.
    let end = bytes.len() - 8 - 5;
    let sum = u64::from(adler32(&bytes[..end]));
    bytes[end..end + 8].copy_from_slice(&sum.to_be_bytes());
    std::fs::write(file, bytes).unwrap();
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// Six clients count in a value that only the lock protects, over the end of the numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_over_the_end_of_the_numbers() {
    limited(async {
        let server = counting_from("/test/a", i32::MAX - 60).await;
        let raw = Client::connect(server.addr()).await.unwrap();
        raw.create(
            "/count",
            b"0",
            &CreateMode::Persistent.with_acls(Acls::anyone_all()),
        )
        .await
        .unwrap();
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let (addr, raw) = (server.addr().to_owned(), raw.clone());
                tokio::spawn(async move {
                    let store = Store::new(at(&addr).await);
                    let mut tokens = Vec::new();
                    for _ in 0..30 {
                        let guard = hold(&store, "a", LONG).await;
                        let count: u64 = String::from_utf8(raw.get_data("/count").await.unwrap().0)
                            .unwrap()
                            .parse()
                            .unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        raw.set_data("/count", (count + 1).to_string().as_bytes(), None)
                            .await
                            .unwrap();
                        tokens.push((count, guard.fencing_token()));
                        guard.release().await.unwrap();
                    }
                    tokens
                })
            })
            .collect();
        let mut tokens = Vec::new();
        for task in tasks {
            tokens.extend(task.await.unwrap());
        }
        let counted = String::from_utf8(raw.get_data("/count").await.unwrap().0).unwrap();
        println!("{counted} of 180 counted");
        assert_eq!(counted, "180");
        tokens.sort();
        assert!(tokens.is_sorted_by_key(|(_, token)| *token));
    })
    .await;
}

/// All that come after the end have the same number, and are in one queue all the same.
#[tokio::test]
async fn equal_numbers_are_a_line_too() {
    limited(async {
        let server = counting_from("/test/a", i32::MAX).await;
        let client = client(&server).await;
        let claims: Vec<_> = (0..12).map(|_| fair("a", LONG)).collect();
        let first = granted(&client, &claims[0]).await;
        assert!(
            first.place.as_str().ends_with("-lock-2147483647"),
            "{:?}",
            first.place
        );
        let mut last = first.token;
        for claim in &claims[1..] {
            waiting(&client, claim).await;
        }
        assert_eq!(client.inspect(&"a".into()).await.unwrap().waiters.len(), 11);
        for (i, pair) in claims.windows(2).enumerate() {
            for claim in &claims[i + 1..] {
                waiting(&client, claim).await;
            }
            client.release(&pair[0], None).await.unwrap();
            let grant = granted(&client, &pair[1]).await;
            assert!(grant.token > last);
            last = grant.token;
        }
    })
    .await;
}
