//! `mark` and `raise`: tokens that continue behind those of another store. The raised numbers are
//! explained in `client/base`.

use leasehold_core::FencingToken;
use leasehold_core::backend::{raised_places, token_of_place};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::claim::table::Session;
use crate::client::{Raises, found, mkdir, read_raises};
use crate::error::Answer;
use crate::names;

/// The limit of raises, far from the end of tokens.
pub(crate) const RAISES: leasehold_core::backend::Raises =
    leasehold_core::backend::Raises::Places(FencingToken::new(1 << 62));
/// The number of times that one call begins anew after another client has raised tokens.
const TRIES: usize = 12;

/// See [`Backend::mark`](leasehold_core::backend::Backend::mark).
pub(crate) async fn mark(session: &Session) -> Answer<FencingToken> {
    let client = session.connected().await?;
    // The number of a transaction at this time is greater than the numbers of all existing places.
    let now = client
        .set_data(&names::sessions(&session.config.root), b"", None)
        .await?
        .mzxid;
    session.learn_base(&client).await?;
    Ok(FencingToken::new(
        token_of_place(session.number(now).saturating_add(1)).get() - 1,
    ))
}

/// See [`Backend::raise`](leasehold_core::backend::Backend::raise).
pub(crate) async fn raise(session: &Session, number: FencingToken) -> Answer<()> {
    let client = session.connected().await?;
    let config = &session.config;
    let path = names::base(&config.root);
    let parent = names::sessions(&config.root);
    for _ in 0..TRIES {
        // Reads after this write are no older than it, and entries that are created later have
        // greater numbers.
        let now = client.set_data(&parent, b"", None).await?.mzxid;
        let known = found(read_raises(&client, &path).await)?;
        let (raises, version) = known.map_or((Raises::default(), None), |(raises, version)| {
            (raises, Some(version))
        });
        // This includes raises that were made since then.
        let Some(by) = raised_places(raises.latest(), now, number) else {
            return Ok(());
        };
        let data = raises.and(by);
        let written = match version {
            Some(version) => client
                .set_data(&path, data.as_bytes(), Some(version))
                .await
                .map(drop),
            None => {
                mkdir(&client, config, &parent).await?;
                let options = config.create_options(CreateMode::Persistent);
                client
                    .create(&path, data.as_bytes(), &options)
                    .await
                    .map(drop)
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
