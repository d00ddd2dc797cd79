//! What the address of a store says of one of its servers, and what every one of them takes for a lease.

use std::time::Duration;

use leasehold_core::support::{Address, Host};
use leasehold_core::{Error, ErrorKind, MAX_TTL, Result};
#[cfg(feature = "tls")]
use leasehold_tls::Tls;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};

/// One server: the client crate's description of it, and how it is verified, if by TLS.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its address, credentials and database.
    pub info: ConnectionInfo,
    /// Over TLS, with its address as the client crate describes a plain one.
    #[cfg(feature = "tls")]
    pub tls: Option<Tls>,
}

impl From<ConnectionInfo> for Server {
    fn from(info: ConnectionInfo) -> Server {
        Server {
            info,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// All servers of an address. Takes the words of TLS out of it.
pub fn servers(address: &mut Address) -> Result<Vec<Server>> {
    #[cfg(feature = "tls")]
    let tls = Tls::from_address(address)?;
    #[cfg(not(feature = "tls"))]
    if address.tls {
        let what = "TLS needs the feature \"tls\", which is off in this build";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    let infos = address.hosts.iter().map(|host| server(address, host)).collect::<Result<Vec<_>>>()?;
    let server = |info| Server {
        info,
        #[cfg(feature = "tls")]
        tls: tls.clone(),
    };
    Ok(infos.into_iter().map(server).collect())
}

/// One of an address's servers, with its credentials and its database.
fn server(address: &Address, host: &Host) -> Result<ConnectionInfo> {
    let mut settings = RedisConnectionInfo::default();
    if !address.path.is_empty() {
        let Ok(db @ 0..) = address.path.parse() else {
            return Err(Error::new(ErrorKind::Invalid, "host/db: db is the number of a database"));
        };
        settings = settings.set_db(db);
    }
    if let Some(user) = &address.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &address.password {
        settings = settings.set_password(password);
    }
    let info = ConnectionAddr::Tcp(host.name.clone(), host.port)
        .into_connection_info()
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("redis: {}", e.category())))?;
    Ok(info.set_redis_settings(settings))
}

/// The lease in whole milliseconds, rounded up; at least this long.
pub fn granted_ttl(ttl: Duration, least: Duration) -> Duration {
    let ms = ttl.clamp(least, MAX_TTL).as_nanos().div_ceil(1_000_000);
    Duration::from_millis(ms as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up() {
        let least = Duration::from_millis(100);
        assert_eq!(granted_ttl(Duration::from_nanos(1), least), least);
        assert_eq!(granted_ttl(Duration::from_nanos(100_000_001), least), Duration::from_millis(101));
        assert_eq!(granted_ttl(Duration::MAX, least), MAX_TTL);
    }
}
