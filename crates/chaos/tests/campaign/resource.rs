//! The resource that the locks protect, as a process of its own: it refuses a token that is smaller than one it has seen.
//!
//! A naive client sends its writes without a token. The resource accepts them, and still notes whose they were.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    sync::Mutex,
};

use leasehold_chaos::What;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};

use super::{client::Plan, counter::Counter, recorder::Record};

/// The number of its process in the history.
pub(crate) const P: u64 = 1;

/// One write.
#[derive(Serialize, Deserialize)]
pub(crate) struct Write1 {
    pub(crate) op: u64,
    pub(crate) lock: String,
    pub(crate) tok: u64,
    /// Whether the token is sent with it.
    pub(crate) fenced: bool,
}

/// Serves until its standard input ends. Says its address first.
pub(crate) fn main(folder: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "{}", listener.local_addr().unwrap()).unwrap();
    out.flush().unwrap();
    std::thread::spawn(|| {
        // Whoever started it has ended.
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let record = Record::new(folder, P);
    let seen = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for stream in listener.incoming().flatten() {
            let (record, seen) = (&record, &seen);
            scope.spawn(move || serve(&stream, record, seen));
        }
    });
}

fn serve(stream: &TcpStream, record: &Record, seen: &Mutex<BTreeMap<String, u64>>) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Write1 {
            op,
            lock,
            tok,
            fenced,
        } = serde_json::from_str(&line).unwrap();
        let accepted = {
            // The event is written before the next write is looked at: their order is that of the history.
            let mut seen = seen.lock().unwrap();
            let greatest = seen.entry(lock.clone()).or_default();
            let accepted = !fenced || tok >= *greatest;
            if accepted {
                *greatest = tok.max(*greatest);
                record.now(What::Accept { op, lock, tok });
            } else {
                record.now(What::Reject { op, lock, tok });
            }
            accepted
        };
        let answer: &[u8] = if accepted { b"accepted\n" } else { b"stale\n" };
        // A client that was killed does not wait for it.
        if (&mut &*stream).write_all(answer).is_err() {
            return;
        }
    }
}

/// A client's connection to it.
pub(crate) struct Connection {
    address: String,
    stream: Option<BufStream<tokio::net::TcpStream>>,
    /// The counter beside it, where the locks are in a database.
    pub(super) counter: Option<Counter>,
}

impl Connection {
    /// As a client is told.
    pub(crate) fn of(plan: &Plan) -> Connection {
        Connection {
            address: plan.resource.clone(),
            stream: None,
            counter: Counter::at(&plan.url),
        }
    }

    /// Writes, and returns whether it was accepted.
    pub(crate) async fn write(&mut self, write: &Write1) -> std::io::Result<bool> {
        if self.stream.is_none() {
            self.stream = Some(BufStream::new(
                tokio::net::TcpStream::connect(&self.address).await?,
            ));
        }
        let stream = self
            .stream
            .as_mut()
            .ok_or(std::io::ErrorKind::NotConnected)?;
        let mut line = serde_json::to_vec(write)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        stream.flush().await?;
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        Ok(answer.starts_with("accepted"))
    }
}
