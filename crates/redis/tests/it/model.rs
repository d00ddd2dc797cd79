//! The same random programs on this store and on the memory store, which is the executable specification: after each step
//! the same claims hold, and the same wait in the same order.

use crate::support::*;
use leasehold_core::backend::{Backend, Claim, Claimed, Mode, WaitPolicy};
use leasehold_core::{ErrorKind, FencingToken, LockQueue, Name, Result};
use leasehold_memory::Memory;

const STEPS: usize = 60;

/// Who holds, in no order, and who waits, in order: each claim has a label of its own.
fn face(line: LockQueue) -> (Vec<String>, Vec<String>) {
    let labels = |entries: Vec<leasehold_core::Participant>| {
        entries
            .into_iter()
            .filter_map(|e| e.label)
            .collect::<Vec<_>>()
    };
    let mut holders = labels(line.holders);
    holders.sort();
    (holders, labels(line.waiters))
}

/// What an answer says, but for tokens and times.
fn word(answer: &Result<Claimed>) -> String {
    match answer {
        Ok(Claimed::Granted(grant)) => format!("granted {}", grant.turns),
        Ok(Claimed::Waiting(_)) => "waiting".into(),
        Ok(Claimed::Busy(who)) => format!("busy, {:?} waiting", who.waiters),
        Ok(Claimed::Done(_)) => "done".into(),
        Err(e) => format!("{:?}: {e}", e.kind()),
    }
}

async fn token_of(store: &dyn Backend, name: &Name, label: &str) -> Option<FencingToken> {
    let line = store.inspect(name).await.unwrap();
    line.holders
        .into_iter()
        .find(|e| e.label.as_deref() == Some(label))
        .and_then(|e| e.token)
}

async fn program(seed: u64, ours: &dyn Backend, spec: &dyn Backend) {
    let mut random = fastrand::Rng::with_seed(seed);
    let name = Name::from(format!("program/{seed}"));
    let modes = [
        Mode::Exclusive,
        SHARED,
        SHARED,
        permits(1, 3),
        permits(2, 3),
        permits(3, 3),
        permits(1, 2),
    ];
    let mut claims: Vec<Claim> = Vec::new();
    let mut done = Vec::new();
    for step in 0..STEPS {
        let known = (!claims.is_empty()).then(|| random.usize(..claims.len()));
        match (random.u8(..10), known) {
            (0..5, _) | (_, None) => {
                let policy = *random
                    .choice(
                        [
                            WaitPolicy::Fair,
                            WaitPolicy::Fair,
                            WaitPolicy::Fast,
                            WaitPolicy::Try,
                        ]
                        .iter(),
                    )
                    .unwrap();
                let claim = Claim::new(
                    name.clone(),
                    *random.choice(modes.iter()).unwrap(),
                    policy,
                    TTL * 6,
                    &step.to_string(),
                );
                let (a, b) = (ours.claim(&claim).await, spec.claim(&claim).await);
                done.push(format!("{:?} {:?}: {}", claim.mode, claim.policy, word(&a)));
                assert_eq!(word(&a), word(&b), "seed {seed}: {done:#?}");
                if !a.is_err_and(|e| e.kind() == ErrorKind::Invalid) {
                    claims.push(claim);
                }
            }
            (5, Some(i)) => {
                // Again, shared: a downgrade of an exclusive hold, no change of anything else that holds.
                let label = &*claims[i].label;
                if token_of(ours, &name, label).await.is_some() {
                    let again = as_try(&as_mode(&claims[i], SHARED));
                    let (before, after) = (
                        token_of(ours, &name, label).await,
                        ours.claim(&again).await.unwrap(),
                    );
                    let Claimed::Granted(grant) = &after else {
                        panic!("seed {seed}: {after:?} {done:#?}")
                    };
                    assert_eq!(Some(grant.token), before);
                    assert_eq!(
                        word(&Ok(after)),
                        word(&spec.claim(&again).await),
                        "seed {seed}: {done:#?}"
                    );
                    done.push(format!("{label} again, shared"));
                }
            }
            (6, Some(i)) => {
                let label = &*claims[i].label;
                let tokens = (
                    token_of(ours, &name, label).await,
                    token_of(spec, &name, label).await,
                );
                if let (Some(a), Some(b)) = tokens {
                    assert!(
                        ours.evict(&name, a).await.unwrap() && spec.evict(&name, b).await.unwrap()
                    );
                    done.push(format!("{label} evicted"));
                }
            }
            (_, Some(i)) => {
                let claim = claims.swap_remove(i);
                ours.release(&claim, None).await.unwrap();
                spec.release(&claim, None).await.unwrap();
                done.push(format!("{} released", claim.label));
            }
        }
        let (a, b) = (
            ours.inspect(&name).await.unwrap(),
            spec.inspect(&name).await.unwrap(),
        );
        assert_eq!(face(a), face(b), "seed {seed}: {done:#?}");
    }
    for claim in claims {
        ours.release(&claim, None).await.unwrap();
    }
}

#[tokio::test]
async fn random_programs_do_the_same_as_on_the_memory_store() {
    bounded(async {
        let server = server().await;
        let (store, memory) = (client(&server).await, Memory::new());
        for seed in 0..150 {
            program(seed, &store, &memory).await;
        }
        assert_eq!(traces(&server).await, [""; 0]);
    })
    .await;
}
