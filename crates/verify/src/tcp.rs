//! One question to one server over plain TCP, answered until it closes: `GET /version`, or a four-letter word.

use std::time::Duration;

use leasehold::support::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No answer is longer, and none takes longer.
const MOST: u64 = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(3);

/// What the server answers before it closes, if it does.
pub(crate) async fn ask(host: &Host, question: &str) -> Option<String> {
    let asking = async {
        let mut stream = TcpStream::connect((host.name.as_str(), host.port)).await.ok()?;
        stream.write_all(question.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.take(MOST).read_to_end(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(TIMEOUT, asking).await.ok().flatten().filter(|answer| !answer.is_empty())
}
