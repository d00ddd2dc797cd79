//! Judges one case against a harness.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;

use crate::case::Case;
use crate::context::{TestContext, Variant};
use crate::harness::Harness;

/// The time without a step after which a case counts as stuck. Its whole duration is not limited,
/// because it depends on the machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Held for reading by every case, and for writing by one that runs alone.
static ALONE: RwLock<()> = RwLock::const_new(());

/// Judges one case against one harness. `Err` is the reason why it failed.
pub async fn judge(
    case: &'static Case,
    harness: Arc<dyn Harness>,
    variant: Variant,
) -> Result<(), String> {
    let (_alone, _together) = match case.alone {
        true => (Some(ALONE.write().await), None),
        false => (None, Some(ALONE.read().await)),
    };
    judge_apart(
        case,
        harness,
        variant,
        said_seed().unwrap_or_else(|| fastrand::u64(..)),
    )
    .await
}

/// Judges one case with this seed, beside other cases. It is for a store whose server is in this
/// process, with a server of its own for each case. The runtime may have a single thread and a
/// paused clock: all cases follow that clock, except the few that start a thread of their own.
pub async fn judge_apart(
    case: &'static Case,
    harness: Arc<dyn Harness>,
    variant: Variant,
    seed: u64,
) -> Result<(), String> {
    let ctx = TestContext::new(harness, variant, case.name, seed);
    let steps = ctx.clone();
    let mut work = tokio::spawn(async move { (case.run)(ctx).await });
    loop {
        let before = steps.steps();
        match tokio::time::timeout(LIMIT, &mut work).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => return Err(format!("seed {seed:x}: {}", panic_text(e))),
            Err(_) if steps.steps() > before => {}
            Err(_) => {
                work.abort();
                return Err(format!(
                    "seed {seed:x}: no step within {LIMIT:?}, after {before} of them"
                ));
            }
        }
    }
}

/// The seed of a failure to reproduce, if `LEASEHOLD_SEED` is set.
fn said_seed() -> Option<u64> {
    u64::from_str_radix(&std::env::var("LEASEHOLD_SEED").ok()?, 16).ok()
}

fn panic_text(e: tokio::task::JoinError) -> String {
    match e.try_into_panic() {
        Ok(panic) => match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
            (Some(text), _) => text.clone(),
            (_, Some(text)) => (*text).to_owned(),
            _ => "it panicked".to_owned(),
        },
        Err(e) => e.to_string(),
    }
}
