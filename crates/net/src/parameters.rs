//! The parameters of all stores' URLs, and the part of each that may be shown.
//!
//! A program under a lock gets the URL as it is shown. A parameter that this list lacks would be
//! missing there, so that a command inside the program uses the store in another way:
//! [`Address::take`] refuses it in a debug build.
//!
//! [`Address::take`]: crate::Address::take

/// The part of a parameter that may be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// All of it. Any text may begin the names of keys.
    All,
    /// A value that cannot be a secret. Otherwise only the name, so that the shown URL is refused:
    /// without the parameter it would name another database, or protect less.
    Value,
    /// The path of a file, which is no secret though its content is one. Otherwise only the name.
    Path,
    /// A value that cannot be a secret. Otherwise nothing: the URL without the parameter names the
    /// same locks.
    IfHarmless,
    /// Nothing: it is a secret, may contain one, or is refused by every store.
    Nothing,
}

/// All parameters, also those of other clients that a store reads, or refuses with what to write
/// instead.
pub const PARAMETERS: [(Shown, &[&str]); 5] = [
    (Shown::All, &["prefix"]),
    (
        Shown::Value,
        &[
            // Several stores.
            "ca",
            "cert",
            "server_name",
            "store",
            "timeout",
            // etcd and ZooKeeper.
            "discover",
            "sasl",
            // Redis.
            "database",
            "db",
            "family",
            "master",
            "masterName",
            "min_replicas",
            "min_replicas_timeout",
            "protocol",
            "scripts",
            "sentinelMasterId",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "ssl_certfile",
            "ssl_check_hostname",
            "virtual_host",
            // PostgreSQL.
            "channel_binding",
            "charset",
            "client_encoding",
            "connect_timeout",
            "connection_limit",
            "connections",
            "dbname",
            "encoding",
            "gssencmode",
            "host",
            "install",
            "keepalives",
            "keepalives_count",
            "keepalives_idle",
            "keepalives_interval",
            "load_balance_hosts",
            "max_protocol_version",
            "min_protocol_version",
            "pgbouncer",
            "pool",
            "pool_max_conns",
            "pool_timeout",
            "port",
            "replication",
            "schema",
            "service",
            "ssl",
            "ssl_max_protocol_version",
            "ssl_min_protocol_version",
            "sslcert",
            "sslcertmode",
            "sslcompression",
            "sslmode",
            "sslnegotiation",
            "sslrootcert",
            "sslsni",
            "target_session_attrs",
            "tcp_user_timeout",
            "uselibpqcompat",
        ],
    ),
    (Shown::Path, &["key", "passfile", "ssl_keyfile", "sslkey"]),
    (
        Shown::IfHarmless,
        &[
            "application_name",
            "fallback_application_name",
            "gssdelegation",
            "gsslib",
            "krbsrvname",
            "prepareThreshold",
            "prepared_statements",
            "serverVersion",
            "statement-cache-capacity",
            "statement_cache_size",
            "supa",
        ],
    ),
    (
        Shown::Nothing,
        &[
            // Credentials.
            "pass",
            "password",
            "sentinel_password",
            "sentinel_user",
            "user",
            "username",
            // A URL with a password, or any setting of the server.
            "listen",
            "options",
            // Refused.
            "clientName",
            "client_name",
            "commandTimeout",
            "connectTimeout",
            "dial_timeout",
            "hostaddr",
            "read_timeout",
            "require_auth",
            "requirepeer",
            "requiressl",
            "skip_verify",
            "socket_connect_timeout",
            "socket_timeout",
            "sslaccept",
            "sslcrl",
            "sslcrldir",
            "sslidentity",
            "sslpassword",
            "tls",
            "write_timeout",
        ],
    ),
];

/// Returns the part of this parameter that may be shown; `None` if no store knows it.
pub fn shown(parameter: &str) -> Option<Shown> {
    let group = PARAMETERS.iter().find(|(_, all)| all.contains(&parameter));
    group.map(|(shown, _)| *shown)
}
