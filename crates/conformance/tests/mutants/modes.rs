//! The mistakes with readers, permits, downgrades and values.

use leasehold_core::backend::{Backend, Claim, ClaimId, Claimed, Mode};
use leasehold_core::{Contention, FencingToken, Name};
use std::sync::Arc;

use crate::broken::{Broken, id_of};
use crate::defect::Defect;

/// How long a label may be that is no value.
const CUT: usize = 256;

impl Broken {
    /// The mode that a mistaken store takes a claim for.
    pub(crate) fn mistaken(&self, name: &Name, mode: Mode) -> Mode {
        match mode {
            Mode::Shared if self.is(Defect::ReadersExclude) => Mode::Exclusive,
            Mode::Permits { of, .. } if self.is(Defect::ManyCountAsOne) => {
                Mode::Permits { n: 1, of }
            }
            Mode::Permits { n, of } if self.is(Defect::CountsMayDiffer) => {
                let counts = |mode: Mode| {
                    if let Mode::Permits { of, .. } = mode {
                        Some(of)
                    } else {
                        None
                    }
                };
                let known = self.world.known();
                let first = known
                    .iter()
                    .filter(|k| k.asked.name == *name)
                    .find_map(|k| counts(k.asked.mode));
                Mode::Permits {
                    n,
                    of: first.unwrap_or(of),
                }
            }
            Mode::Permits { n, of } if self.is(Defect::CountsOfHoldersOnly) => {
                let counts = |mode: Mode| {
                    if let Mode::Permits { of, .. } = mode {
                        Some(of)
                    } else {
                        None
                    }
                };
                let known = self.world.known();
                let of_those = |wait: bool| {
                    let mut queue = known
                        .iter()
                        .filter(|k| k.asked.name == *name && k.waits == wait);
                    queue.find_map(|k| counts(k.asked.mode))
                };
                Mode::Permits {
                    n,
                    of: if of_those(false).is_some() {
                        of
                    } else {
                        of_those(true).unwrap_or(of)
                    },
                }
            }
            other => other,
        }
    }

    pub(crate) fn cut(&self, label: &str) -> Arc<str> {
        let end = (0..=CUT.min(label.len()))
            .rev()
            .find(|at| label.is_char_boundary(*at))
            .unwrap_or(0);
        label[..end].into()
    }

    /// The token that a mistaken store shows for this claim.
    pub(crate) fn mistaken_token(&self, claim: &Claim, token: FencingToken) -> FencingToken {
        let known = self.world.known();
        let mine = known.iter().find(|k| k.claim.id == claim.id);
        let another = |mistake: bool| {
            if mistake {
                FencingToken::new(token.get() + 1_000_000)
            } else {
                token
            }
        };
        match self.world.defect {
            Some(Defect::ReadersShareAToken) if claim.mode == Mode::Shared => {
                let beside = known
                    .iter()
                    .filter(|k| k.claim.name == claim.name && k.claim.mode == Mode::Shared);
                beside
                    .filter_map(|k| k.grant.as_ref().map(|grant| grant.token))
                    .min()
                    .unwrap_or(token)
            }
            Some(Defect::ModesCountApart) if claim.mode == Mode::Shared => {
                FencingToken::new(token.get() / 2 + 1)
            }
            Some(Defect::DowngradeChangesTheToken) => {
                another(mine.is_some_and(|k| k.claim.mode != claim.mode))
            }
            Some(Defect::ProclaimChangesTheToken) => {
                another(mine.is_some_and(|k| k.claim.label != claim.label))
            }
            _ => token,
        }
    }

    /// Whether this claim makes a granted writer a reader.
    pub(crate) fn downgrades(&self, claim: &Claim) -> bool {
        let known = self.world.known();
        let mine = known.iter().find(|k| k.claim.id == claim.id);
        claim.mode == Mode::Shared
            && mine.is_some_and(|k| {
                !k.waits && k.claim.mode == Mode::Exclusive && k.asked.mode != claim.mode
            })
    }

    /// Whether this claim began as a writer's, and is a reader's now.
    pub(crate) fn was_downgraded(&self, id: ClaimId) -> bool {
        self.with(id, |mine| (mine.claim.mode, mine.asked.mode))
            == Some((Mode::Exclusive, Mode::Shared))
    }

    /// The answer of a store in which a downgrade has been undone: no reader gets in any more.
    pub(crate) fn undone(&self, claim: &Claim) -> Option<Claimed> {
        let mut known = self.world.known();
        if let Some(mine) = known.iter_mut().find(|k| k.claim.id == claim.id) {
            mine.undone |= self.is(Defect::LateClaimUndoesDowngrade)
                && claim.mode == Mode::Exclusive
                && mine.asked.mode == Mode::Shared;
            return None;
        }
        let shut = known.iter().any(|k| k.undone && k.claim.name == claim.name);
        shut.then(|| Claimed::Busy(Contention::unknown()))
    }

    /// Whether a claim that waits goes before the others, because those who hold would admit it.
    pub(crate) async fn slips_in(&self, claim: &Claim) -> bool {
        if !self.is(Defect::ReadersPassWriters) && !self.is(Defect::FewPassMany) {
            return false;
        }
        let queue = self
            .world
            .memory()
            .inspect(&self.encoded(&claim.name))
            .await
            .unwrap_or_default();
        let known = self.world.known();
        let held = queue
            .holders
            .iter()
            .filter_map(|e| id_of(e.label.as_deref()?));
        let modes: Vec<Mode> = held
            .filter_map(|id| {
                known
                    .iter()
                    .find(|k| k.claim.id == id)
                    .map(|k| k.asked.mode)
            })
            .collect();
        match claim.mode {
            Mode::Shared => {
                self.is(Defect::ReadersPassWriters)
                    && modes.iter().all(|mode| *mode == Mode::Shared)
            }
            Mode::Permits { n, of } => {
                let taken = |mode: &Mode| {
                    if let Mode::Permits { n, .. } = mode {
                        *n
                    } else {
                        of
                    }
                };
                self.is(Defect::FewPassMany) && modes.iter().map(taken).sum::<u32>() + n <= of
            }
            Mode::Exclusive => false,
        }
    }

    /// Whether an eviction by this token ends every hold of the name.
    pub(crate) async fn evicts_all_holders(&self, name: &Name, token: FencingToken) -> bool {
        if self.is(Defect::EvictsAllHolders) {
            let queue = self.world.memory().inspect(name).await.unwrap_or_default();
            return queue.holders.iter().any(|e| e.token == Some(token));
        }
        self.is(Defect::EvictsByName) || self.is(Defect::OneTokenForAll)
    }
}
