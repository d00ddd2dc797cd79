//! The part of the PostgreSQL protocol that questions over a local socket without a password need.

use std::{io, path::Path};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::error::{Error, Result};

/// Rows of columns as text; a null is `None`.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// Protocol version 3.0.
const VERSION: i32 = 196_608;

/// Runs one or several statements over a connection of its own, and returns the rows of all of
/// them.
pub(crate) async fn query(socket: &Path, user: &str, database: &str, sql: &str) -> Result<Rows> {
    let asked = || format!("{sql} at {}", socket.display());
    let mut stream = UnixStream::connect(socket)
        .await
        .map_err(Error::io(asked()))?;
    let mut hello = VERSION.to_be_bytes().to_vec();
    for word in ["user", user, "database", database, ""] {
        hello.extend_from_slice(word.as_bytes());
        hello.push(0);
    }
    send(&mut stream, None, &hello)
        .await
        .map_err(Error::io(asked()))?;
    until_ready(&mut stream)
        .await
        .map_err(Error::io(asked()))?
        .map_err(|text| Error::answer(asked(), text))?;
    send(&mut stream, Some(b'Q'), &[sql.as_bytes(), &[0]].concat())
        .await
        .map_err(Error::io(asked()))?;
    until_ready(&mut stream)
        .await
        .map_err(Error::io(asked()))?
        .map_err(|text| Error::answer(asked(), text))
}

async fn send(stream: &mut UnixStream, kind: Option<u8>, body: &[u8]) -> io::Result<()> {
    let length = i32::try_from(body.len() + 4).map_err(io::Error::other)?;
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    stream.write_all(&message).await
}

/// Reads until the server waits for the next question. Returns the rows, or the first refusal's
/// code and text.
async fn until_ready(stream: &mut UnixStream) -> io::Result<std::result::Result<Rows, String>> {
    let mut rows = Vec::new();
    let mut refused = None;
    loop {
        let kind = match stream.read_u8().await {
            // The server refused the connection and closed it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && refused.is_some() => b'Z',
            read => read?,
        };
        if kind == b'Z' && refused.is_some() {
            return Ok(Err(refused.unwrap_or_default()));
        }
        let length = usize::try_from(stream.read_i32().await?)
            .ok()
            .and_then(|length| length.checked_sub(4));
        let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        stream.read_exact(&mut body).await?;
        match kind {
            b'Z' => return Ok(Ok(rows)),
            b'D' => rows.push(row(&body).ok_or(io::ErrorKind::InvalidData)?),
            b'E' if refused.is_none() => refused = Some(refusal(&body)),
            b'R' if body != [0; 4] => return Ok(Err("it asks for a password".into())),
            _ => {}
        }
    }
}

fn row(mut body: &[u8]) -> Option<Vec<Option<String>>> {
    let columns = i16::from_be_bytes(take(&mut body)?);
    (0..columns).map(|_| column(&mut body)).collect()
}

fn column(body: &mut &[u8]) -> Option<Option<String>> {
    let Ok(length) = usize::try_from(i32::from_be_bytes(take(body)?)) else {
        return Some(None);
    };
    let (value, rest) = body.split_at_checked(length)?;
    *body = rest;
    Some(Some(String::from_utf8_lossy(value).into_owned()))
}

fn take<const N: usize>(body: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = body.split_first_chunk()?;
    *body = rest;
    Some(*taken)
}

/// The code and the text of a refusal.
fn refusal(body: &[u8]) -> String {
    let fields = body
        .split(|&byte| byte == 0)
        .filter_map(|field| field.split_first());
    let wanted = fields.filter(|(kind, _)| matches!(kind, b'C' | b'M'));
    wanted
        .map(|(_, text)| String::from_utf8_lossy(text).into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}
