//! Tokens that go on behind those of another store: `mark` and `raise`. How they are raised is in `client/base`.

use leasehold_core::seam::{place_of_token, token_of_place};
use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::claim::table::Session;
use crate::client::{Raises, found, mkdir, read_raises};
use crate::error::Answer;
use crate::names;

/// The greatest number that tokens can be raised above: far from their end.
pub(crate) const MAX_FLOOR: FencingToken = FencingToken::new(1 << 62);
/// By so many places more than is needed, so that it is rare: a day of a clock whose microseconds are tokens.
const AHEAD: i64 = 86_400_000_000 / 256;
/// How often one call begins anew after another client has raised them.
const TRIES: usize = 12;

/// Refuses a number that tokens cannot be raised above.
pub(crate) fn check_floor(floor: Option<FencingToken>) -> Result<()> {
    match floor {
        Some(floor) if floor > MAX_FLOOR => {
            Err(Error::new(ErrorKind::Invalid, format!("tokens cannot be raised to {floor}, only to {MAX_FLOOR}")))
        }
        _ => Ok(()),
    }
}

/// See [`Backend::mark`](leasehold_core::seam::Backend::mark).
pub(crate) async fn mark(session: &Session) -> Answer<FencingToken> {
    let client = session.connected().await?;
    // The number of a transaction of now is greater than those of all places that there are.
    let now = client.set_data(&names::sessions(&session.config.root), b"", None).await?.mzxid;
    session.learn_base(&client).await?;
    Ok(FencingToken::new(token_of_place(session.number(now).saturating_add(1)).get() - 1))
}

/// See [`Backend::raise`](leasehold_core::seam::Backend::raise).
pub(crate) async fn raise(session: &Session, number: FencingToken) -> Answer<()> {
    let (client, config) = (session.connected().await?, &session.config);
    let (path, parent) = (names::base(&config.root), names::sessions(&config.root));
    for _ in 0..TRIES {
        // What is read after it is no older, and whatever is created later has a greater number.
        let now = client.set_data(&parent, b"", None).await?.mzxid;
        let known = found(read_raises(&client, &path).await)?;
        let (raises, version) = known.map_or((Raises::default(), None), |(raises, version)| (raises, Some(version)));
        let Some(by) = needed(&raises, now, number) else { return Ok(()) };
        let data = raises.and(by);
        let written = match version {
            Some(version) => client.set_data(&path, data.as_bytes(), Some(version)).await.map(drop),
            None => {
                mkdir(&client, config, &parent).await?;
                let options = config.create_options(CreateMode::Persistent);
                client.create(&path, data.as_bytes(), &options).await.map(drop)
            }
        };
        match written {
            // Another client was faster.
            Err(ZkError::NoNode | ZkError::NodeExists | ZkError::BadVersion) => {}
            written => return written,
        }
    }
    Err(ZkError::Throttled)
}

/// By how much numbers are to be raised so that the tokens of transactions after `now` exceed `number`; `None`: they do.
fn needed(raises: &Raises, now: i64, number: FencingToken) -> Option<i64> {
    let needed = place_of_token(number) - now;
    // Also those that were made since then.
    (raises.latest() < needed).then(|| needed + AHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_later_place_exceeds_the_number_and_nothing_is_lowered() {
        for (by, now, number) in
            [(0, 1, 0), (0, 1, 512), (0, 1, 511), (0, 7, 1 << 62), (5, 9, 15 << 8), (5, 9, 14 << 8), (1 << 54, 1, 99)]
        {
            let raises = Raises::by(by, now + 7);
            let raised = needed(&raises, now, FencingToken::new(number));
            let next = token_of_place(raised.unwrap_or(by) + now + 1).get();
            assert!(next > number, "{by} {now} {number}: {next}");
            assert!(raised.is_none_or(|raised| raised > by + AHEAD));
            assert_eq!(raised.is_none(), token_of_place(by + now + 1).get() > number, "as rarely as can be");
        }
        assert!(check_floor(Some(MAX_FLOOR)).is_ok() && check_floor(None).is_ok());
        let beyond = check_floor(Some(FencingToken::new(MAX_FLOOR.get() + 1))).unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
    }
}
