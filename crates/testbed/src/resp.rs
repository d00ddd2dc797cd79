//! The part of the Redis protocol that one command over one connection needs.

use std::io;

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::error::{Error, Result};

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status such as `OK`.
    Simple(String),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// Several answers.
    Array(Vec<Reply>),
    /// A refusal. [`Redis::command`](crate::Redis::command) reports one at the top as an error.
    Refused(String),
}

impl Reply {
    /// The answer as text, if it is a status, a refusal, a number or a string.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) | Self::Refused(text) => Some(text.clone()),
            Self::Integer(number) => Some(number.to_string()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            Self::Nil | Self::Array(_) => None,
        }
    }

    /// The answer as a number, if it is one.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            other => other.text()?.parse().ok(),
        }
    }
}

/// A connection to one Redis server.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects, and authenticates if a password is given.
    pub(crate) async fn open(addr: &str, password: Option<&str>) -> Result<Self> {
        let stream = TcpStream::connect(addr)
            .await
            .map_err(Error::io(format!("connecting to redis at {addr}")))?;
        let mut connection = Self(BufReader::new(stream));
        if let Some(password) = password {
            connection.command(&["AUTH", password]).await?;
        }
        Ok(connection)
    }

    /// Sends one command and reads its answer. A refusal is an error.
    pub(crate) async fn command(&mut self, words: &[&str]) -> Result<Reply> {
        let asked = || format!("redis {}", words.join(" "));
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0
            .get_mut()
            .write_all(request.as_bytes())
            .await
            .map_err(Error::io(asked()))?;
        match self.reply().await.map_err(Error::io(asked()))? {
            Reply::Refused(answer) => Err(Error::answer(asked(), answer)),
            reply => Ok(reply),
        }
    }

    async fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line().await?;
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Refused(rest.to_owned()),
            ":" => Reply::Integer(number(rest)?),
            "$" => match usize::try_from(number(rest)?) {
                Ok(length) => Reply::Bulk(self.bytes(length).await?),
                Err(_) => Reply::Nil,
            },
            "*" => match number(rest)? {
                -1 => Reply::Nil,
                count => {
                    let mut replies = Vec::new();
                    for _ in 0..count {
                        replies.push(Box::pin(self.reply()).await?);
                    }
                    Reply::Array(replies)
                }
            },
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, line)),
        })
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    async fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes).await?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// Reads an array of bulk strings, the form in which every client sends a request. `None` at the end
/// of the connection, and for anything else.
pub(crate) async fn request(client: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    for _ in 0..length(client, '*').await? {
        let length = length(client, '$').await?;
        let mut word = vec![0; length + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(word);
    }
    (!words.is_empty()).then_some(words)
}

async fn length(client: &mut (impl AsyncBufRead + Unpin), kind: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}

/// A request as it is sent.
pub(crate) fn of_words(words: &[Vec<u8>]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// Reads one answer of RESP2, as it came.
pub(crate) async fn raw_reply(server: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // How many answers are yet to be read.
    let mut open = 1;
    while open > 0 {
        open -= 1;
        let start = bytes.len();
        if server.read_until(b'\n', &mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes[start..])
            .trim_end()
            .to_owned();
        let length = || number(&line[1..]).map(|length| usize::try_from(length).ok());
        match line.chars().next() {
            Some('$') => {
                if let Some(length) = length()? {
                    let start = bytes.len();
                    bytes.resize(start + length + 2, 0);
                    server.read_exact(&mut bytes[start..]).await?;
                }
            }
            Some('*') => open += length()?.unwrap_or_default(),
            _ => {}
        }
    }
    Ok(bytes)
}

fn number(text: &str) -> io::Result<i64> {
    text.parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, text))
}
