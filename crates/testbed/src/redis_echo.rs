//! Imitations of a Redis, for answers that none of the testbed's servers gives: another version, a
//! proxy, a mistake.

use std::{fmt, sync::Arc};

use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    background::{self, Task},
    error::Result,
    ports, resp,
};

/// A server that refuses every request with a text that repeats it. Tests check that no part of a
/// request is in an error.
#[derive(Debug)]
pub struct RedisEcho(RedisLike);

impl RedisEcho {
    /// Starts a server that refuses with this code. It answers every request with `-CODE unknown
    /// command, with args beginning with: …` and the whole request. With `greets`, it lets clients
    /// connect.
    pub async fn start(code: &str, greets: bool) -> Result<Self> {
        let code = code.to_owned();
        let like = RedisLike::answering(move |words| {
            let args = words.join("' '").replace(['\r', '\n'], " ");
            let refusal = format!("-{code} unknown command, with args beginning with: '{args}'");
            Some(refusal).filter(|_| !greets || greeting(words).is_none())
        });
        like.await.map(Self)
    }

    /// The address to which clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.0.addr()
    }
}

/// A server that lets clients connect as a Redis does, and gives the test's answers to other
/// requests.
pub struct RedisLike {
    addr: String,
    _accepting: Task,
}

impl RedisLike {
    /// Starts a server that sends these bytes to each new client, and closes the connection.
    pub async fn saying(bytes: &str) -> Result<Self> {
        let bytes: Arc<str> = bytes.into();
        Self::serving(move |mut client| {
            let bytes = Arc::clone(&bytes);
            async move {
                let _ = client.write_all(bytes.as_bytes()).await;
            }
        })
    }

    /// Starts a server that answers each request with the line of this function. If the line is
    /// empty, it closes the connection without an answer. With `None` it answers as a Redis does.
    pub async fn answering(
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Self> {
        let answer = Arc::new(answer);
        Self::serving(move |client| serve(client, Arc::clone(&answer)))
    }

    fn serving<F: Future<Output = ()> + Send + 'static>(
        serve: impl Fn(TcpStream) -> F + Send + 'static,
    ) -> Result<Self> {
        let (listener, addr) = ports::listen()?;
        let accepting = background::spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client));
            }
        })?;
        Ok(Self {
            addr: addr.to_string(),
            _accepting: accepting,
        })
    }

    /// The address to which clients connect: `host:port`.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }
}

impl fmt::Debug for RedisLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisLike({})", self.addr)
    }
}

async fn serve(client: TcpStream, answer: Arc<impl Fn(&[String]) -> Option<String>>) {
    let mut client = BufReader::new(client);
    while let Some(words) = resp::request(&mut client).await {
        let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
        let words: Vec<String> = words.iter().map(text).collect();
        let answer = match answer(&words) {
            Some(line) if line.is_empty() => return,
            Some(line) => format!("{line}\r\n"),
            None => greeting(&words).unwrap_or_else(|| "-ERR unknown command\r\n".to_owned()),
        };
        if client.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The answers of a Redis to a client that connects, and that asks for the rights of its user.
fn greeting(words: &[String]) -> Option<String> {
    match words.first()?.to_uppercase().as_str() {
        "HELLO" => Some("%2\r\n+proto\r\n:3\r\n+mode\r\n+standalone\r\n".to_owned()),
        "CLIENT" => Some("+OK\r\n".to_owned()),
        "SUBSCRIBE" => {
            let channel = |(n, name): (usize, &String)| {
                format!(
                    ">3\r\n$9\r\nsubscribe\r\n${}\r\n{name}\r\n:{}\r\n",
                    name.len(),
                    n + 1
                )
            };
            Some(words.iter().skip(1).enumerate().map(channel).collect())
        }
        "EVALSHA" if words.iter().any(|word| word == "exists #") => Some("*0\r\n".to_owned()),
        _ => None,
    }
}
