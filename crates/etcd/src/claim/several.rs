//! Several names in one transaction: it creates all keys if nobody stands in any of their lines, or else reads who is first
//! in each. So they all have the same create_revision, each in its own line.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, GetResponse, ResponseHeader, Txn, TxnOp, TxnResponse};
use leasehold_core::seam::{Claim, ClaimedAll, Moment};
use leasehold_core::{Error, ErrorKind, Result};

use super::TRIES;
use crate::error::Failure;
use crate::line::Own;
use crate::look::contention;
use crate::store::{Store, by_age, put, reads};
use crate::value::Value;

impl Store {
    /// All of these, which have one TTL, or none.
    pub(crate) async fn claim_all(self: &Arc<Self>, claims: &[Claim]) -> Result<ClaimedAll> {
        for _ in 0..TRIES {
            self.open()?;
            let Some(owns) = self.known(claims) else {
                // What an earlier attempt may have left of a part of them.
                self.release_all(claims).await?;
                let ttl = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
                let session = self.session(ttl).await?;
                let mut state = self.state();
                for claim in claims {
                    state.enroll(&claim.name, claim.id, &self.keys.line(&claim.name), session.clone());
                }
                continue;
            };
            let response = match self.enter_all(claims, &owns).await {
                Err(failure) if failure.lease_is_gone() => continue,
                response => response?,
            };
            let revision = response.header().map_or(0, ResponseHeader::revision);
            let firsts = if response.succeeded() { Vec::new() } else { reads(&response) };
            for (i, (own, line)) in owns.iter().zip(&firsts).enumerate() {
                if line.kvs().first().is_some_and(|first| first.key() != own.key.as_bytes()) {
                    // Their own late attempt could still find the lines empty.
                    self.release_all(claims).await?;
                    let prefix = self.keys.line(&claims[i].name);
                    return Ok(ClaimedAll::Busy(i, contention(&prefix, line, line.count())));
                }
            }
            let there = |line: &GetResponse| line.kvs().first().map_or(0, etcd_client::KeyValue::create_revision);
            let created: Vec<i64> =
                if response.succeeded() { vec![revision; claims.len()] } else { firsts.iter().map(there).collect() };
            if created.contains(&0) {
                // The session lets nobody in any more, or a part of them has gone again.
                self.release_all(claims).await?;
            } else if let Some(granted) = self.stand_all(claims, &created) {
                return Ok(granted);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the lines or the session changed again and again; claim again"))
    }

    /// What is known of these claims, if it is all of them and they may be asked for.
    fn known(&self, claims: &[Claim]) -> Option<Vec<Own>> {
        let mut state = self.state();
        let own = |claim: &Claim| {
            let own = state.own(&claim.name, claim.id)?;
            own.tended = Moment::now();
            (!own.leaving && (own.created != 0 || !own.session.is_closed())).then(|| own.clone())
        };
        claims.iter().map(own).collect()
    }

    async fn enter_all(&self, claims: &[Claim], owns: &[Own]) -> Result<TxnResponse, Failure> {
        let gone = || Failure::new(ErrorKind::Unavailable, "nothing is claimed");
        let session = &owns.first().ok_or_else(gone)?.session;
        let lines: Vec<_> = claims.iter().map(|claim| self.keys.line(&claim.name)).collect();
        let empty = lines.iter().map(|line| Compare::create_revision(&**line, CompareOp::Equal, 0).with_prefix());
        let open = Compare::create_revision(&*session.key, CompareOp::Equal, 0);
        let value = |claim: &Claim| Value::now(&claim.label, claim.mode).write();
        let puts = claims.iter().zip(owns).map(|(claim, own)| put(session.lease, &own.key, value(claim)));
        let looks = lines.iter().map(|line| TxnOp::get(&**line, Some(by_age(1))));
        let when: Vec<Compare> = empty.chain([open]).collect();
        let txn = Txn::new().when(when).and_then(puts.collect::<Vec<_>>()).or_else(looks.collect::<Vec<_>>());
        let doubt = |doubts: &dyn Fn(&Own) -> bool| {
            let mut state = self.state();
            for (claim, before) in claims.iter().zip(owns) {
                state.own(&claim.name, claim.id).into_iter().for_each(|own| own.doubt = doubts(before));
            }
        };
        doubt(&|_| true);
        let answer = self.txn(txn).await;
        doubt(&|before| answer.doubt || before.doubt);
        self.under(session, answer.outcome)
    }

    /// All of them hold; `None` if one of them is gone by now, or on its way.
    fn stand_all(self: &Arc<Self>, claims: &[Claim], created: &[i64]) -> Option<ClaimedAll> {
        let mut state = self.state();
        let mut grants = Vec::with_capacity(claims.len());
        for (claim, created) in claims.iter().zip(created) {
            let own = state.own(&claim.name, claim.id).filter(|own| !own.leaving)?;
            own.stands_at(*created);
            own.granted = true;
            grants.push(own.grant());
            self.tell(&mut state, &claim.name);
        }
        Some(ClaimedAll::Granted(grants))
    }

    async fn release_all(&self, claims: &[Claim]) -> Result<(), Failure> {
        for claim in claims {
            self.release(&claim.name, claim.id).await?;
        }
        Ok(())
    }
}
