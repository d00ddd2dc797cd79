//! The example of `docs/transactions.md` for SQLite and sqlx 0.8: both in one program, of which each is linked to the same SQLite.

#![allow(unreachable_pub, reason = "an example of a program")]

// What the example names as its users do.
extern crate self as leasehold;

pub use leasehold_sqlite as sqlite;

mod both;
mod with_sqlx;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    both::run().await;
}

#[tokio::test]
async fn who_holds_pays_and_who_held_does_not() {
    both::run().await;
}
