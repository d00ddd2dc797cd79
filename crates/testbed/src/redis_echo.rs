//! A server that refuses every request with a text that repeats it: what is in a request must not be in an error.

use std::sync::Arc;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    background::{self, Task},
    error::Result,
    ports,
};

/// A Redis that lets clients connect, and answers everything else with `-CODE unknown command, with args beginning with: …` and all
/// of the request.
#[derive(Debug)]
pub struct RedisEcho {
    addr: String,
    _accepting: Task,
}

impl RedisEcho {
    /// Starts one that refuses with this code; `greets`: it answers `HELLO` and `SUBSCRIBE` as it should.
    pub async fn start(code: &str, greets: bool) -> Result<Self> {
        let (listener, addr) = ports::listen()?;
        let code: Arc<str> = code.into();
        let accepting = background::spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&code), greets));
            }
        })?;
        Ok(Self { addr: addr.to_string(), _accepting: accepting })
    }

    /// Where clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }
}

async fn serve(client: TcpStream, code: Arc<str>, greets: bool) {
    let mut client = BufReader::new(client);
    while let Some(words) = request(&mut client).await {
        let answer = match words.first().map(|verb| verb.to_uppercase()).as_deref() {
            Some("HELLO") if greets => "%2\r\n+proto\r\n:3\r\n+mode\r\n+standalone\r\n".to_owned(),
            Some("CLIENT") if greets => "+OK\r\n".to_owned(),
            Some("SUBSCRIBE") if greets => {
                let channel = |(n, name): (usize, &String)| {
                    format!(">3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:{}\r\n", name.len(), n + 1)
                };
                words.iter().skip(1).enumerate().map(channel).collect()
            }
            _ => {
                let args = words.join("' '").replace(['\r', '\n'], " ");
                format!("-{code} unknown command, with args beginning with: '{args}'\r\n")
            }
        };
        if client.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// An array of bulk strings, as every client sends it.
async fn request(client: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(client, '*').await? {
        let length = number(client, '$').await?;
        let mut word = vec![0; length + 2];
        client.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

async fn number(client: &mut BufReader<TcpStream>, kind: char) -> Option<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}
