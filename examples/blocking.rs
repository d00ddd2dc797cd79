//! The same without async: a lock in a program of threads.
//!
//! `cargo run --example blocking`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::thread;
use std::time::Duration;

use leasehold::Result;
use leasehold::blocking::Store;

fn main() -> Result<()> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "memory://".to_owned());
    let store = Store::open(leasehold::connect(url))?;
    let outcome = thread::scope(|threads| {
        let workers: Vec<_> = (1..=3)
            .map(|n| {
                threads.spawn({
                    let store = &store;
                    move || work(store, n)
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or(Ok(())))
    });
    // What an error has left held is given back now, and not when its lease ends.
    store.close(Duration::from_secs(1))?;
    outcome
}

fn work(store: &Store, n: u32) -> Result<()> {
    let guard = store.lock("examples/blocking").acquire()?;
    println!("thread {n} holds the lock, token {}", guard.fencing_token());
    guard.check()?; // between two steps: is it still ours?
    guard.release()
}
