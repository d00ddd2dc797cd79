//! What the lock protects: a counter that is read and written in two steps. It refuses a token that is smaller than one it has seen, and
//! is right in the end only if nobody wrote between the two steps of another.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use leasehold_chaos::{Recorder, What};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufStream};

use crate::client::now;

/// The number of its history.
const P: u64 = 1;

#[derive(Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) op: u64,
    pub(crate) lock: String,
    pub(crate) tok: u64,
    /// What to write. Otherwise it is read.
    pub(crate) value: Option<u64>,
}

/// The counters: the greatest token, the value, how often it was written.
#[derive(Default)]
pub(crate) struct Counters(BTreeMap<String, (u64, u64, u64)>);

impl Counters {
    /// The value of each, and how often it was written: the same, if nothing was lost.
    pub(crate) fn values(&self) -> Vec<(String, u64, u64)> {
        self.0
            .iter()
            .map(|(lock, (_, value, writes))| (lock.clone(), *value, *writes))
            .collect()
    }

    fn ask(&mut self, ask: Ask, record: &Recorder) -> Option<u64> {
        let Ask {
            op,
            lock,
            tok,
            value,
        } = ask;
        let (greatest, counter, writes) = self.0.entry(lock.clone()).or_default();
        let fresh = tok >= *greatest;
        let what = if fresh {
            What::Accept { op, lock, tok }
        } else {
            What::Reject { op, lock, tok }
        };
        record.write(now(), what).unwrap();
        if !fresh {
            return None;
        }
        *greatest = tok;
        if let Some(value) = value {
            (*counter, *writes) = (value, *writes + 1);
        }
        Some(*counter)
    }
}

/// Serves in this process. Its address, and the counters.
pub(crate) fn start(folder: &Path) -> (String, Arc<Mutex<Counters>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let counters = Arc::new(Mutex::new(Counters::default()));
    let (shared, record) = (
        counters.clone(),
        Arc::new(Recorder::new(folder, P).unwrap()),
    );
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (shared, record) = (shared.clone(), record.clone());
            std::thread::spawn(move || serve(&stream, &shared, &record));
        }
    });
    (address, counters)
}

fn serve(stream: &TcpStream, counters: &Mutex<Counters>, record: &Recorder) {
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let answer = counters
            .lock()
            .unwrap()
            .ask(serde_json::from_str(&line).unwrap(), record);
        let line = format!("{}\n", serde_json::to_string(&answer).unwrap());
        // A client that was killed does not wait for it.
        if (&mut &*stream).write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

/// A client's connection to it.
pub(crate) struct Connection(BufStream<tokio::net::TcpStream>);

impl Connection {
    pub(crate) async fn to(address: &str) -> Connection {
        Connection(BufStream::new(
            tokio::net::TcpStream::connect(address).await.unwrap(),
        ))
    }

    /// The value, if the token is not stale.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Option<u64> {
        let line = format!("{}\n", serde_json::to_string(ask).unwrap());
        self.0.write_all(line.as_bytes()).await.unwrap();
        self.0.flush().await.unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).await.unwrap();
        serde_json::from_str(&answer).unwrap()
    }
}
