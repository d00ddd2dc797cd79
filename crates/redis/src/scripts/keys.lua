-- What every script begins with: the keys of one name, in this order. All are passed, also those that this run does not need: many
-- servers refuse a key that was not declared. All are on one server.
--
--       the lock      string, the record of the exclusive holder; or `=kind taken of` while sharers hold. It expires with the
--                     lease, or with the last of them, and `SET lock x NX PX ttl` of other tools fails meanwhile. Any other
--                     value is theirs.
--       {lock}:l      hash, the waiters: ticket -> `deadline record` and id -> ticket. `t` is the last ticket, `h` the last that
--                     left from the head, `n` how many wait, `x` until when the hash lives, `p` the number of permits that the
--                     last waiter for permits said, and `f` with a ticket the number of the fire for which that waiter asks, if
--                     its work is to be done once. It goes with the last waiter.
--       {lock}:o      string, there while this name is observed
--       {lock}:s      sorted set, sharers: ids by deadline. It means nothing unless the lock says that sharers hold.
--       {lock}:r      hash, sharers: id -> record. It lives as long as the sorted set.
--       {}:f          string, the fence: the greatest token given out, of all names (it outlives its own value by two hours)
-- A record: flag and id, token kind n of ttl turns attempt since channel label. While it waits the token is its floor, or 0.
-- Flags: `-` no waiter and no observer is there, so a release looks at nothing else; `+` waiters are; `*` observers may be, and
--        waiters; `.` the hold ends by itself, and nothing extends it.
-- A claim takes n of `of` permits of its kind; one exclusive or shared claim takes 1, of 1 or of very many.
-- Times are milliseconds of the server's clock. An attempt is the client's microsecond of a request: of the last one for a place,
-- of the last claim of a hold.
local LOCK, QUEUE, OBSERVED, SHARERS, RECORDS, FENCE = unpack(KEYS)
local call = redis.call
local id, found = ARGV[1], nil

