//! The client's end of calls: a channel of etcd-client over the streams of a world, or over any
//! others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Channel;
use http_body_util::{BodyExt, StreamBody};
use leasehold_core::support::Stream;
use prost::bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::service_fn;
use tower::util::BoxCloneSyncService;

use crate::etcd::wire::{Kind, frame, next_frame};

/// Makes a connection.
pub(crate) type Dial = Arc<dyn Fn() -> io::Result<Box<dyn Stream>> + Send + Sync>;

/// The interval at which a long call is pinged, and the time after which it is given up if no
/// answer comes: the values that the store asks for.
const PING: Duration = Duration::from_secs(6);
const PONG: Duration = Duration::from_secs(1);

type Piece = Result<http_body::Frame<Bytes>, Status>;

/// A channel that makes a connection for each call.
pub(crate) fn channel(dial: Dial) -> Channel {
    let call = move |request| {
        let dial = dial.clone();
        async move {
            let answer: Result<http::Response<Body>, Status> = call(&dial, request).await;
            Ok(answer.unwrap_or_else(Status::into_http))
        }
    };
    Channel::Custom(BoxCloneSyncService::new(service_fn(call)))
}

async fn call(dial: &Dial, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
    let mut socket = dial().map_err(|e| Status::unavailable(format!("connect error: {e}")))?;
    let path = request.uri().path().to_owned();
    let body = request.into_body();
    let (to, mut pieces) = unbounded_channel();
    if path.ends_with("/Watch") || path.ends_with("/LeaseKeepAlive") {
        tokio::spawn(async move { carry(&mut socket, &path, body, &to, true).await });
    } else {
        carry(&mut socket, &path, body, &to, false).await;
        drop(to);
    }
    // The header comes with the first message.
    let first = pieces
        .recv()
        .await
        .unwrap_or_else(|| Err(broken("the call has ended")))?;
    let rest = futures_util::stream::unfold((Some(Ok(first)), pieces), next);
    Ok(http::Response::new(Body::new(StreamBody::new(rest))))
}

type Rest = (Option<Piece>, UnboundedReceiver<Piece>);

async fn next((first, mut pieces): Rest) -> Option<(Piece, Rest)> {
    let piece = if first.is_some() {
        first
    } else {
        pieces.recv().await
    };
    piece.map(|piece| (piece, (None, pieces)))
}

fn broken(why: impl std::fmt::Display) -> Status {
    Status::unknown(format!("connection broken: {why}"))
}

/// Carries a call to its end and reports that end, or stops when nobody reads the answers any more.
async fn carry(
    socket: &mut Box<dyn Stream>,
    path: &str,
    mut body: Body,
    to: &UnboundedSender<Piece>,
    goes_on: bool,
) {
    let mut asks = true;
    let mut received = Vec::new();
    let mut pinged = None;
    let mut ping_at = Instant::now() + PING;
    let mut path = Some(frame(Kind::Path, path.as_bytes()));
    let end = loop {
        tokio::select! {
            biased;
            () = to.closed() => return,
            read = socket.read_buf(&mut received) => match read {
                Ok(1..) => {}
                Ok(0) => break Err(broken("it was closed")),
                Err(e) => break Err(broken(e)),
            },
            piece = body.frame(), if asks => {
                let piece = piece.and_then(|piece| piece.ok()?.into_data().ok());
                asks = piece.is_some();
                let sent = piece.map_or_else(|| frame(Kind::End, &[]), |bytes| frame(Kind::Messages, &bytes));
                // The path goes with the first message.
                let sent = [path.take().unwrap_or_default(), sent].concat();
                if let Err(e) = socket.write_all(&sent).await {
                    break Err(broken(e));
                }
            }
            () = sleep_until(ping_at), if goes_on => {
                if pinged.is_some() {
                    break Err(broken("no answer to a ping"));
                }
                pinged = Some(());
                ping_at = Instant::now() + PONG;
                if let Err(e) = socket.write_all(&frame(Kind::Ping, &[])).await {
                    break Err(broken(e));
                }
            }
        }
        let mut end = None;
        while let Some((kind, payload)) = next_frame(&mut received) {
            match kind {
                Kind::Messages => drop(to.send(Ok(http_body::Frame::data(payload.into())))),
                Kind::End => end = Some(status(&payload)),
                Kind::Ping => (pinged, ping_at) = (None, Instant::now() + PING),
                Kind::Path => {}
            }
        }
        if let Some(status) = end {
            break trailers(&status);
        }
    };
    drop(to.send(end));
}

/// The trailers with the status of a call that has ended.
fn trailers(status: &Status) -> Piece {
    let mut headers = http::HeaderMap::new();
    status.add_header(&mut headers)?;
    Ok(http_body::Frame::trailers(headers))
}

fn status(payload: &[u8]) -> Status {
    let (code, message) = payload.split_first().unwrap_or((&2, &[]));
    Status::new(
        Code::from_i32(i32::from(*code)),
        String::from_utf8_lossy(message),
    )
}
