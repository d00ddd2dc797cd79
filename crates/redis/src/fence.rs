//! Writes to Redis that a stale holder cannot make: with the hold as their condition (`still_holds`), or with its token in the
//! data (`write_fenced`).

use std::fmt;
use std::sync::LazyLock;

use crate::link::of_request;
use leasehold_core::{Error, ErrorKind, Fenced, FencingToken, Loss, Result};
use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs, Value, from_redis_value};

use crate::Redis;

/// The condition, which stands before the user's script.
const CHECK: &str = include_str!("scripts/still_holds.lua");

/// Compares decimal numbers as texts, by length first: a double would be too coarse for some stores' tokens.
static WRITE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local mine, seen = ARGV[1], redis.call('HGET', KEYS[1], 'token') or ''
        if #mine < #seen or #mine == #seen and mine < seen then return seen end
        redis.call('HSET', KEYS[1], 'token', mine, 'value', ARGV[2])
        return false",
    )
});

/// A condition for writes of your own to the same Redis: *this hold still stands*. [`Redis::still_holds`] makes it.
///
/// It compares the lock's full name, the claim and its token, so no other hold of that name meets
/// it: no earlier or later one, and none of another namespace.
#[derive(Clone)]
pub struct StillHolds {
    keys: Vec<String>,
    id: String,
    token: FencingToken,
}

impl fmt::Debug for StillHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StillHolds({:?}, token {})", self.keys[0], self.token)
    }
}

impl Redis {
    /// A condition for writes of your own to the same Redis: *`by` still holds*. The server checks it together with the write, in
    /// one step, so a holder that was paused, evicted or cut off past its lease writes nothing, without a token in your data.
    ///
    /// A hold of a `fast` lock is refused: a script that arrives late would run in the turn of the
    /// next task. The condition is only as good as the server's memory of the lock: after an
    /// asynchronous failover the server knows what the replica knew, and a forgotten hold writes
    /// nothing. Redis does the comparison, so the lock and your data have to be on one server and
    /// in one database.
    ///
    /// **Inside of `MULTI` the check stops only its own command**: Redis runs the other commands of the transaction all the same.
    /// Put all writes that depend on the lock into the one script.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use leasehold_core::Store;
    /// use leasehold_redis::{Redis, client::Client};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let locks = Arc::new(Redis::connect("redis://127.0.0.1/").await?);
    /// let store = Store::new(locks.clone());
    /// let mut connection = Client::open("redis://127.0.0.1/")?.get_multiplexed_async_connection().await?;
    /// let guard = store.lock("orders/42").acquire().await?;
    /// let write = "redis.call('SET', KEYS[1], ARGV[1]) return 'written'";
    /// let written: Option<String> =
    ///     locks.still_holds(&guard)?.then(&mut connection, write, &["orders/42/state"], &["paid"]).await?;
    /// if written.is_none() {
    ///     // It was not ours any more, and nothing was written.
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if this client does not know the hold: it has ended, is another client's, or another
    /// store's. [`Unsupported`](ErrorKind::Unsupported) for a `fast` lock, over a bridge, and without scripts. No request is sent.
    pub fn still_holds(&self, by: &(impl Fenced + ?Sized)) -> Result<StillHolds> {
        self.uses_scripts()?;
        by.check_condition()?;
        let lock = self.names.lock(by.full_name());
        // The entry of a turn that is over belongs to the next turn: only `is_valid` tells them
        // apart.
        let place = by.place().filter(|_| by.is_valid());
        let id = place.and_then(|place| self.inbox.id_at(&place, &lock));
        let Some(id) = id else {
            let what = "this Redis client holds nothing with this name and token";
            let lost = Error::lost(by.loss().unwrap_or(Loss::Gone));
            return Err(lost.in_context(what).with_name(by.full_name()));
        };
        let keys = self.names.keys(by.full_name());
        Ok(StillHolds {
            keys,
            id: id.to_string(),
            token: by.fencing_token(),
        })
    }
}

impl StillHolds {
    /// Runs a Lua script of yours over your own connection if the hold stands, in one step with the
    /// check. Returns the script's value, or `None` if the hold has ended, in which case nothing
    /// ran.
    ///
    /// The script sees its `KEYS` and `ARGV` as always. Give a value back (`return 1`), also where you need none.
    ///
    /// # Errors
    ///
    /// `Invalid` if the script itself fails, with the server's reason; `Denied`, `Unavailable` and so on as of every request.
    /// [`Ambiguous`](ErrorKind::Ambiguous) means that it may have run.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it completes, it may have run or not, and runs once at most.
    pub async fn then<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        script: &str,
        keys: &[impl ToRedisArgs + Sync],
        args: &[impl ToRedisArgs + Sync],
    ) -> Result<Option<T>> {
        let script = Script::new(&format!("{CHECK}{script}\nend\nreturn {{ 1, write() }}"));
        let mut run = script.prepare_invoke();
        for key in keys {
            run.key(key);
        }
        for arg in args {
            run.arg(arg);
        }
        run.key(&self.keys).arg(&self.id).arg(self.token.get());
        let answer: Vec<Value> = run
            .invoke_async(connection)
            .await
            .map_err(|e| of_script(&e))?;
        let invalid = |what: &str| {
            Error::new(
                ErrorKind::Invalid,
                format!("the script ran, and returned {what}"),
            )
        };
        match <[Value; 2]>::try_from(answer) {
            Ok([_, answer]) => from_redis_value(answer)
                .map(Some)
                .map_err(|_| invalid("another type than asked for")),
            Err(short) if short.first() == Some(&Value::Int(0)) => Ok(None),
            Err(_) => Err(invalid("nothing: end it with `return 1`")),
        }
    }
}

/// Turns the error of a user's script into ours. The reason for its failure is for its author; the
/// text after `with args` may be ours and is cut off.
fn of_script(e: &RedisError) -> Error {
    let text = e.to_string();
    let reason = text.split("with args").next().unwrap_or_default();
    let refused = of_request(e);
    let its_own = ["Error compiling script", "user_script:"]
        .iter()
        .any(|said| reason.contains(said));
    match refused.kind() {
        ErrorKind::Internal | ErrorKind::Corrupt if its_own => {
            Error::new(ErrorKind::Invalid, format!("the script failed: {reason}"))
        }
        _ => refused,
    }
}

/// Writes `value` to the hash `key`, unless a holder with a greater token than this has written to
/// it already. The server does this in one step, over the caller's own connection.
///
/// The hash has two fields: `value` is the value that was written last, for `HGET key value`, and
/// `token` the greatest token seen. One key serves one lock, of any store: tokens of different names
/// do not compare. Like every fence it is only as good as its memory. It forgets the token if the key
/// is deleted, expires or is evicted while an old holder lives; after an asynchronous failover it
/// knows what the replica knew.
///
/// `Err` of kind [`Stale`](ErrorKind::Stale): a later holder has written, and nothing was written now. Any other error is the
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
    let seen: Option<String> = write
        .invoke_async(connection)
        .await
        .map_err(|e| of_request(&e))?;
    match seen {
        None => Ok(()),
        Some(seen) => Err(Error::new(
            ErrorKind::Stale,
            format!("token {token} is stale: {seen} has written already"),
        )),
    }
}
