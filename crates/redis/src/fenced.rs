//! Where the token is spent: a value in Redis that refuses a stale writer.

use std::sync::LazyLock;

use leasehold_core::{Error, ErrorKind, FencingToken, Result};
use leasehold_redis_client::of_request;
use redis::aio::ConnectionLike;
use redis::{Script, ToRedisArgs};

/// Compares decimal numbers as texts, by length first: a double would be too coarse for some stores' tokens.
static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local mine, seen = ARGV[1], redis.call('HGET', KEYS[1], 'token') or ''
        if #mine < #seen or #mine == #seen and mine < seen then return seen end
        redis.call('HSET', KEYS[1], 'token', mine, 'value', ARGV[2])
        return false",
    )
});

/// Writes `value` to the hash `key`, unless somebody with a greater token than this has written to it already; one step of the
/// server, over the caller's own connection.
///
/// The hash has two fields: `value` is what was written last, for `HGET key value`, and `token` the greatest token seen. One
/// key serves one lock, of whatever store: tokens of different names do not compare. As every fence it is only as good as
/// its memory: whoever deletes the key, or lets it expire or be evicted, while an old holder lives makes it forget; after an
/// asynchronous failover it knows what the replica knew.
///
/// `Err` of kind [`Lost`](ErrorKind::Lost): a later holder has written, and nothing was written now. Any other error is the
/// server's; [`Ambiguous`](ErrorKind::Ambiguous) means that it may have been written, and that writing again is harmless.
/// Cancel-safe in the same sense.
///
/// ```no_run
/// # async fn example(guard: leasehold_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold_redis::client::Client::open("redis://127.0.0.1/")?;
/// let mut connection = client.get_multiplexed_async_connection().await?;
/// leasehold_redis::write_fenced(&mut connection, "balance/42", guard.fencing_token(), 1700).await?;
/// # Ok(()) }
/// ```
pub async fn write_fenced<K: ToRedisArgs, V: ToRedisArgs>(
    connection: &mut (impl ConnectionLike + Send),
    key: K,
    token: FencingToken,
    value: V,
) -> Result<()> {
    let mut write = WRITE.key(key);
    write.arg(token.get()).arg(value);
    let seen: Option<String> = write.invoke_async(connection).await.map_err(|e| of_request(&e))?;
    match seen {
        None => Ok(()),
        Some(seen) => Err(Error::new(ErrorKind::Lost, format!("token {token} is stale: {seen} has written already"))),
    }
}
