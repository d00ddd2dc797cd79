//! What Leasehold tells `tracing`: never a claim's id, never a cause that might show credentials. A binary of its own, because
//! `tracing` caches for the whole process who listens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test binary of its own")]

#[path = "microscope/script.rs"]
#[allow(dead_code, reason = "shared with the microscope, which uses all of it")]
mod script;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use leasehold_core::{Error, ErrorKind, Loss};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use script::{Call, Script, TTL, driven, granted, in_time, ms, pass, waiting};

#[derive(Clone, Default)]
struct Told(Arc<Mutex<String>>);

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "leasehold"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

const SECRET: &str = "redis://admin:hunter2@10.0.0.1";

fn failure<T>() -> leasehold_core::Result<T> {
    Err(Error::new(ErrorKind::Ambiguous, "no answer").with_source(SECRET))
}

/// Every event there is, in one life: a store that warns, waiting, failed, acquired, renewal unknown, lost, release unknown, given up, refused.
#[tokio::test]
async fn no_event_shows_a_secret() {
    let told = Told::default();
    let _listening = tracing::subscriber::set_default(told.clone());
    in_time(async {
        let (script, time, log) = Script::new();
        let bells = script.bells();
        let script = script
            .claims(async |claim, n| match n {
                0 => failure(),
                1 => Ok(waiting(&claim)),
                _ => Ok(granted(&claim, n as u64)),
            })
            .renewals(async |_, _| failure())
            .releases(async |claim, n| match (n, claim.name.as_str()) {
                (_, "refused") => Err(Error::new(ErrorKind::Denied, "no").with_source(SECRET)),
                (0, _) => failure(),
                (_, "hopeless") => failure(),
                _ => Ok(()),
            });
        let store = script.store();
        let guard = driven(&time, store.lock("a").acquire()).await.unwrap();
        pass(&time, TTL / 2, ms(100)).await;
        let Call::Claim(id) = log.calls()[0] else { panic!("{:?}", log.calls()) };
        bells.lost(id, Loss::Evicted);
        pass(&time, TTL, ms(100)).await;
        drop(guard);
        for name in ["refused", "hopeless"] {
            drop(store.lock(name).acquire().await.unwrap());
            pass(&time, TTL * 2, ms(100)).await;
        }
        let told = told.0.lock().unwrap().clone();
        let said = [
            "it may forget",
            "claim failed",
            "waiting",
            "acquired",
            "renewal unanswered",
            "lock lost",
            "release unanswered, will",
            "released",
            "release refused",
            "until its lease had run out",
            "lock=a",
            "reason=it was evicted",
        ];
        for words in said {
            assert!(told.contains(words), "nothing was told of {words:?}:\n{told}");
        }
        for call in log.calls() {
            if let Call::Claim(id) = call {
                let (whole, short) = (id.to_string(), format!("{id:?}"));
                assert!(!told.contains(&whole[..8]) && !told.contains(&short), "{told}");
            }
        }
        assert!(!told.contains("hunter2") && !told.contains("admin"), "{told}");
    })
    .await;
}
