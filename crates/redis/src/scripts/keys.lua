-- What every script begins with: the keys of one name, and what the fast paths need.
--
-- KEYS: 1 the lock    string. Held exclusively: the holder's entry. Held by sharers: `kind taken of`. It expires with the
--                     last of them, and `SET lock x NX PX ttl` of other tools fails meanwhile. Any other value is theirs.
--       2 {lock}:h    sorted set, sharers: ids by deadline
--       3 {lock}:f    string, the greatest token given out              (it outlives the lock by two hours)
--       4 {lock}:q    sorted set, waiters: ids by ticket
--       5 {lock}:w    hash, waiters and sharers: id -> entry
-- An entry: id token turns since attempt ttl deadline kind n of channel label, with token 0 while it waits.
-- A claim takes n of `of` permits of its kind; one exclusive or shared claim takes 1, of 1 or of very many.
-- Times are milliseconds of the server's clock.
local LOCK, SHARERS, FENCE, QUEUE, ENTRIES = unpack(KEYS)

-- A value of another type reads as none: see commit.
local found = redis.call('MGET', LOCK, FENCE)
local last = tonumber(found[2]) or 0
-- Whether there are waiters or sharers.
local has_entries = redis.call('EXISTS', ENTRIES) == 1

