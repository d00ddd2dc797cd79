//! Completions: the records that work is done, each a persistent node.
//!
//! `.leasehold/done/<hash>/<name>` has the completion of a name. It is not below the lock's own
//! node, which ZooKeeper removes. Each completion is written by the transaction that deletes the
//! entry of its hold, and that transaction also writes to the folder.
//!
//! A node that was removed and created again has the versions of before, but the folder's version
//! never comes again. A transaction that depends on a completion that was read therefore has the
//! folder's version as its condition: a grant that was given without an entry before it, the answer
//! that work is done, and every removal.
//!
//! A keep is compared with the leader's clock: the time at which the completion was written, and
//! the time of a write of one's own.

mod record;

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join;
use leasehold_core::backend::{Claim, Complete, Completed, Moment, token_of_place};
use leasehold_core::support::uuid;
use leasehold_core::{Completion, FencingToken, Name, Result};
use zookeeper_client::{
    CreateMode, Error as ZkError, MultiReadResult, MultiReader, MultiWriteError, MultiWriteResult,
};

use crate::claim::table::Session;
use crate::client::{AT_ONCE, Client, Node, Unchanged, children, read};
use crate::completion::record::Record;
use crate::error::Answer;
use crate::names;
use crate::renew::verify_places;

/// The number of times that one call begins anew after others have written to the folder.
const TRIES: usize = 12;

/// The number of nodes in a folder beyond which a completion looks for ended ones there, and the
/// number that it looks at.
const FEW: i32 = 16;
const LOOKS: usize = 16;

/// A name's completion as it was read, whether or not it still counts, with its folder.
pub(crate) struct Looked {
    pub(crate) folder: Unchanged,
    record: Option<Record>,
}

/// The answer to a claim of work that is done once.
pub(crate) enum Work {
    Done(Completion),
    /// No completion counts, as long as the folder is unchanged.
    Open(Looked),
}

impl Looked {
    /// The transaction that wrote the node.
    pub(crate) fn written(&self) -> Option<i64> {
        self.record.as_ref().map(|record| record.written)
    }

    /// The version of the node.
    pub(crate) fn version(&self) -> Option<i32> {
        self.record.as_ref().map(|record| record.version)
    }
}

/// Reads the completion of a name, as this server knows it.
async fn look(client: &Client, root: &str, name: &Name) -> Answer<Looked> {
    // A completion that is recorded after the folder was read changes the folder.
    let paths = [names::folder(root, name), names::completion(root, name)];
    let mut answers = read(client, &paths, MultiReader::add_get_data)
        .await?
        .into_iter();
    let mut next = || match answers.next() {
        Some(MultiReadResult::Data { data, stat }) => Ok(Some((data, stat))),
        Some(MultiReadResult::Error {
            err: ZkError::NoNode,
        }) => Ok(None),
        Some(MultiReadResult::Error { err }) => Err(err),
        _ => Err(ZkError::UnexpectedError(
            "another read was answered".to_owned(),
        )),
    };
    let version = next()?.map(|(_, stat)| stat.version);
    let record = next()?
        .map(|(data, stat)| Record::read(&data, &stat))
        .transpose()?;
    let [path, _] = paths;
    Ok(Looked {
        folder: Unchanged { path, version },
        record,
    })
}

/// Reads the completion of a name as the leader knew it when this was called.
async fn look_at_leader(client: &Client, root: &str, name: &Name) -> Answer<Looked> {
    let (synced, looked) = join(client.sync(root), look(client, root, name)).await;
    synced.and(looked)
}

/// Returns the completion that counts for this fire. The leader and a quorum have agreed to it:
/// a server that lags behind may show one that was forgotten.
pub(crate) async fn done(
    session: &Session,
    client: &Client,
    name: &Name,
    fire: u64,
) -> Answer<Work> {
    let root = &session.config.root;
    for _ in 0..TRIES {
        let looked = look(client, root, name).await?;
        let Some(record) = looked
            .record
            .as_ref()
            .filter(|record| record.completion.counts_for(fire))
        else {
            return Ok(Work::Open(looked));
        };
        let path = names::completion(root, name);
        let sent = Moment::now();
        let now = if_unchanged(
            client,
            root,
            &looked.folder,
            [(&*path, record.version)],
            false,
        );
        if let Some(now) = now.await? {
            session.written(client, sent);
            return Ok(if record.is_over(now) {
                Work::Open(looked)
            } else {
                Work::Done(record.shown(now))
            });
        }
    }
    Err(ZkError::Throttled)
}

/// Checks or deletes nodes of these versions, on the condition that their folder is as it was read.
/// Returns the leader's time, or `None` if something has changed.
async fn if_unchanged(
    client: &Client,
    root: &str,
    folder: &Unchanged,
    nodes: impl IntoIterator<Item = (&str, i32)>,
    delete: bool,
) -> Answer<Option<i64>> {
    let Some(version) = folder.version else {
        return Ok(None); // it is there by now, with the nodes in it
    };
    let mut writer = client.new_multi_writer();
    writer.add_check_version(&folder.path, version)?;
    for (path, version) in nodes {
        if delete {
            writer.add_delete(path, Some(version))?;
        } else {
            writer.add_check_version(path, version)?;
        }
    }
    writer.add_set_data(&names::sessions(root), b"", None)?;
    match writer.commit().await {
        Ok(done) => time(&done).map(Some),
        Err(MultiWriteError::OperationFailed {
            source: ZkError::BadVersion | ZkError::NoNode,
            ..
        }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The time of a transaction that ends with a write to a node.
fn time(done: &[MultiWriteResult]) -> Answer<i64> {
    match done.last() {
        Some(MultiWriteResult::SetData { stat }) => Ok(stat.mtime),
        _ => Err(ZkError::UnexpectedError(
            "another transaction was answered".to_owned(),
        )),
    }
}

/// The leader's time.
async fn now(client: &Client, root: &str) -> Answer<i64> {
    let stat = client.set_data(&names::sessions(root), b"", None).await?;
    Ok(stat.mtime)
}

/// A folder that may have ended completions to remove, as it was at this time of the leader's.
struct Crowded {
    folder: String,
    now: i64,
}

/// See [`Completions::complete`](leasehold_core::backend::Completions::complete).
pub(crate) async fn complete(
    session: &Session,
    claim: &Claim,
    request: &Complete,
) -> Result<Completed> {
    let in_doubt = AtomicBool::new(false);
    let completed = session.limited(find_or_record(session, claim, request, &in_doubt));
    let (completed, crowded) = completed.await.map_err(|e| {
        if in_doubt.load(Ordering::Relaxed) {
            session.config.writing(e)
        } else {
            session.config.reading(e)
        }
    })?;
    if let Some(crowded) = crowded {
        // If this fails, another completion will look there.
        let _ = session.limited(tidy(session, crowded)).await;
    }
    Ok(completed)
}

/// Returns the completion that this claim has recorded, or records it. May also return a folder to
/// [`tidy`]. `in_doubt` is set while a transaction that records it is not answered.
async fn find_or_record(
    session: &Session,
    claim: &Claim,
    request: &Complete,
    in_doubt: &AtomicBool,
) -> Answer<(Completed, Option<Crowded>)> {
    verify_places(session).await?;
    let client = session.connected().await?;
    let hold = {
        let claims = session.handler();
        let tracked = claims.tracked.get(&claim.id);
        tracked.and_then(|tracked| {
            let (path, _) = tracked.entry.created()?;
            let token = token_of_place(tracked.held?.get());
            let is_it = token == request.token && **path == *request.place.as_str();
            is_it.then(|| (tracked.entry.clone(), tracked.replaces))
        })
    };
    if let Some((entry, replaces)) = hold
        && let Some(done) = record(
            session,
            &client,
            (claim, request),
            (entry, replaces),
            in_doubt,
        )
        .await?
    {
        return Ok(done);
    }
    // An earlier request of this claim may have been executed, by whichever session.
    let root = &session.config.root;
    let looked = look_at_leader(&client, root, &claim.name).await?;
    let own = looked.record.filter(|record| record.claim == claim.id);
    Ok(match own {
        Some(record) => {
            let now = now(&client, root).await?;
            (Completed::Done(record.shown(now)), None)
        }
        None => (Completed::NotHeld, None),
    })
}

/// Ends the hold with this entry, and records that its work is done. `None` if the hold has ended.
async fn record(
    session: &Session,
    client: &Client,
    (claim, request): (&Claim, &Complete),
    (entry, mut replaces): (Node, Option<i32>),
    in_doubt: &AtomicBool,
) -> Answer<Option<(Completed, Option<Crowded>)>> {
    let config = &session.config;
    let root = &config.root;
    let fire = claim.once.unwrap_or_default();
    let Some((place, _)) = entry.created() else {
        return Ok(None);
    };
    let path = names::completion(root, &claim.name);
    let folder = names::folder(root, &claim.name);
    let data = record::encode(claim, request);
    let mut with_parent = entry.is_first();
    for _ in 0..TRIES {
        let mut writer = client.new_multi_writer();
        writer.add_delete(place, None)?;
        if with_parent {
            writer.add_delete(entry.parent(), None)?;
        }
        match replaces {
            Some(version) => writer.add_set_data(&path, &data, Some(version))?,
            None => {
                let options = config.create_options(CreateMode::Persistent);
                writer.add_create(&path, &data, &options)?;
            }
        }
        writer.add_set_data(&folder, b"", None)?;
        let sent = Moment::now();
        in_doubt.store(true, Ordering::Relaxed);
        let recorded = writer.commit().await;
        let is_answer = !matches!(recorded, Err(MultiWriteError::RequestFailed { .. }));
        in_doubt.store(!is_answer, Ordering::Relaxed);
        match recorded {
            Ok(done) => {
                let Some(MultiWriteResult::SetData { stat }) = done.last() else {
                    time(&done)?;
                    return Ok(None);
                };
                let mut claims = session.handler();
                if claims.with_entry(claim.id, &entry).is_some() {
                    claims.forget(claim.id);
                }
                if with_parent {
                    claims.seen(entry.parent(), false);
                }
                drop(claims);
                session.written(client, sent);
                let record = Record::new(claim, request, stat.mtime);
                let crowded = (stat.num_children > FEW).then_some(Crowded {
                    folder,
                    now: stat.mtime,
                });
                return Ok(Some((Completed::Done(record.shown(stat.mtime)), crowded)));
            }
            Err(MultiWriteError::RequestFailed { source }) => return Err(unanswered(source)),
            Err(MultiWriteError::OperationFailed {
                index: 0,
                source: ZkError::NoNode,
            }) => return Ok(None),
            // Others came meanwhile, or another client created the lock's node.
            Err(MultiWriteError::OperationFailed { index: 1, .. }) if with_parent => {
                with_parent = false;
            }
            // Another completion is there than at the grant, or none, or no folder.
            Err(MultiWriteError::OperationFailed {
                source: ZkError::NoNode | ZkError::NodeExists | ZkError::BadVersion,
                ..
            }) => match done(session, client, &claim.name, fire).await? {
                // Another claim's: the hold's own is written only together with its end.
                Work::Done(_) => return Ok(Some((Completed::NotHeld, None))),
                Work::Open(looked) => {
                    if looked.folder.version.is_none() {
                        let options = config.create_options(CreateMode::Persistent);
                        client.mkdir(&folder, &options).await?;
                    }
                    replaces = looked.version();
                }
            },
            Err(MultiWriteError::OperationFailed { source, .. }) => return Err(source),
        }
    }
    Err(ZkError::Throttled)
}

/// The error of a completion that was sent: that a session has ended, or no server was reached,
/// says nothing about the request.
fn unanswered(e: ZkError) -> ZkError {
    match e {
        ZkError::SessionExpired
        | ZkError::SessionMoved
        | ZkError::ClientClosed
        | ZkError::NoHosts
        | ZkError::Timeout => ZkError::ConnectionLoss,
        e => e,
    }
}

/// Looks at some of the completions in this folder, and removes the ended ones.
async fn tidy(session: &Session, crowded: Crowded) -> Answer<()> {
    let Crowded { folder, now } = crowded;
    let client = session.connected().await?;
    let mut nodes = children(&client, &folder).await?;
    if nodes.is_empty() {
        return Ok(());
    }
    let from = (uuid().as_u128() % nodes.len() as u128) as usize;
    nodes.rotate_left(from);
    nodes.truncate(LOOKS);
    let mut paths = vec![folder.clone()];
    paths.extend(nodes.iter().map(|node| format!("{folder}/{node}")));
    let mut answers = read(&client, &paths, MultiReader::add_get_data)
        .await?
        .into_iter();
    let Some(MultiReadResult::Data { stat, .. }) = answers.next() else {
        return Ok(());
    };
    let ended: Vec<(&str, i32)> = paths[1..]
        .iter()
        .zip(answers)
        .filter_map(|(path, answer)| match answer {
            MultiReadResult::Data { data, stat } => {
                let record = Record::read(&data, &stat).ok()?;
                record.is_over(now).then_some((&**path, record.version))
            }
            _ => None,
        })
        .collect();
    if !ended.is_empty() {
        let folder = Unchanged {
            path: folder.clone(),
            version: Some(stat.version),
        };
        if_unchanged(&client, &session.config.root, &folder, ended, true).await?;
    }
    Ok(())
}

/// See [`Completions::completion`](leasehold_core::backend::Completions::completion).
pub(crate) async fn completion(session: &Session, name: &Name) -> Answer<Option<Completion>> {
    let client = session.connected().await?;
    let root = &session.config.root;
    let Some(record) = look_at_leader(&client, root, name).await?.record else {
        return Ok(None);
    };
    let now = if record.lasts() {
        0
    } else {
        now(&client, root).await?
    };
    Ok((!record.is_over(now)).then(|| record.shown(now)))
}

/// See [`Completions::forget`](leasehold_core::backend::Completions::forget).
pub(crate) async fn forget(session: &Session, name: &Name, token: FencingToken) -> Answer<bool> {
    let client = session.connected().await?;
    let root = &session.config.root;
    let path = names::completion(root, name);
    for _ in 0..TRIES {
        let Looked { folder, record } = look_at_leader(&client, root, name).await?;
        let Some(record) = record.filter(|record| record.completion.token == token) else {
            return Ok(false);
        };
        let node = [(&*path, record.version)];
        if let Some(now) = if_unchanged(&client, root, &folder, node, true).await? {
            return Ok(!record.is_over(now));
        }
    }
    Err(ZkError::Throttled)
}

/// See [`Completions::list_completions`](leasehold_core::backend::Completions::list_completions).
/// One request for the folders, one for each 128 of them, and one for each 128 completions.
pub(crate) async fn list(
    session: &Session,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> Answer<Vec<(Name, Completion)>> {
    let client = session.connected().await?;
    let root = &session.config.root;
    let above = names::completions(root);
    let now = now(&client, root).await?; // reads after it are no older
    let folders: Vec<String> = children(&client, &above)
        .await?
        .iter()
        .map(|folder| format!("{above}/{folder}"))
        .collect();
    let mut found = Vec::new();
    for answer in read(&client, &folders, MultiReader::add_get_children).await? {
        if let MultiReadResult::Children { children } = answer {
            found.extend(children.iter().filter_map(|node| names::decode(node)));
        }
    }
    found
        .retain(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after));
    found.sort();
    let mut listed = Vec::new();
    let mut chunks = found.chunks(AT_ONCE.min(limit.max(1)));
    while listed.len() < limit
        && let Some(chunk) = chunks.next()
    {
        let paths: Vec<String> = chunk
            .iter()
            .map(|name| names::completion(root, name))
            .collect();
        let answers = read(&client, &paths, MultiReader::add_get_data).await?;
        for (name, answer) in chunk.iter().zip(answers) {
            if let MultiReadResult::Data { data, stat } = answer {
                let record = Record::read(&data, &stat)?;
                if !record.is_over(now) {
                    listed.push((name.clone(), record.shown(now)));
                }
            }
        }
    }
    listed.truncate(limit);
    Ok(listed)
}
