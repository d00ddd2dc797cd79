//! Several names in one transaction: it creates all keys if nobody stands in any of their lines, or else reads who is first
//! in each. So they all have the same create_revision, each in its own line.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, ResponseHeader, Txn, TxnOp, TxnResponse};
use leasehold_core::seam::{Claim, ClaimedAll, Moment};
use leasehold_core::{Error, ErrorKind, Result};

use super::TRIES;
use crate::error::Failure;
use crate::line::Own;
use crate::look::contention;
use crate::session::Session;
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
            let Some(session) = owns.first().map(|own| &own.session) else {
                return Ok(ClaimedAll::Granted(Vec::new()));
            };
            let response = match self.enter_all(claims, &owns, session).await {
                Err(failure) if failure.lease_is_gone() => continue,
                response => response?,
            };
            let lines = reads(&response);
            let mut created = Vec::with_capacity(claims.len());
            for (i, (claim, own)) in claims.iter().zip(&owns).enumerate() {
                match lines.get(i).map(|line| (line, line.kvs().first())) {
                    None => created.push(response.header().map_or(0, ResponseHeader::revision)),
                    Some((_, Some(first))) if first.key() == own.key.as_bytes() => {
                        created.push(first.create_revision())
                    }
                    Some((line, Some(_))) => {
                        // Their own late attempt could still find the lines empty.
                        self.release_all(claims).await?;
                        let who = contention(&self.keys.line(&claim.name), line, line.count());
                        return Ok(ClaimedAll::Busy(i, who));
                    }
                    // The session lets nobody in any more, or one of them has gone again.
                    Some((_, None)) => {}
                }
            }
            if created.len() == claims.len()
                && let Some(granted) = self.stand_all(claims, &created)
            {
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

    async fn enter_all(&self, claims: &[Claim], owns: &[Own], session: &Session) -> Result<TxnResponse, Failure> {
        let mut when = vec![Compare::create_revision(&*session.key, CompareOp::Equal, 0)];
        let (mut puts, mut looks) = (Vec::new(), Vec::new());
        for (claim, own) in claims.iter().zip(owns) {
            let line = self.keys.line(&claim.name);
            when.push(Compare::create_revision(&*line, CompareOp::Equal, 0).with_prefix());
            puts.push(put(session.lease, &own.key, Value::now(&claim.label, claim.mode).write()));
            looks.push(TxnOp::get(&*line, Some(by_age(1))));
        }
        let doubt = |doubt: bool| {
            let mut state = self.state();
            for (claim, before) in claims.iter().zip(owns) {
                state.own(&claim.name, claim.id).into_iter().for_each(|own| own.doubt = doubt || before.doubt);
            }
        };
        doubt(true);
        let answer = self.txn(Txn::new().when(when).and_then(puts).or_else(looks)).await;
        doubt(answer.doubt);
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
