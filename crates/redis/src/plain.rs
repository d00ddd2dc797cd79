//! Plain mode: locks on a server that forbids scripts. A lock is exclusive and has no queue; a
//! client that waits asks again and again.
//!
//! Each verb is a transaction: it watches the lock, reads it, and writes only if it is unchanged.
//! Beside it, waiters say in a hash that they wait, for people: nothing else depends on that.

mod entry;
#[cfg(test)]
mod tests;
mod transaction;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::backend::{
    Claim, ClaimId, Claimed, Grant, LeaseRef, Mode, Moment, Renewal, Validity, WaitPolicy, Waiting,
};
use leasehold_core::{Error, ErrorKind, FencingToken, Guarantees, LockQueue, Loss, Name, Result};
use redis::{Cmd, Pipeline, Value, from_redis_value};

use crate::client::nodes::Nodes;
use crate::config::Config;
use crate::entry::{FENCE, MIN_TTL, ttl};
use crate::link::{Connection, Inbox, Names, ValueHash, again, attempt, junk};
use crate::plain::entry::{Holder, Record, since_of, waiters, waiters_of};
use crate::plain::transaction::{Turn, Turns, ask};
use crate::plain::waiting::{Waiters, retry_after};

/// The greatest number of holds that one transaction renews.
const AT_ONCE: usize = 100;
/// How often a verb begins anew if others change the lock meanwhile.
const TRIES: usize = 8;
/// No token is as great: numbers that are greater are not exact in the scripts.
const MOST: u64 = 9_000_000_000_000_000;
/// What `PTTL` answers for a key that does not exist.
const NO_KEY: i64 = -2;
/// The number of tokens that a hold has at most. One by one or in such blocks, tokens do not get
/// ahead of the server's clock.
const TURNS: u32 = 64;
/// The seconds for which the greatest token is kept, beyond its own value.
const KEPT: u64 = 7201;
/// How often a claim takes the server's clock as its token, or the next one above the greatest, for
/// which that is watched. Claims of other names change it: after so many tries a claim draws the next
/// one in any case, if it is not further behind the clock than `LATE`, in microseconds.
const EXACT_TRIES: usize = 2;
const LATE: u64 = 100_000;
/// How many microseconds the greatest token may be ahead of the clock where a hold has several.
const BLOCKS: u64 = 5000;

/// The verbs without scripts.
pub(crate) struct Plain {
    nodes: Arc<Nodes>,
    names: Names,
    inbox: Inbox,
    turns: Turns,
    waiters: Waiters,
}

/// A lock as a transaction saw it.
struct Seen {
    /// The server's clock in microseconds.
    now: u64,
    holder: Option<Holder>,
    /// The rest of the lease in milliseconds; negative without a lease.
    left: i64,
}

/// A lock as a claim sees it.
struct SeenByClaim {
    lock: Seen,
    /// The greatest token of all names.
    fence: Option<u64>,
    /// The rest of the time for which the key of the waiters is kept, in milliseconds.
    waiters_left: i64,
}

impl Plain {
    /// Plain mode on this server. Refuses servers that cannot do what it needs, and users without
    /// the rights.
    pub(crate) async fn on(
        nodes: &Arc<Nodes>,
        names: &Names,
        inbox: &Inbox,
        config: &Config,
    ) -> Result<Plain> {
        let plain = Plain {
            nodes: nodes.clone(),
            names: names.clone(),
            inbox: inbox.clone(),
            turns: Turns::new(config.timeout, names.watched()),
            waiters: Waiters::default(),
        };
        plain.check().await?;
        Ok(plain)
    }

    fn connection(&self) -> Result<&Connection> {
        match &*self.nodes {
            Nodes::One(connection) => Ok(connection),
            Nodes::Many(_) => Err(no_cluster()),
        }
    }

    /// Refuses servers that can never do what is needed, and users without the rights. Errors that
    /// may pass are ignored.
    async fn check(&self) -> Result<()> {
        let commands = [
            command("GET", &[FENCE]),
            command("MGET", &[FENCE]),
            command("PTTL", &[FENCE]),
            command("INCRBY", &[FENCE, "1"]),
            command("DEL", &[FENCE]),
            command("HSET", &[FENCE, "x", ""]),
            command("HSETNX", &[FENCE, "x", ""]),
            command("HDEL", &[FENCE, "x"]),
            command("HGETALL", &[FENCE]),
            command("SET", &[FENCE, "1", "NX", "EX", "1"]),
            command("PEXPIRE", &[FENCE, "1"]),
            command("PUBLISH", &[&self.inbox.channel, ""]),
            command("TIME", &[]),
        ];
        let checked = match self.turns.next(self.connection()?).await {
            Ok(turn) => turn.check(&commands, FENCE).await,
            Err(e) => Err(e),
        };
        match checked {
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => Err(e),
            _ => Ok(()),
        }
    }

    /// Claims, and returns also the number of the connection that carried a grant.
    pub(crate) async fn claim(&self, claim: &Claim) -> Result<(u64, Claimed)> {
        if claim.mode != Mode::Exclusive {
            return Err(Error::new(ErrorKind::Unsupported, EXCLUSIVE_ONLY));
        }
        let connection = self.connection()?;
        let lock = self.names.lock(&claim.name);
        let watched = [lock.clone(), FENCE.to_owned()];
        let look = look_of_claim(&lock);
        let waits = self.waiters.has(&lock, claim.id);
        // A waiter takes no turn for a look at a lock that is held.
        if waits {
            let answers = ask(connection, None, &look).await?.into_iter();
            let answers = answers.map(|answer| connection.refusal(answer));
            let seen = SeenByClaim::read(answers.collect::<Result<_>>()?)?;
            if seen.is_anothers(claim.id) {
                return Ok((0, self.refused(claim, &lock, &seen).await?));
            }
        }
        let lasts = ttl(claim).as_millis() as u64;
        let claiming = self.turns.as_claim(connection).await?;
        let mut exactly = EXACT_TRIES;
        for _ in 0..TRIES {
            let turn = self.turns.next(connection).await?;
            let asked = Moment::now();
            let is_exact = exactly > 0;
            let watched = if is_exact {
                &watched[..]
            } else {
                &watched[..1]
            };
            let looked = SeenByClaim::read(turn.watch(watched, &look, None).await?)?;
            if looked.is_anothers(claim.id) {
                drop((turn, claiming));
                return Ok((0, self.refused(claim, &lock, &looked).await?));
            }
            let seen = &looked.lock;
            let fence = looked.fence;
            let is_late = fence.is_none_or(|fence| fence + LATE < seen.now);
            if !is_exact && is_late && seen.holder.is_none() {
                exactly = 1;
                continue;
            }
            exactly = exactly.saturating_sub(1);
            let mut record = Record {
                token: FencingToken::new(0),
                turns: claim.turns().min(TURNS),
                since: seen.now / 1000,
                attempt: attempt(asked),
                channel: self.inbox.channel.clone(),
                label: claim.label.to_string(),
                id: claim.id,
            };
            let mut end = lasts;
            // What is free is only taken if it is still free, also where `WATCH` has no effect.
            let mut only_free = &["NX"][..];
            match seen.holder.as_ref().and_then(|it| it.of_claim(claim.id)) {
                Some(held) => {
                    // The label is that of the latest attempt.
                    if record.attempt < held.attempt {
                        record.label.clone_from(&held.label);
                        record.attempt = held.attempt;
                    }
                    record.token = held.token;
                    record.turns = held.turns;
                    record.since = held.since;
                    end = lasts.max(u64::try_from(seen.left).unwrap_or(0));
                    only_free = &[];
                }
                None if is_exact => {
                    let last = fence.unwrap_or(0);
                    let token = seen.now.max(last + 1);
                    record.token = FencingToken::new(token);
                    if token - seen.now > BLOCKS {
                        record.turns = 1;
                    }
                }
                None => match draw(&turn, record.turns, fence.unwrap_or(0)).await? {
                    Some(token) => record.token = token,
                    None => {
                        exactly = 1;
                        continue;
                    }
                },
            }
            let mut set = command("SET", &[&lock, &record.text(), "PX", &end.to_string()]);
            set.arg(only_free);
            let mut write = vec![set];
            if is_exact && seen.holder.is_none() {
                let last = record.token.get() + u64::from(record.turns) - 1;
                let kept = KEPT + last.saturating_sub(seen.now).div_ceil(1_000_000);
                let [last, kept] = [last, kept].map(|number| number.to_string());
                write.push(command("SET", &[FENCE, &last, "EX", &kept]));
            }
            let aside = waits.then(|| waits_no_more(claim, &lock));
            let sent = Moment::now();
            match turn.execute(&write, aside).await? {
                Some(answers) if answers.first() != Some(&Value::Nil) => {}
                _ => continue,
            }
            self.waiters.forget(&lock, claim.id);
            let place = self.inbox.place(claim.id, &lock);
            let validity = Validity::since(sent, ttl(claim));
            let grant = Grant::new(place, record.token, validity).turns(record.turns);
            return Ok((turn.nth(), Claimed::Granted(grant)));
        }
        Err(contended())
    }

    /// The answer to a claim of a lock that is held. A claim that waits says so in the store.
    async fn refused(&self, claim: &Claim, lock: &str, seen: &SeenByClaim) -> Result<Claimed> {
        let now = seen.lock.now / 1000;
        let who = seen
            .lock
            .holder
            .as_ref()
            .map(|holder| holder.contention(now));
        let who = who.unwrap_or_default();
        if claim.policy == WaitPolicy::Try {
            return Ok(Claimed::Busy(who));
        }
        let lasts = ttl(claim);
        let (is_due, waiters) = self.waiters.note(lock, claim.id, lasts);
        if is_due || seen.waiters_left == NO_KEY {
            self.say(claim, lock, seen).await?;
        }
        let place = self.inbox.place(claim.id, lock);
        let after = retry_after(seen.lock.left, waiters, lasts);
        Ok(Claimed::Waiting(
            Waiting::new(place, who).retry_after(after),
        ))
    }

    /// Says in the store that this claim waits.
    async fn say(&self, claim: &Claim, lock: &str, seen: &SeenByClaim) -> Result<()> {
        let now = seen.lock.now / 1000;
        let ms = ttl(claim).as_millis() as u64;
        let key = waiters_of(lock);
        let mut says = redis::pipe();
        says.cmd("HSETNX")
            .arg(&key)
            .arg(since_of(claim.id))
            .arg(now);
        let value = format!("{} {}", now + ms, claim.label);
        says.cmd("HSET")
            .arg(&key)
            .arg(claim.id.to_string())
            .arg(value);
        // The key lives as long as the longest of its leases.
        if seen.waiters_left < ms as i64 {
            says.cmd("PEXPIRE").arg(&key).arg(ms);
        }
        let connection = self.connection()?;
        for answer in connection.send(&says).await? {
            match connection.refusal(answer) {
                // Something else is in its place, and no lock depends on it.
                Err(e) if e.kind() == ErrorKind::Corrupt => {}
                answer => drop(answer?),
            }
        }
        Ok(())
    }

    /// Renews these leases. That of a waiter is renewed whenever it asks again.
    pub(crate) async fn renew(&self, leases: &[LeaseRef]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(leases.len());
        let mut holds = Vec::new();
        for lease in leases {
            let since = Validity::since(Moment::now(), ttl(&lease.claim));
            renewals.push(Renewal::Renewed(since));
            if lease.token.is_some() {
                holds.push((renewals.len() - 1, lease));
            }
        }
        for some in holds.chunks(AT_ONCE) {
            match self.extend(some).await {
                Ok(answers) => {
                    for ((i, _), renewal) in some.iter().zip(answers) {
                        renewals[*i] = renewal;
                    }
                }
                Err(e) => {
                    for (i, _) in some {
                        renewals[*i] = Renewal::Unknown(again(&e));
                    }
                }
            }
        }
        renewals
    }

    /// Extends those of these holds that are still there.
    async fn extend(&self, holds: &[(usize, &LeaseRef)]) -> Result<Vec<Renewal>> {
        let lock = |(_, lease): &(usize, &LeaseRef)| self.names.lock(&lease.claim.name);
        let locks: Vec<String> = holds.iter().map(lock).collect();
        let mut questions = redis::pipe();
        questions.cmd("MGET").arg(&locks);
        for lock in &locks {
            questions.cmd("PTTL").arg(lock);
        }
        for _ in 0..TRIES {
            let turn = self.turns.next(self.connection()?).await?;
            // Also a lease that is long enough already lasts from here on.
            let sent = Moment::now();
            let mut answers = turn.watch(&locks, &questions, None).await?.into_iter();
            let values = answers.next().unwrap_or_default();
            let values: Vec<Option<Vec<u8>>> =
                from_redis_value(values).map_err(|_| junk("an answer"))?;
            let mut extensions = Vec::new();
            let mut renewals = Vec::with_capacity(holds.len());
            for (((_, lease), lock), (value, left)) in holds
                .iter()
                .zip(&locks)
                .zip(values.into_iter().zip(answers))
            {
                let left: i64 = from_redis_value(left).map_err(|_| junk("an answer"))?;
                let holder = value.map(|value| Holder::of(&value));
                let record = holder.as_ref().and_then(|it| it.of_claim(lease.claim.id));
                // The lease may have ended between the two questions.
                if left == NO_KEY || record.map(|record| record.token) != lease.token {
                    renewals.push(Renewal::Lost(Loss::Gone));
                    continue;
                }
                let lasts = ttl(&lease.claim);
                let ms = lasts.as_millis() as u64;
                if u64::try_from(left).is_ok_and(|left| left < ms) {
                    extensions.push(command("PEXPIRE", &[lock, &ms.to_string()]));
                }
                renewals.push(Renewal::Renewed(Validity::since(sent, lasts)));
            }
            if renewals.len() != holds.len() {
                return Err(junk("an answer"));
            }
            let is_lost = |renewal: &Renewal| matches!(renewal, Renewal::Lost(_));
            if renewals.iter().all(is_lost) {
                return Ok(renewals);
            }
            // Also a hold that needs no longer lease has to be there still.
            let extended = turn.execute(&extensions, None).await?;
            if extended.is_some_and(|each| each.iter().all(|done| *done == Value::Int(1))) {
                return Ok(renewals);
            }
        }
        Err(contended())
    }

    pub(crate) async fn release(&self, claim: &Claim) -> Result<()> {
        let lock = self.names.lock(&claim.name);
        let waits = self.waiters.has(&lock, claim.id);
        let aside = waits.then(|| waits_no_more(claim, &lock));
        let mine = |holder: &Holder| holder.of_claim(claim.id).map(|_| Vec::new());
        self.delete(&lock, aside, mine).await?;
        self.waiters.forget(&lock, claim.id);
        Ok(())
    }

    /// Ends the hold with this token. Holds of clients with scripts, and of other tools, are not
    /// ended from here.
    pub(crate) async fn evict(&self, name: &Name, token: FencingToken) -> Result<bool> {
        if ValueHash::by(token).is_some() {
            let what = "without scripts, the hold of another tool is ended with DEL alone";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let lock = self.names.lock(name);
        let mut refused = false;
        let its = |holder: &Holder| match holder {
            Holder::Plain(record) if record.has(token) => {
                let told = format!("evicted {}", record.id);
                Some(vec![command("PUBLISH", &[&record.channel, &told])])
            }
            Holder::Scripts(held, ..) if *held == token => {
                refused = true;
                None
            }
            _ => None,
        };
        let evicted = self.delete(&lock, None, its).await?;
        if refused {
            let what = "the holder uses scripts, and waiters may stand behind it: end its hold from a client that uses them too";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(evicted)
    }

    /// Deletes the lock if this says so of its holder, and executes these commands with it. Returns
    /// whether it was deleted. `aside` is sent with the look at the lock.
    async fn delete(
        &self,
        lock: &str,
        aside: Option<Cmd>,
        mut which: impl FnMut(&Holder) -> Option<Vec<Cmd>>,
    ) -> Result<bool> {
        let look = look(lock);
        let _releasing = self.turns.as_release(self.connection()?).await?;
        for _ in 0..TRIES {
            let turn = self.turns.next(self.connection()?).await?;
            let answers = turn.watch(&[lock.to_owned()], &look, aside.clone()).await?;
            let seen = read(answers)?;
            let Some(mut commands) = seen.holder.and_then(|holder| which(&holder)) else {
                return Ok(false);
            };
            commands.push(command("DEL", &[lock]));
            if turn.execute(&commands, None).await?.is_some() {
                return Ok(true);
            }
        }
        Err(contended())
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<LockQueue> {
        let connection = self.connection()?;
        let lock = self.names.lock(name);
        let mut look = look(&lock);
        look.cmd("HGETALL").arg(waiters_of(&lock));
        let mut answers = Vec::new();
        for answer in connection.send(&look).await? {
            answers.push(connection.refusal(answer)?);
        }
        let fields: BTreeMap<String, String> =
            from_redis_value(answers.last().cloned().unwrap_or_default())
                .map_err(|_| junk("an answer"))?;
        let seen = read(answers)?;
        let holder = seen.holder.map(|holder| holder.shown(seen.left));
        let waiting = waiters(&fields, seen.now / 1000);
        Ok(LockQueue::new(Vec::from_iter(holder), waiting))
    }
}

/// Takes back what a claim may have said while it waited.
fn waits_no_more(claim: &Claim, lock: &str) -> Cmd {
    let id = claim.id.to_string();
    command("HDEL", &[&waiters_of(lock), &id, &since_of(&id)])
}

fn command(name: &str, args: &[&str]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(args);
    command
}

/// The questions about a lock.
fn look(lock: &str) -> Pipeline {
    let mut questions = redis::pipe();
    questions.cmd("TIME");
    questions.cmd("GET").arg(lock);
    questions.cmd("PTTL").arg(lock);
    questions
}

/// The questions of a claim.
fn look_of_claim(lock: &str) -> Pipeline {
    let mut questions = look(lock);
    questions.cmd("PTTL").arg(waiters_of(lock));
    questions.cmd("GET").arg(FENCE);
    questions
}

impl SeenByClaim {
    /// Reads the answers to the questions of a claim.
    fn read(mut answers: Vec<Value>) -> Result<SeenByClaim> {
        let fence = fence(answers.pop());
        let waiters_left = from_redis_value(answers.pop().unwrap_or_default());
        Ok(SeenByClaim {
            lock: read(answers)?,
            fence,
            waiters_left: waiters_left.map_err(|_| junk("an answer"))?,
        })
    }

    /// Returns whether somebody else than this claim holds the lock.
    fn is_anothers(&self, id: ClaimId) -> bool {
        let holder = self.lock.holder.as_ref();
        holder.is_some_and(|holder| holder.of_claim(id).is_none())
    }
}

/// Reads the answers to them, which may be followed by others.
fn read(mut answers: Vec<Value>) -> Result<Seen> {
    let unknown = || junk("an answer");
    answers.truncate(3);
    let [time, value, left] = <[Value; 3]>::try_from(answers).map_err(|_| unknown())?;
    let (seconds, micros): (u64, u64) = from_redis_value(time).map_err(|_| unknown())?;
    let value: Option<Vec<u8>> = from_redis_value(value).map_err(|_| unknown())?;
    Ok(Seen {
        now: seconds * 1_000_000 + micros,
        holder: value.map(|value| Holder::of(&value)),
        left: from_redis_value(left).map_err(|_| unknown())?,
    })
}

/// The greatest token of all names, in the answer of its key. What is no number, or one that is too
/// great to be counted with, does not count, as for the scripts.
fn fence(answer: Option<Value>) -> Option<u64> {
    let number = from_redis_value::<Option<u64>>(answer?).ok()??;
    (number < MOST).then_some(number)
}

/// Draws so many of the next tokens, and returns the first. The lock is watched already: a token
/// that is drawn for it before another client's is never granted after that. `None`: the tokens
/// begin anew below the greatest one that was seen, which was lost meanwhile. The key keeps its
/// expiry: that is two hours beyond its value, and a token moves this by a microsecond.
async fn draw(turn: &Turn<'_>, turns: u32, seen: u64) -> Result<Option<FencingToken>> {
    let last = turn.ask(command("INCRBY", &[FENCE, &turns.to_string()]));
    let last: u64 = from_redis_value(last.await?).map_err(|_| junk("the greatest token"))?;
    let first = last.saturating_sub(u64::from(turns)) + 1;
    let rises = first > seen && last < MOST;
    Ok(rises.then(|| FencingToken::new(first)))
}

fn contended() -> Error {
    let what = "other clients changed this lock between each look at it and the request behind it";
    Error::new(ErrorKind::Unavailable, what)
}

pub(crate) fn no_cluster() -> Error {
    let what = "scripts=off is for one server, and not for a Redis Cluster";
    Error::new(ErrorKind::Unsupported, what)
}

/// The error of a verb that is a script.
pub(crate) fn no_script() -> Error {
    let what = "this takes a script, and the store uses none (scripts=off in the URL): compare fencing tokens in place of still_holds";
    Error::new(ErrorKind::Unsupported, what)
}

const EXCLUSIVE_ONLY: &str = "without scripts (scripts=off in the URL) a Redis keeps exclusive locks alone: no readers, no permits, and no \
                              hold becomes shared";

/// What plain mode gives.
pub(crate) fn guarantees() -> Guarantees {
    Guarantees::none("redis")
        .with_fencing(leasehold_core::Fencing::SurvivesDataLoss)
        .with_ttl(MIN_TTL, Duration::from_millis(1))
        .with_recovery(Duration::from_millis(200))
        .with_notes(NOTES)
}

const NOTES: &str = "\
Without scripts (scripts=off): exclusive locks alone. Waiters have no order, ask again about every tenth of a second \
(more rarely if a client has many), and may be passed for ever. \
Exclusion holds while the server keeps its data and its clock: after an asynchronous failover, a restart without \
persistence, an eviction or a step of its clock, two may hold at once, and only the token tells them apart. Clients with scripts and \
SET-NX-PX clients are excluded.";
