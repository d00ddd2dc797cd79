//! Conversions between claims or grants and the columns in which the database has them.

use std::time::{Duration, SystemTime};

use leasehold_core::backend::Raises;
use leasehold_core::backend::{Claim, Grant, Mode, Moment, Place, Validity, WaitPolicy};
use leasehold_core::{
    Completion, Contention, Error, ErrorKind, FencingToken, Keep, Name, Participant, Result,
};
use tokio_postgres::types::FromSql;

use crate::client::answer::Row;
use crate::client::request::Request;
use crate::error::junk;

/// The shortest lease.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);

/// The greatest length of a name with its namespace, in bytes: an entry of an index is no longer
/// than a third of a page.
const NAME: usize = 2_600;

/// Refuses a name that is too long for an index.
pub(crate) fn check(name: &Name) -> Result<()> {
    if name.as_str().len() <= NAME {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        "a name in its namespaces may have at most 2,600 bytes on PostgreSQL",
    ))
}

/// The lease of a claim in whole milliseconds, rounded up, as the server counts it.
pub(crate) fn ttl(claim: &Claim) -> i64 {
    let ttl = claim.ttl.max(MIN_TTL);
    millis(ttl + Duration::from_nanos(999_999))
}

/// The duration in milliseconds, at most a thousand years.
pub(crate) fn millis(d: Duration) -> i64 {
    const MOST: i64 = 1_000 * 366 * 86_400_000;
    i64::try_from(d.as_millis()).unwrap_or(MOST).min(MOST)
}

/// A moment of this client's clock in nanoseconds, for the server to keep.
pub(crate) fn stamp(at: Moment) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX)
}

/// The mode as it is stored.
pub(crate) fn mode(mode: Mode) -> (i16, i64, i64) {
    let number = match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Permits { .. } => 2,
    };
    let (_, n, of) = mode.parts();
    (number, n.into(), of.into())
}

/// Adds the parameters of `claim_1` that describe a claim.
pub(crate) fn claim(request: Request, claim: &Claim, sent: Moment, channel: &str) -> Request {
    let (mode, n, of) = mode(claim.mode);
    request
        .text(claim.name.as_str())
        .id(claim.id)
        .small(mode)
        .number(n)
        .number(of)
        .int(turns(claim))
        .flag(claim.policy != WaitPolicy::Try)
        .number(ttl(claim))
        .bytes(claim.label.as_bytes())
        .number(stamp(sent))
        .text(channel)
}

/// Adds the parameters of `once_1` that describe a claim for work that is done once.
pub(crate) fn once(request: Request, claim: &Claim, sent: Moment, channel: &str) -> Request {
    request
        .text(claim.name.as_str())
        .id(claim.id)
        .text(&fire(claim))
        .flag(claim.policy != WaitPolicy::Try)
        .number(ttl(claim))
        .bytes(claim.label.as_bytes())
        .number(stamp(sent))
        .text(channel)
}

/// The fire of a claim, as a text: its numbers exceed those of any integer of the database.
pub(crate) fn fire(claim: &Claim) -> String {
    claim.once.unwrap_or_default().to_string()
}

/// The keep of a completion in whole milliseconds, rounded up; `None` for ever.
pub(crate) fn keep(keep: Keep) -> Option<i64> {
    match keep {
        Keep::For(keep) => Some(millis(keep.saturating_add(Duration::from_nanos(999_999))).max(1)),
        Keep::Forever => None,
    }
}

/// The raises that the store supports: tokens of holds, up to a limit that is far below the
/// greatest token.
pub(crate) const RAISES: Raises = Raises::Holds(FencingToken::new(1 << 62));

/// The least token that a claim may be granted.
pub(crate) fn floor(claim: &Claim) -> Result<Option<i64>> {
    RAISES.check(claim.floor).map(|()| {
        claim
            .floor
            .map(FencingToken::as_i64)
            .filter(|floor| *floor > 0)
    })
}

/// The number of tokens that a grant of this claim reserves.
pub(crate) fn turns(claim: &Claim) -> i32 {
    i32::try_from(claim.turns()).unwrap_or(i32::MAX)
}

/// The value of a column.
pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|_| junk(column))
}

/// A grant, as rows and notifications carry it.
pub(crate) struct Granted {
    pub(crate) seq: i64,
    pub(crate) token: i64,
    pub(crate) turns: i32,
    pub(crate) sent: i64,
    pub(crate) ttl: i64,
}

impl Granted {
    /// Reads the columns `a_…`; `None` for a place without a token, which is no hold.
    pub(crate) fn of(row: &Row) -> Result<Option<Granted>> {
        let Some(token) = get::<Option<i64>>(row, "a_token")? else {
            return Ok(None);
        };
        let seq = get(row, "a_seq")?;
        let turns = get(row, "a_turns")?;
        Ok(Some(Granted {
            seq,
            token,
            turns,
            sent: get(row, "a_sent")?,
            ttl: get(row, "a_ttl")?,
        }))
    }

    /// Parses `seq token turns sent ttl`, the form of a grant in notifications.
    pub(crate) fn parse(words: &str) -> Option<Granted> {
        let numbers: Vec<i64> = words
            .split(' ')
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        let [seq, token, turns, sent, ttl] = numbers[..] else {
            return None;
        };
        Some(Granted {
            seq,
            token,
            turns: turns.try_into().ok()?,
            sent,
            ttl,
        })
    }

    /// The grant for a place of this client.
    pub(crate) fn grant(&self, client: &str) -> Grant {
        let turns = u32::try_from(self.turns).unwrap_or(1);
        let token = FencingToken::new(u64::try_from(self.token).unwrap_or_default());
        Grant::new(
            place(client, self.seq),
            token,
            validity(self.sent, self.ttl),
        )
        .turns(turns)
    }
}

/// The place of a claim of this client: the client and the number in the queue.
pub(crate) fn place(client: &str, seq: i64) -> Place {
    Place::new(format!("{client} {seq}"))
}

/// Returns whether a place is one of this client's.
pub(crate) fn is_own(place: &Place, client: &str) -> bool {
    place
        .as_str()
        .strip_prefix(client)
        .is_some_and(|rest| rest.starts_with(' '))
}

/// The validity of a lease, which counts from the request that set its end.
pub(crate) fn validity(sent: i64, ttl: i64) -> Validity {
    let since = Moment::from_nanos(u64::try_from(sent).unwrap_or_default());
    Validity::since(
        since,
        Duration::from_millis(u64::try_from(ttl).unwrap_or_default()),
    )
}

/// Reads the first holder and the number of waiters from the columns `who_…` and `waiters`.
pub(crate) fn contention(row: &Row) -> Result<Contention> {
    let label: Option<&[u8]> = get(row, "who_label")?;
    let mut who = label.map_or_else(Contention::unknown, |label| {
        Contention::by(String::from_utf8_lossy(label))
    });
    let number = |value: Option<i64>| value.map(|value| u64::try_from(value).unwrap_or_default());
    who.token = number(get(row, "who_token")?).map(FencingToken::new);
    who.held_for = number(get(row, "who_for")?).map(Duration::from_millis);
    who.waiters =
        get::<Option<i32>>(row, "waiters")?.map(|n| usize::try_from(n).unwrap_or_default());
    Ok(who)
}

/// Reads a holder or a waiter from a row of `inspect_1`.
pub(crate) fn participant(row: &Row) -> Result<Participant> {
    let unknown = || junk("a mode");
    let number = |column| u32::try_from(get::<i64>(row, column)?).map_err(|_| unknown());
    let kind = match get::<i16>(row, "mode")? {
        0 => "exclusive",
        1 => "shared",
        2 => "permits",
        _ => return Err(unknown()),
    };
    let mode = Mode::from_parts(kind, number("n")?, number("of")?).ok_or_else(unknown)?;
    let since = Duration::from_millis(u64::try_from(get::<i64>(row, "since")?).unwrap_or_default());
    let label = String::from_utf8_lossy(get(row, "label")?).into_owned();
    let entry = Participant::new(label)
        .mode(mode)
        .since(SystemTime::UNIX_EPOCH + since);
    let token: Option<i64> = get(row, "token")?;
    Ok(match token.map(u64::try_from) {
        Some(Ok(token)) => entry.token(FencingToken::new(token)),
        _ => entry,
    })
}

/// Reads a completion from the columns `d_…`.
pub(crate) fn completion(row: &Row) -> Result<Completion> {
    let unread = || Error::new(ErrorKind::Internal, "a completion that nobody can read");
    let number = |column| u64::try_from(get::<i64>(row, column)?).map_err(|_| unread());
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(number("d_at")?);
    let label = String::from_utf8_lossy(get(row, "d_label")?).into_owned();
    let mut completion = Completion::new(FencingToken::new(number("d_token")?), label, at);
    let left: Option<i64> = get(row, "d_left")?;
    completion.left = left.map(|left| Duration::from_millis(left.unsigned_abs()));
    let fire: &str = get(row, "d_fire")?;
    completion.fire = fire.parse().map_err(|_| unread())?;
    completion.result = get::<Option<&str>>(row, "d_result")?.map(Into::into);
    completion.is_cut = get(row, "d_cut")?;
    Ok(completion)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ttl: Duration) -> Claim {
        Claim::new("a", Mode::Exclusive, WaitPolicy::Fair, ttl, "me")
    }

    #[test]
    fn a_lease_is_never_shorter_than_was_asked_for() {
        for (ttl_of, millis) in [
            (0, 100),
            (100_000, 100),
            (100_001, 101),
            (1_500_000, 1500),
            (1_500_999, 1501),
        ] {
            assert_eq!(
                ttl(&asked(Duration::from_micros(ttl_of))),
                millis,
                "{ttl_of} us"
            );
        }
        assert_eq!(ttl(&asked(MIN_TTL + Duration::from_nanos(1))), 101);
        assert_eq!(
            millis(Duration::MAX),
            millis(Duration::MAX - Duration::from_secs(1)),
            "it has an end"
        );
        assert_eq!(millis(Duration::from_millis(7)), 7);
        let thousand_years = Duration::from_secs(1_000 * 365 * 86_400);
        assert!(millis(thousand_years) as u128 == thousand_years.as_millis());
        assert!((millis(Duration::MAX) as u128) < thousand_years.as_millis() * 2);
    }

    #[test]
    fn a_name_that_no_index_takes_is_refused() {
        assert!(check(&Name::new("x".repeat(2_600))).is_ok());
        assert_eq!(
            check(&Name::new("x".repeat(2_601))).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }

    #[test]
    fn modes_differ_and_say_how_many_permits() {
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Permits { n: 2, of: 5 }].map(mode);
        assert_eq!(modes, [(0, 1, 1), (1, 1, u32::MAX.into()), (2, 2, 5)]);
    }

    #[test]
    fn a_floor_beyond_the_limit_is_refused_and_none_is_none() {
        let with = |number| {
            let mut claim = asked(MIN_TTL);
            claim.floor = Some(FencingToken::new(number));
            floor(&claim).map_err(|e| e.kind())
        };
        assert_eq!(floor(&asked(MIN_TTL)).unwrap(), None);
        assert_eq!(
            (with(0), with(1), with(1 << 62)),
            (Ok(None), Ok(Some(1)), Ok(Some(1 << 62)))
        );
        assert_eq!(with((1 << 62) + 1), Err(ErrorKind::Invalid));
    }

    #[test]
    fn a_grant_is_read_from_five_numbers() {
        let granted = Granted::parse("7 8 9 1000000 250").unwrap();
        assert_eq!(
            (
                granted.seq,
                granted.token,
                granted.turns,
                granted.sent,
                granted.ttl
            ),
            (7, 8, 9, 1_000_000, 250)
        );
        let grant = granted.grant("me");
        assert_eq!(
            (grant.place, grant.token, grant.turns),
            (place("me", 7), FencingToken::new(8), 9)
        );
        assert_eq!(grant.validity.ttl(), Duration::from_millis(250));
        let heard = Moment::from_nanos(9_000_000_000);
        let good = Validity::since(Moment::from_nanos(1_000_000), Duration::from_millis(250));
        assert_eq!(
            grant.validity.until(heard),
            good.until(heard),
            "it counts from the send"
        );
        for junk in [
            "",
            "7 8 9 1",
            "7 8 9 1 2 3",
            "7 8 x 1 2",
            "7 8 9999999999 1 2",
            "7  8 9 1 2",
        ] {
            assert!(Granted::parse(junk).is_none(), "{junk:?}");
        }
    }

    #[test]
    fn a_place_is_of_the_client_that_made_it() {
        assert!(is_own(&place("me", 7), "me"));
        assert!(
            !is_own(&place("me2", 7), "me")
                && !is_own(&place("you", 7), "me")
                && !is_own(&Place::new("me"), "me")
        );
        assert_ne!(place("me", 7), place("me", 8));
    }

    #[test]
    fn instants_and_numbers_go_to_the_server_as_they_are_or_stop_at_its_greatest() {
        assert_eq!(
            (
                stamp(Moment::from_nanos(5)),
                stamp(Moment::from_nanos(u64::MAX))
            ),
            (5, i64::MAX)
        );
        let fast = Claim::new("a", Mode::Exclusive, WaitPolicy::Fast, MIN_TTL, "me");
        assert_eq!((turns(&asked(MIN_TTL)), turns(&fast)), (1, 64));
    }
}
