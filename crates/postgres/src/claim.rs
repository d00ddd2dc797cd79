//! `claim`, and `claim_all` for several names in one step.

pub(crate) mod shared;

use std::time::Duration;

use leasehold_core::ErrorKind::Unavailable;
use leasehold_core::backend::{Claim, Claimed, ClaimedAll, Mode, Moment, Waiting};
use leasehold_core::{Error, FencingToken, Result};

use self::shared::Shared;
use crate::client::answer::Row;
use crate::client::request::Request;
use crate::entry::{self, Granted, contention, get, place, stamp};
use crate::error::{Failure, junk};
use crate::scripts::{CLAIMED, ONCE};

/// The interval in which the first waiter polls where no notifications arrive: at first, and after
/// a long wait.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

impl Shared {
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        entry::check(&claim.name)?;
        let sent = Moment::now();
        let floor = entry::floor(claim)?;
        self.pool.claims(std::slice::from_ref(claim));
        let request = match claim.once {
            None => entry::claim(
                Request::new(&self.statements.claim).fields(&CLAIMED),
                claim,
                sent,
                self.channel(),
            ),
            Some(_) => entry::once(
                Request::new(&self.statements.once).fields(&ONCE),
                claim,
                sent,
                self.channel(),
            ),
        };
        let rows = self
            .call(request.int(self.patience()).maybe_number(floor))
            .await?;
        let row = rows.first().ok_or_else(|| junk("the answer to a claim"))?;
        self.notify(row)?;
        let what = get(row, "what")?;
        if !matches!(what, "granted" | "waiting") {
            self.pool.leaves(claim.id);
        }
        match (what, claim.mode) {
            ("granted", _) => Ok(Claimed::Granted(granted(row)?.grant(&self.client))),
            ("waiting", _) => {
                self.hearing.needed_for(claim.ttl);
                let waiting =
                    Waiting::new(place(&self.client, get(row, "a_seq")?), contention(row)?);
                Ok(Claimed::Waiting(
                    waiting.retry_after(self.retry_after(row)?),
                ))
            }
            ("busy", _) => Ok(Claimed::Busy(contention(row)?)),
            ("done", _) => Ok(Claimed::Done(entry::completion(row)?)),
            ("differ", Mode::Permits { of, .. }) => {
                let theirs =
                    u32::try_from(get::<i64>(row, "theirs")?).map_err(|_| junk("permits"))?;
                Err(Error::permits_differ(theirs, of))
            }
            ("pinned", _) => Err(Failure::new(Unavailable, PINNED).into()),
            _ => Err(junk("the answer to a claim")),
        }
    }

    /// The time until the claim is repeated if no notification arrives: until the first hold in the
    /// way may have ended. It is shorter while no notifications arrive at all: the first waiter
    /// polls steadily, and those behind it poll less often the farther back they are.
    fn retry_after(&self, row: &Row) -> Result<Duration> {
        let number = |column| {
            get::<Option<i64>>(row, column)
                .map(|n| u64::try_from(n.unwrap_or_default()).unwrap_or(1))
        };
        let nap = number("nap")?;
        let ahead = number("ahead")?;
        let waited = number("waited")?;
        let nap = Duration::from_millis(nap.max(1));
        if self.hearing.arrive() {
            return Ok(nap);
        }
        let poll = Duration::from_millis(waited / 8).clamp(POLL.0, POLL.1);
        let poll = poll.saturating_mul(u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX));
        Ok(nap.min(poll.mul_f64(0.75 + fastrand::f64() / 2.0)))
    }

    /// Claims all of these or none. They differ only in their names, ids and floors.
    pub(crate) async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let Some(first) = claims.first() else {
            return Ok(ClaimedAll::Granted(Vec::new()));
        };
        claims
            .iter()
            .try_for_each(|claim| entry::check(&claim.name))?;
        let sent = Moment::now();
        let floors = claims
            .iter()
            .map(entry::floor)
            .collect::<Result<Vec<_>>>()?;
        self.pool.claims(claims);
        let request = Request::new(&self.statements.claim_all)
            .texts(claims.iter().map(|claim| claim.name.to_string()).collect())
            .ids(claims.iter().map(|claim| claim.id))
            .int(entry::turns(first))
            .number(entry::ttl(first))
            .bytes(first.label.as_bytes())
            .number(stamp(sent))
            .text(self.channel())
            .int(self.patience())
            .maybe_numbers(floors);
        let rows = self.call(request).await?;
        let last = rows
            .last()
            .ok_or_else(|| junk("the answer to several claims"))?;
        self.notify(last)?;
        if get::<&str>(last, "what")? == "busy" {
            claims.iter().for_each(|claim| self.pool.leaves(claim.id));
            let nth = usize::try_from(get::<i32>(last, "nr")?).unwrap_or_default();
            return Ok(ClaimedAll::Busy(nth.saturating_sub(1), contention(last)?));
        }
        let grants = rows
            .iter()
            .map(|row| granted(row).map(|granted| granted.grant(&self.client)))
            .collect::<Result<Vec<_>>>()?;
        if grants.len() == claims.len() {
            Ok(ClaimedAll::Granted(grants))
        } else {
            Err(junk("the answer to several claims"))
        }
    }
}

impl Shared {
    pub(crate) async fn mark(&self) -> Result<FencingToken> {
        let rows = self.call(Request::new(&self.statements.mark)).await?;
        let row = rows.first().ok_or_else(|| junk("the mark"))?;
        u64::try_from(get::<i64>(row, "mark_1")?)
            .map(FencingToken::new)
            .map_err(|_| junk("the mark"))
    }

    pub(crate) async fn raise(&self, number: FencingToken) -> Result<()> {
        entry::RAISES.check(Some(number))?;
        let request = Request::new(&self.statements.raise).number(number.as_i64());
        Ok(self.call(request.int(self.patience())).await.map(drop)?)
    }
}

fn granted(row: &Row) -> Result<Granted> {
    Granted::of(row)?.ok_or_else(|| junk("a grant without a token"))
}

/// The message about a hold that a user's transaction keeps.
pub(crate) const PINNED: &str =
    "a transaction that is open or prepared keeps this hold until it ends";
