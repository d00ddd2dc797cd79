//! `renew`.

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::backend::{LeaseRef, Moment, Renewal};
use leasehold_core::{FencingToken, Loss, Result};

use crate::claim::shared::Shared;
use crate::client::request::Request;
use crate::entry::{self, Granted, get, stamp, validity};
use crate::error::{Failure, junk};

/// The number of places that one request renews at most.
const AT_ONCE: usize = 1_000;

impl Shared {
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Result<Vec<Renewal>> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(AT_ONCE) {
            let mut answers = self.renew_some(&some.iter().collect::<Vec<_>>()).await?;
            // Another request had locked these rows, and has ended by now.
            let busy: Vec<usize> = (0..answers.len())
                .filter(|i| answers[*i].is_none())
                .collect();
            if !busy.is_empty() {
                let again: Vec<_> = busy.iter().map(|i| &some[*i]).collect();
                // If this fails, the answers for the other places still stand.
                let known = self.renew_some(&again).await.unwrap_or_default();
                busy.into_iter()
                    .zip(known)
                    .for_each(|(i, answer)| answers[i] = answer);
            }
            let unknown = || {
                Renewal::Unknown(
                    Failure::new(Unavailable, "another request is at this place").into(),
                )
            };
            renewals.extend(
                answers
                    .into_iter()
                    .map(|answer| answer.unwrap_or_else(unknown)),
            );
        }
        Ok(renewals)
    }

    /// Renews these places with one request. The answer is `None` for a place whose row another
    /// request has locked.
    async fn renew_some(&self, leases: &[&LeaseRef]) -> Result<Vec<Option<Renewal>>> {
        let sent = Moment::now();
        self.pool.renews(leases);
        let waits = leases.iter().filter(|lease| lease.token.is_none());
        if let Some(longest) = waits.map(|lease| lease.claim.ttl).max() {
            self.hearing.needed_for(longest);
        }
        let request = Request::new(&self.statements.renew)
            .ids(leases.iter().map(|lease| lease.claim.id))
            .numbers(
                leases
                    .iter()
                    .map(|lease| lease.token.map_or(0, FencingToken::as_i64))
                    .collect(),
            )
            .numbers(
                leases
                    .iter()
                    .map(|lease| entry::ttl(&lease.claim))
                    .collect(),
            )
            .number(stamp(sent))
            .int(self.patience());
        let rows = self.call_renewal(request).await?;
        if rows.len() != leases.len() {
            return Err(junk("the answer to renewals"));
        }
        let answers = leases.iter().zip(&rows).map(|(lease, row)| {
            Ok(match get::<i32>(row, "state")? {
                0 => {
                    self.pool.leaves(lease.claim.id);
                    Some(Renewal::Lost(Loss::Gone))
                }
                1 => Some(match (Granted::of(row)?, lease.token) {
                    // The place was waiting when last seen, or its token was raised since.
                    (Some(granted), token)
                        if token.is_none_or(|token| token.as_i64() != granted.token) =>
                    {
                        Renewal::Granted(granted.grant(&self.client))
                    }
                    _ => Renewal::Renewed(validity(get(row, "a_sent")?, get(row, "a_ttl")?)),
                }),
                _ => None,
            })
        });
        answers.collect()
    }
}
