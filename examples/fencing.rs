//! Why every guard has a token: a holder that was paused past its lease writes late, and the resource refuses it.
//!
//! `cargo run --example fencing` runs in virtual time, so nobody waits.

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::time::Duration;

use leasehold::memory::Memory;
use leasehold::{Fenced, FencingToken, Result, Store};

/// A resource that keeps the greatest token it has seen. In SQL: `UPDATE … SET seen = $1 WHERE id = $2 AND seen <= $1`.
struct Row {
    seen: FencingToken,
    value: String,
}

impl Row {
    fn write(&mut self, by: &impl Fenced, value: &str) -> std::result::Result<(), String> {
        let token = by.fencing_token();
        if token < self.seen {
            return Err(format!(
                "refused: token {token} is older than {}",
                self.seen
            ));
        }
        self.seen = token;
        self.value = value.to_owned();
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let ttl = Duration::from_secs(10);
    let (memory, time) = Memory::with_virtual_time();
    let alice = Store::new(memory.clone())
        .lock("row")
        .ttl(ttl)
        .label("alice");
    let bob = Store::new(memory.another_client())
        .lock("row")
        .ttl(ttl)
        .label("bob");
    let mut row = Row {
        seen: FencingToken::new(0),
        value: String::new(),
    };

    let slow = alice.acquire().await?;
    println!("alice holds the lock, token {}", slow.fencing_token());

    // In the middle of her work her process stands still: a suspended machine, a debugger, a starved runtime. Nothing of
    // hers reaches the store, and her lease runs out.
    memory.cut_off();
    time.advance(ttl);
    println!("alice is paused for {ttl:?}");

    let quick = bob.acquire().await?;
    let written = row.write(&quick, "bob's");
    println!(
        "bob holds the lock, token {}, and writes: {written:?}",
        quick.fencing_token()
    );

    // Alice runs again. If she asked, she would know.
    println!(
        "alice runs again; her guard says valid: {}",
        slow.is_valid()
    );
    // But her write was already on its way. No lock can call it back: only the resource can tell.
    let late = row.write(&slow, "alice's");
    println!("alice's late write: {late:?}");

    println!("the row says {:?}", row.value);
    assert!(
        late.is_err() && row.value == "bob's",
        "a stale write came through"
    );
    quick.release().await
}
