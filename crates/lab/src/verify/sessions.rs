//! Which timeouts a ZooKeeper server allows a session, asked as any client may: by sessions that want the shortest and the longest
//! there are. Few servers answer the word `conf`, and all answer this.

use std::ops::RangeInclusive;
use std::time::Duration;

use leasehold_net::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ErrorKind, Result};

use crate::verify::findings::{Finding, warning};
use crate::verify::tcp::Servers;

/// A new session is written to the disks of most servers: a busy ensemble takes seconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Ends a session: a request without a body, of any number.
const CLOSE: [u8; 12] = [0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5];

/// In milliseconds.
pub(crate) type Limits = RangeInclusive<i32>;

/// This server's shortest and longest session; `None` if it does not take any.
pub(crate) async fn limits(servers: &Servers, host: &Host) -> Option<Limits> {
    let both =
        async { Ok(agreed(servers, host, 1).await?..=agreed(servers, host, i32::MAX).await?) };
    tokio::time::timeout(TIMEOUT, both)
        .await
        .ok()
        .and_then(Result::ok)
        .filter(|limits| *limits.start() > 0)
}

/// The timeout of a new session that asks for this one. The session is closed.
async fn agreed(servers: &Servers, host: &Host, timeout: i32) -> Result<i32> {
    let mut stream = servers.connect(host).await.ok_or(ErrorKind::NotConnected)?;
    stream.write_all(&connect_request(timeout)).await?;
    let _length = stream.read_i32().await?;
    let _version = stream.read_i32().await?;
    let agreed = stream.read_i32().await?;
    stream.write_all(&CLOSE).await?;
    let _ = stream.read_to_end(&mut Vec::new()).await; // until it is closed there, too
    Ok(agreed)
}

/// Its length, the protocol's version, the last transaction seen, the timeout, the session and its password (none yet), and
/// whether a server without a quorum is welcome.
fn connect_request(timeout: i32) -> Vec<u8> {
    let password = [0; 16];
    let body = [
        &[0; 12][..],
        &timeout.to_be_bytes(),
        &[0; 8],
        &16i32.to_be_bytes(),
        &password,
        &[0],
    ]
    .concat();
    [&(body.len() as i32).to_be_bytes()[..], &body].concat()
}

/// The finding that members of one ensemble allow different timeouts.
pub(crate) fn differing(members: &[(String, Limits)]) -> Option<Finding> {
    let (_, first) = members.first()?;
    if members.iter().all(|(_, limits)| limits == first) {
        return None;
    }
    let each = members
        .iter()
        .map(|(host, limits)| format!("{host} {} to {} ms", limits.start(), limits.end()));
    let text = format!(
        "The servers allow sessions of different lengths: {}. A client that has to change to one with less is promised less from \
         then on, so \"Loss is early\" comes earlier than its ttl says: a hold can be lost while no server is down for as long as \
         the lease. If such servers share one address, or a limit changes at a restart, Exclusion can fail: two may hold at once. \
         Give all the same tickTime, minSessionTimeout and maxSessionTimeout.",
        each.collect::<Vec<_>>().join(", ")
    );
    Some(warning("session limits", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_alike_or_all_of_them_are_named() {
        let member = |host: &str, limits| (host.to_owned(), limits);
        assert_eq!(differing(&[]), None);
        assert_eq!(differing(&[member("a:1", 4_000..=40_000)]), None);
        assert_eq!(
            differing(&[member("a:1", 4_000..=40_000), member("b:1", 4_000..=40_000)]),
            None
        );
        for other in [4_000..=39_999, 3_999..=40_000] {
            let named = format!(
                "a:1 4000 to 40000 ms, b:1 {} to {} ms",
                other.start(),
                other.end()
            );
            let found = differing(&[member("a:1", 4_000..=40_000), member("b:1", other)]).unwrap();
            assert!(found.text.contains(&named), "{}", found.text);
        }
    }
}
