//! Asks a Redis about itself through its own client, since it may need a password, and removes the keys of the namespace.

use std::time::Duration;

use leasehold::redis::client::aio::MultiplexedConnection;
use leasehold::redis::client::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult, cmd};
use leasehold_net::Host;

use crate::verify::findings::{self, Finding};
use crate::verify::tcp::Servers;

/// The time-out of connecting and of each answer. The client crate's own limits, a second and half a second, are short for a busy server.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Its version, and what its `INFO` means.
pub(crate) async fn inspect(servers: &Servers, host: &Host) -> Option<(String, Vec<Finding>)> {
    let mut connection = connect(servers, host).await?;
    let info: String = cmd("INFO").query_async(&mut connection).await.ok()?;
    let version = findings::info_field(&info, "redis_version")
        .unwrap_or("unknown")
        .to_owned();
    Some((version, findings::of_redis(&info)))
}

/// Removes every key that has this text in it, from each server of the URL.
pub(crate) async fn sweep(url: &str, part: &str) {
    let Some(servers) = Servers::of_redis(url).await else {
        return;
    };
    for host in &servers.address.hosts {
        if let Some(mut connection) = connect(&servers, host).await {
            let _ = tokio::time::timeout(TIMEOUT * 10, sweep_one(&mut connection, part)).await;
        }
    }
}

async fn sweep_one(connection: &mut MultiplexedConnection, part: &str) -> RedisResult<()> {
    let mut cursor = 0u64;
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("*{part}*"))
            .arg("COUNT")
            .arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(connection).await?;
        if !keys.is_empty() {
            cmd("DEL").arg(keys).query_async::<u64>(connection).await?;
        }
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// By a connection of its kind, as the user of the URL.
pub(crate) async fn connect(servers: &Servers, host: &Host) -> Option<MultiplexedConnection> {
    let address = &servers.address;
    let mut settings =
        RedisConnectionInfo::default().set_db(address.path.parse().unwrap_or_default());
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    let limits = AsyncConnectionConfig::new().set_response_timeout(Some(TIMEOUT));
    let connecting = async {
        let stream = servers.connect(host).await?;
        let opening = MultiplexedConnection::new_with_config(&settings, stream, limits);
        let (connection, driver) = opening.await.ok()?;
        tokio::spawn(driver);
        Some(connection)
    };
    tokio::time::timeout(TIMEOUT, connecting).await.ok()?
}
