//! Ends a session of ZooKeeper as its own client would: all that it needs follows from the session's number, which each entry of it shows.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use zookeeper_client::{Client, Error};

/// What ZooKeeper's servers make passwords of sessions with.
const SECRET: u64 = 0xB341_5C00;
/// How long the session would have if it went on, in milliseconds: not less than it has.
const TIMEOUT: i32 = 60_000;
/// The type of the request that closes a session.
const CLOSE: i32 = -11;

/// The session of one of a lock's entries, if it has any.
pub(crate) async fn of_entry(
    servers: &str,
    lock: &str,
    which: usize,
) -> Result<Option<i64>, Error> {
    let (client, node) = (Client::connect(servers).await?, format!("/locks/{lock}"));
    let entries = match client.list_children(&node).await {
        Err(Error::NoNode) => Vec::new(),
        entries => entries?,
    };
    let Some(entry) = (!entries.is_empty()).then(|| &entries[which % entries.len()]) else {
        return Ok(None);
    };
    let stat = client.check_stat(&format!("{node}/{entry}")).await?;
    Ok(stat
        .map(|stat| stat.ephemeral_owner)
        .filter(|session| *session != 0))
}

/// Takes it over, and closes it. Its client takes it back within a moment: both requests are sent at once.
pub(crate) async fn end(server: &str, session: i64) -> io::Result<()> {
    let mut connection = TcpStream::connect(server).await?;
    let mut words = vec![0; 12];
    words.extend(TIMEOUT.to_be_bytes());
    words.extend(session.to_be_bytes());
    words.extend(16_u32.to_be_bytes());
    words.extend(password(session));
    words.push(0);
    let close = [1_i32.to_be_bytes(), CLOSE.to_be_bytes()].concat();
    let messages =
        [words, close].map(|words| [&(words.len() as u32).to_be_bytes()[..], &words].concat());
    connection.write_all(&messages.concat()).await?;
    for _ in messages {
        let length = connection.read_u32().await?;
        connection.read_exact(&mut vec![0; length as usize]).await?;
    }
    Ok(())
}

/// What `java.util.Random` gives for the number and the secret.
fn password(session: i64) -> Vec<u8> {
    let mask = (1 << 48) - 1;
    let mut state = (session.cast_unsigned() ^ SECRET ^ 0x5_DEEC_E66D) & mask;
    let mut next = || {
        state = state.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & mask;
        ((state >> 16) as u32).to_le_bytes()
    };
    (0..4).flat_map(|_| next()).collect()
}
