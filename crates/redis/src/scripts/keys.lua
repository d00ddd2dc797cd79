-- What every script begins with: the keys of one name, and what the shortest ways want to know.
--
-- KEYS: 1 the lock    string. Held exclusively: the holder's entry. Held by sharers: `kind taken of`. It expires with the
--                     last of them, and `SET lock x NX PX ttl` of other tools fails meanwhile. Any other value is theirs.
--       2 {lock}:h    sorted set, who shares: ids by deadline
--       3 {lock}:f    string, the greatest token given out              (see KEEP: it outlives the lock by two hours)
--       4 {lock}:q    sorted set, who waits: ids by ticket
--       5 {lock}:w    hash, who waits or shares: id -> entry
-- An entry: id token turns since attempt ttl deadline kind n of channel label, with token 0 while it waits.
-- A claim takes n of `of` permits of its kind; one exclusive or shared claim takes 1, of 1 or of very many.
-- Times are milliseconds of the server's clock.
local LOCK, SHARERS, FENCE, LINE, ENTRIES = unpack(KEYS)

-- A value of another type reads as none: see commit.
local found = redis.call('MGET', LOCK, FENCE)
local last = tonumber(found[2]) or 0
-- Whether anybody waits or shares: on the shortest way nobody does.
local crowd = redis.call('EXISTS', ENTRIES) == 1

