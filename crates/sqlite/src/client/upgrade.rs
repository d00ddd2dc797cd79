//! Files of earlier versions: when they are begun anew. No client of two versions shares one file.
//!
//! Each client of an earlier version checks in its transactions whether the path still leads to its file. So while we are in a write
//! transaction of that file, none is granted a lock in it; and once the path leads to another file, none is any more.

use std::path::Path;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, TransactionBehavior};

use crate::client::connect::connect;
use crate::client::fifo::{Address, Liveness, liveness};
use crate::client::file::has_one_name;
use crate::client::generation::{self, Files, Header, Opener};
use crate::client::time::now;
use crate::error;

/// Begins a file of an earlier version anew, unless a client of that version may hold a lock in it, or waits for one. Does nothing
/// if others were faster.
pub(crate) fn begin(real: &Path, files: Files, opener: &Opener<'_>) -> Result<()> {
    let Opener { boot, presence, deadline, .. } = *opener;
    let _alone = presence.alone(deadline)?;
    if Files::at(real, real) != files {
        return Ok(());
    }
    let of = |e: rusqlite::Error| error::of(&e, real);
    let Header { schema, boot: known, token, .. } = Header::read(real).map_err(of)?;
    let is_of_this_boot = known.as_deref() == Some(boot);
    has_one_name(real)?;
    if !files.are_complete() {
        // Who is in a log that was taken away cannot be seen. From schema 2 on, clients notice that, and the directory knows them.
        if schema < 2 || is_of_this_boot && presence.longest_of_others()? > 0 {
            let then = "end the programs of that version, and delete it";
            return Err(refused(real, schema, "its log or index was deleted, though a lock in it may be held", then));
        }
        return generation::begin_alone(real, token, opener);
    }
    let mut connection = connect(real).map_err(of)?;
    let tx = match connection.transaction_with_behavior(TransactionBehavior::Immediate) {
        Ok(tx) => tx,
        // What a power cut has left. From schema 2 on, the file itself says of which boot it is.
        Err(e) if error::is_misfit(&e) && schema >= 2 && !is_of_this_boot => {
            return generation::begin_alone(real, token, opener);
        }
        Err(e) => return Err(of(e)),
    };
    if Files::at(real, real) != files {
        return Ok(());
    }
    // With what is in the log.
    let Header { schema, boot: known, token, .. } = Header::of(&tx).map_err(of)?;
    if known.as_deref().is_none_or(|known| known == boot)
        && let Some(who) = user(&tx, real).map_err(of)?
    {
        let then = "end the programs of that version; the next client then begins it anew";
        return Err(refused(real, schema, &who, then));
    }
    generation::begin_alone(real, token, opener)
}

/// Who may hold a lock in the file, or waits for one.
fn user(tx: &Connection, real: &Path) -> rusqlite::Result<Option<String>> {
    let now = now();
    let sessions = "SELECT fifo, dev, ino, pid, until FROM session s
                    WHERE until > ?1 AND EXISTS (SELECT 1 FROM place WHERE session = s.id)";
    let mut sessions = tx.prepare(sessions)?;
    let mut sessions = sessions.query([now])?;
    while let Some(session) = sessions.next()? {
        let (client, pid, until) = (Address::read(session)?, session.get::<_, i64>(3)?, session.get::<_, i64>(4)?);
        // It lapses by itself, whoever lives.
        if client.fifo < 0 {
            let left = Duration::from_nanos((until - now) as u64);
            return Ok(Some(format!("a lock in it, given back within its min_hold, lasts for another {left:.1?}")));
        }
        if !matches!(liveness(real, client), Liveness::Dead) {
            return Ok(Some(format!("process {pid} may hold a lock in it, or waits for one")));
        }
    }
    Ok(None)
}

fn refused(real: &Path, schema: i64, why: &str, then: &str) -> Error {
    let what = format!("it is an earlier version's (schema {schema}), and {why}: {then}; tokens keep rising");
    Error::new(ErrorKind::Unsupported, format!("{} cannot be used yet: {what}", real.display()))
}
