//! One HTTP request over one connection: enough for questions to etcd.
//!
//! It uses HTTP/1.0, so the answer ends with the connection and is never chunked.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::error::{Error, Result};

/// Gets the body at `path`.
pub(crate) async fn get(addr: &str, path: &str) -> Result<String> {
    exchange(addr, &format!("GET {path}"), "", None).await
}

/// Posts a JSON document to `path` with this token, and returns the body of the answer.
pub(crate) async fn post(
    addr: &str,
    path: &str,
    json: &str,
    token: Option<&str>,
) -> Result<String> {
    exchange(addr, &format!("POST {path}"), json, token).await
}

async fn exchange(addr: &str, asked: &str, body: &str, token: Option<&str>) -> Result<String> {
    let what = || Error::io(format!("{asked} at {addr}"));
    let mut stream = TcpStream::connect(addr).await.map_err(what())?;
    let length = body.len();
    let token = token.map_or(String::new(), |token| format!("Authorization: {token}\r\n"));
    let request = format!(
        "{asked} HTTP/1.0\r\nHost: {addr}\r\n{token}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.map_err(what())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(what())?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split_whitespace().nth(1).unwrap_or_default();
    match answer.split_once("\r\n\r\n") {
        Some((_, body)) if status == "200" => Ok(body.to_owned()),
        _ => Err(Error::answer(asked, answer)),
    }
}
