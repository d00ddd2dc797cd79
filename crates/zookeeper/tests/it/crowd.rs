//! One name, and very many who want it: tasks of one client, and clients. `LEASEHOLD_CAMPAIGN=1`
//! asks for the full numbers.

use std::time::Duration;

use crate::common::*;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_core::backend::Moment;
use leasehold_core::{Guard, Store};
use leasehold_testbed::ZooKeeper as Server;
use zookeeper_client::Client;

fn crowd(usual: usize, campaign: usize) -> usize {
    if std::env::var_os("LEASEHOLD_CAMPAIGN").is_some() {
        campaign
    } else {
        usual
    }
}

/// Behind a hold, `waiters` tasks of these clients wait for the lock; then each has it once, alone.
/// Returns the requests of each to wait and to be served.
async fn each_has_it_once(server: &Server, stores: &[Store], waiters: usize) -> (f64, f64) {
    let raw = Client::connect(server.addr()).await.unwrap();
    let first = hold(&stores[0], "a", LONG).await;
    let started = Moment::now();
    let (entered, mut tasks) = requests(server, async {
        let tasks: FuturesUnordered<_> = (0..waiters)
            .map(|i| {
                let store = stores[i % stores.len()].clone();
                tokio::spawn(async move {
                    let guard: Guard = hold(&store, "a", LONG).await;
                    let token = guard.fencing_token();
                    guard.release().await.unwrap();
                    token
                })
            })
            .collect();
        let in_line = async || {
            raw.check_stat("/test/a")
                .await
                .unwrap()
                .map_or(0, |stat| stat.num_children as usize)
        };
        until(|| async { in_line().await == waiters + 1 }).await;
        tasks
    })
    .await;
    println!(
        "{waiters} waiters of {} clients stand in {:?}",
        stores.len(),
        Moment::now().since(started)
    );
    assert!(first.is_valid());
    let started = Moment::now();
    let (served, tokens) = requests(server, async {
        first.release().await.unwrap();
        let mut tokens = Vec::new();
        while let Some(token) = tasks.next().await {
            tokens.push(token.unwrap());
        }
        tokens
    })
    .await;
    println!("and are served in {:?}", Moment::now().since(started));
    let mut distinct = tokens.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), waiters, "each had a hold of its own");
    (
        entered as f64 / waiters as f64,
        served as f64 / waiters as f64,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_tasks_of_one_client_share_what_they_read() {
    tokio::time::timeout(Duration::from_secs(500), async {
        let server = server().await;
        let waiters = crowd(1500, 10_000);
        let (to_wait, to_be_served) =
            each_has_it_once(&server, &[store(&server).await], waiters).await;
        println!("{to_wait:.2} requests to wait, {to_be_served:.2} to be served");
        // A creation, its share of a list, a watch, and one question of this test's; a list and a
        // deletion.
        assert!(to_wait < 3.5 && to_be_served < 2.5);
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_clients_on_one_name_are_all_served() {
    tokio::time::timeout(Duration::from_secs(500), async {
        let (server, mut stores) = (server().await, Vec::new());
        let clients = crowd(60, 500);
        for _ in 0..clients {
            stores.push(store(&server).await);
        }
        let (to_wait, to_be_served) = each_has_it_once(&server, &stores, clients).await;
        println!("{to_wait:.2} requests to wait, {to_be_served:.2} to be served");
    })
    .await
    .unwrap();
}
