//! Tokens that go on behind those of another store: `mark` and `raise`. How they are raised is in `client/base`.

use leasehold_core::FencingToken;
use leasehold_core::seam::{raised_places, token_of_place};
use zookeeper_client::{CreateMode, Error as ZkError};

use crate::claim::table::Session;
use crate::client::{Raises, found, mkdir, read_raises};
use crate::error::Answer;
use crate::names;

/// How tokens are raised, at most above what is far from their end.
pub(crate) const RAISES: leasehold_core::Raises = leasehold_core::Raises::Places(FencingToken::new(1 << 62));
/// How often one call begins anew after another client has raised them.
const TRIES: usize = 12;

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
        // Also those that were made since then.
        let Some(by) = raised_places(raises.latest(), now, number) else { return Ok(()) };
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
